"""Runs with until_idle: when they count as idle, and that they are stopped then; without Spark."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import QueryError, QueryTypeError
from headrace.run import until_idle
from headrace.run.arguments import check_ends
from headrace.run.until_idle import IdleCondition, stop_when_idle
from headrace.telemetry.progress import EpochSummary, Progress
from tests.patience import PATIENCE
from tests.unit.run.by_hand import HandRun


def after(epoch: int, tuples: int = 1) -> Progress:
    return Progress(epoch=epoch, last=EpochSummary(epoch, 0.1, tuples, 0, 0, 0, {}, {}, 0.1))


def test_idle_means_no_input_for_a_while_and_nothing_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(until_idle.time, "monotonic", lambda: now[0])
    run: Any = SimpleNamespace(progress=Progress(), busy=True)
    is_idle = IdleCondition(2.0)
    assert not is_idle(run)
    now[0] += 5.0
    assert not is_idle(run), "the first epoch is under way"
    run.busy, run.progress = False, after(0)
    assert not is_idle(run), "it has just ended"
    now[0] += 1.0
    run.progress = after(1)
    assert not is_idle(run)
    now[0] += 1.9
    run.progress = after(2, tuples=0)
    assert not is_idle(run)
    now[0] += 0.2
    assert is_idle(run), "an epoch without tuples is no input"


def test_a_run_that_finds_nothing_more_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IdleCondition.__init__, "__defaults__", (0.2,))
    hand = HandRun(tmp_path, files=3, streaming=False)
    run, began = hand.begin(), time.monotonic()
    stop_when_idle(run)
    assert run.wait(PATIENCE) and run.exception is None
    assert time.monotonic() - began >= 0.2
    assert [(final, taken) for final, taken, _ in hand.epochs] == [(False, 1)] * 3, "its input has no end"


def test_an_error_of_the_run_is_left_to_those_who_wait(tmp_path: Path) -> None:
    def fails() -> None:
        raise ValueError("no disk")

    run = HandRun(tmp_path, files=1, streaming=False, within=fails).begin()
    stop_when_idle(run)
    with pytest.raises(ValueError, match="no disk"):
        run.wait(PATIENCE)


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_until_idle_is_true_or_false(value: Any) -> None:
    with pytest.raises(QueryTypeError, match=f"until_idle must be True or False; found {value!r}"):
        check_ends(False, value)


def test_a_run_has_one_end() -> None:
    check_ends(False, True)
    with pytest.raises(
        QueryError, match=r"once=True ends after .*, and until_idle=True waits for more; give one of them"
    ):
        check_ends(True, True)
