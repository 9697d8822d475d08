"""Sinks into stores: what they keep, what they refuse, and what they do when the other side is away."""

from __future__ import annotations

import datetime as dt
import logging
import random
import shutil
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import pyarrow as pa
import pytest

import headrace as hr
from headrace import sinks
from headrace.errors import HeadraceError, MissingLibrary, QueryError, QueryTypeError, SinkError
from headrace.sinks import Delivery
from headrace.sinks.databases import sqlite
from headrace.testing import LocalRun, table_stream
from tests.sinks import postgres
from tests.sinks.stores import DATABASES, KINDS, LAKES, Store, rows

MAKE = Callable[[str], Store]
QUERY, OTHER = "a" * 32, "b" * 32
EVERY = pytest.mark.parametrize("kind", KINDS)
DATABASE = pytest.mark.parametrize("kind", DATABASES)


def deliver(sink: Any, epoch: int, *values: int, query: str = QUERY, result: str = "result-0") -> None:
    sink.deliver(Delivery(query, epoch, result, rows(*values)))


def begun(store: Store, schema: pa.Schema | None = None, **options: Any) -> Any:
    sink = store.sink(**options)
    sink.begin("result-0", rows().schema if schema is None else schema)
    return sink


def refusal(store: Store, schema: pa.Schema, **options: Any) -> str:
    sink = store.sink(**options)
    try:
        with pytest.raises(QueryError) as caught:
            sink.begin("result-0", schema)
    finally:
        sink.close()
    return str(caught.value)


# --- once --------------------------------------------------------------------------------------------------------------


@EVERY
def test_what_comes_again_is_there_once(kind: str, a_store: MAKE):
    store = a_store(kind)
    for _ in range(2):  # a run that begins again
        sink = begun(store)
        deliver(sink, 0, 1, 2)
        sink.close()
    deliver(sink, 1, 3)
    deliver(sink, 1, 3)
    deliver(sink, 4, 4)  # epochs without results are not delivered
    deliver(sink, 0, 5, query=OTHER)
    deliver(sink, 0, 6, result="late:events")
    deliver(sink, 0, 6, result="late:events")
    sink.close()
    assert store.values() == [1, 2, 3, 4, 5, 6]


@EVERY
def test_a_checkpoint_from_a_backup_is_refused(kind: str, a_store: MAKE):
    store = a_store(kind)
    sink = begun(store)
    deliver(sink, 5, 1, 2)
    for epoch, values in ((5, (1, 2, 3)), (5, (1, 3)), (3, (1, 2))):
        with pytest.raises(QueryError, match=r"up to epoch 5, .* restored from a backup"):
            deliver(sink, epoch, *values)
    sink.close()
    assert store.values() == [1, 2]


def put_back(query: Any, folder: Path, sink: Callable[[], Any]) -> None:
    """Three epochs, the second without results; then the state is as it was after the first."""
    with_epochs(query, folder, sink(), rows(1))
    shutil.copytree(folder, kept := folder.with_name("kept"))
    with_epochs(query, folder, sink(), rows(2), rows(3))
    with_epochs(query, folder, sink())  # what goes on as it should is not refused
    shutil.rmtree(folder)
    shutil.copytree(kept, folder)


def with_epochs(query: Any, folder: Path, sink: Any, *tables: pa.Table) -> None:
    run = LocalRun(query, folder, sink=sink)
    for table in tables:
        run.epoch(table)
    run.close()


@EVERY
def test_a_checkpoint_from_a_backup_is_refused_at_the_start_before_any_result_comes(
    kind: str, a_store: MAKE, tmp_path: Path
):
    store, query = a_store(kind), table_stream(rows(1), name="events").filter("v % 2 = 1")
    put_back(query, tmp_path / "state", store.sink)
    sink = store.sink()
    with pytest.raises(QueryError, match=r"up to epoch 2, but the checkpoint ends with epoch 0, as after .* backup"):
        LocalRun(query, tmp_path / "state", sink=sink)
    sink.close()
    assert store.values() == [1, 3]


