"""`distinct`: against plain Python that shares nothing with engine or reference, and in random queries with the others."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import QueryError, QueryTypeError
from headrace.kernels.windows import distinct
from headrace.reference import reference
from headrace.testing import table_stream
from tests.helpers import count_rows

from .driving import in_random_epochs
from .strategies import STATELESS, make_case
from .test_local import check, seeds

TS = pa.timestamp("us", "UTC")
SECOND = 1_000_000
Row = tuple[int, Any, int]


def plain(rows: list[Row], within: int) -> Counter[Row]:
    kept: dict[Any, int] = {}
    found: Counter[Row] = Counter()
    for ts, key, value in sorted(rows, key=lambda row: (row[0], row[1] is None, row[1] or "", row[2])):
        if key not in kept or ts - kept[key] > within:
            kept[key] = ts
            found[ts, key, value] += 1
    return found


def made_up(r: random.Random, lateness: int) -> list[Row]:
    times = sorted(r.randrange(0, 60) * SECOND for _ in range(90))
    rows = [(ts, r.choice(["a", "b", None, ""]), r.randint(0, 3)) for ts in times]
    return sorted(rows, key=lambda row: row[0] + r.random() * lateness)


def as_table(rows: list[Row]) -> pa.Table:
    ts, k, v = zip(*rows, strict=True)
    return pa.table({"ts": pa.array(ts, TS), "k": pa.array(k, pa.string()), "v": pa.array(v, pa.int64())})


@seeds(20)
@pytest.mark.parametrize("best_effort", [False, True])
def test_kept_tuples_are_those_of_a_plain_walk(seed: int, best_effort: bool, tmp_path: Path) -> None:
    r = random.Random(seed)
    lateness, within = r.choice([0, 5]), r.choice([1, 3, 10])
    rows = made_up(r, lateness * SECOND)
    table = as_table(rows)
    query = table_stream(table, lateness=f"{lateness} seconds", name="a").distinct(by=["k"], within=f"{within} seconds")
    expected = plain(rows, within * SECOND)
    found = in_random_epochs(query, table, tmp_path / "state", seed, best_effort=best_effort)
    assert count_rows(found) == expected
    assert count_rows(reference(query)) == expected


@seeds(40)
def test_distinct_among_other_operators(seed: int) -> None:
    case = make_case(
        f"distinct-{seed}", (*STATELESS, "distinct", "distinct", "time_join", "time_aggregate", "count_aggregate")
    )
    check(case, seed)


def test_borders_are_inclusive(tmp_path: Path) -> None:
    rows = [(0, "a", 0), (10 * SECOND, "a", 1), (10 * SECOND + 1, "a", 2), (20 * SECOND + 1, "a", 3)]
    query = table_stream(as_table(rows), name="a").distinct(by=["k"], within="10 seconds")
    assert [v for _, _, v in sorted(count_rows(reference(query)))] == [0, 2]


def test_it_stands_behind_a_join_by_the_same_key_without_an_exchange() -> None:
    s = table_stream(as_table([(0, "a", 0)]), name="a")
    joined = s.join(s, on="l.k = r.k", within="1 second").map(k="l_k", v="l_v")
    assert joined.distinct(by=["k"], within="1 second").plan(slots=4).shuffles == 1
    assert "distinct by k within 1 second" in joined.distinct(by=["k"], within="1 second").explain()


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"by": 3, "within": "1 second"}, QueryTypeError, "by must be a column or a list"),
        ({"by": ["x"], "within": "1 second"}, QueryError, "unknown column 'x'"),
        ({"by": ["k"], "within": "0 seconds"}, QueryError, "must be more than zero"),
        ({"by": ["ts"], "within": "1 second"}, QueryError, "by cannot contain 'ts'"),
    ],
)
def test_bad_arguments(given: dict[str, Any], error: type[hr.HeadraceError], words: str) -> None:
    with pytest.raises(error, match=words):
        table_stream(as_table([(0, "a", 0)]), name="a").distinct(**given)


def forgets_what_was_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(distinct, "_noted", lambda kept: kept.slice(0, 0))


def counts_from_every_tuple(patch: pytest.MonkeyPatch) -> None:
    real = distinct._walk

    def sliding(keys: Any, at: Any, known: Any, within: int) -> Any:
        keep = real(keys, at, known, within)
        again = [bool(i and keys[i] == keys[i - 1] and at[i] - at[i - 1] <= within) for i in range(len(keys))]
        return keep & ~pa.array(again, pa.bool_()).to_numpy(zero_copy_only=False)

    patch.setattr(distinct, "_walk", sliding)


@pytest.mark.parametrize("canary", [forgets_what_was_kept, counts_from_every_tuple])
def test_a_broken_one_is_seen(canary: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    canary(monkeypatch)

    def wrong(seed: int) -> bool:
        try:
            test_kept_tuples_are_those_of_a_plain_walk(seed, False, tmp_path / str(seed))
        except AssertionError:
            return True
        return False

    assert any(wrong(seed) for seed in range(20))
