"""Checks of the newest manifest before anything is computed from it.

A manifest can have a correct checksum and content that no run ever wrote, because a person edited it and recomputed the
checksum. The store checks blocks and numbers; this module checks the other sections.

    check_manifest(last) returns            =>  every section has the form that the driver writes
    check_manifest_for(plan, last) returns  =>  and the manifest has everything that this plan reads
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from headrace import plan as p
from headrace.columnar.types import describe_schema
from headrace.control.control_state import ControlState, Decision
from headrace.driver import fingerprint
from headrace.driver.position import Position
from headrace.errors import CorruptState
from headrace.operators.aggregates import WITHHELD
from headrace.operators.apply import EMITTED
from headrace.operators.base import Operator, StateKind
from headrace.routing import Adaptation, Diagonal, Layout, Ranges, Rectangles, layout_from_json
from headrace.routing.by_time import TIME_NOTES
from headrace.sources.protocol import DrivenOrigin
from headrace.state.manifest import Manifest, OperatorState, TableState, manifest_name, raise_corrupt
from headrace.support import validators
from headrace.support.event_time import FOREVER, NEVER
from headrace.support.limits import MOST_GROUPS
from headrace.support.terminal_text import printable
from headrace.task.state_table_groups import StateTableGroups
from headrace.task.work import WorkTotals

COUNTS = ("delivered", "accepted", "late", "rejected")
_EXTRA: dict[str, validators.Form] = {  # notes that operators keep beside their state
    "given": validators.exact_list(validators.whole(0, 1 << 61), validators.whole(0, 1 << 61)),
    **TIME_NOTES,
    EMITTED: validators.whole(NEVER, FOREVER),
    WITHHELD: validators.count,
}


def check_manifest(last: Manifest) -> None:
    """Raise for invalid content in any section."""
    try:
        Position.from_json(last.position)
        _sources(last)
        fingerprint.check_query_section(last.query)
        validators.whole(1, MOST_GROUPS)(last.groups, "groups")
        _layouts(last)
        for name, operator in last.operators.items():
            for table, state in operator.tables.items():
                _table(state, last, f"operators.{name:.100}.tables.{table:.100}")
        validators.list_of(Decision.from_json)(last.decisions, "decisions")
        if (known := WorkTotals.of(last)) is not None:
            validators.whole(0, last.number)(known.since, "work.since")
        if last.control:
            ControlState.from_json(last.control)
    except CorruptState as error:
        raise_corrupt(manifest_name(last.number), str(error))


def check_manifest_for(plan: p.PhysicalPlan, last: Manifest, driven: Mapping[str, DrivenOrigin] | None = None) -> None:
    """Raise if a manifest lacks something that a plan needs. Call `check_manifest` and compare the query first."""
    try:
        if set(last.sources) != {source.name for source in plan.sources}:
            raise validators.refuse(
                "sources", f"those of the query, {[s.name for s in plan.sources]}", list(last.sources)
            )
        for operator in plan.operators:
            state = last.operators.get(operator.name)
            if state is not None:
                _operator(operator, state, last.groups)
            elif operator.state is not StateKind.NONE:
                raise validators.refuse("operators", f"an object with {operator.name}", list(last.operators))
        if last.control:
            _decided(plan, ControlState.from_json(last.control))
        for name, origin in (driven or {}).items():
            if not isinstance(last.ledgers.get(name), origin.state_type):
                raise validators.refuse(
                    "ledgers", f"an object with what was taken of {printable(name)}", list(last.ledgers)
                )
    except CorruptState as error:
        raise_corrupt(manifest_name(last.number), str(error))


def _sources(last: Manifest) -> None:
    for name, source in last.sources.items():
        if source.delivered != source.accepted + source.late + source.rejected:
            key = f"sources.{name:.100}.delivered"
            raise validators.refuse(key, "the sum of accepted, late and rejected", source.delivered)
    if (of_sources := sum(s.failed for s in last.sources.values())) > sum(last.totals.failed.values()):
        raise validators.refuse(
            "totals.failed", f"at least the {of_sources} of the sources, in all", last.totals.failed
        )
    for counter in COUNTS:
        found = getattr(last.totals, counter)
        if found != sum(getattr(source, counter) for source in last.sources.values()):
            raise validators.refuse(f"totals.{counter}", "that of all sources together", found)


def _layouts(last: Manifest) -> None:
    for name, data in last.layouts.items():
        if not layout_from_json(data, f"layouts.{name:.100}").fits(last.groups):
            raise validators.refuse(f"layouts.{name:.100}", f"of {last.groups} groups", data)


def _table(state: TableState, last: Manifest, key: str) -> None:
    """Check that the numbers of a state table are consistent. Readers of the table check them against its rows."""
    for group, (renewed, rows) in enumerate(zip(state.renewed, state.rows, strict=True)):
        validators.whole(0 if rows else -1, last.number)(renewed, f"{key}.renewed[{group}]")
    for place, block in enumerate(state.blocks):
        validators.whole(0, last.number)(block.low, f"{key}.blocks[{place}].low")
        validators.whole(0, last.number)(block.high, f"{key}.blocks[{place}].high")
    if (most := sum(block.rows for block in state.blocks)) < sum(state.rows):
        raise validators.refuse(f"{key}.rows", f"at most the {most} of its blocks, in all", sum(state.rows))
    epochs = [epoch for age in state.ages for epoch in (age.first, age.last)]
    apart = all(one.last < two.first for one, two in pairwise(state.ages))
    if epochs != sorted(epochs) or not apart or any(epoch > last.number for epoch in epochs):
        raise validators.refuse(f"{key}.ages", f"epochs up to {last.number}, ascending", epochs)
    if (live := sum(age.live for age in state.ages)) != sum(state.rows):
        raise validators.refuse(f"{key}.ages", f"the {sum(state.rows)} live rows, in all", live)


def _decided(plan: p.PhysicalPlan, control: ControlState) -> None:
    """Check that stored layouts are of the operator's kind; another kind would omit pairs or state."""
    kinds: dict[Adaptation, tuple[type[Layout], ...]] = {
        Adaptation.PLACE: (Diagonal,),
        Adaptation.SHAPE: (Rectangles,),
    }
    for operator in plan.operators:
        layout, kind = control.layouts.get(operator.name), kinds.get(operator.router.adapts, ())
        if operator.arranged_by_number(0):
            kind = (*kind, Ranges)
        if layout is not None and not isinstance(layout, kind):
            raise validators.refuse(f"control.layouts.{operator.name}", f"one for {operator.router}", layout.kind)
        if isinstance(layout, Diagonal) and layout.grids and not operator.can_spread_group:
            raise validators.refuse(f"control.layouts.{operator.name}.splits", "none", len(layout.grids))