@EVERY
def test_of_two_that_deliver_at_once_one_does(kind: str, a_store: MAKE):
    """The second has looked, found nothing, and comes to its commit when the first is done."""
    store = a_store(kind)
    first, second = begun(store), begun(store)
    if kind in LAKES:
        prepare = second._prepare

        def slowly(schema: pa.Schema) -> Any:
            second._prepare = prepare
            found = prepare(schema)
            deliver(first, 0, 1, 2)
            return found

        second._prepare = slowly
        deliver(second, 0, 1, 2)
    else:
        together = threading.Barrier(2)

        def both(sink: Any) -> None:
            together.wait()
            deliver(sink, 0, 1, 2)

        threads = [threading.Thread(target=both, args=[sink]) for sink in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    first.close()
    second.close()
    assert store.values() == [1, 2]


# --- types -------------------------------------------------------------------------------------------------------------

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "ts": (pa.timestamp("us", "UTC"), [NOON, NOON, NOON]),
    "flag": (pa.bool_(), [True, False, None]),
    "i8": (pa.int8(), [-128, 127, None]),
    "i16": (pa.int16(), [-(2**15), 2**15 - 1, None]),
    "i32": (pa.int32(), [-(2**31), 2**31 - 1, None]),
    "i64": (pa.int64(), [-(2**63), 2**63 - 1, None]),
    "u8": (pa.uint8(), [0, 2**8 - 1, None]),
    "u16": (pa.uint16(), [0, 2**16 - 1, None]),
    "u32": (pa.uint32(), [0, 2**32 - 1, None]),
    "f32": (pa.float32(), [0.5, -1.25, None]),
    "f64": (pa.float64(), [0.1, float("inf"), None]),
    "whole": (pa.decimal128(38, 0), [Decimal(10**37 + 1), Decimal(-7), None]),
    "cents": (pa.decimal128(12, 2), [Decimal("-1234567890.12"), Decimal("0.05"), None]),
    "text": (pa.string(), ["a'\"\\ \n\t%s $1 ?", "ünïcödé 𝔘", None]),
    "Naughty \"name'; --": (pa.string(), ["", "x", None]),
    "bytes": (pa.binary(), [b"\x00\xff", b"", None]),
    "day": (pa.date32(), [dt.date(1969, 12, 31), dt.date(2026, 3, 1), None]),
    "wall": (pa.timestamp("us"), [NOON.replace(tzinfo=None), dt.datetime(1901, 1, 1), None]),
}
TIME = (pa.time64("us"), [dt.time(23, 59, 59, 999999), dt.time(0), None])
LIST = (pa.list_(pa.int64()), [[1, None, 3], [], None])
STRUCT = (pa.struct([("a", pa.int32()), ("b", pa.string())]), [{"a": 1, "b": "x"}, {"a": None, "b": None}, None])
MAP = (pa.map_(pa.string(), pa.int64()), [[("k", 1)], [], None])
LARGE = (pa.uint64(), [0, 2**64 - 1, None])
MORE = {
    "sqlite": {"time": TIME},
    "duckdb": {"time": TIME, "list": LIST, "struct": STRUCT, "map": MAP, "u64": LARGE},
    "postgres": {"time": TIME, "list": LIST},
    "delta": {"list": LIST, "struct": STRUCT, "map": MAP, "u64": LARGE},
    "iceberg": {"time": TIME, "list": LIST, "struct": STRUCT, "map": MAP, "u64": LARGE},
}
REFUSED = {
    "sqlite": {"u64": LARGE, "list": LIST, "struct": STRUCT, "map": MAP},
    "postgres": {"u64": LARGE, "struct": STRUCT, "map": MAP, "lists": (pa.list_(LIST[0]), [])},
    "delta": {"time": TIME},
}


def as_read(kind: str, value: Any, held: pa.DataType) -> Any:
    """A value as a reader of this kind of store finds it."""
    t = pa.types
    if kind == "postgres" and t.is_decimal(held) and value is not None:
        return f"{value:f}".rstrip("0").rstrip(".") if held.scale else str(value)  # its driver gives text
    if kind == "duckdb" and t.is_map(held) and value is not None:
        return dict(value)
    if kind == "duckdb" and t.is_timestamp(held) and held.tz and value is not None:
        return value.replace(tzinfo=None)
    if kind != "sqlite" or value is None:
        return value
    if t.is_boolean(held):
        return int(value)
    if t.is_timestamp(held):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    if t.is_time(held):
        return value.strftime("%H:%M:%S.%f")
    if t.is_date(held):
        return str(value)
    if t.is_decimal(held):
        return int(value) if not held.scale and abs(value) < 2**63 else f"{value:f}"
    return value


