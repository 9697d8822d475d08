"""A program with secrets in everything that takes settings; `test_secrets` looks for them in all that it says and leaves.

It gets them through its environment: `PLANTED` (JSON: settings of a processor, URLs that are wrong, settings of Kafka), and the
variables that `hr.secret` reads. Its first argument is a folder of files to read; it works in the current folder.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.cli import app
from headrace.sinks import kafka as the_sink
from headrace.spark.session import _py4j_quiet

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64())])


class Enriching(hr.Processor):
    """Looks at its secrets as a client of something would."""

    schema = SCHEMA

    def __init__(self, **settings: Any) -> None:
        vars(self).update(settings)

    def open(self, substream: int, substreams: int) -> None:
        assert self.header == os.environ["API_TOKEN"] and self.nested["clients"][0]["key"] == self.header  # type: ignore[attr-defined]

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        return tuples


class Failing(Enriching):
    """Fails as libraries do: with an error that quotes what was given."""

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        try:
            raise OSError(f"no answer with {vars(self)}")
        except OSError as error:
            raise ConnectionError(f"cannot log in: {self.header} {self.planted}") from error  # type: ignore[attr-defined]


def tell(what: str, *found: Any) -> None:
    for each in found:
        print(f"{what}: {each} {each!r}")


def fail(what: str, do: Callable[[], Any]) -> None:
    """Show the error, with all that led to it."""
    try:
        do()
    except Exception as caught:
        error: BaseException | None = caught
        print(f"{what} failed as it should: {''.join(traceback.format_exception(caught))}")
        while error is not None:
            print(f"in its chain: {type(error).__name__} {error} {error!r} {vars(error)}")
            error = error.__cause__ or error.__context__
    else:
        raise AssertionError(f"{what} did not fail")


def follow(query: hr.Stream, sink: Any, checkpoint: str, tuples: int) -> None:
    run = query.start(sink, checkpoint=checkpoint, epoch="0 seconds", slots=2)
    with run:
        while run.progress.tuples_in < tuples and run.exception is None:
            time.sleep(0.05)
        tell("run", run, run.progress, vars(run.progress), sink, vars(sink))
    if run.exception is not None:
        raise run.exception


def main() -> None:
    the_sink.ANSWER = 1.0  # seconds that it waits for a broker that is not there
    logging.basicConfig(level=0, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True)
    planted = json.loads(os.environ["PLANTED"])
    spark = hr.session(
        2,
        **{
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file://{os.getcwd()}/events",
            "spark.hadoop.fs.s3a.secret.key": planted["spark"],
            "spark.myapp.header": hr.secret("SPARK_HEADER"),
            "spark.log.level": "INFO",
        },
    )
    with _py4j_quiet():  # it logs what it is answered
        assert spark.conf.get("spark.hadoop.fs.s3a.secret.key") == planted["spark"]
        assert spark.conf.get("spark.myapp.header") == os.environ["SPARK_HEADER"]
    events = hr.files(spark, sys.argv[1], time="ts", name="events")

    def query(kind: type[hr.Processor] = Enriching, **more: Any) -> hr.Stream:
        marked = {"header": hr.secret("API_TOKEN"), "nested": {"clients": [{"key": hr.secret("API_TOKEN")}]}}
        return events.split(2, by=["k"]).apply(
            kind(planted=planted["settings"], **planted["settings"], **marked, **more)
        )

    made = query(limit=1)
    tell("query", made, made.plan(slots=2), made.plan(slots=2).to_json(), made.explain(slots=2))
    database = hr.sinks.database(hr.secret("DB_URL"), "planted")
    follow(made, database, "checkpoint", 4)
    follow(query(limit=2), hr.sinks.database(planted["url"], "planted"), "checkpoint", 4)

    for number, wrong in enumerate(planted["wrong"]):
        fail("a login", lambda url=wrong, at=number: follow(made, hr.sinks.database(url, "t"), f"wrong-{at}", 4))
    fail("a processor", lambda: follow(query(Failing), hr.sinks.parquet("out"), "failing", 4))
    missing = query(api=hr.secret("NOT_THERE"))
    fail("a missing secret", lambda: follow(missing, hr.sinks.parquet("out"), "missing", 4))
    kafka = hr.sinks.kafka("127.0.0.1:1", "t", settings=planted["kafka"], patience="0 seconds")
    tell("sink", kafka, vars(kafka))
    fail("Kafka", lambda: kafka.begin("result-0", SCHEMA))
    topic = {"time": "@timestamp", "schema": SCHEMA.remove(0)}
    source = hr.kafka(spark, "127.0.0.1:1", "t", settings=planted["kafka"], **topic)
    tell("source", source, source.explain())
    bad = {"settings": {**planted["kafka"], "security.protocol": "none"}}
    fail("settings of Kafka", lambda: hr.kafka(spark, "127.0.0.1:1", "t", **bad, **topic))
    if "broker" in planted:
        with_broker(spark, planted, topic)
    for command in ("decisions", "explain"):
        with suppress(SystemExit):
            app([command, "--checkpoint", "checkpoint"])
    spark.stop()
    print("to the end")


def with_broker(spark: Any, planted: dict[str, Any], topic: dict[str, Any]) -> None:
    """With a broker that wants a login: a source and a sink with the password from the environment, and with a wrong one."""
    address, login = planted["broker"]["address"], planted["broker"]["login"]

    def both(password: Any) -> tuple[hr.Stream, Any]:
        settings = {**login, "sasl.password": password}
        found = hr.kafka(spark, address, "planted-in", settings=settings, **topic)
        sink = hr.sinks.kafka(address, "planted-out", settings={**settings, "debug": "security,conf"})
        tell("Kafka", found, found.explain(), sink, vars(sink))
        return found, sink

    follow(*both(hr.secret("KAFKA_PASSWORD")), "kafka", 3)
    source, sink = both(planted["broker"]["wrong"])
    fail("a login to Kafka", lambda: source.collect(slots=1))
    fail("a login to Kafka", lambda: sink.begin("result-0", source.schema))


if __name__ == "__main__":
    main()
