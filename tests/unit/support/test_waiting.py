"""Waiting for a server: its calls are repeated until it answers, with one warning, or until the caller gives up."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headrace.support import waiting
from headrace.support.waiting import ServerWait


class Down(Exception):
    """The server is unreachable."""


def wait_with(told: list[Any], give_up: Any = lambda error, waited, pause: None) -> ServerWait[Down]:
    return ServerWait(Down, threading.Event(), give_up, told.append, lambda waited: told.append("back"))


def failing(times: int) -> Any:
    left = [Down()] * times

    def attempt() -> str:
        if left:
            raise left.pop()
        return "answer"

    return attempt


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST_PAUSE", 0.001)


def test_a_call_is_repeated_until_it_answers() -> None:
    told: list[Any] = []
    assert wait_with(told).call(failing(3)) == "answer"
    assert [type(each) for each in told] == [Down, str], "one warning in 30 seconds"


def test_a_server_that_answers_is_not_mentioned() -> None:
    told: list[Any] = []
    assert wait_with(told).call(failing(0)) == "answer" and told == []


def test_the_caller_decides_when_to_give_up() -> None:
    pauses: list[float] = []

    def give_up(error: Down, waited: float, pause: float) -> Exception | None:
        pauses.append(pause)
        return ValueError("enough") if len(pauses) == 3 else None

    with pytest.raises(ValueError, match="enough"):
        wait_with([], give_up).call(failing(9))
    assert pauses == [0.001, 0.002, 0.004], "each pause is twice as long"


def test_any_other_error_ends_the_wait() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_with([]).call(lambda: 1 // 0)
