"""What `headrace bench adaptive` counts and claims. No Spark here; tests/spark/test_bench.py runs the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from headrace.control.policy import parse_policy
from headrace.routing import Diagonal, HotGroup
from headrace.telemetry.progress import EpochSummary
from headrace_bench import adaptive, claims, parts, report
from headrace_bench.adaptive import degree, diffusion, elasticity, hot_key, local
from headrace_bench.adaptive.degree import Epoch
from headrace_bench.claims import Found
from headrace_bench.options import Options
from headrace_bench.systems import HEADRACE_STATIC
from headrace_bench.systems.headrace_job import Seen, watched
from headrace_bench.workload import Streams
from headrace_demo.workloads import BModel

OPTIONS = Options(1, True, False, False, lambda text: None)


# --- claims --------------------------------------------------------------------------------------------------------


def test_a_claim_that_does_not_hold_says_so():
    made = [claims.at_most("a", 1.1, 1.2, " x"), claims.at_least("b", 1.5, 1.5), claims.within("c", 1, 0.1, 0.85)]
    rows = claims.grid(("case", claim) for claim in made).rows
    assert [row[-1] for row in rows] == ["missed", "holds", "missed"]
    assert rows[0] == ["case", "a", "at most 1.1 x", "1.2 x", "missed"]


def test_claims_stand_first_and_wrong_answers_are_found():
    wrong = {"systems": [{"system": "x", "status": "wrong answer"}]}
    found = Found([claims.is_true("exact", False, "3 differ")], [], [], {"a": 1}, ["note"], [wrong])
    made = parts.reported("adaptive", "A title", [("degree", found)])
    assert made.grids[0].title == "claims" and made.data["claims"][0]["case"] == "degree"
    assert made.data["parts"] == {"degree": {"a": 1}} and made.data["cases"] == [wrong]


# --- counting ------------------------------------------------------------------------------------------------------


def test_settling_counts_reorganisations_up_to_the_last_change():
    layouts = ["a"] * 10 + ["b"] * 5 + ["c"] * 15  # changed in the epochs 10 and 15
    assert local.settling(layouts, 7, 30, every=5) == 2
    assert local.settling(layouts, 10, 30, every=5) == 1  # what was decided before the flip does not count
    assert local.settling(layouts, 15, 30, every=5) == 0


def test_a_split_that_does_not_come_counts_as_one_too_many():
    plain = Diagonal.even(8, 2)
    split = replace(plain, grids=(HotGroup(3, 1, 2, (0, 1)),))
    layouts = [plain] * 10 + [split] * 10
    assert hot_key.following(layouts, 5, 20, 3) == 1
    assert hot_key.following(layouts, 5, 20, 4) == 4


def test_an_epoch_behind_a_decision_is_compared_with_those_around_it():
    epochs = [Epoch(n, 0.5 * n, 1, 100.0, 1, 0) for n in range(30)]
    epochs[3] = replace(epochs[3], milliseconds=900.0)  # long for another reason
    assert degree.longest_after_a_decision(epochs) == 0
    epochs[20] = replace(epochs[20], milliseconds=250.0, decided=1)
    assert degree.longest_after_a_decision(epochs) == 2.5


def test_a_watched_run_names_the_epochs_in_which_decisions_took_effect():
    seen = [
        Seen(10 * n, EpochSummary(n, 0.1, 10, 0, 0, 0, {}, {}, 0.05), busy, 1.5)
        for n, busy in ((4, (0.5,)), (5, (0.3, 0.1)), (6, (0.0, 0.0)))
    ]
    found = watched(seen, [{"epoch": 4, "kind": "slots"}, {"epoch": 4, "kind": "move"}])
    assert [(e["slots"], e["decided"], e["milliseconds"]) for e in found] == [(1, 0, 100), (2, 2, 100), (2, 0, 100)]
    assert [e["busiest"] for e in found] == [1.0, pytest.approx(1.5), 0.0]


# --- the cases that need no Spark ----------------------------------------------------------------------------------


@pytest.mark.thorough
def test_ragged_reads_less_than_a_fixed_master_and_settles():
    ssp, ragged = (diffusion.course(name, diffusion.QUICK) for name in ("ssp", "ragged"))
    assert ragged.total < 0.8 * ssp.total  # of two phases one suits a fixed master
    assert len(set(ragged.shapes)) > 1 and max(ragged.settled) <= 3
    assert len(ssp.reads) == diffusion.QUICK.phases * diffusion.QUICK.epochs


def test_a_slot_is_spared_what_theorem_2_says():
    for saved in diffusion.saved(diffusion.QUICK, 3, [2, 4]):
        assert saved.ratios == pytest.approx((1, 1), rel=0.1)


@pytest.mark.parametrize("owner", [None, [0] * elasticity.GROUPS])
def test_groups_move_until_slots_have_equal_work(owner: list[int] | None):
    ratios = elasticity.by_tuples("any", 2_000, owner).ratios
    assert len(ratios) == elasticity.TURNS + 1
    assert ratios[-1] <= 1.1 < ratios[0]


def test_by_pairs_moving_helps_and_splitting_helps_more():
    pairs = elasticity.windows("any", 50_000, 10_000, equal=True)
    moved, split = (course.ratios for course in elasticity.by_pairs(pairs))
    assert moved[0] == split[0] > moved[-1] > split[-1]


def test_pairs_of_equal_keys_are_counted_by_group():
    equal, all_of_a_group = (elasticity.windows("any", 2_000, 50, equal=equal) for equal in (True, False))
    left, right = (
        BModel(elasticity.BY_PAIRS, 50).draw(np.random.default_rng([1, side]), 2_000).tolist() for side in (0, 1)
    )
    assert equal.load.sum() == sum(left.count(key) * right.count(key) for key in set(left))
    assert (equal.load <= all_of_a_group.load).all() and equal.left.sum() == 2_000


def test_the_split_follows_a_hot_key():
    found = hot_key.moving(hot_key.QUICK)
    assert len(found.followed) == hot_key.QUICK.moves and max(found.followed) <= 3
    assert sum(found.adapted) < sum(found.static)


def test_half_of_the_tuples_are_on_the_hot_key_and_the_rest_is_as_without_it():
    plain = Streams(("left", "right"), 1_000, 1, 1, 10_000, gap=10)
    tables = [next(iter(replace(plain, hot=hot).tables("left"))) for hot in (0.0, 0.5)]
    assert pc.mean(pc.equal(tables[1]["key"], 0)).as_py() == pytest.approx(0.5, abs=0.05)
    assert tables[0].drop_columns("key") == tables[1].drop_columns("key")


def test_the_static_table_is_a_policy():
    rules = parse_policy(HEADRACE_STATIC.options["policy"])
    assert rules.elastic == "off" and not rules.hot


@pytest.mark.long
def test_two_of_the_cases_from_beginning_to_end(tmp_path: Path):
    found = [adaptive.run(replace(OPTIONS, only=name)) for name in ("diffusion", "elasticity")]
    assert all(grid.rows for each in found for grid in each.grids)
    for each in found:
        chart = report.draw(tmp_path, each, report.machine())
        assert chart is not None and chart.read_bytes().startswith(b"\x89PNG")


def test_stairs_have_an_axis_of_their_own(tmp_path: Path):
    epochs = [Epoch(n, 0.5 * n, 100 * n, 50.0, 1 + n // 3, 0) for n in range(9)]
    course = degree.Course(epochs, [(0.5 * n, 100.0 * n) for n in range(9)], 0)
    made = report.Report("name", "Title", [], [], {}, [degree._panel(course)])
    chart = report.draw(tmp_path, made, report.machine())
    assert chart is not None and chart.read_bytes().startswith(b"\x89PNG")
    assert [row[1] for row in degree._grid(epochs).rows] == ["1", "2", "3"]
