"""Can these tests see anything? Each canary breaks the engine on purpose, in one place; the cases must notice it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from headrace.difference import difference
from headrace.driver import outcome
from headrace.errors import HeadraceError
from headrace.kernels.joins import equijoin, join_spec, pairs, theta_join
from headrace.kernels.windows import aggregate, order
from headrace.operators import CountJoinOperator, TimeJoinOperator, TupleAggregateOperator
from headrace.operators.joins import JoinOperator
from headrace.reference import reference
from headrace.routing import Rectangles, hashing
from headrace.state import merge_planning
from headrace.support.event_time import NEVER
from headrace.task import outlet, slots, stages, watermarks

from .driving import drive
from .strategies import SECOND, cut, make_case

pytestmark = pytest.mark.thorough

Patch = Callable[[pytest.MonkeyPatch], None]
CASES = 200  # within so many cases a canary must be seen


def noticed(seed: int, operators: tuple[str, ...], disorder: int | None) -> bool:
    case = make_case(f"canary-{seed}", operators, depth=(1, 1, 2, 3), disorder=disorder)
    arrived = cut(case.tables, 5, seed)
    expected = reference(case.query, epochs=arrived)
    try:
        return difference(expected, drive(case.query, arrived, seed)) is not None
    except HeadraceError:
        return True


def forgets_old_times_new(patch: pytest.MonkeyPatch) -> None:
    real = slots.EpochSlot.old

    def none_on_the_left(self: Any, side: int) -> Any:
        return () if side == 0 and isinstance(self.operator, JoinOperator) else real(self, side)

    patch.setattr(slots.EpochSlot, "old", none_on_the_left)


def expires_too_early(patch: pytest.MonkeyPatch) -> None:
    real = TimeJoinOperator.keep_from
    patch.setattr(TimeJoinOperator, "keep_from", lambda o, *given: [b + 2 * SECOND for b in real(o, *given)])


def closes_windows_twice(patch: pytest.MonkeyPatch) -> None:
    real = aggregate.in_closing_windows

    def more(table: pa.Table, positions: Any, windows: Any, before: int, after: int) -> Any:
        return real(table, positions, windows, max(before - windows.every, NEVER), after)

    patch.setattr(aggregate, "in_closing_windows", more)


def window_is_open_at_its_edge(patch: pytest.MonkeyPatch) -> None:
    real = join_spec.Strip.sql.fget
    assert real is not None
    patch.setattr(join_spec.Strip, "sql", property(lambda strip: real(strip).replace("<=", "<")))


def equal_keys_miss_the_edge(patch: pytest.MonkeyPatch) -> None:
    for kind, width in ((TimeJoinOperator, "w1"), (CountJoinOperator, "n1")):
        real = kind.admits

        def shorter(operator: Any, *given: Any, real: Any = real, width: str = width) -> Any:
            return real(replace(operator, **{width: getattr(operator, width) - 1}), *given)

        patch.setattr(kind, "admits", shorter)


def chunks_of_equal_keys_overlap(patch: pytest.MonkeyPatch) -> None:
    real = equijoin.hash_candidates

    def twice(*given: Any) -> Any:
        found = list(real(*given))
        return [*found, *found[1:2]]

    patch.setattr(pairs, "MOST_PAIRS", 5)
    patch.setattr(equijoin, "hash_candidates", twice)


def hashes_negative_zero_apart(patch: pytest.MonkeyPatch) -> None:
    def floats(array: pa.Array) -> hashing.Hashes:
        values = hashing.np.array(array.cast(pa.float64()).fill_null(0.0), dtype=hashing.np.float64)
        return hashing.mix(values.view(hashing.np.uint64))

    patch.setattr(hashing, "_floats", floats)


def cells_leave_a_gap(patch: pytest.MonkeyPatch) -> None:
    real = Rectangles.groups
    patch.setattr(Rectangles, "groups", lambda self, slot, side, reach=0: real(self, slot, side)[side:])


def cells_overlap(patch: pytest.MonkeyPatch) -> None:
    def wider(self: Rectangles, slot: int, side: int, reach: int = 0) -> list[int]:
        low, high = self.cells[slot][side]
        return list(range(max(low - 1, 0), high))

    patch.setattr(Rectangles, "groups", wider)


def late_at_the_watermark(patch: pytest.MonkeyPatch) -> None:
    real = watermarks._moved

    def ahead(clock: watermarks.SourceClock, heard: watermarks.PartitionTimes, lateness: int) -> watermarks.SourceClock:
        return real(clock, heard, max(lateness - SECOND, 0))

    patch.setattr(watermarks, "_moved", ahead)


def ranks_start_again(patch: pytest.MonkeyPatch) -> None:
    real = order.rank_tuples
    patch.setattr(order, "rank_tuples", lambda left, right, given: real(left, right, (0, 0)))


def releases_at_the_bound(patch: pytest.MonkeyPatch) -> None:
    real = order.release_in_sequence
    patch.setattr(order, "release_in_sequence", lambda held, bound: real(held, bound + 1))


def merges_lose_a_block(patch: pytest.MonkeyPatch) -> None:
    real = stages.write_merged
    patch.setattr(merge_planning, "FAN_IN", 2)
    patch.setattr(
        stages, "write_merged", lambda e, task, o, side, blocks, piece: real(e, task, o, side, blocks[1:], piece)
    )


def keeps_merged_blocks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(merge_planning, "FAN_IN", 2)
    patch.setattr(outcome, "_without", lambda blocks, gone: list(blocks))


def drops_copies_by_name(patch: pytest.MonkeyPatch) -> None:
    """The bug that these cases found: of a block held twice, a merge took one and both went."""

    def by_name(blocks: Sequence[Any], gone: Mapping[str, int]) -> list[Any]:
        return [b for b in blocks if b.name not in gone]

    patch.setattr(merge_planning, "FAN_IN", 3)
    patch.setattr(outcome, "_without", by_name)


def slices_miss_the_last_tuple(patch: pytest.MonkeyPatch) -> None:
    real = theta_join._cuts
    patch.setattr(theta_join, "FEWEST_SLICE_PAIRS", 20)
    patch.setattr(
        theta_join, "_cuts", lambda *given: ((start, max(stop - 1, start + 1)) for start, stop in real(*given))
    )


def null_keys_are_lost(patch: pytest.MonkeyPatch) -> None:
    real = outlet.write_grouped

    def without(e: Any, task: Any, operator: Any, side: int, table: pa.Table) -> Any:
        names = operator.groupings[side].columns
        keep = [all(row[n] is not None for n in names) for row in table.select(list(names)).to_pylist()]
        return real(e, task, operator, side, table.filter(pa.array(keep, pa.bool_())))

    patch.setattr(outlet, "write_grouped", without)


def order_is_of_what_is_read(patch: pytest.MonkeyPatch) -> None:
    """Columns are dropped that nobody reads, though the sequence of tuples is by all of them."""
    real = TupleAggregateOperator.needs
    patch.setattr(TupleAggregateOperator, "needs", lambda o, *given: real(replace(o, ordered=False), *given))


def predicates_lose_their_columns(patch: pytest.MonkeyPatch) -> None:
    """Only the equalities of a join are thought to be read, and what is read of its results."""
    real = JoinOperator.needs

    def less(operator: Any, side: int, live: Any) -> Any:
        if not operator.keys:
            return real(operator, side, live)
        equal = " and ".join(f"l.{key.left} = r.{key.right}" for key in operator.keys)
        return real(replace(operator, on=replace(operator.on, sql=equal)), side, live)

    patch.setattr(JoinOperator, "needs", less)


JOINS = ("time_join",)
CANARIES: list[tuple[Patch, tuple[str, ...], int | None]] = [
    (forgets_old_times_new, JOINS, None),
    (expires_too_early, JOINS, None),
    (closes_windows_twice, ("time_aggregate",), None),
    (window_is_open_at_its_edge, ("time_join", "count_join"), None),
    (equal_keys_miss_the_edge, ("time_join", "count_join"), None),
    (chunks_of_equal_keys_overlap, JOINS, None),
    (hashes_negative_zero_apart, (*JOINS, "time_aggregate"), None),
    (cells_leave_a_gap, JOINS, None),
    (cells_overlap, JOINS, None),
    (late_at_the_watermark, ("filter", "time_join"), 4 * SECOND),
    (ranks_start_again, ("count_join",), None),
    (releases_at_the_bound, ("count_join",), None),
    (merges_lose_a_block, (*JOINS, "time_aggregate"), None),
    (keeps_merged_blocks, (*JOINS, "time_aggregate"), None),
    (drops_copies_by_name, ("union", "union", "time_aggregate"), None),
    (slices_miss_the_last_tuple, ("time_join", "count_join"), None),
    (null_keys_are_lost, ("time_aggregate",), None),
    (order_is_of_what_is_read, ("time_aggregate",), None),
    (predicates_lose_their_columns, (*JOINS, "map"), None),
]


# where none of the first cases sees it: one that does, which is tried first
SEEN_BY = {hashes_negative_zero_apart: 10, drops_copies_by_name: 23, predicates_lose_their_columns: 81}


@pytest.mark.parametrize(("canary", "operators", "disorder"), CANARIES, ids=[c[0].__name__ for c in CANARIES])
def test_a_broken_engine_is_seen(
    canary: Patch, operators: tuple[str, ...], disorder: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary(monkeypatch)
    cases = sorted(range(CASES), key=lambda seed: seed != SEEN_BY.get(canary))
    seen = next((seed for seed in cases if noticed(seed, operators, disorder)), None)
    assert seen is not None, f"{CASES} cases did not notice {canary.__name__}"
    print(f"seen in case {seen}")


@pytest.mark.parametrize("operators", sorted({operators for _, operators, _ in CANARIES}))
def test_a_sound_engine_is_not_accused(operators: tuple[str, ...]) -> None:
    assert not [seed for seed in range(8) if noticed(seed, operators, None)]
