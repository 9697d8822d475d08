"""PostgreSQL through ADBC: tables of Arrow go in by COPY.

The URL is libpq's, and may hold a password: it is handed to the driver and to nobody else. Errors of the driver are told
in its words without it, and never carried along.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import pyarrow as pa

from headrace.errors import QueryError, SinkError
from headrace.sinks.databases.base import Column, Rows, Table, listed, upsert
from headrace.sinks.extras import library
from headrace.sinks.secrets import longest_first, without
from headrace.sinks.waiting import Away

WITHOUT_END = {  # a server that vanished without a word is noticed, in seconds or milliseconds
    "connect_timeout": "10",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
SETTINGS = (
    "SET LOCAL lock_timeout = '30s'",
    "SET LOCAL statement_timeout = 0",
    # what is told to be committed must not be lost by a crash of the server: nobody would deliver it again
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'",
)
AWAY = re.compile(
    r"08...|53...|57P0[1-5]|55P03|40001|40P01|25006"
)  # gone, full, shut down, locked, a conflict, a standby
SECRET = {"password", "sslpassword", "passfile"}
GIVEN = "headrace_rows"  # rows on their way to a table with a key

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
_WIDER = {  # types that hold it too, and as what it is sent to them
    "smallint": {"integer": pa.int32(), "bigint": pa.int64()},
    "integer": {"bigint": pa.int64()},
    "real": {"double precision": pa.float64()},
    "text": {"character varying": pa.string()},
}
_SENT = {"integer": pa.int32(), "bigint": pa.int64(), "double precision": pa.float64()}
_BROKEN = re.compile(r"%(?![0-9A-Fa-f]{2})|[\s\x00-\x1f]")  # what libpq would name in an error
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
_VARYING = re.compile(r"character varying\(\d+\)")


class Postgres:
    name = "PostgreSQL"

    def __init__(self, url: str) -> None:
        self._driver = library("adbc_driver_postgresql.dbapi", "postgres", "hr.sinks.database('postgresql://...')")
        self._url, self._shown, self._secrets = _taken_apart(url)
        self._connection: Any = None

    def type_of(self, kind: pa.DataType) -> str | None:
        if pa.types.is_timestamp(kind):
            return f"timestamp {'with' if kind.tz else 'without'} time zone"
        if pa.types.is_list(kind):  # of lists: PostgreSQL has none whose parts differ in length
            inside = None if pa.types.is_nested(kind.value_type) else self.type_of(kind.value_type)
            return None if inside in (None, "numeric") else f"{inside}[]"
        return next((name for check, name in _TYPES if check(kind)), None)

    def takes(self, wanted: str, found: str, kind: pa.DataType) -> bool:
        if found == wanted or found in _WIDER.get(wanted, ()):
            return True
        if limited := _NUMERIC.fullmatch(found):  # one with fewer places would be rounded
            digits, places = int(limited[1]), int(limited[2])
            return wanted == "numeric" and places >= kind.scale and digits - places >= kind.precision - kind.scale
        return wanted == "text" and _VARYING.fullmatch(found) is not None  # too long a text is an error, not cut

    @contextmanager
    def transaction(self) -> Iterator[_Session]:
        with self._in_words():
            if self._connection is None:
                self._connection = self._driver.connect(self._url)
            with self._connection.cursor() as cursor:
                session = _Session(cursor)
                for setting in SETTINGS:
                    session.execute(setting)
                yield session
            self._connection.commit()

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Whatever goes wrong ends the transaction; the connection stays only if it still answers."""
        try:
            yield
        except self._driver.Error as error:
            answers = self._rolled_back()
            text = without(self._secrets, f"{self._shown}: {str(error).strip()}")
            if not answers or AWAY.fullmatch(error.sqlstate or ""):
                raise Away(text) from None
            raise SinkError(text) from None
        except BaseException:
            self._rolled_back()
            raise

    def _rolled_back(self) -> bool:
        """Whether the server has answered."""
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
            with suppress(self._driver.Error):  # it was gone
                connection.close()

    def __str__(self) -> str:
        return self._shown

    def __repr__(self) -> str:
        return f"Postgres({self._shown!r})"


class _Session:
    def __init__(self, cursor: Any) -> None:
        self.cursor = cursor

    def columns(self, table: Table) -> list[Column]:
        found = self.execute(
            "SELECT attname::text, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND attidentity = ''"
            " FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            table.quoted,
        )
        return [Column(*row) for row in found]

    def keys(self, table: Table) -> list[frozenset[str]]:
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

    def insert(self, table: Table, rows: pa.Table, key: Sequence[str]) -> None:
        rows, table = self._as_held(table, rows), self._found(table)
        if not key:
            self._copy(table, rows)
            return
        given, names = Table(GIVEN, "pg_temp"), rows.column_names
        self.execute(
            f"CREATE TEMPORARY TABLE {given.quoted} ON COMMIT DROP AS SELECT {listed(names)} FROM {table.quoted} WITH NO DATA"
        )
        self._copy(given, rows)
        self.execute(upsert(table, f"SELECT {listed(names)} FROM {given.quoted}", names, key))

    def _as_held(self, table: Table, rows: pa.Table) -> pa.Table:
        """COPY takes exactly the type of the column."""
        known = {column.name: _SENT.get(column.type) for column in self.columns(table)}
        for place, field in enumerate(rows.schema):
            sent = known.get(field.name)
            if sent is not None and sent != field.type:
                rows = rows.set_column(place, field.name, rows.column(place).cast(sent))
        return rows

    def _found(self, table: Table) -> Table:
        """With the schema it is in: COPY looks in the first of the search path, SQL in all."""
        schema = "SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)"
        return Table(table.name, self.execute(schema, table.quoted)[0][0])

    def _copy(self, table: Table, rows: pa.Table) -> None:
        self.cursor.adbc_ingest(table.name, rows, mode="append", db_schema_name=table.schema)


def _taken_apart(url: str) -> tuple[str, str, list[str]]:
    """The URL with time limits, the one for people, and what nobody may see."""
    try:
        parts = urlsplit(url)
        sound = not _BROKEN.search(url) and (parts.port is None or parts.port > 0)
    except ValueError:
        sound = False
    if not sound:  # without any of its words, nor the driver's: they may be a part of a password
        msg = "the URL of the database is not one, such as postgresql://user:password@host:5432/name; write % as %25, and @, : and / in a password as %40, %3A and %2F"
        raise QueryError(msg)
    login, _, host = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    given = [each.partition("=")[::2] for each in parts.query.split("&") if each]
    hidden = {password, *(value for name, value in given if name in SECRET)}
    secrets = longest_first(hidden)
    limits = {name: value for name, value in WITHOUT_END.items() if name not in dict(given)}
    whole = urlunsplit(parts._replace(query="&".join(filter(None, [parts.query, urlencode(limits)]))))
    shown = urlunsplit(parts._replace(netloc=f"{user}@{host}" if user else host, query=""))
    return whole, shown, secrets
