"""Code of the user's own on real Spark: how it gets there, what is said when it cannot, and what its errors look like."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.reference import reference
from headrace.state.store import StateStore
from tests.patience import PATIENCE

sys.path.insert(0, str(Path(__file__).parents[2]))  # the tests are no installed package

from .test_exactness import read_results, same, write_files

pytestmark = pytest.mark.spark

TS = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", TS), ("user", pa.string()), ("n", pa.int64())])
SEEN = pa.schema([("user", pa.string()), ("times", pa.int64())])
SECOND = 1_000_000


def rows(start: int, stop: int) -> pa.Table:
    found = [{"ts": n * SECOND, "user": f"u{n % 5}", "n": n} for n in range(start, stop)]
    return pa.Table.from_pylist(found, SCHEMA)


def logins(spark: Any, folder: Path) -> hr.Stream:
    """Two files of twenty tuples; an epoch each."""
    if not folder.exists():
        write_files(folder, [rows(0, 20), rows(20, 40)])
    return hr.files(spark, folder, time="ts", name="logins", files_per_epoch=1)


def counting(fails_at: int | None = None) -> Any:
    """A local class, with what it needs in a closure."""

    class Counting(hr.Processor):
        schema = pa.schema([("ts", TS), ("user", pa.string()), ("times", pa.int64())])
        tables = {"seen": hr.StateTable(key=["user"], columns=SEEN)}

        def process(self, tuples: pa.Table, state: Any) -> pa.Table:
            if fails_at in tuples["n"].to_pylist():
                raise RuntimeError(f"I cannot do {fails_at}")
            before = state["seen"].get(tuples.select(["user"]).group_by("user").aggregate([]))
            known = dict(zip(before["user"].to_pylist(), before["times"].to_pylist(), strict=True))
            found = []
            for user in tuples["user"].to_pylist():
                known[user] = (known[user] or 0) + 1
                found.append(known[user])
            state["seen"].put(pa.table([list(known), list(known.values())], schema=SEEN))
            return pa.table([tuples["ts"], tuples["user"], pa.array(found, pa.int64())], schema=self.schema)

    return Counting()


def test_local_classes_and_lambdas_are_shipped(spark: Any, tmp_path: Path) -> None:
    parts = logins(spark, tmp_path / "in").split(
        3, route=lambda t: pc.if_else(pc.equal(t["n"], 7), None, pc.subtract(t["n"], pc.multiply(pc.divide(t["n"], 3), 3))),
        broadcast=lambda t: pc.equal(t["user"], "u4"),
    )  # fmt: skip
    query = parts.apply(counting())
    same(reference(query), query.collect(slots=2), "lambdas")


@pytest.mark.smoke
def test_a_failure_in_a_task_is_told_in_its_own_words_and_put_right_it_goes_on(spark: Any, tmp_path: Path) -> None:
    def start(fails_at: int | None) -> Any:
        query = logins(spark, tmp_path / "in").split(4, by=["user"]).apply(counting(fails_at))
        out, checkpoint = hr.sinks.parquet(tmp_path / "out"), tmp_path / "checkpoint"
        return query, query.start(out, checkpoint=checkpoint, epoch="0 seconds", slots=2, once=True)

    _, run = start(25)
    with pytest.raises(hr.DataError) as caught:
        run.wait(PATIENCE)
    told = str(caught.value)
    assert "Counting.process on substream" in told and "to 1970-01-01 00:00:3" in told
    assert "failed: RuntimeError: I cannot do 25\n" in told, "not Spark's words"
    assert 'raise RuntimeError(f"I cannot do {fails_at}")' in told and "in process" in told, "its own lines"
    assert "Py4J" not in told and "org.apache" not in told
    with StateStore.open(tmp_path / "checkpoint" / "state", read_only=True) as store:
        assert store.last is not None and store.last.number == 0, "the second epoch was not committed"
    query, run = start(None)
    assert run.progress.epoch == 0 and run.progress.splits["split-1"].routed == 20
    assert run.wait(PATIENCE)
    assert run.progress.splits["split-1"].routed == 40
    table = run.progress.tables["apply-1"]["seen"]
    assert table.rows == 5 == sum(share.rows for share in table.largest)
    assert hr.read_state(tmp_path / "checkpoint", "apply-1", "seen")["times"].to_pylist() == [8] * 5
    same(reference(query), read_results(tmp_path / "out", query.schema), "after the failure")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"route": "n"}, r"the route of split-1 .* gave \d+ for the tuple .*user=u\d, n=\d+; substreams are 0 \.\. 3"),
        ({"route": lambda t: [0]}, "the function <lambda>, gave 1 values for a table of 20 tuples"),
        ({"route": lambda t: t["nobody"]}, "the function <lambda>, failed on 20 tuples.*\n(.*\n)*.*KeyError"),
    ],
)
def test_a_rule_that_cannot_be_followed_in_a_task(spark: Any, tmp_path: Path, given: Any, words: str) -> None:
    with pytest.raises(hr.DataError, match=words):
        logins(spark, tmp_path / "in").split(4, **given).apply(counting()).collect(slots=2)


def leaving(how: str) -> Any:
    """A processor that ends its process, or raises what ends a generator or a thread."""

    class Leaving(hr.Processor):
        schema = SCHEMA

        def process(self, tuples: pa.Table, state: Any) -> pa.Table:
            if 25 in tuples["n"].to_pylist():
                if how == "exit":
                    os._exit(0)
                if how == "signal":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise {"generator": GeneratorExit, "interrupt": KeyboardInterrupt}[how]
            return tuples

    return Leaving()


@pytest.mark.parametrize("how", ["generator", pytest.param("interrupt", marks=pytest.mark.long)])
def test_a_processor_that_raises_what_is_no_exception(spark: Any, tmp_path: Path, how: str) -> None:
    query = logins(spark, tmp_path / "in").split(4, by=["user"]).apply(leaving(how))
    with pytest.raises(
        hr.DataError, match=r"Leaving\.process on substream \d, of tuples .*, failed: \w+(Exit|Interrupt)"
    ):
        query.collect(slots=2)


@pytest.mark.smoke
@pytest.mark.parametrize("how", ["exit", pytest.param("signal", marks=pytest.mark.long)])
def test_a_processor_whose_process_dies_is_named(spark: Any, tmp_path: Path, how: str) -> None:
    query = logins(spark, tmp_path / "in").split(4, route="n % 4").apply(leaving(how))
    options = {"checkpoint": tmp_path / "checkpoint", "epoch": "0 seconds", "slots": 2, "once": True}
    with pytest.raises(hr.EngineError, match=r"a task died in epoch 1, in Leaving\.process on substream 1; nothing of"):
        query.start(hr.sinks.parquet(tmp_path / "out"), **options).wait(PATIENCE)


def test_a_function_whose_process_dies_is_named(spark: Any, tmp_path: Path) -> None:
    query = logins(spark, tmp_path / "in").split(4, route=lambda t: os._exit(1)).apply(counting())
    with pytest.raises(
        hr.EngineError, match=r"died in epoch 0, in the route of split-1, the function <lambda>; nothing of"
    ):
        query.collect(slots=2)


# --- what cannot be shipped ------------------------------------------------------------------------------------------


@pytest.fixture
def only_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module that this process finds, and no task."""
    source = """
        import pyarrow as pa
        import headrace as hr

        class Echo(hr.Processor):
            schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("user", pa.string()), ("n", pa.int64())])

            def process(self, tuples, state):
                return tuples

        def route(tuples):
            return tuples["n"].cast(pa.int32())
    """
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "only_the_driver.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("only_the_driver")
    sys.modules.pop("only_the_driver", None)


