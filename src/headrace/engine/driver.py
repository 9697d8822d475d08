"""The driver: the papers' master. It owns plan, clocks, layouts and manifests, and runs one epoch after another.

Order of an epoch, each step safe to be the last: look where the source stands (process, replay or stop) - run the
stages - check that all slots heard the same attempt of every producer - commit the manifest - deliver its outbox -
clean up. The state of manifest n is computed from that of n - 1 and from nothing else.
"""

from __future__ import annotations

import logging
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from headrace import plan as p
from headrace.control.controller import Controller
from headrace.control.load import GroupLoad
from headrace.control.policy import Policy, check_pins
from headrace.control.record import ControlState, Decision
from headrace.engine import stored, watermarks
from headrace.engine.epoch import Epoch, Merge
from headrace.engine.merging import plan_merges
from headrace.engine.messages import Message
from headrace.engine.position import Position
from headrace.engine.progress import Progress, busy_now
from headrace.engine.reports import Report, SourceCounts
from headrace.engine.work import Work, WorkSoFar, total
from headrace.errors import CorruptState, EngineError, QueryChanged, SinkError, StateMismatch
from headrace.limits import check_slots
from headrace.operators.base import Operator, State
from headrace.routing import Layout
from headrace.screen import printable
from headrace.sinks import Delivery, Sink
from headrace.sources.files import FilesOrigin
from headrace.sources.ledger import File, Ledger
from headrace.state.blocks import REPAIR, Block, BlockReader
from headrace.state.manifest import Manifest, OperatorState, Output, SourceState, Totals
from headrace.state.store import StateStore
from headrace.version import __version__

_log = logging.getLogger(__name__)

Execute = Callable[[Epoch], Sequence[Message]]
STATIC_CHANGED = (
    "the static source %s has changed since this state began, and is not read again: it was %s, it is %s;"
    " the run goes on with what it was; use a new checkpoint folder for what it is"
)
ATTEMPTS = 3  # how often an epoch is run when its tasks do not agree
REMEMBERED = 20  # epochs over which the size of the state is smoothed: merging makes it a saw
FEWEST_GROUPS, GROUPS_PER_SLOT = 64, 16
LATER_PER_SLOT = 4  # groups for each slot that a run may grow to


@dataclass
class Settings:
    """What a run was asked for."""

    slots: int
    best_effort: bool = False
    bounded: bool = False
    keep_late: bool = False
    static: tuple[str, ...] = ()  # sources that are read whole in the first epoch
    layouts: Callable[[Operator, int, int], Layout | None] | None = None  # those of a plan, or a test's own choice
    groups: int | None = None
    policy: Policy = field(default_factory=Policy)
    limit: int | None = None  # slots that the run may grow to; None: those it has
    auto: bool = False  # the controller chooses how many slots are active


