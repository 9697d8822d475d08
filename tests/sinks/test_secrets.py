"""Secrets planted in sinks, sources, processors, Spark's settings and the environment of a real run: they are found nowhere.

`planted` is the program. Looked at: what it prints and logs at every level, errors and all that led to them, texts of streams,
plans, runs and sinks, every file that it writes (the checkpoint with its manifests and blocks, results, scratch folders, Spark's
log of events) also while it runs, and the arguments of its processes.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from adbc_driver_postgresql import dbapi

from headrace_demo.broker import PASSWORD, Broker
from tests.kafka import sending
from tests.patience import PATIENCE
from tests.sinks import planted, postgres

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

ROOT = Path(__file__).resolve().parents[2]
ODD = "20/24#{}?[x]&y=z;é:@%\\'\" \t"  # every character that URLs, connection strings or JSON reserve
NEEDLE = re.compile(rb"hunter-\d\d\d|" + re.escape(PASSWORD.encode()))


def a_needle(numbers: Iterator[int]) -> str:
    return f"hunter-{next(numbers)}"


def settings(numbers: Iterator[int]) -> dict[str, Any]:
    """Of a processor: secrets of many shapes, each with a needle of its own."""

    def new() -> str:
        return a_needle(numbers)

    key = f"-----BEGIN PRIVATE KEY-----\nMIGH{new()}\n{new()}AgEA\n-----END PRIVATE KEY-----"
    return {
        "password": ODD.format(new()),
        "pwd": new(),
        "passphrase": new(),
        "kafka": {"sasl.username": "ann", "sasl.password": new(), "ssl": {"key": {"password": new()}}},
        "servers": [{"host": "h", "token": new()}, {"tokens": [new(), new()]}],
        "pairs": [["sasl.password", new()], ["user", "ann"]],
        "url": f"postgresql://ann:{quote(ODD.format(new()), safe='')}@h/db",
        "raw_url": f"https://ann:12/3#{new()}?x@y@h/db",
        "signed": f"https://h/x?sv=1&sig={new()}",
        "dsn": f"host=h user=ann password='{new()} x'",
        "headers": {"Authorization": new(), "X-Api-Key": new(), "accept": "*/*"},
        "bearer_text": f"Bearer {new()}",
        "private_key": key,
        "content": key.replace("MIGH", new()),
        "aws": {"aws_access_key_id": new(), "aws_secret_access_key": new(), "sas": new()},
        "auth": ["ann", new()],
    }


def test_secrets_are_found_nowhere(server: postgres.Server, tmp_path: Path):
    demand_found_nowhere(server, None, tmp_path)


@pytest.mark.long
def test_secrets_are_found_nowhere_with_a_broker_too(server: postgres.Server, broker: Broker, tmp_path: Path):
    demand_found_nowhere(server, broker, tmp_path)


def demand_found_nowhere(server: postgres.Server, broker: Broker | None, tmp_path: Path) -> None:
    numbers = itertools.count(100)
    plain, marked = settings(numbers), {name: a_needle(numbers) for name in ("API_TOKEN", "SPARK_HEADER")}
    password, wrong = ODD.format(a_needle(numbers)), ODD.format(a_needle(numbers))
    role = f"planted_{uuid.uuid4().hex}"
    with dbapi.connect(server.url) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD {literal(password)}")
        connection.commit()
    login = f"postgresql://{role}:{{}}@127.0.0.1:{server.port}/postgres"
    url = login.format(quote(password, safe=""))
    given: dict[str, Any] = {
        "settings": plain,
        "spark": a_needle(numbers),
        "url": url,
        "wrong": [
            login.format(quote(wrong, safe="")),
            f"postgresql://ann:1/{a_needle(numbers)}@h/db",
            f"postgresql://ann:x@127.0.0.1:1/db?sslpassword={a_needle(numbers)}&{a_needle(numbers)}=x",
        ],
        "kafka": {"sasl.password": a_needle(numbers), "sasl.username": "ann", "sasl.mechanism": "PLAIN", "security.protocol": "SASL_PLAINTEXT"},
    }  # fmt: skip
    if broker is not None:
        given["broker"] = {"address": broker.secured, "login": broker.login, "wrong": a_needle(numbers)}
        marked["KAFKA_PASSWORD"] = broker.login["sasl.password"]
        broker.create("planted-out")
        sending.send(broker.servers, broker.create("planted-in"), [(0, b'{"k": 1}')] * 3)
    found = Found()
    run(tmp_path, {"PLANTED": json.dumps(given), "DB_URL": url, **marked}, found)
    assert not found.places, found.places
    with dbapi.connect(server.url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT k FROM planted ORDER BY k")
        assert cursor.fetchall() == [(1,), (2,), (3,)], "and it has worked; the last one waits for the watermark"


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class Found:
    """Where secrets were found, by the first of each."""

    def __init__(self) -> None:
        self.places: dict[str, str] = {}

    def look(self, place: str, content: bytes) -> None:
        for match in NEEDLE.finditer(content):
            around = content[max(0, match.start() - 80) : match.end() + 20]
            self.places.setdefault(f"{match[0].decode()} in {place}", str(around))


def run(folder: Path, secrets: dict[str, str], found: Found) -> None:
    """The program, watched."""
    for name in ("files", "tmp", "work"):
        (folder / name).mkdir()
    (folder / "work" / "events").mkdir()
    times = pa.array(range(1, 5), pa.int64()).cast(planted.SCHEMA.field("ts").type)
    pq.write_table(pa.table({"ts": times, "k": [1, 2, 3, 4]}, schema=planted.SCHEMA), folder / "files" / "a.parquet")
    env = {**os.environ, **secrets, "TMPDIR": str(folder / "tmp"), "SPARK_LOCAL_DIRS": str(folder / "tmp")}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    output = folder / "output"
    with open(output, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, planted.__file__, str(folder / "files")],
            cwd=folder / "work", env=env, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < deadline:
            look_at_processes(process.pid, found)
            look_at_files(folder, found)
            time.sleep(1.0)
    look_at_files(folder, found)
    said = output.read_text(errors="replace")
    assert process.returncode == 0 and "to the end" in said, said[-5000:]
    events = b"".join(path.read_bytes() for path in (folder / "work" / "events").rglob("*") if path.is_file())
    assert b"SparkListenerEnvironmentUpdate" in events and b"spark.myapp.header" in events, "Spark logged its settings"
    assert "NOT_THERE is not set in a Python worker of Spark" in said and "ConnectionError: cannot log in: ***" in said
    assert said.count("failed as it should") >= 7 and '"limit": 2' in said, "and a change of settings was logged"


def look_at_processes(pid: int, found: Found) -> None:
    for each in family(pid):
        try:
            found.look("arguments", Path(f"/proc/{each}/cmdline").read_bytes())
        except OSError:  # it has ended
            continue


def family(pid: int) -> list[int]:
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        children = []
    return [pid, *(each for child in children for each in family(child))]


def look_at_files(folder: Path, found: Found) -> None:
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                name = re.sub(r"[0-9a-f]{8,}|\d+", "#", str(path.relative_to(folder)))
                found.look(name, path.read_bytes())
                found.look(name, unpacked(path))
        except OSError:  # it has gone
            continue


def unpacked(path: Path) -> bytes:
    """What a compressed file holds."""
    for read in (pq.read_table, lambda file: pa.ipc.open_file(file).read_all(), lambda file: pa.ipc.open_stream(file).read_all()):  # fmt: skip
        try:
            return str(read(path).to_pylist()).encode()
        except (pa.ArrowInvalid, OSError, ValueError):
            continue
    return b""