def found_in(store: Store, names: list[str]) -> list[list[Any]]:
    if store.kind in LAKES:
        return [store.arrow()[name].to_pylist() for name in names]
    found = [list(column) for column in zip(*store.table(), strict=True)]
    if store.kind == "duckdb":
        found[0] = [value.astimezone(dt.UTC).replace(tzinfo=None) for value in found[0]]
    return found


@EVERY
def test_values_come_back_as_they_were(kind: str, a_store: MAKE):
    store, given = a_store(kind), {**VALUES, **MORE[kind]}
    if kind == "delta":
        del given["Naughty \"name'; --"]  # Delta has no such names
    table = pa.table({name: pa.array(values, held) for name, (held, values) in given.items()})
    sink = begun(store, table.schema)
    sink.deliver(Delivery(QUERY, 0, "result-0", table))
    sink.close()
    wanted = [[as_read(kind, value, held) for value in values] for held, values in given.values()]
    for name, was, found in zip(given, wanted, found_in(store, list(given)), strict=True):
        assert sorted(map(str, found)) == sorted(map(str, was)), name


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in REFUSED for name in REFUSED[kind]])
def test_what_a_store_cannot_hold_is_refused_by_name(kind: str, name: str, a_store: MAKE):
    held, _ = REFUSED[kind][name]
    text = refusal(a_store(kind), rows().schema.append(pa.field(name, held)))
    assert text.startswith(f"column {name!r} has type {held}, which no type of ") and "CAST(... AS VARCHAR)" in text


def test_a_nan_that_sqlite_would_lose(a_store: MAKE):
    store = a_store("sqlite")
    table = rows(1).append_column("x", pa.array([float("nan")]))
    sink = begun(store, table.schema)
    with pytest.raises(SinkError, match="column 'x' contains NaN, which SQLite cannot store"):
        sink.deliver(Delivery(QUERY, 0, "result-0", table))
    assert store.table() == []


# --- tables that are there ---------------------------------------------------------------------------------------------


@EVERY
def test_a_table_of_another_schema_is_refused(kind: str, a_store: MAKE):
    store = a_store(kind)
    sink = begun(store)
    deliver(sink, 0, 1)
    sink.close()
    schema = rows().schema
    missing = refusal(store, schema.append(pa.field("more", pa.int64())))
    assert "has no column 'more'; expected " in missing and "its columns are ts, k, v" in missing
    other = refusal(store, schema.set(2, pa.field("v", pa.string())))
    assert other.startswith("column 'v' of ") and "has the type " in other and "expected " in other
    assert store.values() == [1]


@EVERY
def test_a_wider_table_is_fine(kind: str, a_store: MAKE):
    """Columns of a wider type, in another order, and one more."""
    store = a_store(kind)
    wider = pa.schema([("v", pa.int64()), ("k", pa.int64()), ("note", pa.string()), ("ts", pa.timestamp("us", "UTC"))])
    begun(store, wider).close()
    sink = begun(store)
    deliver(sink, 0, 1, 2)
    sink.close()
    assert store.values() == [1, 2]


@DATABASE
def test_a_column_that_must_have_a_value(kind: str, a_store: MAKE):
    store = a_store(kind)
    store.execute(f'CREATE TABLE "{store.name}" (ts timestamp with time zone, k integer, v bigint, who text NOT NULL)')
    assert "column 'who' of table" in (text := refusal(store, rows().schema)), text


def test_sqlite_types_that_would_change_a_value(a_store: MAKE):
    store = a_store("sqlite")
    store.execute('CREATE TABLE "results" (ts DATETIME, k INT, v VARCHAR(20))')
    assert "column 'v' of table results has the type VARCHAR(20); expected INTEGER" in refusal(store, rows().schema)