def _operator(operator: Operator, state: OperatorState, groups: int) -> None:
    if len(state.inputs) != len(operator.schemas):
        raise validators.refuse(
            f"operators.{operator.name}.inputs", f"a list of {len(operator.schemas)}", len(state.inputs)
        )
    if (found := set(state.tables)) != set(operator.state_tables):
        raise validators.refuse(
            f"operators.{operator.name}.tables", f"an object of {sorted(operator.state_tables)}", sorted(found)
        )
    for name, declared in operator.state_tables.items():
        table, key = state.tables[name], f"operators.{operator.name}.tables.{name}"
        if table.key != declared.key:
            raise validators.refuse(f"{key}.key", f"{list(declared.key)}", list(table.key))
        if table.columns != declared.columns:
            raise validators.refuse(
                f"{key}.columns", f"{describe_schema(declared.columns)}", describe_schema(table.columns)
            )
        lying = StateTableGroups.of(operator, table, groups)
        if lying.units * lying.parts != len(table.rows) or not lying.parts:
            wanted = f"a list of {groups}, one for each group, or of as many for each of {lying.units}"
            raise validators.refuse(f"{key}.rows", wanted, len(table.rows))
    for key, is_right in _EXTRA.items():
        if key in state.notes:
            is_right(state.notes[key], f"operators.{operator.name}.extra.{key}")
