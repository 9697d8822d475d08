"""PostgreSQL through ADBC, which writes Arrow tables with COPY.

The URL is in libpq's format and may contain a password, so only the ADBC library receives it (`postgres_url`). Secrets
are removed from quoted errors of that library.

The sink compares types at every delivery, under a lock: COPY writes the bytes of a value unchanged, so a column whose
type changed after the start would receive a different value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.sinks.databases.base import (
    TABLE,
    DatabaseColumn,
    Rows,
    TableName,
    altered_error,
    insertion,
    listed,
    refusal,
    upsert,
    url_text,
)
from headrace.sinks.databases.postgres_url import parse_url
from headrace.sinks.patience import Unreachable
from headrace.support.extras import import_extra
from headrace.support.secrets import SealedSettings, Secret

WITHOUT_END = {  # seconds or milliseconds, so that a server that vanishes silently is noticed
    "connect_timeout": "10",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
SETTINGS = (
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",  # statements under a lock see the current state of the table
    # a reported commit must survive a crash of the server, because it is not delivered again
    "SELECT set_config('lock_timeout', '30s', true), set_config('statement_timeout', '0', true), set_config("
    "'synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true)",
)
UNREACHABLE = re.compile(
    r"08...|53...|57P0[1-5]|55P03|40001|40P01|25006"
)  # connection lost, too many connections, shutdown, lock timeout, conflict, standby
INCOMING_ROWS = "headrace_rows"  # temporary table for rows that are merged into a table with a key

_TYPES: list[tuple[Any, str]] = [
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "smallint"),
    (pa.types.is_uint8, "smallint"),
    (pa.types.is_int16, "smallint"),
    (pa.types.is_uint16, "integer"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_uint32, "bigint"),
    (pa.types.is_int64, "bigint"),
    (pa.types.is_float32, "real"),
    (pa.types.is_float64, "double precision"),
    (pa.types.is_decimal128, "numeric"),
    (pa.types.is_string, "text"),
    (pa.types.is_binary, "bytea"),
    (pa.types.is_date32, "date"),
    (pa.types.is_time64, "time without time zone"),
]
_WIDER = {  # wider types that also fit, with the Arrow type that is sent
    "smallint": {"integer": pa.int32(), "bigint": pa.int64()},
    "integer": {"bigint": pa.int64()},
    "real": {"double precision": pa.float64()},
    "text": {"character varying": pa.string()},
}
_KINDS = {  # a foreign table is committed by another server, so rows and epoch would not be in one transaction
    "r": TABLE,
    "p": TABLE,
    "v": "view",
    "m": "materialized view",
    "f": "foreign table",
}
_SENT = {"integer": pa.int32(), "bigint": pa.int64(), "double precision": pa.float64()}
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
# matches the address in: server at "host" (10.0.0.1), port 5432
_FOUND = re.compile(r'" \([0-9A-Fa-f.:%]+\)(?=, port )')
_VARYING = re.compile(r"character varying\(\d+\)")


class PostgresDatabase:
    """A PostgreSQL database, with one connection that is opened again after a failure."""

    name = "PostgreSQL"

    def __init__(self, url: str, shown: Secret | None = None) -> None:
        self._driver = import_extra("adbc_driver_postgresql.dbapi", "postgres", "hr.sinks.database('postgresql://...')")
        found = parse_url(url)
        self._url = found.with_parameters(WITHOUT_END)
        self.shown: str | Secret = shown or found.shown
        self._hidden = SealedSettings(None, found.everything if shown else found.secrets, url_text(self.shown))
        self._connection: Any = None

    def type_of(self, kind: pa.DataType) -> str | None:
        if pa.types.is_timestamp(kind):
            return f"timestamp {'with' if kind.tz else 'without'} time zone"
        if pa.types.is_list(kind):  # PostgreSQL cannot store lists of lists of different lengths
            inside = None if pa.types.is_nested(kind.value_type) else self.type_of(kind.value_type)
            return None if inside in (None, "numeric") else f"{inside}[]"
        return next((name for check, name in _TYPES if check(kind)), None)

    def takes(self, wanted: str, found: str, kind: pa.DataType) -> bool:
        if found == wanted or found in _WIDER.get(wanted, ()):
            return True
        if limited := _NUMERIC.fullmatch(found):  # fewer decimal places would round values
            digits, places = int(limited[1]), int(limited[2])
            return wanted == "numeric" and places >= kind.scale and digits - places >= kind.precision - kind.scale
        # text that is too long causes an error and is not truncated
        return wanted == "text" and _VARYING.fullmatch(found) is not None

    @contextmanager
    def transaction(self) -> Iterator[_PostgresTransaction]:
        with self._named_errors():
            if self._connection is None:
                self._connection = self._driver.connect(self._url)
            with self._connection.cursor() as cursor:
                transaction = _PostgresTransaction(cursor)
                for setting in SETTINGS:
                    transaction.execute(setting)
                yield transaction
            self._connection.commit()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Roll back after any error, and raise a named error. The connection is kept only if the server still answers."""
        with self._hidden.hiding():
            try:
                yield
            except self._driver.Error as error:
                answers, text = self._rolled_back(), self._describe(error)
                if not answers or UNREACHABLE.fullmatch(error.sqlstate or ""):
                    raise Unreachable(f"{self}: {text}") from None
                raise refusal(self, text) from None
            except BaseException:
                self._rolled_back()
                raise

    def _describe(self, error: Exception) -> str:
        """Return the text of an error. For a secret URL the IP address that libpq found is removed as well."""
        text = " ".join(str(error).split())
        return _FOUND.sub('" (***)', text) if isinstance(self.shown, Secret) else text

    def _rolled_back(self) -> bool:
        """Roll back, and return whether the server answers."""
        if self._connection is None:
            return False
        try:
            self._connection.rollback()
            with self._connection.cursor() as cursor:
                cursor.execute("SELECT 1")
                cursor.fetchall()
            self._connection.rollback()
        except self._driver.Error:
            self.close()
            return False
        return True

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(self._driver.Error):  # the connection is already lost
                connection.close()

    def __str__(self) -> str:
        return url_text(self.shown)

    def __repr__(self) -> str:
        return f"Postgres({self.shown!r})"