def test_postgres_numbers_that_would_be_rounded(a_store: MAKE):
    store = a_store("postgres")
    store.execute(f"CREATE TABLE {store.name} (x numeric(10, 2))")
    wide, narrow = (pa.schema([("x", pa.decimal128(*size))]) for size in ((12, 4), (8, 2)))
    assert "has the type numeric(10,2); expected numeric" in refusal(store, wide)
    begun(store, narrow).close()


def test_a_table_of_a_schema(a_store: MAKE):
    for kind in ("duckdb", "postgres"):
        store = a_store(kind)
        store.execute(f"CREATE SCHEMA s_{store.name}")
        sink = sinks.database(store.url, f"s_{store.name}.t")
        sink.begin("result-0", rows().schema)
        deliver(sink, 0, 1)
        sink.close()
        assert store.execute(f"SELECT v FROM s_{store.name}.t") == [(1,)]
        assert store.execute(f"SELECT epoch FROM s_{store.name}.headrace_epochs") == [(0,)]


# --- keys --------------------------------------------------------------------------------------------------------------


@DATABASE
def test_rows_with_a_key_take_the_place_of_others(kind: str, a_store: MAKE):
    store, random_ = a_store(kind), random.Random(kind)
    sink = begun(store, key=["k"], ordered=True)
    assert sinks.wants_order(sink)
    last: dict[int, int] = {}
    for epoch in range(6):
        values = random_.sample(range(100), random_.randint(1, 12))
        for _ in range(random_.choice([1, 2])):
            deliver(sink, epoch, *values)
        last |= {value % 3: value for value in values}
        assert sorted(store.table("k, v")) == sorted(last.items())
    sink.close()


def test_keys_that_cannot_be_meant(a_store: MAKE):
    store = a_store("sqlite")
    with pytest.raises(QueryError, match="add ordered=True"):
        store.sink(key=["k"])
    with pytest.raises(QueryTypeError, match="a list of columns"):
        store.sink(key="k", ordered=True)
    with pytest.raises(QueryError, match="names no column"):
        store.sink(key=[], ordered=True)
    assert "no column 'nobody'" in refusal(store, rows().schema, key=["nobody"], ordered=True)
    real = rows().schema.append(pa.field("x", pa.float64()))
    assert "column 'x' is double" in refusal(store, real, key=["x"], ordered=True)


@DATABASE
def test_a_table_that_is_not_unique_by_the_key(kind: str, a_store: MAKE):
    store = a_store(kind)
    begun(store).close()
    assert "is not unique by k, so" in refusal(store, rows().schema, key=["k"], ordered=True)


def test_a_key_that_is_null(a_store: MAKE):
    sink = begun(a_store("sqlite"), key=["k"], ordered=True)
    table = rows(1).set_column(1, "k", pa.array([None], pa.int32()))
    with pytest.raises(SinkError, match="key column 'k' is null"):
        sink.deliver(Delivery(QUERY, 0, "result-0", table))


# --- away --------------------------------------------------------------------------------------------------------------


def away_for(server: postgres.Server, sink: Any, seconds: float) -> None:
    """Deliver while there is no server."""
    server.stop("immediate")
    timer = threading.Timer(seconds, server.start)
    timer.start()
    try:
        deliver(sink, 1, 3)
    finally:
        timer.join()


def test_a_server_that_is_away_is_waited_for(
    server: postgres.Server, a_store: MAKE, caplog: pytest.LogCaptureFixture, seconds: float = 1.0
):
    store = a_store("postgres")
    sink = begun(store)
    deliver(sink, 0, 1, 2)
    with caplog.at_level(logging.WARNING):
        away_for(server, sink, seconds)
    deliver(sink, 2, 4)
    sink.close()
    assert store.values() == [1, 2, 3, 4]
    said = [record.getMessage() for record in caplog.records]
    assert "is unreachable, the run waits: " in said[0] and "is reachable again after " in said[-1]
    assert postgres.PASSWORD not in caplog.text and postgres.IN_URL not in caplog.text


