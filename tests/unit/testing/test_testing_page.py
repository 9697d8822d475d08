"""docs/TESTING.md: its Python is run as it stands, in order, without Spark; its message is the one that users see."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from headrace import testing
from headrace.testing import PlayedStep

PAGE = (Path(__file__).parents[3] / "docs" / "TESTING.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_runs() -> None:
    assert len(BLOCKS) >= 11
    names = {"__name__": "__main__"}
    for block in BLOCKS:
        exec(compile(block, "TESTING.md", "exec"), names)


def test_the_page_names_every_argument_and_every_field() -> None:
    calls = (testing.source, testing.play, testing.epoch, testing.restart, PlayedStep.expect)
    words = {name for call in calls for name in inspect.signature(call).parameters} - {"self"}
    words |= {name for name in PlayedStep.__dataclass_fields__ if not name.startswith("_")} - {"label"}
    assert sorted(word for word in words if not re.search(rf"\b{word}\b", PAGE)) == []


def test_the_message_of_the_page_is_what_a_user_sees() -> None:
    calls = testing.source("calls", {"caller": "string"}, lateness="2 seconds")
    counts = calls.aggregate(by=["caller"], window="10 seconds", n="count(*)")
    given = [testing.epoch(calls=[(1, "ann"), (9, "ann")]), testing.epoch(calls=[(12, "cleo")])]
    (message,) = re.findall(r"```\n(step 1, .*?)\n```", PAGE, re.DOTALL)
    with pytest.raises(AssertionError) as told:
        testing.play(counts, given)[1].expect([{"caller": "ann", "n": 3}])
    assert str(told.value) == message
