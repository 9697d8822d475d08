"""Another user of the machine, while a run is live under the most careless umask: a real account that tries to read a tuple,
to connect to a socket or a port, to plant code, to remove or exchange a file, and to stop the run."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.another_user import AnotherUser, reachable_folder
from tests.helpers import write_whole

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

ROOT = Path(__file__).parents[2]
SECRET = "tuples-of-mine"

# a join of a source of our own with one of Spark's, a processor with tables, and something spilled; everything while it runs
RUN = """
import json, os, sys, time
os.umask(0)
from tests.processors import Counter
import headrace as hr
spark = hr.session(slots=2)
sc = spark.sparkContext
a = hr.files(spark, "in", time="ts", name="a")
b = hr.stream(spark.readStream.schema("ts timestamp, user string, kind string, n bigint").parquet("in"), time="ts", name="b")
joined = a.join(b, on="l.n = r.n", within="10 seconds").map(user="l_user", kind="r_kind", n="l_n")
run = joined.split(4, by=["user"]).apply(Counter()).start(hr.sinks.parquet("out"), checkpoint="ckpt", epoch="0 seconds")
shared = sc.broadcast("something")
def spill(_):
    from headrace.columnar import duck
    duck.connection().execute("CREATE TABLE t AS SELECT range i, repeat('x', 60) || range s FROM range(400_000)")
    return 1
assert sc.parallelize([1], 1).map(spill).sum() == 1
for line in sys.stdin:
    wanted = int(line)
    while run.progress.tuples_in < wanted or run.progress.results_out < wanted // 2 - 1:  # the last waits for a later one
        run.wait(0.05)
    token = sc._gateway.gateway_parameters.auth_token
    print(json.dumps({"block": f"broadcast_{shared._jbroadcast.id()}_piece0", "token": token}), flush=True)
"""

# what succeeds is printed
ATTACK = r"""
folder, asked = sys.argv[1], json.loads(sys.argv[2])
done = []

def attempt(what, act):
    try:
        if act() is not False:
            done.append(what)
    except (OSError, EOFError):
        pass

def opened(path, mode):
    with open(path, mode):
        return True

def created(path):
    planted = os.path.join(path, "planted.py")
    open(planted, "w").close()
    os.unlink(planted)
    return not os.stat(path).st_mode & stat.S_ISVTX  # in a temporary folder of all, everybody may

def moved(path):
    os.rename(path, path + ".taken")

def removed(path):
    os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)

def connected(path):
    with socket.socket(socket.AF_UNIX) as found:
        found.settimeout(5)
        found.connect(path)

def said(port, what, size=1):
    with socket.create_connection(port, timeout=5) as found:
        found.sendall(what)
        data = b""
        while len(data) < size and (more := found.recv(4096)):
            data += more
        return data

def ran_java(port):
    command = b"r\nu\njava.lang.System\nrj\ne\n"
    login = f"A\n{asked['token']}\n".encode()
    return said(port, command).startswith(b"!y") or b"\n!y" in said(port, login + command, 6)

def text(value):
    return struct.pack(">i", len(value)) + value.encode()

def read_block(port):
    '''As an executor of this application would: open a block of the driver.'''
    body = b"\0" + text("app") + text("driver") + struct.pack(">i", 1) + text(asked["block"])
    frame = struct.pack(">qbqi", 8 + 1 + 8 + 4 + len(body), 3, 1, len(body)) + body
    return said(port, frame, 9)[8:9] == b"\4"  # a response, not a failure