@pytest.mark.long
def test_a_server_that_is_away_for_a_minute(server: postgres.Server, a_store: MAKE, caplog: pytest.LogCaptureFixture):
    test_a_server_that_is_away_is_waited_for(server, a_store, caplog, 60.0)
    assert sum("is unreachable" in record.getMessage() for record in caplog.records) >= 2, "it says so again"


def test_nobody_is_waited_for_without_end(server: postgres.Server, a_store: MAKE):
    store = a_store("postgres")
    short, stopped = begun(store, patience="0.3 seconds"), begun(store, patience="1 hour")
    server.stop("immediate")
    try:
        with pytest.raises(SinkError, match=r"is unreachable \(after .* seconds\): "):
            deliver(short, 0, 1)
        threading.Timer(0.3, stopped.hurry).start()
        with pytest.raises(SinkError, match=r"is unreachable \(the run must end\): "):
            deliver(stopped, 0, 1)
        with pytest.raises(SinkError, match="cannot be reached: "):
            stopped.begin("result-0", rows().schema)
    finally:
        server.start()
    deliver(short, 0, 1)
    short.close()
    assert store.values() == [1]


@pytest.mark.parametrize("attached", [False, True])
def test_a_duckdb_file_that_this_process_reads_is_waited_for(
    attached: bool, a_store: MAKE, caplog: pytest.LogCaptureFixture
):
    """As docs/SINKS.md shows it, and by another database that has the file attached."""
    store = a_store("duckdb")
    sink = begun(store, patience="1 minute")
    deliver(sink, 0, 1)
    reader = duckdb.connect() if attached else duckdb.connect(store.file, read_only=True)
    if attached:
        reader.execute(f"ATTACH '{store.file}' AS mine (READ_ONLY)")

    def leave() -> None:
        wait_until(lambda: "is unreachable, the run waits" in caplog.text)
        reader.close()

    leaving = threading.Thread(target=leave, daemon=True)
    leaving.start()
    deliver(sink, 1, 2)
    leaving.join()
    assert store.values() == [1, 2]


def wait_until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.02)