@dataclass
class Driver:
    plan: p.PhysicalPlan
    query: dict[str, Any]  # the fingerprint
    store: StateStore
    sinks: Mapping[str, Sink]  # by result; late tuples of a source: "late:<source>"
    settings: Settings
    files: Mapping[str, FilesOrigin] = field(default_factory=dict)  # sources that headrace drives itself
    progress: Progress = field(default_factory=Progress)
    places: Mapping[str, str] = field(default_factory=dict)  # what each source reads, where that can be told

    def __post_init__(self) -> None:
        self.query = {
            **self.query,
            "grouped": _grouped(self.plan),
            "held": _held(self.plan),
            "routers": _chosen(self.plan),
        }
        last = self.store.last
        self.progress.sources = {s.name: 0 for s in self.plan.sources}
        self.progress.watermark = {s.name: None for s in self.plan.sources}
        self.progress.results = dict.fromkeys(self.plan.results, 0)
        if last is not None:
            stored.check(last)
            self._check_query(last)
            stored.check_for(self.plan, last)
            self._check_places(last)
            self.progress.restore(last)
        limit = check_slots(max(self.settings.limit or 0, self.settings.slots))
        self.control = Controller(self.plan, self.settings.policy, self.settings.slots, limit, auto=self.settings.auto)
        placed = {o.name: self.control.can_place(o) for o in self.plan.operators}
        check_pins(self.settings.policy, placed, last.groups if last else self._groups(), limit)
        if last is not None and last.control:
            self.control.restore(ControlState.from_json(last.control))
        self._since: float | None = None  # when the last epoch began
        self._began: float | None = None  # when the epoch under way began
        self._measured = 0.0  # seconds that the shares of busy slots were taken over
        self.backlog = 0  # windows that wait
        reader = BlockReader(self.store.storage)
        taken = last.ledgers if last else {}
        self.ledgers = {name: Ledger(origin, taken.get(name, ()), reader) for name, origin in self.files.items()}

    # --- entry -----------------------------------------------------------------------------------------------------

    def _check_query(self, last: Manifest) -> None:
        if last.query != self.query:
            changes = "; ".join(_changes(last.query, self.query))
            msg = f"the state belongs to another query: {changes}; use a new checkpoint folder, or the query it was made for"
            raise QueryChanged(msg)

    def _check_places(self, last: Manifest) -> None:
        """What was taken and what is held came from there: another input would be taken for its continuation."""
        for name, place in self.places.items():
            known = last.sources[name].place
            if name in self.settings.static and known not in (None, place):
                _log.warning(STATIC_CHANGED, *map(printable, (name, str(known), place)))
            elif known not in (None, place) and not (name in self.files and _same_folder(str(known), place)):
                moved = " (if it was moved: put a symbolic link there)" if name in self.files else ""
                msg = f"source {name!r} read {known!r}, now it is {place!r}; give it the former{moved}, or use a new checkpoint folder"
                raise QueryChanged(msg)

    def deliver_again(self) -> None:
        """On start: the newest outbox may not have reached its sinks."""
        if self.store.last is not None:
            self._deliver(self.store.last)

    @property
    def closed(self) -> bool:
        return self.store.last is not None and self.store.last.closed

    @property
    def running(self) -> float | None:
        """Seconds that the epoch under way has taken so far."""
        began = self._began
        return None if began is None else time.monotonic() - began

    @property
    def busy(self) -> list[float]:
        """Share of its time that each slot works, lately, the epoch under way included."""
        return busy_now(self.control.occupancy, self.settings.slots, self._measured, self.running)

    # --- one epoch -------------------------------------------------------------------------------------------------

    def run(
        self,
        position: Position,
        execute: Execute,
        *,
        final: bool = False,
        idle: Sequence[str] = (),
        taken: Mapping[str, Sequence[File]] | None = None,
    ) -> None:
        """Process the input at a source position, and the files taken with it: one more manifest."""
        if self.closed:
            raise StateMismatch("this checkpoint is closed: its input had an end and was processed; use a new folder")
        begun, since = time.time(), time.monotonic()
        self._began = since
        try:
            self._run(position, execute, final, idle, taken, begun, since)
        finally:
            self._began = None

    def _run(
        self,
        position: Position,
        execute: Execute,
        final: bool,
        idle: Sequence[str],
        taken: Mapping[str, Sequence[File]] | None,
        begun: float,
        since: float,
    ) -> None:
        if self.settings.auto:
            self.settings.slots = self.control.active
        epoch = self._epoch(final=final, idle=idle)
        reports = self._execute(epoch, execute)
        ledgers = {n: self.ledgers[n].record(self.store.storage, epoch.number, f) for n, f in (taken or {}).items()}
        passed = max(time.monotonic() - since, since - (self._since or since))  # what the slots had
        self._since, self._measured = since, passed
        manifest = self._manifest(epoch, reports, position, ledgers, passed)
        self.store.commit(manifest)
        for name, files in (taken or {}).items():
            self.ledgers[name].accept(ledgers[name], files)
        self._deliver(manifest)
        self.store.clean()
        after = replace(self.progress)  # whoever holds the old one keeps a whole epoch
        after.busy = list(self.control.occupancy)
        after.update(manifest, reports, begun, time.time(), *_block_bytes(self.plan, reports))
        self.progress = after

    def _epoch(self, *, final: bool, idle: Sequence[str]) -> Epoch:
        last = self.store.last
        groups = last.groups if last else self._groups()
        clocks = {s.name: self._clock(s.name, last) for s in self.plan.sources}
        clocks = {n: replace(c, idle=True) if n in idle else c for n, c in clocks.items()}
        state = dict(last.operators) if last else {}
        return Epoch(
            plan=self.plan,
            number=last.number + 1 if last else 0,
            folder=self.store.storage.uri,
            slots=self.settings.slots,
            groups=groups,
            clocks=clocks,
            layouts=self._layouts(groups, state),
            state=state,
            merges=self._merges(state),
            ended=tuple(clocks) if final else self.settings.static,
            bounded=self.settings.bounded,
            best_effort=self.settings.best_effort,
            keep_late=self.settings.keep_late,
        )

    def _groups(self) -> int:
        needed = [operator.router.groups for operator in self.plan.operators]
        for_slots = max(GROUPS_PER_SLOT * self.settings.slots, LATER_PER_SLOT * (self.settings.limit or 0))
        return max(self.settings.groups or max(FEWEST_GROUPS, for_slots), *needed, 1)

    def _clock(self, source: str, last: Manifest | None) -> watermarks.Clock:
        return watermarks.Clock.of(last.sources[source]) if last else watermarks.Clock()

    def _layouts(self, groups: int, state: Mapping[str, OperatorState]) -> dict[str, Layout]:
        """One per operator; one that follows another lies as the other's results do."""
        found: dict[str, Layout] = {}
        for operator in self.plan.operators:
            leader = found.get(operator.follows)
            own = leader.handed_on() if leader else self._layout(operator, groups, state.get(operator.name))
            found[operator.name] = own
        return found

    def _layout(self, operator: Operator, groups: int, state: OperatorState | None) -> Layout:
        slots = min(self.settings.slots, groups)
        chosen = self.settings.layouts and self.settings.layouts(operator, groups, slots)
        held = [sum(b.rows for b in blocks) for blocks in state.inputs] if state else []
        return chosen or self.control.layout(operator, groups, slots, held)

    def _merges(self, state: Mapping[str, OperatorState]) -> tuple[tuple[Merge, ...], ...]:
        planned = [
            m for o in self.plan.operators if o.state is State.APPENDED for m in plan_merges(o, state.get(o.name))
        ]
        return tuple(tuple(planned[slot :: self.settings.slots]) for slot in range(self.settings.slots))

    def _execute(self, epoch: Epoch, execute: Execute) -> list[Report]:
        """The reports of all tasks; the epoch runs again when slots heard different attempts of a producer."""
        for _ in range(ATTEMPTS):
            reports = [message.read(Report) for message in execute(epoch)]
            if _agree(epoch, reports):
                return reports
        msg = (
            f"epoch {epoch.number} was run {ATTEMPTS} times and its slots never heard the same attempt of every producer;"
            " executors are being lost faster than an epoch takes; nothing was committed"
        )
        raise EngineError(msg)

    # --- the next manifest -----------------------------------------------------------------------------------------

    def _manifest(
        self,
        epoch: Epoch,
        reports: Sequence[Report],
        position: Position,
        ledgers: Mapping[str, Sequence[Block]],
        passed: float,
    ) -> Manifest:
        seen: watermarks.Seen = {}
        for report in reports:
            watermarks.latest(seen, report.seen)
        clocks = watermarks.advance(self.plan, epoch.clocks, seen, ended=epoch.ended)
        sources = {s.name: self._source(s.name, clocks[s.name], reports) for s in self.plan.sources}
        outbox = _outbox(reports)
        operators, held = self._operators(epoch, reports, clocks)
        decisions = self._decide(epoch, reports, held, passed)
        return self.store.draft(
            versions=versions(),
            position=position.to_json(),
            query=self.query,
            groups=epoch.groups,
            layouts={name: layout.to_json() for name, layout in epoch.layouts.items()},
            sources=sources,
            ledgers={name: tuple(ledgers.get(name, ledger.blocks)) for name, ledger in self.ledgers.items()},
            operators=operators,
            outbox=outbox,
            totals=self._totals(sources, outbox),
            work=self._work(epoch, reports, {name: sum(sides) for name, sides in held.items()}).to_json(),
            control=self.control.remembered().to_json(),
            decisions=[decision.to_json() for decision in decisions],
            closed=len(epoch.ended) == len(self.plan.sources),
        )

    def _decide(
        self, epoch: Epoch, reports: Sequence[Report], held: Mapping[str, Sequence[float]], passed: float
    ) -> list[Decision]:
        """What the controller changes from the next epoch on. A plan that was given decides itself."""
        if self.settings.layouts is not None:
            return []
        self.control.backlog = self.backlog
        self.control.observe(_loads(reports), held, _cpu(reports, epoch.slots), passed)
        if not self.control.due(epoch.number):
            return []
        return self.control.reorganise(epoch.number, epoch.groups, epoch.layouts)

    def _source(self, name: str, clock: watermarks.Clock, reports: Sequence[Report]) -> SourceState:
        before = self.store.last.sources[name] if self.store.last else SourceState()
        counted = [report.sources[name] for report in reports if name in report.sources]
        every: list[SourceState | SourceCounts] = [before, *counted]
        was_read = self.store.last is not None and name in self.settings.static
        return SourceState(
            largest=clock.largest,
            smallest=min((c.smallest for c in every if c.smallest is not None), default=None),
            watermark=clock.watermark,
            idle=clock.idle,
            delivered=sum(c.delivered for c in every),
            accepted=sum(c.accepted for c in every),
            late=sum(c.late for c in every),
            rejected=sum(c.rejected for c in every),
            place=before.place if was_read else self.places.get(name),
        )

    def _work(self, epoch: Epoch, reports: Sequence[Report], held: Mapping[str, float]) -> WorkSoFar:
        """What all tasks did since this plan began to run; under another plan counting begins anew."""
        plan = tuple((edge.name, edge.producer, edge.target) for edge in self.plan.edges)
        known = WorkSoFar.of(self.store.last)
        if known is None or known.plan != plan:
            known = WorkSoFar(plan, epoch.number, Work(), {})
        share = max(1 / (epoch.number - known.since + 1), 1 / REMEMBERED)
        smooth = {name: round(known.held.get(name, 0.0) * (1 - share) + rows * share, 1) for name, rows in held.items()}
        return WorkSoFar(plan, known.since, total([known.counts, *(r.work for r in reports)]), smooth)

    def _totals(self, sources: Mapping[str, SourceState], outbox: Sequence[Output]) -> Totals:
        known = self.store.last.totals.results if self.store.last else {}
        new = Counter(dict.fromkeys(self.plan.results, 0))
        for output in outbox:
            new[output.result] += output.block.rows
        return Totals(
            delivered=sum(s.delivered for s in sources.values()),
            accepted=sum(s.accepted for s in sources.values()),
            late=sum(s.late for s in sources.values()),
            rejected=sum(s.rejected for s in sources.values()),
            results={result: known.get(result, 0) + new[result] for result in self.plan.results},
        )

    def _operators(
        self, epoch: Epoch, reports: Sequence[Report], clocks: Mapping[str, watermarks.Clock]
    ) -> tuple[dict[str, OperatorState], dict[str, list[float]]]:
        """The state of every operator, and about how many tuples of it are still needed, by input."""
        extra = {name: data for report in reports for name, data in report.noted.items()}
        producers = watermarks.operator_watermarks(self.plan, clocks)
        arrived = watermarks.operator_watermarks(self.plan, watermarks.arrivals(clocks))
        found, held = {}, {}
        for operator in self.plan.operators:
            before = epoch.state.get(operator.name) or OperatorState(tuple(() for _ in operator.schemas), {})
            own = {**before.extra, **extra.get(operator.name, {})}
            ranks = extra.get(operator.owner, {})
            times = arrived if epoch.best_effort and operator.trims_by_arrival else producers
            bounds = operator.keep_from(watermarks.input_watermarks(self.plan, operator, times), ranks)
            inputs = tuple(
                _live(operator, side, blocks, reports, bounds[side]) for side, blocks in enumerate(before.inputs)
            )
            found[operator.name] = OperatorState(inputs, own)
            sides = zip(inputs, bounds, strict=True)
            held[operator.name] = [sum(_needed(block, bound) for block in blocks) for blocks, bound in sides]
        return found, held

    # --- delivery --------------------------------------------------------------------------------------------------

    def _table(self, reader: BlockReader, result: str, parts: Sequence[Output]) -> pa.Table:
        """All of a result; refuses blocks that are whole, but hold something else."""
        tables = [reader.open(part.block).table for part in parts]
        schemas = [edge.schema for edge in self.plan.edges if edge.target == result] or [tables[0].schema]
        for part, table in zip(parts, tables, strict=True):
            if table.column_names != schemas[0].names:
                msg = f"block {part.block.name} is no part of {result}: it has {table.column_names}. {REPAIR}"
                raise CorruptState(msg)
        return pa.concat_tables(tables)

    def _deliver(self, manifest: Manifest) -> None:
        reader = BlockReader(self.store.storage)
        for result, sink in self.sinks.items():
            parts = [o for o in manifest.outbox if o.result == result]
            if not parts:
                continue
            delivery = Delivery(self.store.state_id, manifest.number, result, self._table(reader, result, parts))
            try:
                sink.deliver(delivery)
            except BaseException as error:
                self.store.revoke()  # nothing more may be committed before these results are delivered
                if not isinstance(error, Exception):
                    raise
                msg = (
                    f"the sink of {result} failed in epoch {manifest.number}: {type(error).__name__}: {error}; the state"
                    " is committed; start again and the same results are delivered again"
                )
                raise SinkError(msg) from error