def listened(port):
    '''The web page of Spark.'''
    return said(port, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/")

for path, folders, names in os.walk(folder):
    attempt(f"planted in {path}", lambda: created(path))
    for name in (*folders, *names):
        each = os.path.join(path, name)
        attempt(f"moved {each}", lambda: moved(each))
        attempt(f"removed {each}", lambda: removed(each))
    for name in names:
        attempt(f"read {path}/{name}", lambda: opened(os.path.join(path, name), "rb"))
for path in asked["files"]:
    attempt(f"read {path}", lambda: opened(path, "rb"))
    attempt(f"wrote {path}", lambda: opened(path, "r+b"))
    attempt(f"removed {path}", lambda: removed(path))
for path in asked["sockets"]:
    attempt(f"connected to {path}", lambda: connected(path))
for port in asked["ports"]:
    attempt(f"ran Java at {port}", lambda: ran_java(port))
    attempt(f"read a block at {port}", lambda: read_block(port))
    attempt(f"saw a page at {port}", lambda: listened(port))
for process in asked["processes"]:
    for number in (0, signal.SIGTERM, signal.SIGKILL):
        attempt(f"sent {number} to {process}", lambda: os.kill(process, number))
    for name in ("environ", "mem", "fd/0"):
        attempt(f"read {name} of {process}", lambda: opened(f"/proc/{process}/{name}", "rb"))
print(json.dumps(done))
"""

# before the run is started again: names that it will look for, and folders that it is to take for its own garbage
PLANT = r"""
folder, cache, garbage = sys.argv[1:]
os.mkdir(f"{folder}/{cache}", 0o777)
for name in ("records", "head", "index"):
    open(f"{folder}/{cache}/{name}", "w").close()
os.symlink(garbage, f"{folder}/headrace-scratch-" + cache.split("-")[2] + "-aaaaaaaa")
os.symlink(garbage, f"{folder}/{cache[:-1]}" + ("0" if cache[-1] != "0" else "1"))
"""


def put(folder: Path, number: int) -> None:
    columns = {"user": [f"{SECRET}-{number}"], "kind": ["k"], "n": [number]}
    table = pa.table({"ts": pa.array([number * 60_000_000], pa.timestamp("us", "UTC")), **columns})
    write_whole(folder / f"{number}.parquet", table)


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Killed in the end, with all that it started."""
    env = {**os.environ, "TMPDIR": str(folder / "t"), "HEADRACE_CACHE": str(folder / "cache")}
    env |= {"NUMBA_CACHE_DIR": str(folder / "code"), "HEADRACE_TASK_MEMORY": "16MB"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    for name in ("HEADRACE_SCRATCH", "SPARK_LOCAL_DIRS"):
        env.pop(name, None)
    with (folder / "log").open("a") as log:
        (folder / "log").chmod(0o600)  # of the test
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}
        process = subprocess.Popen([sys.executable, "-c", RUN], cwd=folder, env=env, start_new_session=True, **pipes)
    try:
        yield process
    finally:
        for each in processes(process.pid):  # Spark has put some of them into groups of their own
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        process.communicate()


def told(process: subprocess.Popen[str], folder: Path, tuples: int) -> dict[str, Any]:
    """Once so many tuples have been taken, and the results that follow from them are delivered."""
    assert process.stdin and process.stdout
    process.stdin.write(f"{tuples}\n")
    process.stdin.flush()
    line = process.stdout.readline()
    assert line, (folder / "log").read_text()
    return json.loads(line)  # type: ignore[no-any-return]


def processes(root: int) -> list[int]:
    """A process and all that it started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def in_use(run: list[int]) -> dict[str, Any]:
    """Sockets and ports that these processes listen on, and the files that they have open or mapped, but for those of the system."""
    links = [link for process in run for link in held(process)]
    inodes = {found[1] for link in links if (found := re.fullmatch(r"socket:\[(\d+)\]", link))}
    ports: set[tuple[str, int]] = set()
    sockets: set[str] = set()
    for kind in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and fields[3] == "0A":
                address, _, port = fields[1].rpartition(":")
                ports.add((socket.inet_ntoa(bytes.fromhex(address[-8:])[::-1]), int(port, 16)))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[6] in inodes and fields[7].startswith("/"):
            sockets.add(fields[7])
    shared = ("/tmp/", "/dev/shm/", "/var/tmp/")
    found = {link.removesuffix(" (deleted)") for link in links if link.startswith(shared)}
    files = {link for link in found if not link.startswith(f"{ROOT}/")}  # the program itself may be in a shared folder
    return {"ports": sorted(ports), "sockets": sorted(sockets), "files": sorted(files - sockets)}


def held(process: int) -> Iterator[str]:
    try:
        for link in Path(f"/proc/{process}/fd").iterdir():
            yield os.readlink(link)
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            yield line.split(maxsplit=5)[-1]
    except (FileNotFoundError, ProcessLookupError):
        return


def test_another_user_can_neither_read_nor_harm_a_run(another_user: AnotherUser) -> None:
    with reachable_folder() as folder:
        for name, mode in (("t", 0o1777), ("cache", 0o1777), ("in", 0o700), ("out", 0o700), ("code", 0o755)):
            (folder / name).mkdir()
            (folder / name).chmod(mode)
        put(folder / "in", 1)
        with running(folder) as process:
            state = told(process, folder, 2)
            run = processes(process.pid)
            asked = {**in_use(run), "processes": run, "block": state["block"], "token": "guessed"}
            assert len(run) >= 4 and len(asked["ports"]) >= 3 and len(asked["sockets"]) >= 2, asked
            assert json.loads(another_user.run(ATTACK, folder, json.dumps(asked))) == []
            assert {address for address, _ in asked["ports"]} == {"127.0.0.1"}, "other machines can connect"
            known = json.dumps({**asked, "token": state["token"], "files": [], "sockets": [], "processes": []})
            assert "ran Java" in another_user.run(ATTACK, folder, known), (
                "who knows the token can: the attempt is a real one"
            )
            put(folder / "in", 2)
            told(process, folder, 4)
            mine = {path.name: path for path in (folder / "cache").iterdir()}
            assert len(mine) == 1, "the tables of the processor are kept between epochs"
        for cache in mine.values():
            for path in sorted(cache.rglob("*"), reverse=True):
                path.unlink()
            cache.rmdir()
        another_user.run(PLANT, folder / "cache", *mine, folder / "ckpt" / "state")
        another_user.run(PLANT, folder / "t", *mine, folder / "ckpt" / "state")
        put(folder / "in", 3)
        with running(folder) as process:
            told(process, folder, 6)
        found = pq.read_table(folder / "out", columns=["user", "seen"]).to_pylist()
        assert sorted(row["user"] for row in found) == [f"{SECRET}-1", f"{SECRET}-2"]
