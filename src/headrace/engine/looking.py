"""Keyed tables for people: what a run holds, and how large it is. Nothing is locked, and nothing is changed.

A run may go on meanwhile, commit and delete old blocks: what vanished while it was read is looked for in the newest
manifest again. What is given is one epoch's state, whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.engine import plan_file, stored
from headrace.errors import CorruptState, QueryError, StateError
from headrace.kernels.stateless import ordered
from headrace.paths import given_path
from headrace.state import tables
from headrace.state.blocks import BlockReader
from headrace.state.manifest import Manifest, TableState
from headrace.state.store import StateStore
from headrace.types import RESERVED

SUBSTREAM = "substream"
ATTEMPTS = 20  # manifests that are tried
LARGEST = 5  # groups that are named


def read_state(checkpoint: str | os.PathLike[str], operator: str, table: str) -> pa.Table:
    """The table's columns and `substream` (int64; `__substream`, if the table has a column of that name) behind them."""
    folder = given_path(checkpoint, "the checkpoint")
    plan_file.require(folder)
    return _patiently(folder, operator, table, ATTEMPTS)


def _patiently(folder: Path, operator: str, table: str, attempts: int, seen: int = -1) -> pa.Table:
    with StateStore.open(folder / "state", read_only=True) as store:
        last, reader = store.last, BlockReader(store.storage)
    if last is None:
        raise StateError(f"{str(folder)!r} holds no state yet: its run has not finished an epoch")
    stored.check(last)
    found = _table(last, operator, table)
    try:
        return _in_order(found, tables.read(reader, found, None, f"table {table!r} of {operator}"))
    except CorruptState:
        if attempts == 1 or last.number == seen:  # nothing was committed since: it is not clean-up that took a block
            raise
    return _patiently(folder, operator, table, attempts - 1, last.number)


def _table(last: Manifest, operator: str, table: str) -> TableState:
    having = {name: sorted(shown(state.tables)) for name, state in sorted(last.operators.items()) if state.tables}
    if operator not in having:
        known = ", ".join(having) or "none"
        raise QueryError(f"no operator {operator!r} of this run has tables; those that have some: {known}")
    if table not in last.operators[operator].tables:
        raise QueryError(f"{operator} has no table {table!r}; it has {', '.join(having[operator])}")
    return last.operators[operator].tables[table]


def shown(found: Mapping[str, TableState]) -> dict[str, TableState]:
    """Without those that an operator keeps for itself."""
    return {name: table for name, table in found.items() if not name.startswith(RESERVED)}


def _in_order(state: TableState, rows: pa.Table) -> pa.Table:
    last = tables.SUBSTREAM if SUBSTREAM in state.columns.names else SUBSTREAM
    schema = state.columns.append(pa.field(last, pa.int64()))
    rows = rows.select([*state.columns.names, tables.SUBSTREAM]).rename_columns(schema.names).cast(schema)
    return ordered(rows, (last, *state.key))


# --- sizes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableSize:
    rows: int
    bytes: int  # of its blocks: rows that no longer count are in them too
    stored: int  # rows of its blocks
    blocks: int
    largest: tuple[tuple[int, int], ...]  # (group, rows) of the groups with the most rows
    grown: int = 0  # rows, since the manifest that it is compared with
    growing: tuple[tuple[int, int], ...] = ()  # (group, rows more) of the groups that grew most


def sizes(last: Manifest, before: Manifest | None = None) -> dict[str, dict[str, TableSize]]:
    """How large the tables of every operator are, and how they grew since another manifest."""
    found = {}
    for name, operator in last.operators.items():
        known = before.operators[name].tables if before and name in before.operators else {}
        if operator.tables:
            found[name] = {t: table_size(each, known.get(t)) for t, each in shown(operator.tables).items()}
    return found


def table_size(state: TableState, before: TableState | None = None) -> TableSize:
    was = before.rows if before else (0,) * len(state.rows)
    more = [now - then for now, then in zip(state.rows, was, strict=True)]
    return TableSize(
        rows=sum(state.rows),
        bytes=sum(block.bytes for block in state.blocks),
        stored=sum(block.rows for block in state.blocks),
        blocks=len(state.blocks),
        largest=_most(state.rows),
        grown=sum(more),
        growing=_most(more),
    )


def _most(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The places of the largest numbers above zero, largest first."""
    ordered = sorted(((number, -place) for place, number in enumerate(numbers) if number > 0), reverse=True)
    return tuple((-place, number) for number, place in ordered[:LARGEST])
