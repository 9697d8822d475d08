"""Moves of groups between slots, and grids for groups that are too large for one slot.

Loads are per group, in any one unit. `moves_by_gain` moves a group of the busiest slot that lowers the larger of the
two loads most; among about equally good groups it takes the one with the least state to read. It stops when the balance
is good enough or a move gains little, so it does not thrash. `random_moves` follows the paper: one random group of each
supplier moves to a consumer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headrace.routing import HotGroup

# in fair shares of a slot: a group above the first value is split, and one below the second is joined again
ENTER, LEAVE = 1.0, 0.6
LEAST_GAIN = 0.01  # share of the mean load; smaller gains do not justify a move


@dataclass(frozen=True)
class Move:
    """The move of one group from one slot to another."""

    group: int
    source: int
    target: int
    gain: float  # reduction of the larger of the two loads


def slot_loads(owner: Sequence[int], grids: Sequence[HotGroup], load: Sequence[float], slots: int) -> list[float]:
    """Return the work of each slot. The work of a split group is spread evenly over its slots."""
    found = [0.0] * slots
    split = {s.group: s for s in grids}
    for group, work in enumerate(load):
        where = split[group].slots if group in split else (owner[group],)
        for slot in where:
            found[slot] += work / len(where)
    return found


def imbalance(loads: Sequence[float]) -> float:
    """Return the busiest slot's load relative to the mean."""
    mean = sum(loads) / len(loads)
    return max(loads) / mean if mean else 1.0


def moves_by_gain(
    owner: Sequence[int],
    grids: Sequence[HotGroup],
    load: Sequence[float],
    state: Sequence[float],
    slots: int,
    most: int,
    enough: float,
    fixed: Collection[int] = (),
) -> list[Move]:
    """Return moves until the busiest slot is within `enough` of the mean or `most` moves are made."""
    owner, loads = list(owner), slot_loads(owner, grids, load, slots)
    stuck = {s.group for s in grids} | set(fixed)
    mean = sum(loads) / slots
    found: list[Move] = []
    while len(found) < most and max(loads) > (1 + enough) * mean:
        best = _best(owner, load, state, loads, stuck)
        if best is None or best.gain < LEAST_GAIN * mean:
            break
        found.append(best)
        owner[best.group] = best.target
        loads[best.source] -= load[best.group]
        loads[best.target] += load[best.group]
    return found


def _best(
    owner: Sequence[int], load: Sequence[float], state: Sequence[float], loads: Sequence[float], stuck: Collection[int]
) -> Move | None:
    source = max(range(len(loads)), key=lambda s: loads[s])
    target = min(range(len(loads)), key=lambda s: loads[s])
    moves = [
        Move(g, source, target, loads[source] - max(loads[source] - load[g], loads[target] + load[g]))
        for g, slot in enumerate(owner)
        if slot == source and g not in stuck
    ]
    if not moves or max(m.gain for m in moves) <= 0:
        return None
    good = [m for m in moves if m.gain >= max(m.gain for m in moves) / 2]
    return max(good, key=lambda m: (m.gain / (state[m.group] + 1.0), -m.group))


def random_moves(
    owner: Sequence[int],
    occupancy: Sequence[float],
    supplier: float,
    consumer: float,
    seed: str,
    fixed: Collection[int] = (),
) -> list[Move]:
    """Return one random group of each supplier, each moved to a different consumer."""
    r = random.Random(seed)  # noqa: S311  seeded, so that a repeated decision is identical
    givers = sorted((s for s, o in enumerate(occupancy) if o > supplier), key=lambda s: -occupancy[s])
    takers = sorted((s for s, o in enumerate(occupancy) if o < consumer), key=lambda s: occupancy[s])
    found = []
    for source, target in zip(givers, takers, strict=False):
        own = [g for g, slot in enumerate(owner) if slot == source and g not in fixed]
        if len(own) > 1:
            found.append(Move(r.choice(own), source, target, 0.0))
    return found


def hot_groups_for(
    grids: Sequence[HotGroup],
    sides: Sequence[tuple[float, float]],
    load: Sequence[float],
    owner: Sequence[int],
    slots: int,
) -> tuple[HotGroup, ...]:
    """Return grids for the groups whose load exceeds a slot's fair share. A grid is kept until the load is much
    smaller.

    sides: the left and right tuples that a group's slot reads.
    """
    fair = sum(load) / slots
    known = {s.group: s for s in grids}
    if slots < 2 or fair <= 0:
        return ()
    hot = [g for g, work in enumerate(load) if work > fair * (LEAVE if g in known else ENTER)]
    return tuple(_split(known.get(g), g, sides[g], load, owner, slots, fair) for g in hot)


def _split(
    known: HotGroup | None,
    group: int,
    sides: tuple[float, float],
    load: Sequence[float],
    owner: Sequence[int],
    slots: int,
    fair: float,
) -> HotGroup:
    count = min(slots, max(2, math.ceil(load[group] / fair * 1.5)))  # cells small enough to balance evenly
    if known and max(known.slots) < slots and abs(len(known.slots) - count) <= 1:
        return known  # the present grid is close enough
    rows, columns = best_grid(count, *sides)
    others = slot_loads(owner, (), [0.0 if g == group else w for g, w in enumerate(load)], slots)
    idlest = sorted(range(slots), key=lambda s: (others[s], s))[: rows * columns]
    return HotGroup(group, rows, columns, tuple(sorted(idlest)))


def best_grid(count: int, left: float, right: float) -> tuple[int, int]:
    """Return rows and columns of the grid with `count` cells in which a cell reads least."""
    options = [(rows, count // rows) for rows in range(1, count + 1)]
    full = [(a, b) for a, b in options if a * b == count]
    return min(full, key=lambda ab: (left / ab[0] + right / ab[1], ab))