class _LockedTable(NamedTuple):
    """A locked table: its schema, its columns, and whether it has triggers."""

    schema: str
    has_triggers: bool  # row triggers that may change or drop rows before they are stored
    columns: list[DatabaseColumn]


class _PostgresTransaction:
    """One transaction of PostgreSQL."""

    def __init__(self, cursor: Any) -> None:
        self.cursor = cursor

    def lock_tables(self, *tables: TableName) -> list[str | None]:
        """Lock tables as an insert does, which prevents changes of their definition, and return their kinds."""
        kind = "(SELECT relkind::text FROM pg_class WHERE oid = to_regclass(${}))"
        asked = ", ".join(kind.format(place) for place in range(1, len(tables) + 1))
        (found,) = self.execute(f"SELECT {asked}", *(table.quoted for table in tables))
        kinds = [each and _KINDS.get(each, "relation of another kind") for each in found]
        if locked := [f"ONLY {table.quoted}" for table, each in zip(tables, kinds, strict=True) if each == TABLE]:
            self.execute(f"LOCK TABLE {', '.join(locked)} IN ROW EXCLUSIVE MODE")
        return kinds

    def columns(self, table: TableName) -> list[DatabaseColumn]:
        return self._described(table).columns

    def _described(self, table: TableName) -> _LockedTable:
        found = self.execute(
            "SELECT n.nspname::text, EXISTS (SELECT FROM pg_trigger t WHERE (t.tgrelid = c.oid OR t.tgrelid IN (SELECT relid"
            " FROM pg_partition_tree(c.oid))) AND NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 3 = 3),"
            " attname::text, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND attidentity = '', attgenerated"
            " <> '' FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid"
            " WHERE c.oid = to_regclass($1) AND c.relkind IN ('r', 'p') AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            table.quoted,
        )
        schema, has_triggers = found[0][:2] if found else ("", False)
        return _LockedTable(schema, has_triggers, [DatabaseColumn(*row[2:]) for row in found])

    def keys(self, table: TableName) -> list[frozenset[str]]:
        found = self.execute(
            "SELECT i.indexrelid::bigint, a.attname::text FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND"
            " a.attnum = ANY(i.indkey) WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indpred IS NULL AND"
            " i.indexprs IS NULL AND i.indimmediate",
            table.quoted,
        )
        keys: dict[int, set[str]] = {}
        for index, name in found:
            keys.setdefault(index, set()).add(name)
        return [frozenset(names) for names in keys.values()]

    def execute(self, statement: str, *values: str | int) -> Rows:
        self.cursor.execute(statement, values or None)
        return list(self.cursor.fetchall()) if self.cursor.description else []

    def insert(self, table: TableName, rows: pa.Table, key: Sequence[str]) -> None:
        """Insert rows. The schema is given explicitly, because COPY uses only the first schema of the search path."""
        held = self._described(table)
        rows, table = _as_held(held.columns, rows), TableName(table.name, held.schema)
        if key or held.has_triggers:
            self._insert(table, rows, key, check=held.has_triggers)
        else:
            self._copy(table, rows)

    def _insert(self, table: TableName, rows: pa.Table, key: Sequence[str], *, check: bool) -> None:
        """Insert through a temporary table. check: compare the stored rows with the given rows."""
        given, names = TableName(INCOMING_ROWS, "pg_temp"), rows.column_names
        self.execute(
            f"CREATE TEMPORARY TABLE {given.quoted} ON COMMIT DROP AS SELECT {listed(names)} FROM {table.quoted} WITH NO DATA"
        )
        self._copy(given, rows)
        source = f"OVERRIDING SYSTEM VALUE SELECT {listed(names)} FROM {given.quoted}"
        statement = upsert(table, source, names, key, touch=check) if key else insertion(table, source, names)
        if not check:
            self.execute(statement)
            return
        ((missing,),) = self.execute(
            f"WITH stored AS ({statement} RETURNING {listed(names)})"
            f" SELECT count(*) FROM (SELECT {listed(names)} FROM {given.quoted} EXCEPT ALL SELECT {listed(names)} FROM stored) AS x"
        )
        if missing:
            raise altered_error(table, rows.num_rows - missing, rows.num_rows)

    def _copy(self, table: TableName, rows: pa.Table) -> None:
        self.cursor.adbc_ingest(table.name, rows, mode="append", db_schema_name=table.schema)


def _as_held(columns: Sequence[DatabaseColumn], rows: pa.Table) -> pa.Table:
    """Cast columns to the types of the table, because COPY does not convert."""
    known = {column.name: _SENT.get(column.type) for column in columns}
    for place, field in enumerate(rows.schema):
        sent = known.get(field.name)
        if sent is not None and sent != field.type:
            rows = rows.set_column(place, field.name, rows.column(place).cast(sent))
    return rows
