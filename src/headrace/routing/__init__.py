"""Ways to route: from tuples to groups, and from groups to slots. No state, no Spark, no disk.

A file for each way, all of whose answers `base` asks for:

    by_hash     equal values in one slot; hot groups on several
    rectangles  every pair of groups in one slot
    ranges      numbers that are near each other in one slot
    one_slot    all in sequence
    substreams  by the rule of a split
    windows     as they come

Invariant of every layout: a pair of tuples that can be a result is looked at only in the epoch in which the later of the
two arrives, and there in exactly one slot; state knows nothing of slots. So every pair is met exactly once whatever the
layouts of other epochs were, and a layout may be replaced between any two epochs.
"""

from __future__ import annotations

from typing import Any

from headrace.errors import CorruptState, QueryError
from headrace.routing.base import EVERYWHERE, NOWHERE, NUMBER, Adaptation, Grouping, Layout, Router, RoutingCost
from headrace.routing.by_hash import ContentRouter, Diagonal, HashGrouping, HashRouter, HotGroup
from headrace.routing.by_range import RangeGrouping, Ranges, RangesRouter
from headrace.routing.by_rectangle import GridRouter, Rectangles
from headrace.routing.by_substream import SubstreamGrouping, SubstreamRouter
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
    )
}
LAYOUTS: dict[str, type[Layout]] = {layout.kind: layout for layout in (Diagonal, Rectangles, Ranges)}


def router_from_json(data: Any, key: str = "router") -> Router:
    """What `to_json` gave; CorruptState, with the key that it stands under, for anything else."""
    kind = ROUTERS[validators.record_with(kind=validators.one_of(*ROUTERS))(data, key)["kind"]]
    values = validators.record(kind=validators.text, **kind.FORM)(data, key)
    return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items() if name != "kind"})


def layout_from_json(data: Any, key: str = "layout") -> Layout:
    """What `to_json` gave; CorruptState, with the key that it stands under, for anything else."""
    kind = LAYOUTS[validators.record_with(kind=validators.one_of(*LAYOUTS))(data, key)["kind"]]
    try:
        layout = kind.from_json(kind.FORM(data, key))
    except QueryError as error:
        raise CorruptState(f"{key}: {error!s:.300}") from None
    if layout.slots > MOST_SLOTS:
        raise validators.refuse(key, f"of at most {MOST_SLOTS} slots", layout.slots)
    return layout


__all__ = [
    "EVERYWHERE",
    "LAYOUTS",
    "NOWHERE",
    "NUMBER",
    "ROUTERS",
    "Adaptation",
    "ContentRouter",
    "Diagonal",
    "GridRouter",
    "Grouping",
    "HashGrouping",
    "HashRouter",
    "HotGroup",
    "Layout",
    "OneSlotRouter",
    "RangeGrouping",
    "Ranges",
    "RangesRouter",
    "Rectangles",
    "RoundRobinRouter",
    "Router",
    "RoutingCost",
    "SubstreamGrouping",
    "SubstreamRouter",
    "layout_from_json",
    "router_from_json",
]
