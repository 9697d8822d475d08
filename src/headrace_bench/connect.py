"""The benchmark of connectors: headrace compared with Spark's connectors, for Kafka and PostgreSQL on this machine.

    in      a topic that is full at the start, in JSON or Arrow; counted by key and window, results to files
    out     files, all rows of which go to a topic or a table
    ages    an equality join, from two topics to a third, at a rate; from sending a result's later tuple to reading the
    result

Broker and database run as separate processes and are not measured, but share the cores if there are no others. Spark's
sinks deliver at least once. headrace's sinks deliver exactly once, and only committed results are read.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import HeadraceError
from headrace.sinks.kafka_messages import message_format
from headrace.support.extras import import_extra
from headrace_bench import answers, compare, feed, workload
from headrace_bench.feed import Floats, Latency
from headrace_bench.options import Options
from headrace_bench.report import Grid, Report, number
from headrace_bench.running import JudgedCase, alternating, judged, process, run_once, scratch, told
from headrace_bench.systems import System, connectors
from headrace_bench.task import Case, Query
from headrace_bench.workload import Streams
from headrace_demo import broker as brokers
from headrace_demo import postgres

PARTITIONS = 4
WINDOW = 10  # seconds
AGES_AT = 20_000  # tuples/s of both streams together
TICK = 0.05  # seconds between two batches of messages
GRACE = 12.0  # seconds that a system may take to catch up
ANSWER = 60.0  # seconds within which a broker on this machine answers
LARGEST = 1_000_000
EPOCHS = {"epochs of 500 ms": "500 milliseconds", "as fast as it goes": "0 seconds"}
READ = {
    "copy": "ts: 'TIMESTAMPTZ', key: 'BIGINT', payload: 'BIGINT', x: 'DOUBLE'",
    "join": "l_payload: 'BIGINT', r_payload: 'BIGINT'",
}
NOTES = (
    "in: counts by key in windows of 10 s; out: every row; messages in JSON hold one row, in Arrow as many as are said",
    "headrace: exactly once, read as committed; Spark: at least once. JDBC: batches of 10,000 rows, reWriteBatchedInserts",
    "Arrow in Spark: mapInArrow, as it has no such format",
    "broker and database run beside the system that is measured, on the same machine; CPU and memory are the system's alone",
)


@dataclass(frozen=True)
class Way:
    """One line of the benchmark: what is read and what is written."""

    name: str
    case: Case
    reads_kafka: bool
    writes: str  # files, kafka or postgres
    format: str = "json"
    rows: int = 1  # rows per message


@dataclass(frozen=True)
class Size:
    json: int  # rows per epoch, read as JSON messages
    arrow: int  # rows per epoch, read as Arrow messages
    out: int  # rows per epoch, written to Kafka
    table: int  # rows per epoch, written to a table
    rows: int  # rows per Arrow message
    warm: int  # epochs
    measured: int
    ages: tuple[float, float]  # seconds of warm-up and of measurement
    rate: int  # tuples/s for ages


FULL = Size(400_000, 4_000_000, 400_000, 400_000, 1_000, 4, 8, (15.0, 30.0), AGES_AT)
QUICK = Size(2_000, 8_000, 2_000, 2_000, 100, 1, 2, (3.0, 3.0), 1_000)


def ways(size: Size) -> list[Way]:
    def case(name: str, kind: str, per_epoch: int) -> Case:
        streams = Streams(("stream",), per_epoch / WINDOW, WINDOW, size.warm + size.measured, 1_000, gap=20.0 * WINDOW)
        return Case(f"{name}, epochs of {per_epoch:,}", streams, Query(kind, window=WINDOW, every=WINDOW), size.warm)

    many = f"Kafka in, Arrow, {size.rows:,} rows a message"
    return [
        Way("JSON in", case("Kafka in, JSON", "aggregate", size.json), True, "files"),
        Way("Arrow in", case(many, "aggregate", size.arrow), True, "files", "arrow", size.rows),
        Way("Kafka out", case("Kafka out, JSON", "copy", size.out), False, "kafka"),
        Way("PostgreSQL out", case("PostgreSQL out", "copy", size.table), False, "postgres"),
    ]


def contenders() -> list[System]:
    more = {**connectors.settings(), "spark.driver.extraJavaOptions": "-XX:+ExitOnOutOfMemoryError -Duser.timezone=UTC"}
    return [
        System("headrace", "headrace", "headrace_connect"),
        System("Spark, its connectors", "Spark", "spark_connect", {"spark": more}),
    ]


def run(options: Options) -> Report:
    size = QUICK if options.quick else FULL
    jars = brokers.needed("headrace bench connect")
    if postgres.programs() is None:
        raise HeadraceError("headrace bench connect needs a PostgreSQL server, but none is installed; run make setup")
    connectors.prepare(options.say)
    lines: list[Way | _Ages] = [*ways(size), *(_Ages(f"ages, {name}", epoch) for name, epoch in EPOCHS.items())]
    asked = options.wanted(lines)
    with ExitStack() as stack:
        broker = brokers.Broker(jars)
        stack.callback(broker.remove)
        server = postgres.Server()
        stack.callback(server.remove)
        bench = _Bench(broker, server, options)
        found = [bench.rates(way) for way in asked if isinstance(way, Way)]
        aged = [age for ages in asked if isinstance(ages, _Ages) for age in bench.ages(ages, size)]
    title = "Between Kafka, PostgreSQL and files, at full speed"
    report = compare.reported("connect", title, found, *NOTES)
    return replace(report, grids=[*report.grids, *_grids(aged)], data={**report.data, "ages": aged})


@dataclass(frozen=True)
class _Ages:
    name: str
    epoch: str


class _Bench:
    """Runs systems between one broker and one database, each time with a new topic or table."""

    def __init__(self, broker: brokers.Broker, server: postgres.Server, options: Options) -> None:
        self.broker, self.server, self.options = broker, server, options
        self._kafka = import_extra("confluent_kafka", "kafka", "headrace bench connect")
        self._names = (f"bench_{each}" for each in itertools.count())

    # --- rates ---------------------------------------------------------------------------------------------------------

    def rates(self, way: Way) -> JudgedCase:
        case, say = way.case, self.options.say
        with scratch("data") as folder:
            say(f"{case.name}: writing {case.streams.tuples:,} tuples")
            workload.write(case.streams, folder)
            topics = {side: self._filled(way, side) for side in case.streams.sides} if way.reads_kafka else {}
            right, outcomes = answers.expected(case, folder), []
            for turn in range(self.options.rounds):
                for system in alternating(contenders(), turn):
                    out = next(self._names)
                    if way.writes == "kafka":
                        self.broker.create(out, PARTITIONS)
                    given = self._given(way, topics, out)
                    outcomes.append(run_once(system, case, folder, self._collector(way, out), **given))
                    say(f"{case.name}: round {turn + 1} of {self.options.rounds}: {told(outcomes[-1])}")
            for topic in topics.values():
                self.broker.delete(topic)
            return judged(case, outcomes, right)

    def _given(self, way: Way, topics: dict[str, str], out: str) -> dict[str, Any]:
        """Return the options of a process in addition to its case."""
        closing = PARTITIONS if way.reads_kafka else 1  # tuples that move watermarks: one per partition
        return {
            "reads_kafka": way.reads_kafka,
            "writes": way.writes,
            "format": way.format,
            "servers": self.broker.servers,
            "topics": topics,
            "out": out,
            "messages_per_epoch": way.case.streams.per_epoch // way.rows,
            "rows_per_input": way.rows,
            "tuples": way.case.streams.tuples + closing,
            "delay": 2 * WINDOW if way.reads_kafka else 0,  # Spark sometimes reads partitions of a topic unevenly
            "follows": False,
            **self._database(),
        }

    def _database(self) -> dict[str, str]:
        place = f"127.0.0.1:{self.server.port}/postgres"
        login = {"user": postgres.USER, "password": postgres.PASSWORD}
        return {"url": self.server.url, "jdbc": f"jdbc:postgresql://{place}?reWriteBatchedInserts=true", **login}

    def _filled(self, way: Way, side: str) -> str:
        """Fill a topic with all tuples of a stream. Each partition has its share of each epoch, in order."""
        topic, sender = self.broker.create(next(self._names), PARTITIONS), self._sender()
        turn = itertools.cycle(range(PARTITIONS))
        for epoch, table in enumerate(way.case.streams.tables(side)):
            for value in _values(table, way):
                for partition in range(PARTITIONS) if epoch == way.case.streams.epochs else [next(turn)]:
                    _send(sender, topic, value, partition)
        sender.flush()
        return topic

    def _sender(self) -> Any:
        settings = {
            "bootstrap.servers": self.broker.servers,
            "enable.idempotence": True,
            "linger.ms": 5,
            "log_level": 0,
        }
        return self._kafka.Producer(settings)

    def _collector(self, way: Way, out: str) -> Callable[[Path], None] | None:
        if way.writes == "kafka":
            return lambda folder: self._from_topic(out, way.case.query.kind, folder)
        return partial(self._from_table, out) if way.writes == "postgres" else None

    def _from_topic(self, topic: str, kind: str, folder: Path) -> None:
        folder.mkdir()
        with self._reader(topic) as reader, (folder / "_lines").open("wb") as lines:
            ended = 0
            while ended < PARTITIONS:
                for message in reader.consume(10_000, 0.2):
                    if message.error() is None:
                        lines.write(message.value() + b"\n")
                    else:
                        ended += 1
        pq.write_table(_read_json(folder / "_lines", kind), folder / "all.parquet")

    def _from_table(self, table: str, folder: Path) -> None:
        dbapi = import_extra("adbc_driver_postgresql.dbapi", "postgres", "headrace bench connect")
        folder.mkdir()
        with dbapi.connect(self.server.url) as connection, connection.cursor() as cursor:
            cursor.execute(
                # for timestamps with and without time zone
                f"SELECT (extract(epoch FROM ts) * 1000000)::bigint AS ts, key, payload, x FROM {table}"
            )
            found = cursor.fetch_arrow_table()
        when = found["ts"].cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
        pq.write_table(found.set_column(0, "ts", when), folder / "all.parquet")

    @contextmanager
    def _reader(self, topic: str) -> Iterator[Any]:
        settings = {"bootstrap.servers": self.broker.servers, "group.id": topic, "log_level": 0}
        settings |= {"isolation.level": "read_committed", "fetch.wait.max.ms": 5}
        reader = self._kafka.Consumer({**settings, "enable.partition.eof": True})
        start = self._kafka.OFFSET_BEGINNING
        reader.assign([self._kafka.TopicPartition(topic, number, start) for number in range(PARTITIONS)])
        try:
            yield reader
        finally:
            reader.close()

    # --- ages ----------------------------------------------------------------------------------------------------------

    def ages(self, asked: _Ages, size: Size) -> list[dict[str, Any]]:
        warm, measured = size.ages
        each = size.rate / 2
        streams = Streams(("left", "right"), each, TICK, round((warm + measured) / TICK), round(each * 50), gap=50.0)
        case = Case(asked.name, streams, Query("join", on="l.key = r.key", within=5), round(warm / TICK))
        found = []
        for turn in range(self.options.rounds):
            for system in alternating(contenders(), turn):
                age = self._live(system, case, asked.epoch)
                self.options.say(f"{asked.name}, {size.rate:,} tuples/s, {system.name}: {feed.words(age)}")
                found.append({"case": asked.name, "system": system.name, "rate": size.rate, **feed.figures(age)})
        return found

    def _live(self, system: System, case: Case, epoch: str) -> Latency | None:
        topics = {side: self.broker.create(next(self._names), PARTITIONS) for side in case.streams.sides}
        out = self.broker.create(next(self._names), PARTITIONS)
        way = Way(case.name, case, True, "kafka")
        given = self._given(way, topics, out)
        given |= {
            "epoch": epoch,
            "messages_per_epoch": None,
            "follows": True,
            "tuples": case.streams.tuples,
            "delay": 5,
        }
        with scratch("live") as folder, scratch("run") as work:
            workload.write(case.streams, folder)
            with process(system, case, folder, work, **given) as (started, _), self._reader(out) as reader:
                results = _Results(reader)
                self._tick(way, topics, 0)
                if not feed.wait(lambda: feed.done(work) > 0 or started.poll() is not None, feed.START_LIMIT):
                    return None
                arrivals = self._feed(way, topics)
                feed.wait(lambda: feed.done(work) >= case.streams.tuples or started.poll() is not None, GRACE)
                time.sleep(2.0)  # lets processed results become visible
                (work / "stop").touch()
                feed.wait(lambda: started.poll() is not None, 5.0)
                results.end()  # before the reader is closed
            return feed.latency(case, folder, results.tables(), arrivals)

    def _feed(self, way: Way, topics: dict[str, str]) -> Floats:
        """Send messages on schedule. Return the time of each tick."""
        begin, arrivals = time.time() + 0.2, [0.0]
        for tick in range(1, way.case.streams.epochs):
            time.sleep(max(0.0, begin + tick * TICK - time.time()))
            arrivals.append(time.time())
            self._tick(way, topics, tick)
        return np.array(arrivals)

    def _tick(self, way: Way, topics: dict[str, str], tick: int) -> None:
        if tick == 0:
            self._ticks = {side: _all_values(way, side) for side in topics}
            self._live_sender = self._sender()
        for side, topic in topics.items():
            for place, value in enumerate(self._ticks[side][tick]):
                self._live_sender.produce(topic, value, partition=place % PARTITIONS)
        self._live_sender.poll(0)


class _Results(threading.Thread):
    """Reads results as they become visible, and records the times."""

    def __init__(self, reader: Any) -> None:
        super().__init__(name="headrace-bench-reader", daemon=True)
        self._reader, self._done = reader, threading.Event()
        self._found: list[tuple[float, list[bytes]]] = []
        self.start()

    def run(self) -> None:
        while not self._done.is_set():
            messages = self._reader.consume(10_000, 0.005)
            lines = [message.value() for message in messages if message.error() is None]
            if lines:
                self._found.append((time.time(), lines))

    def end(self) -> None:
        self._done.set()
        self.join()

    def tables(self) -> Iterator[tuple[float, pa.Table]]:
        with scratch("lines") as folder:
            for at, lines in self._found:
                (folder / "lines").write_bytes(b"\n".join(lines))
                yield at, _read_json(folder / "lines", "join")


def _all_values(way: Way, side: str) -> list[list[bytes]]:
    return [list(_values(table, way)) for table in way.case.streams.tables(side)]


def _values(table: pa.Table, way: Way) -> Iterator[bytes]:
    if way.format == "json":
        for some in message_format("json", None).messages(table, LARGEST):
            yield from some.values
        return
    for start in range(0, table.num_rows, way.rows):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(start, way.rows))
        yield sink.getvalue().to_pybytes()


def _send(sender: Any, topic: str, value: bytes, partition: int) -> None:
    while True:
        try:
            sender.produce(topic, value, partition=partition)
            return
        except BufferError:
            sender.poll(0.1)


def _read_json(lines: Path, kind: str) -> pa.Table:
    with duckdb.connect() as connection:
        connection.execute("set TimeZone = 'UTC'; set enable_progress_bar = false")
        columns = READ[kind]
        asked = f"select * from read_json('{lines}', format = 'newline_delimited', columns = {{{columns}}})"
        return connection.sql(asked).to_arrow_table()


def _grids(aged: Sequence[dict[str, Any]]) -> list[Grid]:
    rows = [
        [
            each["case"],
            each["system"],
            number(each["rate"]),
            *(f"{each[q]:.3f}" if q in each else "" for q in ("p50", "p99")),
            "no result" if "missing" not in each else f"{each['missing']:,} missing" if each["missing"] else "",
        ]
        for each in aged
    ]
    title = "equality join, Kafka in, Kafka out: age of results in seconds"
    return [Grid(title, ["case", "system", ">tuples/s", ">p50", ">p99", ""], rows)] if rows else []
