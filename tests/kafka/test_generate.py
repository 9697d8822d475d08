"""headrace generate --kafka: the stream that files would have, in a topic."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import headrace as hr
from headrace import cli
from headrace.difference import difference
from headrace_demo.workloads import SCHEMA, BModel, Workload
from tests.kafka.broker import Broker
from tests.patience import PATIENCE

OPTIONS = ["--rate", "200", "--seconds", "3", "--files-per-second", "2"]
EXPECTED = pa.concat_tables(Workload(200, BModel(0.7), seed=7).tables(3))


def call(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, ["generate", *map(str, arguments), *OPTIONS], env={"COLUMNS": "300"})


def held(servers: str, topic: str, **given: Any) -> pa.Table:
    """All that a topic has."""
    source: Any = hr.kafka(None, servers, topic, time="ts", schema=SCHEMA, **given)  # type: ignore[arg-type]
    return source._node.origin.table()


@pytest.mark.parametrize("format", ["json", "arrow"])
def test_the_stream_is_in_the_topic(broker: Broker, format: str) -> None:
    topic = f"generated-{format}"
    found = call(topic, "--kafka", broker.servers, "--partitions", 3, "--format", format)
    assert found.exit_code == 0, found.output
    assert f"{len(EXPECTED):,} tuples in topic {topic}, made with 3 partitions" in found.output
    assert (
        f"hr.kafka(spark, '{broker.servers}', '{topic}', time='ts', schema=headrace_demo.workloads.SCHEMA"
        in found.output
    )
    assert difference(EXPECTED, held(broker.servers, topic, format=format)) is None
    assert not Path(topic).exists()


def test_into_a_topic_that_is_there(broker: Broker) -> None:
    topic = broker.create("generated-before", 1)
    assert f"tuples in topic {topic}\n" in call(topic, "--kafka", broker.servers).output
    assert difference(EXPECTED, held(broker.servers, topic)) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a/topic", "--kafka", "127.0.0.1:1"], "the stream goes into a topic, whose name has letters"),
        (["topic", "--kafka", "127.0.0.1:1"], "Kafka at 127.0.0.1:1 cannot create topic 'topic'"),
    ],
)
def test_what_cannot_be_sent_is_one_message(arguments: list[str], message: str) -> None:
    found = call(*arguments)
    assert found.exit_code == 1
    assert found.stderr.startswith("error: ") and message in found.stderr


def test_a_broker_of_its_own_runs_until_ctrl_c(broker: Broker) -> None:
    command = [sys.executable, "-m", "headrace.cli", "generate", "mine", "--kafka", "here", *OPTIONS]
    environment = {**os.environ, "COLUMNS": "300", "HEADRACE_KAFKA_JARS": str(broker.jars)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            said = next(line for line in process.stdout if "runs until Ctrl-C" in line)
            servers = re.findall(r"127\.0\.0\.1:\d+", said)[0]
            assert difference(EXPECTED, held(servers, "mine")) is None
        finally:
            process.send_signal(signal.SIGTERM)  # as Ctrl-C, which whoever was started in the background does not hear
        assert process.wait(PATIENCE) == 0
