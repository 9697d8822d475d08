"""Splits and processors: whatever the cut, the slots, the layouts and the restarts, the answer is the sequential one."""

from __future__ import annotations

from .strategies import AGGREGATES, SPLITS, STATELESS, make_case
from .test_local import check, seeds

ONE = ("apply",)
MIXED = (*STATELESS, *SPLITS, *SPLITS, "apply", "time_join", *AGGREGATES, "distinct")


@seeds(100)
def test_a_processor_on_every_substream(seed: int) -> None:
    check(make_case(f"apply-{seed}", ONE, depth=(1,)), seed, change_slots=0.3)


@seeds(60)
def test_splits_among_other_operators(seed: int) -> None:
    check(make_case(f"splits-{seed}", MIXED), seed, change_slots=0.3)
