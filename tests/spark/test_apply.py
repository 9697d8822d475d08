"""Splits and processors on real Spark: code is shipped, state survives restarts with other slots, errors name the tuple."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.compile import STRATEGIES
from headrace.reference import reference

sys.path.insert(0, str(Path(__file__).parents[2]))  # the tests are no installed package
from tests.choosing import smoky
from tests.helpers import wait_until
from tests.oracle.strategies import AGGREGATES, SPLITS, STATELESS, make_case, transplanted

from .test_exactness import SLOTS, files, read_results, same, static

pytestmark = pytest.mark.spark

OPERATORS = (*STATELESS, *SPLITS, "apply", "apply", "time_join", *AGGREGATES)
COLLECTED, STARTED = 17, 8


@pytest.mark.parametrize("seed", smoky(range(COLLECTED), 4))
def test_collect_gives_the_sequential_answer(spark: Any, tmp_path: Path, seed: int) -> None:
    case = make_case(f"spark-splits-{seed}", OPERATORS, depth=(1, 2, 3))
    kinds = [static, files] if seed % 2 else [files, static]
    sources = {n: kinds[i](spark, case, n, tmp_path, seed) for i, n in enumerate(case.tables)}
    found = transplanted(case.query, sources).collect(slots=SLOTS[seed % 4], strategy=STRATEGIES[seed % 3])
    same(reference(case.query), found, case)


@pytest.mark.parametrize("seed", smoky(range(STARTED), 2))
def test_a_run_stopped_and_started_with_other_slots(spark: Any, tmp_path: Path, seed: int) -> None:
    case = make_case(
        f"start-splits-{seed}",
        ("apply", "filter", "apply"),
        depth=(1, 2),
        suitable=lambda case: all(t.rows.num_rows > 5 for t in case.tables.values()),
    )
    sources = {n: files(spark, case, n, tmp_path, 3 + 4 * seed) for n in case.tables}
    query = transplanted(case.query, sources)
    total = sum(t.rows.num_rows for t in case.tables.values())
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    for slots, enough in ((SLOTS[seed % 4], total // 3), (SLOTS[(seed + 1) % 4], total // 2)):
        with query.start(hr.sinks.parquet(out), checkpoint=checkpoint, epoch="0 seconds", slots=slots) as run:
            wait_until(run, lambda p, enough=enough: p.tuples_in >= enough)
            run.set_slots(SLOTS[(seed + 2) % 4])
        assert run.exception is None
    run = query.start(hr.sinks.parquet(out), checkpoint=checkpoint, slots=2, once=True)
    run.wait()
    assert run.progress.tuples_in == total and run.progress.late == 0
    same(reference(case.query), read_results(out, query.schema), case)
