"""docs/PROCESSORS.md: its Python is run as it stands, in order; what needs Spark, on Spark. What it says of errors and of
changes between two starts is what happens."""

from __future__ import annotations

import datetime as dt
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.testing import LocalRun, run_locally, table_stream

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "PROCESSORS.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(blocks: list[str]) -> None:
    names = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, "PROCESSORS.md", "exec"), names)


def test_the_page_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRICES_TOKEN", "")  # which the page sets
    blocks = [block for block in BLOCKS if "hr.session(" not in block]
    assert len(blocks) >= 11
    run(blocks)


def test_every_example_is_listed():
    linked = set(re.findall(r"\(\.\./examples/(\w+\.py)\)", PAGE))
    there = {path.name for path in (ROOT / "examples").glob("*.py") if "def build(" in path.read_text()}
    assert linked == there


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target


# --- errors -----------------------------------------------------------------------------------------------------------

TS = pa.timestamp("us", "UTC")
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
TUPLES = pa.table({"ts": pa.array([NOON, NOON + dt.timedelta(minutes=10)], TS), "user": ["ann", "bob"], "n": [1, 9]})
STREAM = table_stream(TUPLES, name="tuples")


class Same(hr.Processor):
    """Puts out what it gets."""

    schema = TUPLES.schema
    tables = {"seen": hr.StateTable(key=["user"], columns=TUPLES.schema)}

    def process(self, tuples: pa.Table, state: Any) -> Any:
        return tuples


def putting(make: Callable[[pa.Table, Any], Any], **declared: Any) -> hr.Stream:
    """By a processor that does this."""
    kind = type("Same", (hr.Processor,), {"schema": TUPLES.schema, "tables": Same.tables, **declared})
    kind.process = lambda self, tuples, state: make(tuples, state)
    if "outputs" in declared:
        kind.schema = None
    made = STREAM.split(2, route="0").apply(kind())
    return next(iter(made.values())) if isinstance(made, dict) else made


def routing(route: Any) -> hr.Stream:
    return STREAM.split(8, route=route).apply(Same())


def twice(tuples: pa.Table, state: Any) -> None:
    state["seen"].put(pa.concat_tables([tuples, tuples]))


def seldom() -> hr.Stream:
    kind = type("Same", (Same,), {"every": "1 ms", "tick": lambda self, time, state: None})
    return STREAM.split(2, route="0").apply(kind())


MINUTE = dt.timedelta(minutes=1)
COUNTER = itertools.count()
ERRORS: dict[str, Callable[[], hr.Stream]] = {
    "of tuples from": lambda: putting(lambda tuples, state: 1 / 0),
    "and also has": lambda: putting(lambda tuples, state: tuples.rename_columns(["ts", "user", "m"])),
    "of type string; expected int64": lambda: putting(lambda t, _: t.set_column(2, "n", pa.array(["a", "b"]))),
    "which is before the first tuple it was handed": lambda: putting(
        lambda t, _: t.set_column(0, "ts", pa.array([NOON - MINUTE] * 2, TS))
    ),
    "more than once": lambda: putting(twice),
    "what get was asked for lacks": lambda: putting(lambda tuples, state: state["seen"].get(tuples.select(["n"]))),
    "it has no output": lambda: putting(lambda tuples, state: {"hihg": tuples}, outputs={"high": TUPLES.schema}),
    "times in one epoch": seldom,
    "for the tuple": lambda: routing("n"),
    "and then": lambda: routing(lambda tuples: [next(COUNTER) % 8] * len(tuples)),
    "values for a table of": lambda: routing(lambda tuples: [1] * 7),
    "gave values of type double": lambda: routing(lambda tuples: [1.0] * len(tuples)),
}


@pytest.mark.parametrize("words", ERRORS)
def test_what_the_page_says_of_errors(words: str, tmp_path: Path):
    table = PAGE.partition("## When something goes wrong")[2]
    assert any(words in line.split("|")[1] for line in table.splitlines() if line.startswith("|")), "not on the page"
    with pytest.raises(hr.DataError, match=re.escape(words)):
        run_locally(ERRORS[words](), tmp_path)


# --- changes ----------------------------------------------------------------------------------------------------------


class Held(hr.Processor):
    schema = TUPLES.schema
    tables = {"seen": hr.StateTable(key=["user"], columns=TUPLES.schema)}
    every: Any = None

    def __init__(self, limit: int = 1):
        self.limit = limit

    def process(self, tuples: pa.Table, state: Any) -> None:
        state["seen"].put(tuples)


def held(**changed: Any) -> hr.Processor:
    """An instance that declares something else."""
    made = Held()
    for name, value in changed.items():
        setattr(made, name, value)
    return made


WIDER = {"seen": hr.StateTable(key=["user"], columns=TUPLES.schema.append(pa.field("more", pa.int64())))}
GOES_ON = {
    "settings": lambda: STREAM.split(8, by=["user"]).apply(Held(2)),
    "version": lambda: STREAM.split(8, by=["user"]).apply(held(version=2)),
    "every": lambda: STREAM.split(8, by=["user"]).apply(held(every="1 minute")),
}
CHANGED = {
    "tables": lambda: STREAM.split(8, by=["user"]).apply(held(tables=WIDER)),
    "schema": lambda: STREAM.split(8, by=["user"]).apply(held(schema=TUPLES.schema.remove(2))),
    "substreams": lambda: STREAM.split(4, by=["user"]).apply(Held()),
    "by": lambda: STREAM.split(8, by=["n"]).apply(Held()),
    "route": lambda: STREAM.split(8, route="n % 8").apply(Held()),
    "broadcast": lambda: STREAM.split(8, by=["user"], broadcast="n = 1").apply(Held()),
    "filter": lambda: STREAM.split(8, by=["user"]).filter("n > 0").apply(Held()),
}


@pytest.mark.parametrize("what", [*GOES_ON, *CHANGED])
def test_what_the_page_says_of_changes(what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    run = LocalRun(STREAM.split(8, by=["user"]).apply(Held()), tmp_path, slots=2)
    run.epoch(TUPLES)
    run.close()
    if what in CHANGED:
        with pytest.raises(hr.QueryChanged):
            LocalRun(CHANGED[what](), tmp_path)
        return
    LocalRun(GOES_ON[what](), tmp_path, slots=3).close()
    assert "continues with the state" in caplog.text