def test_a_module_that_tasks_cannot_import_is_said_at_the_start_with_what_to_do(
    spark: Any, tmp_path: Path, only_here: Any
) -> None:
    source = logins(spark, tmp_path / "in")
    processor = source.split(40, route="n").apply(only_here.Echo())
    function = source.split(40, route=only_here.route).each(lambda t: t)
    for query, name in ((processor, "only_the_driver.Echo"), (function, "only_the_driver.route")):
        with pytest.raises(hr.EngineError) as caught:
            query.collect(slots=2)
        told = str(caught.value)
        assert told.startswith(f"tasks cannot load {name}") and "no module 'only_the_driver'" in told
        assert "addPyFile('only_the_driver.py')" in told and "into the main file" in told
    with pytest.raises(hr.EngineError, match=r"tasks cannot load only_the_driver\.Echo"):
        processor.start(hr.sinks.memory(), checkpoint=tmp_path / "checkpoint", slots=2)
    with StateStore.open(tmp_path / "checkpoint" / "state", read_only=True) as store:
        assert store.last is None
    spark.sparkContext.addPyFile(only_here.__file__)  # as the message says
    run = processor.start(hr.sinks.parquet(tmp_path / "out"), checkpoint=tmp_path / "checkpoint", slots=2, once=True)
    assert run.wait(PATIENCE)
    same(reference(processor), read_results(tmp_path / "out", processor.schema), "shipped")


