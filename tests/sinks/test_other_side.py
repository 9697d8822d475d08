"""The other side changes while a run is live: what is stored is exact, or a named error says what to do.

Each case is a row: two results are delivered, something changes, two more are to be delivered, the change is undone, and a new
start continues. In the end every result is there once, but for those that the change itself removed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace import sinks
from headrace.errors import HeadraceError, SinkError
from headrace.sinks.databases import sqlite
from headrace.testing import LocalRun, table_stream
from tests.helpers import write_whole
from tests.kafka import broker as brokers
from tests.kafka import reading
from tests.kafka.broker import Broker
from tests.patience import PATIENCE
from tests.sinks.stores import Store, rows

MAKE = Callable[[str], Store]
Step = str | Callable[[Store], Any]  # SQL, with the name of the table as {t}; or a function
BOOKS = "headrace_epochs"


@dataclass(frozen=True)
class Change:
    """error: what is said (None: nothing, the results are there); removes: what was delivered before is gone with it."""

    do: tuple[Step, ...]
    error: str | None = None
    undo: tuple[Step, ...] = ()
    removes: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    before: tuple[Step, ...] = ()  # the run is started


def exact(*do: Step, **given: Any) -> Change:
    return Change(do, **given)


def refused(error: str, *do: Step, undo: tuple[Step, ...] = (), **given: Any) -> Change:
    return Change(do, error, undo, **given)


def check(store: Any, change: Change, folder: Path, after: Change | None = None) -> None:
    """after: how the run is started again, if otherwise."""
    apply(store, change.before)
    run = started(store, change, folder)
    run.epoch(rows(1, 2))
    apply(store, change.do)
    there = [] if change.removes else [1, 2]
    if change.error is None:
        run.epoch(rows(3, 4))
        run.close()
    else:
        with pytest.raises(SinkError) as caught:
            run.epoch(rows(3, 4))
        run.close()
        text, cause = str(caught.value), caught.value.__cause__
        assert re.search(change.error, text) and "start again" in text, text
        assert isinstance(cause, HeadraceError), f"not in the words of a library: {cause!r}"
        apply(store, change.undo)
        assert content(store) in (wanted(*there), None), "nothing of an epoch that failed"
    again = started(store, after or change, folder)
    if (
        again.store.last is None or again.store.last.number == 0
    ):  # parts are written before the commit, so there was none
        again.epoch(rows(3, 4))
    again.epoch(rows(5))
    again.close()
    assert content(store) == wanted(*there, 3, 4, 5)


def apply(store: Any, steps: tuple[Step, ...]) -> None:
    for is_sql, some in itertools.groupby(steps, lambda step: isinstance(step, str)):
        if is_sql:
            store.execute(*(step.format(t=store.name) for step in some))
        else:
            for step in some:
                step(store)


def started(store: Any, change: Change, folder: Path) -> LocalRun:
    sink = store.sink(**change.options)
    return LocalRun(table_stream(rows(0), name="events"), folder / "state", sink=sink)


def wanted(*values: int) -> list[tuple[int, int]]:
    return sorted((value % 3, value) for value in values)


def content(store: Any) -> list[tuple[int, int]] | None:
    """None: there is no table."""
    try:
        if isinstance(store, Store) and store.kind in ("sqlite", "duckdb", "postgres"):
            return sorted(store.table("k, v"))
        found: pa.Table = store.arrow()
    except Exception as error:
        assert re.search("does not exist|no such table|No files in log|is not a table", str(error)), error
        return None
    return sorted(zip(*(found[name].to_pylist() for name in "kv"), strict=True))


# --- databases ---------------------------------------------------------------------------------------------------------

AGAIN = 'CREATE TABLE "{t}" (ts timestamp with time zone, k integer, v bigint)'
GONE = r"table \S+ does not exist: .*; restore it, or start again"
TYPE = "column '{}' of table .* has the type {}; expected .*; cast or rename it in the query, change the table"
NO_COLUMN = "has no column 'v'; expected .*; cast or rename it in the query"
NEEDED = "column 'who' of table .* must not be null, but the results have no such column; .* change the table"
CORRECT = ".*; correct the table, its constraints, triggers or permissions, or the query, and start again"
ALTERED = "does not store rows unchanged: 2 of 2 rows were changed or dropped.*; remove triggers"
KEYED = {"key": ["v"], "ordered": True}

COMMON = {  # SQL that all three understand
    "column added": exact('ALTER TABLE "{t}" ADD COLUMN who text'),
    "column added with a default": exact("ALTER TABLE \"{t}\" ADD COLUMN who text DEFAULT 'x'"),
    "column renamed": refused(
        NO_COLUMN, 'ALTER TABLE "{t}" RENAME COLUMN v TO w', undo=('ALTER TABLE "{t}" RENAME COLUMN w TO v',)
    ),
    "columns swapped": refused(
        TYPE.format("v", "(integer|INTEGER)"),
        *(f'ALTER TABLE "{{t}}" RENAME COLUMN {a} TO {b}' for a, b in ("vx", "kv", "xk")),
        undo=tuple(f'ALTER TABLE "{{t}}" RENAME COLUMN {a} TO {b}' for a, b in ("vx", "kv", "xk")),
    ),
    "table dropped": refused(GONE, 'DROP TABLE "{t}"', removes=True),
    "table renamed": refused(
        GONE, 'ALTER TABLE "{t}" RENAME TO "{t}_old"', undo=('ALTER TABLE "{t}_old" RENAME TO "{t}"',)
    ),
    "table made again": exact('DROP TABLE "{t}"', AGAIN, removes=True),
    "table made again with another type": refused(
        TYPE.format("v", "(text|TEXT|VARCHAR)"),
        'DROP TABLE "{t}"',
        AGAIN.replace("v bigint", "v text"),
        undo=('DROP TABLE "{t}"', AGAIN),
        removes=True,
    ),
    "table made again without a column": refused(
        NO_COLUMN, 'DROP TABLE "{t}"', AGAIN.replace(", v bigint", ""), undo=('DROP TABLE "{t}"', AGAIN), removes=True
    ),
    "table made again with a column that must have a value": refused(
        NEEDED,
        'DROP TABLE "{t}"',
        AGAIN.replace("v bigint", "v bigint, who text NOT NULL"),
        undo=('DROP TABLE "{t}"', AGAIN),
        removes=True,
    ),
    "table made again with a generated column": refused(
        "generated.*(; cast or rename it in the query|; correct the table)",
        'DROP TABLE "{t}"',
        AGAIN.replace("v bigint", "v bigint GENERATED ALWAYS AS (k + 1) {stored}"),
        undo=('DROP TABLE "{t}"', AGAIN),
        removes=True,
    ),
    "table is a view": refused(
        "is a view; give the name of a table",
        'ALTER TABLE "{t}" RENAME TO "{t}_old"',
        'CREATE VIEW "{t}" AS SELECT * FROM "{t}_old"',
        undo=('DROP VIEW "{t}"', 'ALTER TABLE "{t}_old" RENAME TO "{t}"'),
    ),
    "rows deleted": exact('DELETE FROM "{t}"', removes=True),
    "unique index": refused(
        f"(nique|duplicate).*{CORRECT}", 'CREATE UNIQUE INDEX "{t}_i" ON "{t}" (k)', undo=('DROP INDEX "{t}_i"',)
    ),
    "epochs dropped": refused(GONE.replace(r"\S+", BOOKS), f"DROP TABLE {BOOKS}"),
    "epochs deleted": exact(f"DELETE FROM {BOOKS}"),
    "key: table made again": exact('DROP TABLE "{t}"', f"{AGAIN[:-1]}, PRIMARY KEY (v))", options=KEYED, removes=True),
    "key: table made again without one": refused(
        "is not unique by v, .*; add a primary key",
        'DROP TABLE "{t}"',
        AGAIN,
        undo=('DROP TABLE "{t}"', f"{AGAIN[:-1]}, PRIMARY KEY (v))"),
        options=KEYED,
        removes=True,
    ),
}

# --- PostgreSQL --------------------------------------------------------------------------------------------------------

TYPES = {  # by name of a column, types that it was changed to
    "v": (
        "text",
        "real",
        "double precision",
        "numeric",
        "timestamptz USING to_timestamp(v)",
        "bytea USING int8send(v)",
    ),
    "k": ("real", "date USING date '2000-01-01' + k", "smallint", "text"),
    "ts": ("bigint USING extract(epoch from ts)", "timestamp", "date", "text"),
}
BACK = {"v": "bigint", "k": "integer", "ts": "timestamptz"}
NAMED = {"timestamptz": "timestamp with time zone", "timestamp": "timestamp without time zone"}


def retyped(column: str, kind: str) -> Change:
    """The rows that were there are made again: not every type has a way back."""
    name = kind.partition(" USING")[0]
    return refused(
        TYPE.format(column, NAMED.get(name, name)),
        'ALTER TABLE "{t}" RENAME TO "{t}_old"',
        'CREATE TABLE "{t}" AS SELECT * FROM "{t}_old"',
        f'ALTER TABLE "{{t}}" ALTER COLUMN {column} TYPE {kind}',
        undo=('DROP TABLE "{t}"', 'ALTER TABLE "{t}_old" RENAME TO "{t}"'),
    )


def trigger(when: str, body: str) -> tuple[str, str]:
    name = 'CREATE FUNCTION "{t}_f"() RETURNS trigger LANGUAGE plpgsql AS \'BEGIN ' + body.replace("'", "''") + " END'"
    return name, f'CREATE TRIGGER x {when} ON "{{t}}" FOR EACH ROW EXECUTE FUNCTION "{{t}}_f"()'


NO_TRIGGER = ('DROP TRIGGER x ON "{t}"', 'DROP FUNCTION "{t}_f"')
RIGHTS = (
    "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'carl') THEN CREATE ROLE carl; END IF; END $$",
    AGAIN,
    f"CREATE TABLE IF NOT EXISTS {BOOKS} (query TEXT NOT NULL, result TEXT NOT NULL, target TEXT NOT NULL, epoch BIGINT NOT"
    " NULL, rows BIGINT NOT NULL, times TEXT NOT NULL, PRIMARY KEY (query, result, target))",
    f'GRANT SELECT, INSERT, UPDATE ON "{{t}}", {BOOKS} TO carl',
)


def as_carl(store: Store) -> None:
    """From the next connection on, the sink has rights of its own and no others."""
    store.parameters = "?options=-crole%3Dcarl"


def blocked(seconds: float) -> Callable[[Store], None]:
    """Somebody else has the table, for a while."""

    def lock(store: Store) -> None:
        from adbc_driver_postgresql import dbapi

        connection = dbapi.connect(store.place)
        cursor = connection.cursor()
        cursor.execute(f'LOCK TABLE "{store.name}" IN ACCESS EXCLUSIVE MODE')

        def release() -> None:
            cursor.execute(f'ALTER TABLE "{store.name}" ALTER COLUMN v TYPE text')
            cursor.execute(f'ALTER TABLE "{store.name}" ALTER COLUMN v TYPE bigint USING v::bigint')
            connection.commit()
            cursor.close()
            connection.close()

        threading.Timer(seconds, release).start()

    return lock


def writable(store: Store) -> None:
    writing = Store(store.kind, f"{store.place}?options=-cdefault_transaction_read_only%3Doff")
    writing.execute("ALTER DATABASE postgres RESET default_transaction_read_only")


POSTGRES = {
    **COMMON,
    **{f"{column} is {kind}": retyped(column, kind) for column, kinds in TYPES.items() for kind in kinds},
    "k is bigint": exact('ALTER TABLE "{t}" ALTER COLUMN k TYPE bigint'),
    "column dropped": refused(
        NO_COLUMN,
        'ALTER TABLE "{t}" RENAME TO "{t}_old"',
        'CREATE TABLE "{t}" AS SELECT * FROM "{t}_old"',
        'ALTER TABLE "{t}" DROP COLUMN v',
        undo=('DROP TABLE "{t}"', 'ALTER TABLE "{t}_old" RENAME TO "{t}"'),
    ),
    "column added that must have a value": refused(
        NEEDED,
        "ALTER TABLE \"{t}\" ADD COLUMN who text NOT NULL DEFAULT 'x'",
        'ALTER TABLE "{t}" ALTER COLUMN who DROP DEFAULT',
        undo=('ALTER TABLE "{t}" DROP COLUMN who',),
    ),
    "column added that has always a default": exact("ALTER TABLE \"{t}\" ADD COLUMN who text NOT NULL DEFAULT 'x'"),
    "key: unique index dropped": refused(
        "is not unique by v, .*; add a primary key",
        'DROP INDEX "{t}_i"',
        undo=('CREATE UNIQUE INDEX "{t}_i" ON "{t}" (v)',),
        before=(AGAIN, 'CREATE UNIQUE INDEX "{t}_i" ON "{t}" (v)'),
        options=KEYED,
    ),
    "identity added": exact('ALTER TABLE "{t}" ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY'),
    "v is an identity": exact(
        'ALTER TABLE "{t}" ALTER COLUMN v SET NOT NULL',
        'ALTER TABLE "{t}" ALTER COLUMN v ADD GENERATED ALWAYS AS IDENTITY',
    ),
    "key: v is an identity": exact('ALTER TABLE "{t}" ALTER COLUMN v ADD GENERATED ALWAYS AS IDENTITY', options=KEYED),
    "moved to another schema": refused(
        GONE,
        "CREATE SCHEMA IF NOT EXISTS elsewhere",
        'ALTER TABLE "{t}" SET SCHEMA elsewhere',
        undo=('ALTER TABLE elsewhere."{t}" SET SCHEMA public',),
    ),
    "partitioned": exact(
        'DROP TABLE "{t}"',
        AGAIN + " PARTITION BY LIST (k)",
        *(f'CREATE TABLE "{{t}}_{k}" PARTITION OF "{{t}}" FOR VALUES IN ({k})' for k in range(3)),
        removes=True,
    ),
    "a partition is missing": refused(
        f"no partition of relation.*{CORRECT}",
        'DROP TABLE "{t}"',
        AGAIN + " PARTITION BY LIST (k)",
        undo=('CREATE TABLE "{t}_1" PARTITION OF "{t}" DEFAULT',),
        removes=True,
    ),
    "foreign table": refused(
        "is a foreign table; give the name of a table",
        "CREATE EXTENSION IF NOT EXISTS file_fdw",
        "DO $$ BEGIN CREATE SERVER files FOREIGN DATA WRAPPER file_fdw; EXCEPTION WHEN duplicate_object THEN END $$",
        'ALTER TABLE "{t}" RENAME TO "{t}_old"',
        "CREATE FOREIGN TABLE \"{t}\" (ts timestamptz, k integer, v bigint) SERVER files OPTIONS (filename '/dev/null')",
        undo=('DROP FOREIGN TABLE "{t}"', 'ALTER TABLE "{t}_old" RENAME TO "{t}"'),
    ),
    "locked and changed to and fro": exact(blocked(0.5)),
    "truncated": exact('TRUNCATE "{t}"', removes=True),
    "check": refused(
        f"violates check constraint.*{CORRECT}",
        'ALTER TABLE "{t}" ADD CONSTRAINT small CHECK (v < 4)',
        undo=('ALTER TABLE "{t}" DROP CONSTRAINT small',),
    ),
    "trigger that fails": refused(
        f"no more today.*{CORRECT}", *trigger("BEFORE INSERT", "RAISE EXCEPTION 'no more today';"), undo=NO_TRIGGER
    ),
    "trigger that fails afterwards": refused(
        f"no more today.*{CORRECT}", *trigger("AFTER INSERT", "RAISE EXCEPTION 'no more today';"), undo=NO_TRIGGER
    ),
    "trigger that changes rows": refused(
        ALTERED, *trigger("BEFORE INSERT", "NEW.v := NEW.v + 1; RETURN NEW;"), undo=NO_TRIGGER
    ),
    "trigger that drops rows": refused(ALTERED, *trigger("BEFORE INSERT", "RETURN NULL;"), undo=NO_TRIGGER),
    "trigger that fills another column": exact(
        'ALTER TABLE "{t}" ADD COLUMN who text', *trigger("BEFORE INSERT OR UPDATE", "NEW.who := 'me'; RETURN NEW;")
    ),
    "key: trigger that changes rows": refused(
        ALTERED, *trigger("BEFORE INSERT", "NEW.k := NEW.k + 1; RETURN NEW;"), undo=NO_TRIGGER, options=KEYED
    ),
    "key: trigger that fills another column": exact(
        'ALTER TABLE "{t}" ADD COLUMN who text',
        *trigger("BEFORE INSERT OR UPDATE", "NEW.who := 'me'; RETURN NEW;"),
        options=KEYED,
    ),
    "trigger that writes elsewhere": exact(
        'CREATE TABLE "{t}_log" (v bigint)',
        *trigger("AFTER INSERT", 'INSERT INTO "{t}_log" VALUES (NEW.v); RETURN NULL;'),
    ),
    "trigger of a partition that changes rows": refused(
        ALTERED,
        'DROP TABLE "{t}"',
        AGAIN + " PARTITION BY LIST (k)",
        'CREATE TABLE "{t}_1" PARTITION OF "{t}" DEFAULT',
        *(step.replace('ON "{t}"', 'ON "{t}_1"') for step in trigger("BEFORE INSERT", "NEW.v := 7; RETURN NEW;")),
        undo=('DROP TRIGGER x ON "{t}_1"',),
        removes=True,
    ),
    "rule that drops rows": exact('CREATE RULE x AS ON INSERT TO "{t}" DO INSTEAD NOTHING'),
    "right to insert withdrawn": refused(
        f"permission denied.*{CORRECT}",
        'REVOKE INSERT, UPDATE ON "{t}" FROM carl',
        undo=('GRANT INSERT ON "{t}" TO carl',),
        before=(*RIGHTS, as_carl),
    ),
    "right to note epochs withdrawn": refused(
        f"permission denied.*{CORRECT}",
        f"REVOKE INSERT, UPDATE ON {BOOKS} FROM carl",
        undo=(f"GRANT INSERT, UPDATE ON {BOOKS} TO carl",),
        before=(*RIGHTS, as_carl),
    ),
    "row security": refused(
        f"row-level security.*{CORRECT}",
        'ALTER TABLE "{t}" ENABLE ROW LEVEL SECURITY',
        undo=('ALTER TABLE "{t}" DISABLE ROW LEVEL SECURITY',),
        before=(*RIGHTS, as_carl),
    ),
    "connections ended": exact("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"),
    "read only": refused(
        "is unreachable .*read-only transaction",
        "ALTER DATABASE postgres SET default_transaction_read_only = on",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()",
        undo=(writable,),
        options={"patience": "0.5 seconds"},
    ),
    "isolation": exact(
        "ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()",
        blocked(0.5),
        "ALTER DATABASE postgres RESET default_transaction_isolation",
    ),
}


SHORT = {"v is text", "v is real", "v is timestamptz USING to_timestamp(v)", "k is real", "ts is timestamp"}
LONG = {f"{column} is {kind}" for column, kinds in TYPES.items() for kind in kinds} - SHORT | {
    *("column added with a default", "columns swapped", "rows deleted", "epochs deleted", "key: table made again"),
    *("file is a folder", "v is double", "identity added", "partitioned", "right to note epochs withdrawn"),
    *("trigger that fails afterwards", "trigger that writes elsewhere", "key: trigger that fills another column"),
}


def cases(changes: dict[str, Change]) -> list[Any]:
    """Where a case takes the better part of a second, some are run by make soak only."""
    return [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in changes]


@pytest.mark.parametrize("name", cases(POSTGRES))
def test_postgres(name: str, a_store: MAKE, tmp_path: Path):
    change = POSTGRES[name]
    store = a_store("postgres")
    check(store, with_words(change, stored="STORED"), tmp_path)


# --- files of databases ------------------------------------------------------------------------------------------------


def moved(store: Store) -> None:
    store.file.rename(store.file.with_suffix(".moved"))


def put_back(store: Store) -> None:
    if store.file.is_dir():
        store.file.rmdir()
    store.file.with_suffix(".moved").replace(store.file)


def not_a_database(store: Store) -> None:
    store.file.write_bytes(b"something else" * 1000)


def folder(store: Store) -> None:
    store.file.mkdir()


def opened_elsewhere(seconds: float) -> Callable[[Store], None]:
    """A connection that writes to the file has it, for a while."""

    def hold(store: Store) -> None:
        if store.kind == "sqlite":
            other: Any = sqlite3.connect(store.file, isolation_level=None, check_same_thread=False)
            other.execute("BEGIN EXCLUSIVE")
        else:
            other = duckdb.connect(store.file, read_only=True)
        threading.Timer(seconds, other.close).start()

    return hold


FILES = {
    **COMMON,
    "file removed": refused(GONE, lambda store: store.file.unlink(), removes=True),
    "file moved": refused(GONE, moved, undo=(put_back,)),
    "file is not a database": refused(f"not a .*database.*{CORRECT}", moved, not_a_database, undo=(put_back,)),
    "file is a folder": refused("is unreachable", moved, folder, undo=(put_back,), options={"patience": "0.5 seconds"}),
    "file is locked": exact(opened_elsewhere(0.5)),
}
SQLITE = {
    **{name: change for name, change in FILES.items() if name != "columns swapped"},  # both hold whole numbers
    "v is text": refused(
        TYPE.format("v", "TEXT"),
        'ALTER TABLE "{t}" RENAME TO "{t}_old"',
        'CREATE TABLE "{t}" (ts TEXT, k INTEGER, v TEXT)',
        'INSERT INTO "{t}" SELECT * FROM "{t}_old"',
        undo=('DROP TABLE "{t}"', 'ALTER TABLE "{t}_old" RENAME TO "{t}"'),
    ),
    "column dropped": refused(
        NO_COLUMN,
        'ALTER TABLE "{t}" RENAME TO "{t}_old"',
        'CREATE TABLE "{t}" AS SELECT ts, k FROM "{t}_old"',
        undo=('DROP TABLE "{t}"', 'ALTER TABLE "{t}_old" RENAME TO "{t}"'),
    ),
    "trigger that fails": refused(
        f"no more today.*{CORRECT}",
        "CREATE TRIGGER x BEFORE INSERT ON \"{t}\" BEGIN SELECT RAISE(ABORT, 'no more today'); END",
        undo=("DROP TRIGGER x",),
    ),
    "trigger that drops rows": refused(
        ALTERED,
        'CREATE TRIGGER x BEFORE INSERT ON "{t}" BEGIN SELECT RAISE(IGNORE); END',
        undo=("DROP TRIGGER x",),
    ),
    "key: trigger that drops rows": refused(
        ALTERED,
        'CREATE TRIGGER x BEFORE INSERT ON "{t}" BEGIN SELECT RAISE(IGNORE); END',
        undo=("DROP TRIGGER x",),
        options=KEYED,
    ),
    "trigger that writes elsewhere": exact(
        "CREATE TABLE log (v)", 'CREATE TRIGGER x AFTER INSERT ON "{t}" BEGIN INSERT INTO log VALUES (NEW.v); END'
    ),
    "rows that conflict are left out": refused(
        f"UNIQUE constraint failed.*{CORRECT}",
        'ALTER TABLE "{t}" RENAME TO "{t}_old"',
        'CREATE TABLE "{t}" (ts TEXT, k INTEGER UNIQUE ON CONFLICT IGNORE, v INTEGER)',
        'INSERT INTO "{t}" SELECT * FROM "{t}_old"',
        undo=('DROP TABLE "{t}"', 'ALTER TABLE "{t}_old" RENAME TO "{t}"'),
    ),
}
DUCKDB = {
    **FILES,
    "v is text": refused(
        TYPE.format("v", "VARCHAR"),
        'ALTER TABLE "{t}" ALTER v TYPE VARCHAR',
        undo=('ALTER TABLE "{t}" ALTER v TYPE BIGINT',),
    ),
    "v is double": refused(
        TYPE.format("v", "DOUBLE"),
        'ALTER TABLE "{t}" ALTER v TYPE DOUBLE',
        undo=('ALTER TABLE "{t}" ALTER v TYPE BIGINT',),
    ),
    "k is bigint": exact('ALTER TABLE "{t}" ALTER k TYPE BIGINT'),
    "column dropped": refused(
        NO_COLUMN,
        'CREATE TABLE "{t}_old" AS SELECT * FROM "{t}"',
        'ALTER TABLE "{t}" DROP COLUMN v',
        undo=('DROP TABLE "{t}"', 'ALTER TABLE "{t}_old" RENAME TO "{t}"'),
    ),
    "column that must have a value": refused(
        NEEDED,
        "ALTER TABLE \"{t}\" ADD COLUMN who text DEFAULT 'x'",
        'ALTER TABLE "{t}" ALTER who SET NOT NULL',
        'ALTER TABLE "{t}" ALTER who DROP DEFAULT',
        undo=('ALTER TABLE "{t}" DROP COLUMN who',),
    ),
    "trigger that fails": refused(
        f"onstraint.*{CORRECT}",
        "CREATE TABLE log (v bigint CHECK (v < 0))",
        'CREATE TRIGGER x AFTER INSERT ON "{t}" FOR EACH STATEMENT INSERT INTO log VALUES (1)',
        undo=('DROP TRIGGER x ON "{t}"',),
    ),
}


@pytest.mark.parametrize("name", SQLITE)
def test_sqlite(name: str, a_store: MAKE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite, "BUSY", 0.1)
    check(a_store("sqlite"), with_words(SQLITE[name], stored=""), tmp_path)


@pytest.mark.parametrize("name", cases(DUCKDB))
def test_duckdb(name: str, a_store: MAKE, tmp_path: Path):
    check(a_store("duckdb"), with_words(DUCKDB[name], stored=""), tmp_path)


def with_words(change: Change, **words: str) -> Change:
    """SQL that the databases spell otherwise."""

    def spelled(step: Step) -> Step:
        return step.replace("{stored}", words["stored"]) if isinstance(step, str) else step

    return Change(
        tuple(map(spelled, change.do)), change.error, change.undo, change.removes, change.options, change.before
    )


# --- lakes -------------------------------------------------------------------------------------------------------------

FIT = "; cast or rename it in the query, change the table, or use another table"
LAKE_GONE = "does not exist: it was dropped or renamed after the run started; restore it, or start again"
LAKE_TYPE = f"column '{{}}' of the .* has the type {{}}; expected .*{FIT}"
LAKE_NEEDED = f"column 'who' of the .* must not be null, but the results have no such column{FIT}"
LAKE_COLUMN = f"has no column 'v'; expected .*{FIT}"
LAKE_CORRECT = ".*; correct the table, its constraints or permissions, or the query, and start again"
SCHEMA = rows().schema
TEXT, DOUBLE, NARROW = (SCHEMA.set(2, pa.field("v", kind)) for kind in (pa.string(), pa.float64(), pa.int32()))
WITHOUT, MORE = SCHEMA.remove(2), SCHEMA.append(pa.field("more", pa.string()))
NEEDS = SCHEMA.append(pa.field("who", pa.string(), nullable=False))


def place(store: Store) -> Path:
    return Path(store.place, store.name)


def delta(store: Store) -> Any:
    import deltalake

    return deltalake.DeltaTable(str(place(store)))


def written(schema: pa.Schema, commits: int = 1, mode: str = "append") -> Callable[[Store], None]:
    """By somebody else, with other columns; each commit has no rows."""

    def write(store: Store) -> None:
        import deltalake

        for _ in range(commits):
            schema_mode: Any = "overwrite" if mode == "overwrite" else None
            given: Any = mode
            deltalake.write_deltalake(str(place(store)), schema.empty_table(), mode=given, schema_mode=schema_mode)

    return write


def removed(store: Store) -> None:
    shutil.rmtree(place(store))


def moved_away(store: Store) -> None:
    place(store).rename(place(store).with_name("moved"))


def moved_back(store: Store) -> None:
    if place(store).is_dir():
        shutil.rmtree(place(store))
    place(store).unlink(missing_ok=True)
    place(store).with_name("moved").rename(place(store))


def a_file(store: Store) -> None:
    place(store).write_text("something else")


def newer_protocol(store: Store) -> None:
    action = {"protocol": {"minReaderVersion": 99, "minWriterVersion": 99}}
    version = delta(store).version() + 1
    (place(store) / "_delta_log" / f"{version:020}.json").write_text(json.dumps(action) + "\n")


def remade(schema: pa.Schema, commits: int, error: str | None = None) -> Change:
    """Dropped and made again, with fewer or more commits than there were."""
    return Change((removed, written(schema, commits)), error, (removed, written(SCHEMA)) if error else (), removes=True)


DELTA = {
    "table removed": refused(LAKE_GONE, removed, removes=True),
    "log removed": refused(LAKE_GONE, lambda store: shutil.rmtree(place(store) / "_delta_log"), removes=True),
    "table moved": refused(LAKE_GONE, moved_away, undo=(moved_back,)),
    "table is a file": refused(
        LAKE_CORRECT, moved_away, a_file, undo=(moved_back,), options={"patience": "0.5 seconds"}
    ),
    **{f"made again, {n} commits": remade(SCHEMA, n) for n in (1, 9)},
    **{f"made again with text, {n} commits": remade(TEXT, n, LAKE_TYPE.format("v", "string")) for n in (1, 9)},
    **{f"made again with doubles, {n} commits": remade(DOUBLE, n, LAKE_TYPE.format("v", "double")) for n in (1, 9)},
    "made again with narrow numbers": remade(NARROW, 9, LAKE_TYPE.format("v", "int32")),
    "made again without a column": remade(WITHOUT, 9, LAKE_COLUMN),
    "made again with more columns": remade(MORE, 9),
    "made again with a column that must have a value": remade(NEEDS, 9, LAKE_NEEDED),
    "schema overwritten": refused(
        LAKE_TYPE.format("v", "string"),
        moved_copy := lambda store: shutil.copytree(place(store), place(store).with_name("moved")),
        written(TEXT, mode="overwrite"),
        undo=(moved_back,),
    ),
    "column dropped": refused(LAKE_COLUMN, moved_copy, written(WITHOUT, mode="overwrite"), undo=(moved_back,)),
    "column added": exact(lambda store: delta(store).alter.add_columns(more_fields())),
    "constraint": refused(
        f"(small|nvariant|onstraint).*{LAKE_CORRECT}",
        lambda store: delta(store).alter.add_constraint({"small": "v < 4"}),
        undo=(lambda store: delta(store).alter.drop_constraint("small"),),
    ),
    "newer protocol": refused(LAKE_CORRECT, moved_copy, newer_protocol, undo=(moved_back,)),
    "rows deleted": exact(lambda store: delta(store).delete(), removes=True),
    "compacted and cleaned": exact(
        lambda store: delta(store).optimize.compact(),
        lambda store: delta(store).vacuum(0, dry_run=False, enforce_retention_duration=False),
        lambda store: delta(store).create_checkpoint(),
        lambda store: delta(store).cleanup_metadata(),
    ),
    "restored": exact(lambda store: delta(store).restore(0), removes=True),
}


def more_fields() -> Any:
    from deltalake import Field

    return [Field("more", "string")]


@pytest.mark.parametrize("name", DELTA)
def test_delta(name: str, a_store: MAKE, tmp_path: Path):
    check(a_store("delta"), DELTA[name], tmp_path)


# --- Iceberg -----------------------------------------------------------------------------------------------------------


def in_catalog(do: Callable[[Any, str], Any]) -> Callable[[Store], None]:
    """do: with a catalog and the name of the table."""

    def step(store: Store) -> None:
        from pyiceberg.catalog import load_catalog

        with contextlib.closing(load_catalog("default", **store.catalog)) as catalog:
            do(catalog, f"tests.{store.name}")

    return step


def with_schema(do: Callable[[Any], Any]) -> Callable[[Store], None]:
    def step(catalog: Any, name: str) -> None:
        with catalog.load_table(name).update_schema(allow_incompatible_changes=True) as update:
            do(update)

    return in_catalog(step)


def made_again(schema: pa.Schema) -> tuple[Step, ...]:
    return in_catalog(lambda c, name: c.drop_table(name)), in_catalog(
        lambda c, name: c.create_table(name, schema=schema)
    )


def locked_catalog(store: Store) -> None:
    other = sqlite3.connect(f"{store.place}/catalog.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    threading.Timer(0.5, other.close).start()


def without_notes(catalog: Any, name: str) -> None:
    table = catalog.load_table(name)
    with table.transaction() as transaction:
        transaction.remove_properties(*(each for each in table.properties if each.startswith("headrace.")))


ELSEWHERE = in_catalog(lambda catalog, name: catalog.rename_table(name, f"{name}_old"))
BACK_AGAIN = in_catalog(lambda catalog, name: catalog.rename_table(f"{name}_old", name))
ICEBERG = {
    "table dropped": refused(LAKE_GONE, in_catalog(lambda catalog, name: catalog.drop_table(name)), removes=True),
    "table renamed": refused(LAKE_GONE, ELSEWHERE, undo=(BACK_AGAIN,)),
    "table made again": exact(*made_again(SCHEMA), removes=True),
    "table made again with text": refused(
        LAKE_TYPE.format("v", "string"), *made_again(TEXT), undo=made_again(SCHEMA), removes=True
    ),
    "table made again with narrow numbers": refused(
        LAKE_TYPE.format("v", "int32"), *made_again(NARROW), undo=made_again(SCHEMA), removes=True
    ),
    "table made again with a column that must have a value": refused(
        LAKE_NEEDED, *made_again(NEEDS), undo=made_again(SCHEMA), removes=True
    ),
    "column added": exact(with_schema(lambda update: update.add_column("more", strings()))),
    "k is wider": exact(with_schema(lambda update: update.update_column("k", longs()))),
    "column renamed": refused(
        LAKE_COLUMN,
        with_schema(lambda update: update.rename_column("v", "w")),
        undo=(with_schema(lambda update: update.rename_column("w", "v")),),
    ),
    "column dropped": refused(
        LAKE_COLUMN,
        ELSEWHERE,
        in_catalog(lambda catalog, name: catalog.create_table(name, schema=WITHOUT)),
        undo=(in_catalog(lambda catalog, name: catalog.drop_table(name)), BACK_AGAIN),
    ),
    "column that must have a value": refused(
        LAKE_NEEDED,
        with_schema(lambda update: update.add_column("who", strings(), required=True)),
        undo=(with_schema(lambda update: update.delete_column("who")),),
    ),
    "rows deleted": exact(in_catalog(lambda catalog, name: catalog.load_table(name).delete()), removes=True),
    "notes removed": exact(in_catalog(without_notes)),
    "catalog locked": exact(locked_catalog),
    "catalog moved": refused(
        "is unreachable|no such table",
        lambda store: Path(store.place, "catalog.db").rename(Path(store.place, "moved.db")),
        undo=(lambda store: Path(store.place, "moved.db").replace(Path(store.place, "catalog.db")),),
        options={"patience": "0.5 seconds"},
    ),
    "warehouse moved": refused(
        "is unreachable",
        lambda store: Path(store.place, "warehouse").rename(Path(store.place, "moved")),
        undo=(lambda store: Path(store.place, "moved").replace(Path(store.place, "warehouse")),),
        options={"patience": "0.5 seconds"},
    ),
}


def strings() -> Any:
    from pyiceberg.types import StringType

    return StringType()


def longs() -> Any:
    from pyiceberg.types import LongType

    return LongType()


@pytest.mark.parametrize("name", ICEBERG)
def test_iceberg(name: str, a_store: MAKE, tmp_path: Path):
    check(a_store("iceberg"), ICEBERG[name], tmp_path)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_lake_that_changes_between_the_look_at_its_columns_and_the_commit(kind: str, a_store: MAKE, tmp_path: Path):
    store = a_store(kind)
    change = (
        written(TEXT, mode="overwrite")
        if kind == "delta"
        else with_schema(lambda update: update.rename_column("v", "w"))
    )
    sink = store.sink(patience="5 seconds")
    run = LocalRun(table_stream(rows(0), name="events"), tmp_path / "state", sink=sink)
    run.epoch(rows(1, 2))
    prepare = sink._prepare

    def slowly(schema: pa.Schema) -> Any:
        sink._prepare = prepare
        found = prepare(schema)
        change(store)
        return found

    sink._prepare = slowly
    with pytest.raises(SinkError, match=f"{LAKE_COLUMN}|{LAKE_TYPE.format('v', 'string')}"):
        run.epoch(rows(3, 4))
    run.close()
    assert store.arrow().num_rows == (0 if kind == "delta" else 2)


# --- folders of Parquet files ------------------------------------------------------------------------------------------


class Folder:
    """A folder of results: a file for each epoch, or a folder of parts."""

    def __init__(self, path: Path, *, parts: bool) -> None:
        self.path, self.parts = path, parts

    def sink(self) -> Any:
        return sinks.parquet(self.path, parts=self.parts)

    def arrow(self) -> pa.Table:
        found = sorted(self.path.glob("epoch-*.parquet")) + sorted(self.path.glob("epoch-*/part-*.parquet"))
        return pa.concat_tables([rows().slice(0, 0), *(pq.ParquetFile(path).read() for path in found)])


def put_aside(folder: Folder) -> None:
    folder.path.rename(folder.path.with_name("aside"))


def take_back(folder: Folder) -> None:
    folder.path.unlink(missing_ok=True)
    folder.path.with_name("aside").rename(folder.path)


def epoch_of(folder: Folder, number: int) -> Path:
    """Where the results of an epoch are to be."""
    (first,) = folder.path.glob("epoch-000000000-*")
    return first.with_name(first.name.replace("epoch-000000000", f"epoch-{number:09}"))


NO_FOLDER = (
    "the folder .* cannot be written to .*; make sure that it is a folder with free space that this user may write to"
)
NOT_OURS = r"(cannot be read, so its content has changed|contains other results of the same epoch)"
FOLDERS = {
    "folder removed": exact(lambda folder: shutil.rmtree(folder.path), removes=True),
    "folder is a file": refused(
        NO_FOLDER, put_aside, lambda folder: folder.path.write_text("something else"), undo=(take_back,)
    ),
    "folder cannot be written to": refused(  # by nobody, not even by root
        NO_FOLDER, put_aside, lambda folder: folder.path.symlink_to("/sys/kernel"), undo=(take_back,)
    ),
    "results removed": exact(lambda folder: remove(epoch_of(folder, 0)), removes=True),
    "a file of somebody else": exact(lambda folder: (folder.path / "other.parquet").write_text("something else")),
    "a folder of somebody else": exact(lambda folder: (folder.path / "_staging-result-0-other").mkdir()),
    "a file in the place of the next results": refused(
        NOT_OURS,
        lambda folder: epoch_of(folder, 1).write_text("something else"),
        undo=(lambda folder: remove(epoch_of(folder, 1)),),
    ),
}


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("parts", [False, True], ids=["files", "parts"])
def test_parquet(parts: bool, name: str, tmp_path: Path):
    check(Folder(tmp_path / "out", parts=parts), FOLDERS[name], tmp_path)


# --- Kafka -------------------------------------------------------------------------------------------------------------

SOON = {
    "topic.metadata.propagation.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 500,
}  # changes are seen after that
NOTES = "headrace-epochs"


class Topic(Store):
    """A topic of a broker that is changed too."""

    def __init__(self, broker: Broker, name: str) -> None:
        super().__init__("kafka", broker.servers, name)
        self.broker = broker

    def arrow(self) -> pa.Table:
        found = reading.rows(self.place, self.name)
        return pa.table({name: pa.array([row[name] for row in found], pa.int64()) for name in "kv"})

    def set(self, topic: str, name: str, value: str) -> None:
        from confluent_kafka import admin

        entry = admin.ConfigEntry(name, value, incremental_operation=admin.AlterConfigOpType.SET)
        change = admin.ConfigResource("topic", topic, incremental_configs=[entry])
        client = self.broker.admin
        client.incremental_alter_configs([change])[change].result(60)
        asked = admin.ConfigResource("topic", topic)
        while client.describe_configs([asked])[asked].result(60)[name].value != value:
            time.sleep(0.05)
        time.sleep(1.0)  # the broker shows a setting shortly before its logs apply it

    def delete(self, topic: str) -> None:
        self.broker.delete(topic)
        while topic in self.broker.admin.list_topics(timeout=60).topics:
            time.sleep(0.05)


NO_TOPIC = "there is no topic '.*' in Kafka at .*; create it first, with the partitions, replicas and retention"
TOPICS = {
    "topic deleted": refused(
        NO_TOPIC,
        lambda topic: topic.delete(topic.name),
        undo=(lambda topic: topic.broker.create(topic.name, 2),),
        removes=True,
    ),
    "topic made again with other partitions": exact(
        lambda topic: topic.delete(topic.name), lambda topic: topic.broker.create(topic.name, 3), removes=True
    ),
    "partitions added": exact(lambda topic: topic.broker.widen(topic.name, 4)),
    "limit of messages lowered": refused(
        "MSG_SIZE_TOO_LARGE.*; make the result smaller in the query, or raise both",
        lambda topic: topic.set(topic.name, "max.message.bytes", "100"),
        undo=(lambda topic: topic.set(topic.name, "max.message.bytes", "1000000"),),
    ),
    "limit of messages lowered, and one fits": refused(
        "MSG_SIZE_TOO_LARGE.*; if the topic's limit was lowered while the run was live, start again",
        lambda topic: topic.set(topic.name, "max.message.bytes", "150"),
    ),
    "compacted": refused(
        "INVALID_RECORD.*; a topic that is compacted takes messages with a key only",
        lambda topic: topic.set(
            topic.name, "min.compaction.lag.ms", str(10**15)
        ),  # nothing is removed; times are of 1970
        lambda topic: topic.set(topic.name, "cleanup.policy", "compact"),
        undo=(lambda topic: topic.set(topic.name, "cleanup.policy", "delete"),),
    ),
    "compacted, with keys": exact(
        lambda topic: topic.set(topic.name, "min.compaction.lag.ms", str(10**15)),
        lambda topic: topic.set(topic.name, "cleanup.policy", "compact"),
        options={"key": "v"},
    ),
    "messages removed": exact(lambda topic: topic.broker.cut(topic.name, 0, 2), removes=True),
    "notes deleted": exact(lambda topic: topic.delete(NOTES)),
}


FEW_TOPICS = {
    "topic deleted",
    "limit of messages lowered, and one fits",
    "compacted",
}  # each takes seconds: others are long


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name not in FEW_TOPICS)) for name in TOPICS]
)
def test_kafka(name: str, broker: Broker, a_topic: Callable[..., str], tmp_path: Path):
    change = TOPICS[name]
    settings = {"settings": SOON, "patience": "1 minute", **change.options}
    check(Topic(broker, a_topic()), replace(change, options=settings), tmp_path)


def denied(operation: str, *, deny: bool) -> Callable[[Topic], None]:
    """The user of the sink loses a right, or gets it back."""

    def step(topic: Topic) -> None:
        from confluent_kafka import admin

        kind = admin.ResourceType.TRANSACTIONAL_ID if operation == "TRANSACT" else admin.ResourceType.TOPIC
        name = "headrace" if operation == "TRANSACT" else topic.name
        pattern = admin.ResourcePatternType.PREFIXED if operation == "TRANSACT" else admin.ResourcePatternType.LITERAL
        given = (kind, name, pattern, "User:anna", "*", admin.AclOperation.WRITE, admin.AclPermissionType.DENY)
        if deny:
            done = topic.broker.admin.create_acls([admin.AclBinding(*given)])
        else:
            done = topic.broker.admin.delete_acls([admin.AclBindingFilter(*given)])
        for future in done.values():
            future.result(60)

    return step


@pytest.mark.long
@pytest.mark.parametrize("right", ["WRITE", "TRANSACT"])
def test_kafka_rights_withdrawn(right: str, tmp_path: Path):
    libs = brokers.found()
    if libs is None:
        pytest.skip(brokers.HOW)
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
    }
    broker = Broker(libs, rules)
    try:
        topic = Topic(broker, broker.create("rights"))
        topic.place = broker.secured
        change = refused(
            "AUTHORIZATION_FAILED.*; grant the user the rights",
            denied(right, deny=True),
            undo=(denied(right, deny=False), lambda topic: setattr(topic, "place", broker.servers)),
            options={"settings": {**broker.login, **SOON}, "patience": "1 minute"},
        )
        with_plain = replace(change, options={"settings": SOON, "patience": "1 minute"})
        check(topic, change, tmp_path, after=with_plain)
    finally:
        broker.remove()


# --- on Spark ----------------------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize(
    ("kind", "name"),
    [("postgres", "v is real"), ("duckdb", "file is locked"), ("delta", "made again with text, 9 commits")],
)
def test_a_live_run_on_spark(kind: str, name: str, spark: Any, a_store: MAKE, tmp_path: Path):
    store, change = a_store(kind), {"postgres": POSTGRES, "duckdb": DUCKDB, "delta": DELTA}[kind][name]

    def add(*values: int) -> None:
        write_whole(tmp_path / "in" / f"{values[0]}.parquet", rows(*values))

    def start() -> Any:
        return source.start(store.sink(), checkpoint=tmp_path / "checkpoint", epoch="0 seconds", slots=2)

    def wait_for(tuples: int) -> None:
        while run.progress.tuples_in < tuples:
            run.wait(0.05)

    add(1, 2)
    source = hr.files(spark, tmp_path / "in", time="ts", files_per_epoch=1, order="name", name="events")
    run = start()
    wait_for(2)
    apply(store, change.do)
    add(3, 4)
    if change.error is None:
        wait_for(4)
        run.stop()
    else:
        with pytest.raises(SinkError, match=change.error):
            run.wait(PATIENCE)
        apply(store, change.undo)
    run = start()
    add(5)
    wait_for(5)
    run.stop()
    assert content(store) == wanted(*([] if change.removes else [1, 2]), 3, 4, 5)