def test_a_file_that_another_writes_to(a_store: MAKE, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite, "BUSY", 0.0)
    store = a_store("sqlite")
    sink = begun(store, patience="1 minute")
    other = sqlite3.connect(store.file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    threading.Timer(0.5, other.rollback).start()
    deliver(sink, 0, 1)
    other.close()
    assert store.values() == [1]


# --- secrets, and what cannot be meant ---------------------------------------------------------------------------------


def secrets_in(text: str) -> bool:
    return any(secret in text for secret in (postgres.PASSWORD, postgres.IN_URL, "7913"))


def test_a_password_is_nowhere(server: postgres.Server, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    sink = sinks.database(server.url, "secrets")
    assert not secrets_in(repr(sink) + str(sink.__dict__) + repr(sink.database)) and "anna@127.0.0.1" in repr(sink)
    with caplog.at_level(logging.DEBUG):
        run = LocalRun(table_stream(rows(1), name="events"), tmp_path / "state", sink=sink)
        run.epoch(rows(1, 2))
        server.stop("immediate")
        sink.patience.seconds = 0.2
        with pytest.raises(SinkError) as caught:
            run.epoch(rows(3))
        server.start()
        run.close()
    assert not secrets_in(f"{caught.value}{caught.value.__cause__}{caplog.text}")
    for path in (tmp_path / "state").rglob("*"):
        assert not path.is_file() or b"rd-7913" not in path.read_bytes(), path
    for wrong in (server.url.replace("anna", "bert"), server.url.replace("7913", "8888")):
        with pytest.raises(SinkError, match=r"cannot be reached: .*authentication") as refused:
            sinks.database(wrong, "secrets").begin("result-0", rows().schema)
        assert not secrets_in(str(refused.value)) and "8888" not in str(refused.value)


ODD = "2024#7913?[x]&y=z;é"  # characters that a URL may hold as they are, as far as libpq is concerned


@pytest.mark.parametrize(
    "form",
    [
        "postgresql://odd:{odd}@127.0.0.1:{port}/postgres",
        "postgres://odd:{quoted}@127.0.0.1:{port}/postgres?",
        "postgresql:///postgres?host=127.0.0.1&port={port}&user=odd&password={quoted}",
        "postgresql://odd:{odd}@/postgres?host={folder}&port={port}&",
        "postgresql://odd:{quoted}@127.0.0.1:1,127.0.0.1:{port}/postgres?target_session_attrs=read-write",
        "postgresql://odd@127.0.0.1:{port}/postgres?passwor%64={quoted}&connect_timeout=5",
    ],
)
def test_urls_that_libpq_takes(form: str, server: postgres.Server, a_store: MAKE, caplog: pytest.LogCaptureFixture):
    """The same login, whatever the URL looks like; and no text shows its password."""
    anna = a_store("postgres")
    if not anna.execute("SELECT FROM pg_roles WHERE rolname = 'odd'"):
        anna.execute(f"CREATE ROLE odd LOGIN SUPERUSER PASSWORD '{ODD}'")
    url = form.format(odd=ODD, quoted=quote(ODD, safe=""), port=server.port, folder=quote(str(server.folder), safe=""))
    sink: Any = sinks.database(url, anna.name, patience="0 seconds")
    sink.begin("result-0", rows().schema)
    deliver(sink, 0, 1)
    anna.execute(f"ALTER TABLE {anna.name} DROP COLUMN k")
    with caplog.at_level(logging.DEBUG), pytest.raises(QueryError) as caught:
        deliver(sink, 1, 2)
    sink.close()
    assert anna.values() == [1] and "odd@" in repr(sink)
    assert "7913" not in f"{sink!r} {sink.__dict__} {sink.database!r} {caught.value} {caplog.text}"


def test_an_error_of_the_driver_holds_no_secret_either(server: postgres.Server):
    """Whoever logs an error may log what led to it."""
    sink: Any = sinks.database(f"{server.url}?7913=x", "t")
    with pytest.raises(SinkError, match=r'invalid URI query parameter: "\*\*\*"') as caught:
        sink.begin("result-0", rows().schema)
    error: BaseException | None = caught.value
    while error is not None:
        assert not secrets_in(f"{error!r} {error.__dict__}")
        error = error.__context__


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://anna:7913%zz@h/d",
        "postgresql://anna:7913@h:port/d",
        7913,
        "7913",
        "my://7913",
        "host=h password=7913",
    ],
)
def test_urls_that_are_none(url: Any):
    with pytest.raises(QueryError) as caught:
        sinks.database(url, "t")
    assert "7913" not in str(caught.value)


def test_settings_that_are_secret(tmp_path: Path):
    lake = sinks.delta("s3://bucket/table", storage_options={"aws_secret_access_key": "7913", "aws_region": "here"})
    table = sinks.iceberg("n.t", catalog={"uri": f"sqlite:///{tmp_path}/none/c.db?password=7913", "token": "7913"})
    assert "7913" not in repr(lake) + repr(table)
    with pytest.raises(HeadraceError) as caught:
        table.begin("result-0", rows().schema)
    assert "7913" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a.b.c", ".t", "headrace_epochs", "x\n", 3])
def test_tables_that_cannot_be_meant(name: Any):
    with pytest.raises(QueryError):
        sinks.database("sqlite:///x.db", name)


@pytest.mark.parametrize(
    ("module", "extra", "make"),
    [
        ("adbc_driver_postgresql.dbapi", "postgres", lambda: sinks.database("postgresql://h/d", "t")),
        ("deltalake", "delta", lambda: sinks.delta("somewhere")),
        ("pyiceberg.exceptions", "iceberg", lambda: sinks.iceberg("n.t")),
    ],
)
def test_a_library_that_is_missing(module: str, extra: str, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingLibrary, match=rf"pip install 'headrace\[{extra}\]'"):
        make()


def test_a_commit_is_on_the_servers_disk_whatever_it_is_set_to(server: postgres.Server):
    sink = sinks.database(f"{server.url}?options=-csynchronous_commit%3Doff", "synced")
    with sink.database.transaction() as session:
        assert session.execute("SELECT current_setting('synchronous_commit')") == [("on",)]
    sink.close()


