"""`limit`: compared with plain Python that shares nothing with engine or reference, and in random queries."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import QueryError, QueryTypeError
from headrace.kernels.windows import limit
from headrace.operators.limit import LimitOperator
from headrace.reference import reference
from headrace.testing import LocalRun, table_stream
from tests.helpers import count_rows

from .driving import in_random_epochs
from .strategies import STATELESS, make_case
from .test_local import check, seeds

TS = pa.timestamp("us", "UTC")
SECOND = 1_000_000
Row = tuple[int, Any, int]


def in_plain_sequence(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row[0], row[1] is None, (row[1] or "").encode(), row[2]))


def made_up(r: random.Random, lateness: int, keys: list[Any]) -> list[Row]:
    times = sorted(r.randrange(0, 30) * SECOND for _ in range(90))
    rows = [(ts, r.choice(keys), r.randint(0, 3)) for ts in times]
    return sorted(rows, key=lambda row: row[0] + r.random() * lateness)


def as_table(rows: list[Row]) -> pa.Table:
    ts, k, v = zip(*rows, strict=True)
    return pa.table({"ts": pa.array(ts, TS), "k": pa.array(k, pa.string()), "v": pa.array(v, pa.int64())})


@seeds(20)
@pytest.mark.parametrize("best_effort", [False, True])
def test_the_first_tuples_are_those_of_a_plain_sort(seed: int, best_effort: bool, tmp_path: Path) -> None:
    r = random.Random(seed)
    lateness, n = r.choice([0, 5]), r.choice([1, 2, 7, 30, 90, 200])
    rows = made_up(r, lateness * SECOND, ["a", "B", "ä", None, ""])
    table = as_table(rows)
    query = table_stream(table, lateness=f"{lateness} seconds", name="a").limit(n)
    expected = Counter(in_plain_sequence(rows)[:n])
    found = in_random_epochs(query, table, tmp_path / "state", seed, best_effort=best_effort)
    assert count_rows(found) == expected
    assert count_rows(reference(query)) == expected


@seeds(20)
def test_every_substream_has_first_tuples_of_its_own(seed: int, tmp_path: Path) -> None:
    r = random.Random(seed)
    rows = made_up(r, 5 * SECOND, ["a", "b", "c", "d"])
    table, n = as_table(rows), r.choice([1, 3, 10, 40])
    split = table_stream(table, lateness="5 seconds", name="a").split(3, route="ascii(k) - 97", broadcast="k = 'd'")
    query = split.each(lambda t: t.limit(n))
    expected: Counter[Any] = Counter()
    for number in range(3):
        there = [row for row in rows if row[1] in ("abc"[number], "d")]
        expected.update((*row, number) for row in in_plain_sequence(there)[:n])
    assert count_rows(in_random_epochs(query, table, tmp_path / "state", seed)) == expected
    assert count_rows(reference(query)) == expected


@seeds(40)
def test_limit_among_other_operators(seed: int) -> None:
    case = make_case(f"limit-{seed}", (*STATELESS, "limit", "limit", "time_join", "time_aggregate", "each"))
    check(case, seed)


@seeds(20)
def test_limit_with_late_tuples(seed: int) -> None:
    check(make_case(f"late-limit-{seed}", (*STATELESS, "limit", "limit", "distinct"), disorder=9 * SECOND), seed)


def test_tuples_are_released_as_the_watermark_passes_them_and_the_state_stays_small(tmp_path: Path) -> None:
    query = table_stream(as_table([(0, "a", 0)]), lateness="10 seconds", name="a").limit(3)
    run = LocalRun(query, tmp_path / "state")
    counts, held = [], []
    for at in range(0, 60, 10):
        run.epoch(as_table([(at * SECOND, "a", v) for v in range(at, at + 100)]))
        counts.append(run.results().num_rows)
        assert run.store.last is not None
        held.append(sum(block.rows for block in run.store.last.live_blocks()))
    assert counts == [0, 0, 3, 3, 3, 3], "the watermark is exclusive: at 10 the tuples of 0 are released at 20"
    assert max(held) <= 4 and held[-1] == 1, "at most three tuples and a counter, in the end the counter alone"
    assert sorted(run.results()["v"].to_pylist()) == [0, 1, 2]
    run.close()


def test_a_limit_is_shown_in_the_plan() -> None:
    s = table_stream(as_table([(0, "a", 0)]), name="a").limit(7)
    assert "limit 7" in s.explain() and "limit 7" in repr(s)


@pytest.mark.parametrize(
    ("n", "error", "words"),
    [
        (0, QueryError, "n must be at least 1; found 0"),
        (2**63, QueryError, "n must be at most 9,223,372,036,854,775,807; found 9,223,372,036,854,775,808"),
        (2.5, QueryTypeError, "n must be a whole number of tuples; found 2.5"),
        (True, QueryTypeError, "n must be a whole number of tuples; found True"),
        ("10", QueryTypeError, "n must be a whole number of tuples; found '10'"),
    ],
)
def test_bad_arguments(n: Any, error: type[hr.HeadraceError], words: str) -> None:
    with pytest.raises(error, match=words):
        table_stream(as_table([(0, "a", 0)]), name="a").limit(n)


def forgets_the_counters(patch: pytest.MonkeyPatch) -> None:
    real = limit._counters
    patch.setattr(limit, "_counters", lambda *given: real(*given).slice(0, 0))


def releases_too_early(patch: pytest.MonkeyPatch) -> None:
    real = limit.release_first
    patch.setattr("headrace.operators.limit.release_first", lambda by, n, held, bound: real(by, n, held, 2**62))


def counts_waiting_tuples_in_order_of_arrival(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(limit, "in_sequence", lambda tuples, columns: tuples)


def sends_the_last(patch: pytest.MonkeyPatch) -> None:
    def last(operator: LimitOperator, side: int, tuples: pa.Table) -> pa.Table:
        return tuples.slice(max(tuples.num_rows - operator.count, 0))

    patch.setattr(LimitOperator, "as_sent", last)


def numbers_across_substreams(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(limit, "_key_numbers", lambda by, rows: np.zeros(rows.num_rows, np.int64))


CANARIES = [
    forgets_the_counters,
    releases_too_early,
    counts_waiting_tuples_in_order_of_arrival,
    sends_the_last,
    numbers_across_substreams,
]


@pytest.mark.parametrize("canary", CANARIES)
def test_a_broken_limit_is_detected(canary: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    canary(monkeypatch)

    def wrong(seed: int) -> bool:
        try:
            if canary is numbers_across_substreams:
                test_every_substream_has_first_tuples_of_its_own(seed, tmp_path / str(seed))
            else:
                test_the_first_tuples_are_those_of_a_plain_sort(seed, False, tmp_path / str(seed))
        except AssertionError:
            return True
        return False

    assert any(wrong(seed) for seed in range(20))
