"""Routing: the mapping from tuples to groups and from groups to slots. No state, no Spark, no disk.

`base` defines what a routing method provides (a grouping, a layout and a router). Each method has a module:

    by_hash       equal values in one slot; a hot group on several slots
    by_rectangle  each pair of groups in one slot, for joins on any predicate
    by_range      numbers that are close to each other in one slot, for band joins
    by_time       a stretch of event time in one slot, for operators that take tuples in sequence
    by_substream  the substreams of a split
    everywhere    some streams of a join by a key, the others in every slot
    one_slot      all tuples in one slot, in sequence
    round_robin   whole physical windows in turn, without an exchange

`hashing` defines the hash of tuples.

Invariant of every layout: a pair of tuples that can be a result is evaluated only in the epoch in which the later of the
two arrives, and in that epoch in exactly one slot. State does not depend on slots. Each pair is therefore evaluated
exactly once whatever the layouts of other epochs were, and a layout may be replaced between any two epochs.
"""

from __future__ import annotations

from typing import Any

from headrace.errors import CorruptState, QueryError
from headrace.routing.base import EVERYWHERE, NOWHERE, NUMBER, Adaptation, Grouping, Layout, Router, RoutingCost
from headrace.routing.by_hash import ContentRouter, Diagonal, HashGrouping, HashRouter, HotGroup
from headrace.routing.by_range import BOTH, RangeGrouping, Ranges, RangesRouter
from headrace.routing.by_rectangle import GridRouter, Rectangles
from headrace.routing.by_substream import SubstreamGrouping, SubstreamRouter
from headrace.routing.by_time import TimeRouter
from headrace.routing.everywhere import EverywhereGrouping, PartHashRouter
from headrace.routing.one_slot import OneSlotRouter
from headrace.routing.round_robin import RoundRobinRouter
from headrace.support import validators
from headrace.support.limits import MOST_SLOTS

ROUTERS: dict[str, type[Router]] = {
    router.kind: router
    for router in (
        RoundRobinRouter,
        HashRouter,
        GridRouter,
        RangesRouter,
        OneSlotRouter,
        ContentRouter,
        SubstreamRouter,
        TimeRouter,
        PartHashRouter,
    )
}
LAYOUTS: dict[str, type[Layout]] = {layout.kind: layout for layout in (Diagonal, Rectangles, Ranges)}


def router_from_json(data: Any, key: str = "router") -> Router:
    """Return the router that `to_json` wrote. Raise CorruptState, naming `key`, if the data is invalid."""
    kind = ROUTERS[validators.record_with(kind=validators.one_of(*ROUTERS))(data, key)["kind"]]
    values = validators.record(kind=validators.text, **kind.FORM)(data, key)
    return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items() if name != "kind"})


def layout_from_json(data: Any, key: str = "layout") -> Layout:
    """Return the layout that `to_json` wrote. Raise CorruptState, naming `key`, if the data is invalid."""
    kind = LAYOUTS[validators.record_with(kind=validators.one_of(*LAYOUTS))(data, key)["kind"]]
    try:
        layout = kind.from_json(kind.FORM(data, key))
    except QueryError as error:
        raise CorruptState(f"{key}: {error!s:.300}") from None
    if layout.slots > MOST_SLOTS:
        raise validators.refuse(key, f"a layout of at most {MOST_SLOTS} slots", layout.slots)
    return layout


__all__ = [
    "BOTH",
    "EVERYWHERE",
    "LAYOUTS",
    "NOWHERE",
    "NUMBER",
    "ROUTERS",
    "Adaptation",
    "ContentRouter",
    "Diagonal",
    "EverywhereGrouping",
    "GridRouter",
    "Grouping",
    "HashGrouping",
    "HashRouter",
    "HotGroup",
    "Layout",
    "OneSlotRouter",
    "PartHashRouter",
    "RangeGrouping",
    "Ranges",
    "RangesRouter",
    "Rectangles",
    "RoundRobinRouter",
    "Router",
    "RoutingCost",
    "SubstreamGrouping",
    "SubstreamRouter",
    "TimeRouter",
    "layout_from_json",
    "router_from_json",
]