@pytest.mark.smoke
def test_what_cannot_be_pickled_is_said_at_the_start(spark: Any, tmp_path: Path) -> None:
    lock = threading.Lock()

    class Locked(hr.Processor):
        schema = SCHEMA

        def process(self, tuples: pa.Table, state: Any) -> pa.Table:
            with lock:
                return tuples

    query = logins(spark, tmp_path / "in").split(2, by=["user"]).apply(Locked())
    words = r"Locked version 1 must be sent to tasks, but cannot be pickled: TypeError: .*lock.*; store only plain settings in a processor, .*open\(\)"
    with pytest.raises(hr.QueryTypeError, match=words):
        query.collect(slots=2)
    with pytest.raises(hr.QueryTypeError, match=words):
        query.start(hr.sinks.memory(), checkpoint=tmp_path / "checkpoint", slots=2)


# --- a script --------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
import pyarrow as pa
import headrace as hr

FACTOR = 10


class Scaled(hr.Processor):
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("user", pa.string()), ("n", pa.int64())])

    def __init__(self, more):
        self.more = more

    def process(self, tuples, state):
        n = [FACTOR * n + self.more for n in tuples["n"].to_pylist()]
        return tuples.set_column(2, "n", pa.array(n, pa.int64()))


def route(tuples):
    return [n % 3 for n in tuples["n"].to_pylist()]


if __name__ == "__main__":
    spark = hr.session(slots=2)
    source = hr.files(spark, sys.argv[1], time="ts", name="logins", files_per_epoch=1)
    query = source.split(3, route=route, broadcast=lambda t: [user == "u1" for user in t["user"].to_pylist()]).apply(Scaled(7))
    run = query.start(hr.sinks.parquet(sys.argv[2]), checkpoint=sys.argv[3], slots=2, once=True)
    run.wait()
    spark.stop()
"""


@pytest.mark.smoke
def test_classes_and_functions_of_a_script_are_shipped(tmp_path: Path) -> None:
    write_files(tmp_path / "in", [rows(0, 20), rows(20, 40)])
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    places = [str(tmp_path / name) for name in ("in", "out", "checkpoint")]
    done = subprocess.run([sys.executable, str(script), *places], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    found = read_results(tmp_path / "out", SCHEMA)
    times = [1 if n % 5 != 1 else 3 for n in range(40)]
    expected = sorted(10 * n + 7 for n, many in zip(range(40), times, strict=True) for _ in range(many))
    assert sorted(found["n"].to_pylist()) == expected
    with StateStore.open(tmp_path / "checkpoint" / "state", read_only=True) as store:
        assert (
            store.last is not None
            and store.last.versions["apply-1"] == '__main__.Scaled version 1, settings {"more": 7}'
        )
        stored = b"".join(path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file())
    assert b"FACTOR" not in stored and b"cloudpickle" not in stored, "code is never stored"
