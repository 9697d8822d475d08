"""The query in the engine, cut at random, against the rules written down plainly."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.testing import LocalRun, table_stream
from headrace_linearroad import query, validating
from headrace_linearroad.forms import FIELDS, OUTPUTS
from headrace_linearroad.history import Histories
from headrace_linearroad.profiles import Profile
from headrace_linearroad.wandering import FIELDS as WATCHED
from headrace_linearroad.wandering import Watch
from tests.linearroad import plain
from tests.linearroad.traffic import as_table, traffic, wild


def rows(table: pa.Table) -> Counter[tuple[int, ...]]:
    """Without `ts`, which says what `time` says."""
    time = table["ts"].cast(pa.int64()).to_numpy() // 1_000_000
    assert (time == table["time"].to_numpy()).all()
    columns = [column.to_pylist() for column in table.drop_columns(["ts"]).columns]
    return Counter(zip(*columns, strict=True))


def differ(expected: dict[str, plain.Rows], found: dict[str, pa.Table]) -> list[str]:
    told = []
    for name, right in expected.items():
        have, want = rows(found[name]), Counter(right)
        told += [f"{name} lacks {row}" for row in list((want - have).elements())[:3]]
        told += [f"{name} has {row}" for row in list((have - want).elements())[:3]]
    return told


def cut(tuples: Sequence[dict[str, int]], most: int, r: random.Random) -> Iterator[pa.Table]:
    """In epochs of some seconds; within a second in any order."""
    by_time = sorted(tuples, key=lambda each: (each["time"], r.random()))
    for _, some_seconds in itertools.groupby(by_time, _epochs(r, most)):
        yield as_table(list(some_seconds))


def _epochs(r: random.Random, most: int) -> Callable[[dict[str, int]], int]:
    ends = list(itertools.accumulate(r.randint(1, most) for _ in range(20_000)))
    return lambda each: next(place for place, end in enumerate(ends) if each["time"] < end)


def watched(tuples: Sequence[dict[str, int]], profile: str, most: int = 1000) -> str:
    """What a car does that the usual plan takes for granted that no car does."""
    reports = sorted((each for each in tuples if each["type"] == 0), key=lambda each: each["time"])
    watch = Watch(profile)
    for first in range(0, len(reports), most):
        watch.see({name: np.array([each[name] for each in reports[first : first + most]]) for name in WATCHED})
    return watch.found


def answered(
    tuples: Sequence[dict[str, int]],
    profile: str,
    folder: Path,
    most: int,
    seed: int = 0,
    wandering: bool | None = None,
    **history: Path,
) -> dict[str, pa.Table]:
    """What the engine puts out, with slots that change and restarts; by the plan that the tuples need."""
    r = random.Random(seed)
    histories = Histories(history.get("tolls"), history.get("segments"))
    wandering = bool(watched(tuples, profile)) if wandering is None else wandering
    streams = query.answers(table_stream(as_table([]), name="input"), profile, histories, wandering)
    sink, epochs = hr.sinks.memory(), [*cut(tuples, most, r), None]
    while epochs:
        run = LocalRun(list(streams.values()), folder, slots=r.choice((1, 2, 3)), sink=sink)
        for _ in range(min(r.randint(3, 30), len(epochs))):
            table = epochs.pop(0)
            run.end() if table is None else run.epoch(table, splitters=r.choice((1, 2)))
        run.close()
    found: dict[str, list[pa.Table]] = {f"result-{n}": [s.schema.empty_table()] for n, s in enumerate(streams.values())}
    for (_, _, result), table in sink.epochs.items():
        found[result].append(table)
    return {name: pa.concat_tables(found[f"result-{n}"]) for n, name in enumerate(streams)}


def judged(
    tuples: Sequence[dict[str, int]], profile: str, found: dict[str, pa.Table], folder: Path
) -> list[dict[str, object]]:
    """What the judge has to say against it."""
    path = folder / "input.dat"
    by_time = sorted(tuples, key=lambda each: each["time"])
    path.write_text("".join(",".join(str(each[name]) for name in FIELDS) + "\n" for each in by_time))
    right = validating.answer(path, [], validating.PROFILES[profile])
    verdict = validating.compare(right, {name: found[name] for name in OUTPUTS})
    return [example for each in verdict.to_json()["outputs"].values() for example in each["examples"]]


WHERE = (
    pytest.mark.thorough,
    pytest.mark.long,
    pytest.mark.long,
    (),
)  # of long epochs in `make unit` too: they take a second
CASES = [pytest.param(case, marks=WHERE[case[0]]) for case in itertools.product(range(4), Profile)]


@pytest.mark.parametrize("case", CASES)
def test_the_rules(case: tuple[int, Profile], tmp_path: Path) -> None:
    seed, profile = case
    tuples = traffic(seed)
    expected = plain.answers(tuples, profile)
    assert any(row[3] for row in expected["tolls"])
    assert expected["accidents"]
    assert any(row[4] for row in expected["balances"])
    found = answered(tuples, profile, tmp_path, most=(60, 20, 150, 600)[seed], seed=seed)
    assert differ(expected, found) == []
    assert not found[query.APART].num_rows


@pytest.mark.parametrize("case", CASES)
def test_the_rules_of_cars_that_are_anywhere(case: tuple[int, Profile], tmp_path: Path) -> None:
    seed, profile = case
    tuples = wild(seed)
    assert watched(tuples, profile)
    found = answered(tuples, profile, tmp_path / "state", most=(60, 20, 150, 600)[seed], seed=seed)
    assert differ(plain.answers(tuples, profile), found) == []
    assert judged(tuples, profile, found, tmp_path) == []


def tamed(tuples: Sequence[dict[str, int]], profile: str) -> list[dict[str, int]]:
    """Without reports that would need the longer plan: what is left is just about what the usual one must know."""
    watch, kept = Watch(profile), []
    for each in sorted(tuples, key=lambda each: each["time"]):
        if each["type"] == 0:
            watch.see({name: np.array([each[name]]) for name in WATCHED})
            if watch.found:
                watch.found = ""
                continue
        kept.append(each)
    return kept


@pytest.mark.parametrize("case", CASES)
def test_the_usual_plan_is_enough_where_nothing_is_found(case: tuple[int, Profile], tmp_path: Path) -> None:
    seed, profile = case
    tuples = tamed(wild(seed, cars=300, wild_cars=200), profile)
    assert watched(tuples, profile) == ""
    found = answered(tuples, profile, tmp_path / "state", most=(60, 20, 150, 600)[seed], seed=seed)
    assert differ(plain.answers(tuples, profile), found) == []
    assert judged(tuples, profile, found, tmp_path) == []


@pytest.mark.parametrize("profile", Profile)
def test_what_a_silent_car_is_told_does_not_depend_on_who_else_is_there(profile: Profile, tmp_path: Path) -> None:
    """A page forgets cars when somebody reports in its second."""
    nothing = dict.fromkeys(FIELDS, -1)
    report = {**nothing, "type": 0, "spd": 30, "xway": 0, "lane": 1, "dir": 0}
    crowd = [{**report, "time": t, "vid": 100 + n, "seg": 10, "pos": 52_900} for t in (0, 30) for n in range(60)]
    silent = [{**report, "time": t, "vid": 1, "seg": seg, "pos": seg * 5_280} for t, seg in ((60, 10), (720, 11))]
    asked = {**nothing, "type": 2, "time": 720, "vid": 1, "qid": 7}
    another = {**report, "time": 690, "vid": 2, "seg": 50, "pos": 264_000}
    answers = []
    for name, others in (("alone", []), ("beside", [another])):
        found = answered([*crowd, *silent, asked, *others], profile, tmp_path / name, most=600, wandering=False)
        told = [row for row in found["tolls"].to_pylist() if row["vid"] == 1]
        answers.append((told, found["balances"].to_pylist()))
    assert answers[0] == answers[1]
    assert [row["toll"] for row in answers[0][0]] == [200, 0]
