"""Reading of a run's state tables, without locks or changes.

The run may be active, commit epochs and delete old blocks. If a block disappears during the read, the read is repeated
with the newest manifest. The result is the complete state of one epoch.
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
MOST_MANIFESTS_TRIED = 20  # attempts with newer manifests


def read_state(checkpoint: str | os.PathLike[str], operator: str, table: str) -> pa.Table:
    """Return the table's columns, followed by `substream` (int64; `__substream` if the table has a column of that
    name).
    """
    folder = given_path(checkpoint, "the checkpoint")
    plan_file.require_plan(folder)
    return _patiently(folder, operator, table, MOST_MANIFESTS_TRIED)


def _patiently(folder: Path, operator: str, table: str, attempts: int, seen: int = -1) -> pa.Table:
    with StateStore.open(folder / "state", read_only=True) as store:
        last, reader = store.last, BlockReader(store.storage)
    if last is None:
        raise StateError(f"{str(folder)!r} contains no state yet, because its run has not finished an epoch")
    stored_checks.check_manifest(last)
    found = _table(last, operator, table)
    try:
        return _in_order(found, state_tables.read_rows(reader, found, None, f"table {table!r} of {operator}"))
    except CorruptState:
        if attempts == 1 or last.number == seen:  # nothing was committed meanwhile, so cleanup did not remove the block
            raise
    return _patiently(folder, operator, table, attempts - 1, last.number)


def _table(last: Manifest, operator: str, table: str) -> TableState:
    having = {
        name: sorted(visible_tables(state.tables)) for name, state in sorted(last.operators.items()) if state.tables
    }
    if operator not in having:
        known = ", ".join(having) or "none"
        raise QueryError(f"this run has no operator {operator!r} with tables; operators with tables: {known}")
    if table not in last.operators[operator].tables:
        raise QueryError(f"{operator} has no table {table!r}; its tables are {', '.join(having[operator])}")
    return last.operators[operator].tables[table]


def _in_order(state: TableState, rows: pa.Table) -> pa.Table:
    last = state_tables.SUBSTREAM_COLUMN if SUBSTREAM_NAME in state.columns.names else SUBSTREAM_NAME
    schema = state.columns.append(pa.field(last, pa.int64()))
    rows = rows.select([*state.columns.names, state_tables.SUBSTREAM_COLUMN]).rename_columns(schema.names).cast(schema)
    return order_rows(rows, (last, *state.key))