# --- in a run ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "delta"])
def test_late_tuples_go_there_too(kind: str, a_store: MAKE, tmp_path: Path):
    store = a_store(kind)
    run = LocalRun(table_stream(rows(1), name="events"), tmp_path / "state", late=store.sink())
    run.epoch(rows(10, 20))
    run.epoch(rows(5, 30))
    run.close()
    assert store.values() == [5]


def messages(schema: pa.Schema) -> Any:
    spark: Any = None
    return hr.kafka(spark, "nowhere:1", "calls", time="ts", schema=schema, name="calls")


@EVERY
def test_what_a_table_cannot_hold_of_what_may_be_put_aside_is_said_at_the_start(
    kind: str, a_store: MAKE, tmp_path: Path
):
    """Messages that cannot be read have columns of their own; at their delivery it would be too late, at every start."""
    sink = a_store(kind).sink()
    with pytest.raises(QueryError, match=r"late= cannot hold what fails in 'read a message': .*parquet\(\.\.\.\)"):
        LocalRun(messages(rows().schema), tmp_path / "state", late=sink, errors="keep")
    assert not list((tmp_path / "state" / "manifests").iterdir())
    LocalRun(messages(rows().schema), tmp_path / "state", late=sink).close()


def test_two_sources_that_differ_do_not_share_a_table_for_what_is_late(a_store: MAKE, tmp_path: Path):
    other = rows(1).append_column("more", pa.array(["x"]))
    query = table_stream(rows(1), name="a").join(table_stream(other, name="b"), on="l.k = r.k", within="1 second")
    with pytest.raises(QueryError, match=r"late= cannot hold late tuples of 'b': table results has no column 'more'"):
        LocalRun(query, tmp_path / "state", late=a_store("sqlite").sink())


def test_a_sink_for_late_tuples_is_begun_as_any_other(tmp_path: Path, a_store: MAKE):
    sink, told = a_store("sqlite").sink(), Told()
    sink.hurry()  # of a run before
    LocalRun(table_stream(rows(1), name="events"), tmp_path / "one", late=sink).close()
    assert not sink.patience._hurry.is_set()
    steps = table_stream(rows(1), name="events").map(v="v", x="cast(k as tinyint)")
    for errors, names in (("stop", ["late:events"]), ("keep", ["late:events", "failed:events:1"])):
        told = Told()
        LocalRun(steps, tmp_path / errors, late=told, errors=errors).close()
        assert [said[0] for said in told.said if said != "close"] == names
        assert all(said[1][-2:] == ["_source", "_reason"] for said in told.said if said != "close")


def test_a_run_that_cannot_store_its_results_does_not_begin(a_store: MAKE, tmp_path: Path):
    query = table_stream(rows(1), name="events").aggregate(by=["k"], window="5 seconds", all="list(v)")
    with pytest.raises(QueryTypeError, match="column 'all' has type list"):
        LocalRun(query, tmp_path / "state", sink=a_store("sqlite").sink())
    assert not list((tmp_path / "state" / "manifests").iterdir())


class Told:
    """A sink that notes what it is told."""

    ordered = False

    def __init__(self) -> None:
        self.said: list[Any] = []

    def begin(self, result: str, schema: pa.Schema) -> None:
        self.said.append((result, schema.names))

    def resume(self, query: str, result: str, epoch: int) -> None:
        self.said.append((query, result, epoch))

    def hurry(self) -> None:
        self.said.append("hurry")

    def close(self) -> None:
        self.said.append("close")

    def deliver(self, delivery: Delivery) -> None:
        self.said.append(delivery.epoch)


def test_what_a_sink_is_told(tmp_path: Path):
    sink = Told()
    run = LocalRun(table_stream(rows(1), name="events"), tmp_path / "state", sink=sink)
    run.epoch(rows(1))
    run.driver.hurry()
    run.driver.end(None)
    assert sink.said == [("result-0", ["ts", "k", "v"]), 0, "hurry", "close"]
    again = Told()
    run = LocalRun(table_stream(rows(1), name="events"), tmp_path / "state", sink=again, late=again)
    run.close()
    query = run.store.state_id
    names = ["result-0", "late:events"]
    assert [each[:1] for each in again.said[:2]] == [(name,) for name in names], "both are begun, then"
    assert again.said[2:4] == [(query, name, 0) for name in names]
