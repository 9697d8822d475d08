"""Keyed tables for people: what a run holds. Nothing is locked, and nothing is changed.

A run may go on meanwhile, commit and delete old blocks: what vanished while it was read is looked for in the newest
manifest again. What is given is one epoch's state, whole.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from headrace.driver import stored_checks
from headrace.errors import CorruptState, QueryError, StateError
from headrace.kernels.stateless.steps import order_rows
from headrace.state import state_tables
from headrace.state.blocks import BlockReader
from headrace.state.manifest import Manifest, TableState
from headrace.state.store import StateStore
from headrace.support.paths import given_path
from headrace.telemetry.table_sizes import visible_tables
from headrace.tools import plan_file

SUBSTREAM_NAME = "substream"
MOST_MANIFESTS_TRIED = 20  # manifests that are tried


def read_state(checkpoint: str | os.PathLike[str], operator: str, table: str) -> pa.Table:
    """The table's columns and `substream` (int64; `__substream`, if the table has a column of that name) behind them."""
    folder = given_path(checkpoint, "the checkpoint")
    plan_file.require_plan(folder)
    return _patiently(folder, operator, table, MOST_MANIFESTS_TRIED)


def _patiently(folder: Path, operator: str, table: str, attempts: int, seen: int = -1) -> pa.Table:
    with StateStore.open(folder / "state", read_only=True) as store:
        last, reader = store.last, BlockReader(store.storage)
    if last is None:
        raise StateError(f"{str(folder)!r} holds no state yet: its run has not finished an epoch")
    stored_checks.check_manifest(last)
    found = _table(last, operator, table)
    try:
        return _in_order(found, state_tables.read_rows(reader, found, None, f"table {table!r} of {operator}"))
    except CorruptState:
        if attempts == 1 or last.number == seen:  # nothing was committed since: it is not clean-up that took a block
            raise
    return _patiently(folder, operator, table, attempts - 1, last.number)


def _table(last: Manifest, operator: str, table: str) -> TableState:
    having = {
        name: sorted(visible_tables(state.tables)) for name, state in sorted(last.operators.items()) if state.tables
    }
    if operator not in having:
        known = ", ".join(having) or "none"
        raise QueryError(f"no operator {operator!r} of this run has tables; those that have some: {known}")
    if table not in last.operators[operator].tables:
        raise QueryError(f"{operator} has no table {table!r}; it has {', '.join(having[operator])}")
    return last.operators[operator].tables[table]


def _in_order(state: TableState, rows: pa.Table) -> pa.Table:
    last = state_tables.SUBSTREAM_COLUMN if SUBSTREAM_NAME in state.columns.names else SUBSTREAM_NAME
    schema = state.columns.append(pa.field(last, pa.int64()))
    rows = rows.select([*state.columns.names, state_tables.SUBSTREAM_COLUMN]).rename_columns(schema.names).cast(schema)
    return order_rows(rows, (last, *state.key))
