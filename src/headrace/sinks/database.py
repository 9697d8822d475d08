"""The database sink: writes rows and the number of their epoch in one transaction, and skips epochs that are stored
already.

    headrace_epochs(query, result, target, epoch, rows, times)    one row per result and table: its newest epoch

Invariant: that row and the epoch's rows are committed together. A delivery locks the row first, so of two deliveries of
the same epoch one waits and then finds it stored. After an error during a commit it is unknown whether the commit
succeeded, so the delivery is repeated and checks the row again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import QueryError, QueryTypeError, SinkError
from headrace.sinks.base import Delivery
from headrace.sinks.databases.base import (
    TABLE,
    Database,
    DatabaseColumn,
    TableName,
    Transaction,
    listed,
    quoted,
    wanted_types,
)
from headrace.sinks.databases.duckdb_file import DuckDBDatabase
from headrace.sinks.databases.postgres import PostgresDatabase
from headrace.sinks.databases.sqlite import SQLiteDatabase
from headrace.sinks.epoch_marks import MarkingSink, other_results_error, time_range
from headrace.sinks.patience import Unreachable, WaitLimit
from headrace.support.paths import given_path
from headrace.support.secrets import Secret

EPOCHS_TABLE = "headrace_epochs"
SCHEMES = "postgresql://user@host/database, sqlite:///file.db or duckdb:///file.duckdb"
_URL = re.compile(r"([a-z]+)://(.*)", re.DOTALL)
_FILES: dict[str, type[SQLiteDatabase] | type[DuckDBDatabase]] = {"sqlite": SQLiteDatabase, "duckdb": DuckDBDatabase}


class DatabaseTable(MarkingSink):
    """The database sink. `key`: columns that identify the row that a new row replaces."""

    def __init__(self, database: Database, table: TableName, key: Sequence[str], ordered: bool, seconds: float) -> None:
        self.database, self.table, self.key, self.ordered = database, table, tuple(key), ordered
        self.place, self.patience = f"table {table} of {database}", WaitLimit(f"{database} (table {table})", seconds)
        self._ready: set[str] = set()  # results whose columns have been checked

    # --- the run ---------------------------------------------------------------------------------------------------

    def begin(self, result: str, schema: pa.Schema) -> None:
        """Create the tables, or check that existing ones fit."""
        self.patience.begin()
        self._ready.discard(result)
        try:
            self._prepare(result, schema)
        except Unreachable as error:
            raise SinkError(f"{self.database} cannot be reached: {error}") from None

    def _noted(self, query: str, result: str) -> int | None:
        with self.database.transaction() as transaction:
            found = transaction.execute(
                f"SELECT epoch FROM {self.table.beside(EPOCHS_TABLE).quoted} WHERE query = $1 AND result = $2 AND target = $3",
                query,
                result,
                str(self.table),
            )
        return found[0][0] if found else None

    def hurry(self) -> None:
        self.patience.hurry()

    def close(self) -> None:
        self.database.close()

    # --- one epoch ---------------------------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        rows = last_of_each(delivery.table, self.key) if self.key else delivery.table
        self.patience.wait_for(partial(self._deliver, delivery, rows))

    def _deliver(self, delivery: Delivery, rows: pa.Table) -> None:
        if delivery.result not in self._ready:
            self._prepare(delivery.result, delivery.table.schema)
        with self.database.transaction() as transaction:
            self._demand_tables(transaction, delivery.table.schema)
            if self._claim_epoch(transaction, delivery):
                transaction.insert(self.table, rows, self.key)

    def _claim_epoch(self, transaction: Transaction, delivery: Delivery) -> bool:
        """Write the row of the epoch. Return False if it is stored already; raise if it was stored with other results."""
        name = (delivery.query, delivery.result, str(self.table))
        said = (delivery.epoch, delivery.table.num_rows, time_range(delivery.table))
        epochs = self.table.beside(EPOCHS_TABLE).quoted
        noted = transaction.execute(
            f"INSERT INTO {epochs} AS known (query, result, target, epoch, rows, times) VALUES ($1, $2, $3, $4, $5, $6)"
            " ON CONFLICT (query, result, target) DO UPDATE SET epoch = excluded.epoch, rows = excluded.rows,"
            " times = excluded.times WHERE known.epoch < excluded.epoch RETURNING epoch",
            *name,
            *said,
        )
        if noted:
            return True
        found = transaction.execute(
            f"SELECT epoch, rows, times FROM {epochs} WHERE query = $1 AND result = $2 AND target = $3", *name
        )
        if found != [said]:
            raise other_results_error(self.place, delivery, found[0][0])
        return False

    # --- tables --------------------------------------------------------------------------------------------------------

    def _prepare(self, result: str, schema: pa.Schema) -> None:
        wanted = wanted_types(self.database, schema)
        self._check_key(schema)
        with self.database.transaction() as transaction:
            epochs, table = transaction.lock_tables(self.table.beside(EPOCHS_TABLE), self.table)
            if epochs is None:
                transaction.execute(self._epochs())
            if table is None:
                transaction.execute(self._creating(wanted))
            else:
                self._demand_tables(transaction, schema)
        self._ready.add(result)

    def _demand_tables(self, transaction: Transaction, schema: pa.Schema) -> None:
        """Raise if the tables do not fit. They may have changed since the start; a lock prevents further changes."""
        tables = (self.table.beside(EPOCHS_TABLE), self.table)
        for table, found in zip(tables, transaction.lock_tables(*tables), strict=True):
            if found is None:
                raise self._gone(table)
            if found != TABLE:
                raise QueryError(f"{table} is a {found}; give the name of a table ({self.database})")
        self._demand_fitting(schema, wanted_types(self.database, schema), transaction.columns(self.table))
        self._demand_key(transaction)

    def _gone(self, table: TableName) -> SinkError:
        return SinkError(
            f"table {table} does not exist: it was dropped or renamed after the run started ({self.database}); restore it, or"
            " start again: the table is then created again, and receives the results that have not been delivered yet"
        )

    def _epochs(self) -> str:
        return (
            f"CREATE TABLE {self.table.beside(EPOCHS_TABLE).quoted} (query TEXT NOT NULL, result TEXT NOT NULL, target TEXT NOT"
            " NULL, epoch BIGINT NOT NULL, rows BIGINT NOT NULL, times TEXT NOT NULL, PRIMARY KEY (query, result, target))"
        )

    def _creating(self, wanted: dict[str, str]) -> str:
        columns = [f"{quoted(name)} {kind}{' NOT NULL' * (name in self.key)}" for name, kind in wanted.items()]
        if self.key:
            columns.append(f"PRIMARY KEY ({listed(self.key)})")
        return f"CREATE TABLE {self.table.quoted} ({', '.join(columns)})"

    def _demand_fitting(self, schema: pa.Schema, wanted: dict[str, str], found: Sequence[DatabaseColumn]) -> None:
        known = {column.name: column.type for column in found}
        generated = {column.name for column in found if column.generated}
        for field in schema:
            if field.name not in known:
                msg = f"table {self.table} has no column {field.name!r}; expected {wanted[field.name]}; its columns are {', '.join(known)}"
                raise self._another_schema(msg)
            if field.name in generated:
                msg = f"column {field.name!r} of table {self.table} is generated by the database, so results cannot be stored in it"
                raise self._another_schema(msg)
            if not self.database.takes(wanted[field.name], known[field.name], field.type):
                msg = (
                    f"column {field.name!r} of table {self.table} has the type {known[field.name]}; expected"
                    f" {wanted[field.name] or 'no type'}, for {field.type}"
                )
                raise self._another_schema(msg)
        for column in found:
            if column.needed and column.name not in wanted:
                msg = f"column {column.name!r} of table {self.table} must not be null, but the results have no such column"
                raise self._another_schema(msg)

    def _another_schema(self, what: str) -> QueryError:
        return QueryError(
            f"{what}; cast or rename it in the query, change the table, or use another table ({self.database})"
        )

    def _demand_key(self, transaction: Transaction) -> None:
        if self.key and frozenset(self.key) not in transaction.keys(self.table):
            msg = (
                f"table {self.table} is not unique by {', '.join(self.key)}, so these columns do not identify a row; add a"
                f" primary key or a unique index of exactly these columns ({self.database})"
            )
            raise QueryError(msg)

    def _check_key(self, schema: pa.Schema) -> None:
        for name in self.key:
            if name not in schema.names:
                raise QueryError(f"key: there is no column {name!r}; the results have {', '.join(schema.names)}")
            kind = schema.field(name).type
            if pa.types.is_floating(kind) or pa.types.is_nested(kind):
                msg = f"key: column {name!r} is {kind}, which does not identify rows reliably; use whole numbers, text or times"
                raise QueryTypeError(msg)

    def __repr__(self) -> str:
        key = f", key={list(self.key)!r}" if self.key else ""
        return f"database({self.database.shown!r}, {str(self.table)!r}{key})"


def database_table(
    url: str | Secret, table: str, key: Sequence[str] | None, ordered: bool, seconds: float
) -> DatabaseTable:
    if isinstance(key, str):
        raise QueryTypeError(f"key takes a list of columns, such as [{key!r}]; found {key!r}")
    if key is not None and not key:
        raise QueryError("key=[] names no column; leave out key to append rows")
    if key and not ordered:
        msg = "key=... replaces rows by later ones, so results must be in order; add ordered=True"
        raise QueryError(msg)
    return DatabaseTable(_database(url), _table(table), key or (), ordered, seconds)


def _database(given: str | Secret) -> Database:
    """Return the database of a URL. A secret URL is shown by the name of its variable."""
    url, shown = (given.value, given) if isinstance(given, Secret) else (given, None)
    found = _URL.fullmatch(url) if isinstance(url, str) else None
    if found is None:  # the value may contain a password
        raise QueryTypeError(
            f"database takes the URL of a database as text or as hr.secret(...), such as {SCHEMES}"
            + (f"; {shown!r} contains no such URL" if shown else "")
        )
    scheme, rest = found.groups()
    if scheme in ("postgresql", "postgres"):
        return PostgresDatabase(url, shown)
    if scheme not in _FILES:
        raise QueryError(f"database has an unknown scheme {scheme!r}; expected {SCHEMES}")
    if not rest.startswith("/") or not rest[1:]:
        raise QueryError(
            f"the URL names no file; give {scheme}:///folder/file (relative to this folder) or {scheme}:////folder/file (absolute)"
        )
    if "?" in rest:  # the rest may be a password
        raise QueryError(
            f"the URL of a file takes no parameters; remove the ? and everything after it in {scheme}:///..."
        )
    path = given_path(rest[1:], "the database").absolute()
    if not path.parent.is_dir() or path.is_dir():
        raise QueryError(
            f"the database cannot be at {shown or str(path)!r}: its folder does not exist, or the path is a folder"
        )
    return _FILES[scheme](Path(path), shown)


def _table(name: str) -> TableName:
    parts = name.split(".") if isinstance(name, str) else []
    if len(parts) not in (1, 2) or not all(part and part.isprintable() for part in parts):
        raise QueryError(f"database takes the name of a table, as table or schema.table; found {name!r}")
    if parts[-1] == EPOCHS_TABLE:
        raise QueryError(
            f"{EPOCHS_TABLE} is the table in which headrace records the epochs of other tables; use another table"
        )
    return TableName(parts[-1], parts[0] if len(parts) == 2 else None)


def last_of_each(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last row of each key, in order. Raise if a key is null."""
    for name in key:
        if table.column(name).null_count:
            raise SinkError(f"key column {name!r} is null in a result; leave such results out in the query")
    place = "__place"
    numbered = table.select(list(key)).append_column(place, pa.array(range(table.num_rows), pa.int64()))
    last = numbered.group_by(list(key)).aggregate([(place, "max")]).column(f"{place}_max")
    return table.take(last.take(pc.sort_indices(last)))