def _same_folder(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except (OSError, ValueError):
        return False


def versions() -> dict[str, str]:
    return {
        "headrace": __version__,
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "duckdb": duckdb.__version__,
    }


def _agree(epoch: Epoch, reports: Sequence[Report]) -> bool:
    """Whether every slot of every stage reported, and heard the same attempts of the same producers, which reported."""
    if len({(r.task.stage, r.task.partition) for r in reports}) != len(reports):
        return False
    for stage in range(1, epoch.plan.stages + 1):
        slots = [r for r in reports if r.task.stage == stage]
        before = tuple(sorted(r.task for r in reports if r.task.stage == stage - 1))
        if len(slots) != epoch.slots or any(slot.heard != before for slot in slots):
            return False
    return True


def _live(
    operator: Operator, side: int, before: Sequence[Block], reports: Sequence[Report], bound: int
) -> tuple[Block, ...]:
    """The blocks of one input after an epoch: old ones, less merged and expired ones, and the new."""
    if operator.state is not State.APPENDED:
        return tuple(b.block for r in reports for b in r.replaced if (b.operator, b.input) == (operator.name, side))
    merges = [m for r in reports for m in r.merged if m.operator == operator.name and side in m.inputs]
    gone = Counter(name for merge in merges for name in merge.gone)
    new = [b.block for r in reports for b in r.added if (b.operator, b.input) == (operator.name, side)]
    blocks = _less(before, gone) + [merge.block for merge in merges] + new
    return tuple(b for b in blocks if b.high is not None and b.high >= bound)


def _needed(block: Block, bound: int) -> float:
    """About how many tuples of a block are still needed: blocks expire whole, their oldest tuples earlier."""
    if block.low is None or block.high is None or block.low >= bound:
        return float(block.rows)
    return block.rows * max(block.high - bound, 0) / max(block.high - block.low, 1)


def _block_bytes(plan: p.PhysicalPlan, reports: Sequence[Report]) -> tuple[int, int]:
    """Bytes of the blocks that an exchange sent on by reference, and of those that stayed in their slot."""
    sent, kept = dict[str, int](), dict[str, int]()
    for report in reports:
        for added in report.added:
            side = sent if plan.by_name[added.operator].stage > report.task.stage else kept
            side[added.block.name] = added.block.bytes  # once, though two inputs may share it
    return sum(sent.values()), sum(size for name, size in kept.items() if name not in sent)


def _less(blocks: Sequence[Block], gone: Counter[str]) -> list[Block]:
    """Without as many copies of a block as were merged: a stream united with itself holds each block twice."""
    left = Counter(gone)
    kept = []
    for block in blocks:
        if left[block.name]:
            left[block.name] -= 1
        else:
            kept.append(block)
    return kept


def _outbox(reports: Sequence[Report]) -> tuple[Output, ...]:
    """Result blocks in an order that does not depend on which task finished first."""
    parts = [part for report in sorted(reports, key=lambda r: r.task) for part in report.outbox]
    return tuple(Output(part.result, number, part.block) for number, part in enumerate(parts))


def _loads(reports: Sequence[Report]) -> dict[str, list[GroupLoad]]:
    """What every task sent, by operator."""
    found: dict[str, list[GroupLoad]] = {}
    for report in reports:
        for operator, load in report.load.items():
            found.setdefault(operator, []).append(load)
    return found


def _cpu(reports: Sequence[Report], slots: int) -> list[float]:
    """Seconds that every slot worked, over all stages; reading input is nobody's."""
    found = [0.0] * slots
    for report in reports:
        if report.task.stage > 0:
            found[report.task.partition] += report.cpu
    return found


def _grouped(plan: p.PhysicalPlan) -> dict[str, list[list[str]]]:
    """By which columns the state of every operator is grouped: part of what state on disk means."""
    stateful = [o for o in plan.operators if o.state is not State.NONE]
    return {o.name: [list(grouping.columns) for grouping in o.groupings] for o in stateful}


def _chosen(plan: p.PhysicalPlan) -> dict[str, Any]:
    """Routers that were chosen with the first epoch, for good: blocks are grouped by them."""
    return {o.name: o.router.to_json() for o in plan.operators if o.router.chosen}


def _held(plan: p.PhysicalPlan) -> dict[str, list[list[str]]]:
    """Which columns the state of every operator holds, where it holds tuples: the compiler drops what nobody reads."""
    return {o.name: [schema.names for schema in o.schemas] for o in plan.operators if o.holds_tuples}


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two fingerprints, for people."""
    found = _changed_operators(old["operators"], new["operators"])
    if not found and old.get("grouped") != new.get("grouped"):
        return ["its operators are the same, but another version grouped their state by other columns"]
    if not found and old.get("routers") != new.get("routers"):
        return ["its operators are the same, but their state is grouped in other ways, such as by other ranges"]
    if not found and old.get("held") != new.get("held"):
        return ["its operators are the same, but another version kept other columns of their tuples"]
    return found or ["its fingerprint differs"]


def _changed_operators(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[str]:
    if len(before) != len(after):
        return [f"it has {len(after)} operators, the state was made by {len(before)}"]
    found = []
    for number, (old, new) in enumerate(zip(before, after, strict=True), start=1):
        keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        found += [f"operator {number} ({old['operator']}): {k} was {old.get(k)!r}, is {new.get(k)!r}" for k in keys]
    return found
