"""A run that another query continues, migrated or restarted in mid-stream, against a run that never stopped.

The adversary of `test_layouts` draws layouts, slots and strategies here too. A result that is kept must be exactly that of a run
that never stopped. A result that is new must be complete from the time on that the manifest names, and none of its windows
may be half filled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.evolve.twins import QueryPairing
from headrace.operators.apply import ApplyOperator
from headrace.telemetry import incomplete

from .successions import make_succession, trouble

TRIED = 40  # in make test
LONG = 300

made = functools.cache(make_succession)


def first_trouble(seeds: range, folder: Path) -> str | None:
    """What is wrong in the first of these cases in which something is."""
    return next((found for seed in seeds if (found := trouble(made(seed), folder / str(seed))) is not None), None)


@pytest.mark.parametrize(
    "first", [pytest.param(first, marks=pytest.mark.thorough if first else ()) for first in range(0, TRIED, 4)]
)
def test_one_query_after_another(first: int, tmp_path: Path) -> None:
    found = first_trouble(range(first, first + 4), tmp_path)
    assert found is None, found


@pytest.mark.long
def test_three_hundred_pairs(tmp_path: Path) -> None:
    found = first_trouble(range(LONG), tmp_path)
    assert found is None, found


# --- canaries: the adversary must find these faults ----------------------------------------------------------------------


def _withhold_where_a_time_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    given = incomplete.withhold_incomplete
    monkeypatch.setattr(incomplete, "withhold_incomplete", lambda plan, begun: given(plan, _known(begun)))


def _known(begun: incomplete.Begun) -> incomplete.Begun:
    return {name: time for name, time in begun.items() if time is not None}


def _take_results_for_no_later_than_their_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ApplyOperator, "emitted_before", lambda operator, arrived, extra: arrived)


def _pair_operators_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueryPairing, "_take_all", lambda *given: None)


FAULTS = (_withhold_where_a_time_is_known, _take_results_for_no_later_than_their_cause, _pair_operators_by_name)


@pytest.mark.long
@pytest.mark.parametrize("break_it", FAULTS)
def test_a_fault_is_found(
    break_it: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    assert first_trouble(range(120), tmp_path) is not None


@pytest.mark.thorough
def test_all_kinds_of_changes_are_tried() -> None:
    """Otherwise the adversary would have nothing to break."""
    cases = [made(seed) for seed in range(TRIED)]
    labels = {each.label.split(" (")[0] for case in cases for each in case.latter}
    assert labels >= {"a twin", "behind a twin", "in front of a count"}
    assert any("with a step" in label for label in labels) and any(case.again for case in cases)
    assert any(each.shared for case in cases for each in case.latter) and not all(case.migrates for case in cases)
