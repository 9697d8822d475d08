"""The driver (the papers' master): it prepares, starts, commits and delivers one epoch after another.

`Driver` fixes the order of the steps. Each step is in a separate module:

    agreement       repeats an epoch until the reports of its tasks agree
    cache_index     the caches of state tables that tasks may use
    delivery        hands results to their sinks
    fingerprint     describes a logical query
    identity        decides whether the state belongs to this query and to these inputs
    late_warning    warns of the first late tuples of a source
    layouts         layouts, slots and splitters of each epoch
    merge_choice    chooses the blocks that an epoch merges
    outcome         computes the next state from the reports
    position        decides what to do with a batch of Spark
    stored_checks   checks the newest manifest when a run starts
    table_versions  versions of the tables that streams are joined with

An epoch runs in this order, and a crash after any step is safe: make the record `Epoch`; run the stages; check that all
slots received messages of the same attempt of every task of the stage before; commit the manifest; deliver its outbox;
delete unused files. For sources that headrace drives, an epoch begins at the offsets and files that the last manifest
stores. A batch of Spark is processed, replayed or refused (`position`). The state in manifest n follows only from
manifest n - 1, the record of epoch n, the reports of its tasks and the places of its sources (`outcome`).

The docstring of `headrace.run.run` lists the functions that a tuple passes.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self

import duckdb
import pyarrow as pa

from headrace import plan as p
from headrace.compile.bind import LayoutChooser
from headrace.control.control_state import ControlState
from headrace.control.controller import Controller
from headrace.control.policy import Policy, check_pins
from headrace.control.splitter_count import FixedSplitters
from headrace.driver import identity, stored_checks
from headrace.driver.agreement import Execute, execute_until_agreed
from headrace.driver.cache_index import CacheIndex
from headrace.driver.delivery import Deliverer
from headrace.driver.late_warning import LateWarning
from headrace.driver.layouts import RunLayouts, group_count
from headrace.driver.merge_choice import bases_to_renew, merges_for_slots
from headrace.driver.outcome import compute_outcome
from headrace.driver.position import Position
from headrace.driver.table_versions import TableVersions
from headrace.errors import StateMismatch
from headrace.query import nodes
from headrace.sinks import AnySink
from headrace.sources import raw_names
from headrace.sources.protocol import DrivenOrigin, Item, Ledger, MessageAmount
from headrace.state.blocks import BlockReader
from headrace.state.manifest import Manifest, SourceState, TakenState
from headrace.state.store import StateStore
from headrace.support.limits import check_slots
from headrace.support.terminal_text import printable
from headrace.support.version import __version__
from headrace.task import watermarks
from headrace.task.epoch import Epoch
from headrace.task.failure_points import rejected_results
from headrace.task.reports import Report, TableUse
from headrace.task.work import sum_counts
from headrace.telemetry import incomplete
from headrace.telemetry.epoch_record import (
    DriverFigures,
    EpochRecord,
    phase_seconds,
    record_from_manifests,
    record_of,
    slot_figures,
)
from headrace.telemetry.listeners import Listeners
from headrace.telemetry.progress import Progress, Stopwatch, busy_shares
from headrace.telemetry.table_sizes import substream_counts

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """The arguments of a run that its driver needs."""

    slots: int  # number of slots at the start
    best_effort: bool = False
    bounded: bool = False
    keep_late: bool = False
    warn_late: bool = False  # log the first late tuples of each source
    keep_failed: bool = False  # tuples that fail in a step do not stop the run
    static: tuple[str, ...] = ()  # sources that the first epoch reads completely
    layouts: LayoutChooser | None = None  # chooses all layouts, instead of the controller
    groups: int | None = None
    policy: Policy = field(default_factory=Policy)
    limit: int | None = None  # slots that the run may grow to; None: no growth
    auto: bool = False  # the controller chooses how many slots are active
    cache: int = 0  # bytes of caches of state tables on each machine; 0: no caches
    beside: bool = False  # tasks run on this machine, so the driver makes and removes their folder of caches
    splitters: FixedSplitters = field(
        default_factory=FixedSplitters
    )  # if one of its numbers is given, the controller changes neither


class Driver:
    """The epochs of one run, one after the other, on the state in a store.

    `open` checks that the plan and the sinks fit the state, and restores what the newest manifest holds. Then
    `deliver_again` and `tell_listeners_again` repeat what may not have arrived, `run_epoch` runs one epoch, and `end`
    ends the run.
    """

    table_versions: TableVersions
    control: Controller
    layouts: RunLayouts
    cache_index: CacheIndex
    ledgers: dict[str, Ledger]
    _deliverer: Deliverer

    def __init__(
        self,
        plan: p.PhysicalPlan,
        query: Mapping[str, Any],
        store: StateStore,
        sinks: Mapping[str, AnySink],
        settings: Settings,
        driven: Mapping[str, DrivenOrigin] | None = None,
        *,
        places: Mapping[str, str] | None = None,
        tables: Mapping[str, nodes.TableDefinition] | None = None,
        outbox_names: Mapping[str, str | None] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Store the arguments. Call `open` before anything else.

        plan: what the tasks execute.
        query: the fingerprint of the logical query.
        sinks: by result; "late:<source>" names the late tuples of a source.
        driven: by source, the origins of sources that headrace drives itself.
        places: by source, what it reads, where that is known.
        tables: by name, the tables that streams are joined with.
        outbox_names: by result, its name in the outbox of the newest manifest, if that differs; None: it has no results there.
        labels: by result, the name that a user gave it.
        """
        self.plan, self.store, self.sinks, self.settings = plan, store, sinks, settings
        self.fingerprint = identity.query_fingerprint(query, plan)
        self.driven, self.places = driven or {}, places or {}
        self.tables, self.outbox_names, self.labels = tables or {}, outbox_names or {}, labels or {}
        self.progress, self.listeners = Progress(), Listeners()
        self._watch = Stopwatch()
        self._late_warning = LateWarning(plan.sources if settings.warn_late else ())
        self._began_with = store.last.number if store.last else None

    def open(self) -> Self:
        """Continue from the newest manifest of the store, and return the driver.

        Raises an error that names the difference if the state belongs to another query, plan or input, and whatever a sink
        raises that cannot store its results.
        """
        self._check_state()
        self._restore()
        self._open_sinks()
        self._make_ledgers()
        return self

    def _check_state(self) -> None:
        """Raise if the state does not fit the plan, and withhold results that a migration left incomplete."""
        if self.settings.best_effort:
            watermarks.check_best_effort(self.plan)
        last = self.store.last
        if last is None:
            return
        stored_checks.check_manifest(last)
        identity.check_state_arrangement(last, self.plan)
        identity.log_changed_code(last, self.plan)
        stored_checks.check_manifest_for(self.plan, last, self.driven)
        identity.check_source_places(last, self.places, self.driven, self.settings.static)
        self.plan = incomplete.withhold_incomplete(self.plan, incomplete.incomplete_operators(last.query))
        self.plan = incomplete.complete_functions(self.plan, last.query)
        for result, time_ in incomplete.incomplete_results(last).items():
            _log.warning("%s", printable(incomplete.warning_text(self.labels.get(result, result), time_)))

    def _restore(self) -> None:
        """Create the parts of the driver that continue from the newest manifest. This reads the joined tables."""
        last, given = self.store.last, self.settings
        self.table_versions = TableVersions({} if self.closed else self.tables, self.store.storage, last)
        self.progress.begin(self.plan, last, self.store.previous, self.labels)
        self.control = self._controller(last)
        self.layouts = RunLayouts(self.plan, self.control, given.layouts, given.splitters)
        self.cache_index = CacheIndex(self.plan, self.store.run_id, given.cache, beside=given.beside)
        self._substreams = substream_counts(self.plan)

    def _open_sinks(self) -> None:
        """Let every sink check what it will get, and that it has no later results than this state."""
        self._deliverer = Deliverer(self.plan, self.store, self.sinks, self.labels)
        if self._deliverer.in_tasks:
            self.store.keep_name()
        self._deliverer.begin(self._rejected_results())
        self._deliverer.resume(self.outbox_names)

    def _make_ledgers(self) -> None:
        known = self.store.last.ledgers if self.store.last else {}
        reader = BlockReader(
            self.store.storage, capacity=0
        )  # a ledger reads a block only once, and a mapping would outlive the file
        self.ledgers = {
            name: origin.ledger(known[name] if name in known else origin.state_type(), reader)
            for name, origin in self.driven.items()
        }

    def _rejected_results(self) -> Mapping[str, tuple[str, pa.Schema]]:
        """Return what the sink `late` may get, if there is one: by result, a description and the schema."""
        return rejected_results(self.plan, failed=self.settings.keep_failed) if self.settings.keep_late else {}

    def _controller(self, last: Manifest | None) -> Controller:
        """Return the controller, with what it remembered in the newest manifest."""
        given = self.settings
        limit = check_slots(max(given.limit or 0, given.slots))
        policy = replace(given.policy, splitters=False) if given.splitters.is_fixed else given.policy
        control = Controller(self.plan, policy, given.slots, limit, auto=given.auto)
        placed = {o.name: control.can_place(o) and not o.follows for o in self.plan.operators}
        groups = last.groups if last else group_count(self.plan, given.slots, given.limit or 0, given.groups)
        check_pins(given.policy, placed, groups, limit)
        if last is not None and last.control:
            control.restore(ControlState.from_json(last.control))
        return control

    @property
    def columns(self) -> dict[str, list[str]]:
        """Return the columns of each source that are read, under the source's own names."""
        return {s.name: raw_names(s.reads(whole=self.settings.keep_late), s) for s in self.plan.sources}

    @property
    def last(self) -> Manifest | None:
        """Return the newest manifest."""
        return self.store.last

    @property
    def closed(self) -> bool:
        """Return whether the checkpoint is closed: its input has ended and was processed."""
        return self.last is not None and self.last.closed

    def end(self, error: BaseException | None) -> None:
        """Release the state, so that nothing more is committed, and tell listeners the error that ended the run."""
        self.store.revoke()
        self.table_versions.end()
        self._deliverer.close()
        self.cache_index.remove()
        if error is not None:
            self.listeners.tell(replace(self._untold_record(), error=f"{type(error).__name__}: {error}"))
        told = self.last is None or self.listeners.newest == self.last.number
        self.store.close(all_listeners_told=self.listeners.close() and told)

    def hurry(self) -> None:
        """Stop waiting for servers that are unreachable, because the run is to end."""
        self._deliverer.hurry()
        for ledger in self.ledgers.values():
            ledger.hurry()

    def _untold_record(self) -> EpochRecord:
        """Return the record of the epoch that an error belongs to: the newest if listeners have not received it, or the next."""
        last = self.last
        if last is None or last.number in (self.listeners.newest, self._began_with):
            return EpochRecord(last.number + 1 if last else 0, progress=self.progress)
        return self._record_of(last)

    def _record_of(self, last: Manifest) -> EpochRecord:
        return record_from_manifests(self.store.previous, last, self._substreams, self.labels)

    @property
    def running(self) -> float | None:
        """Return how many seconds the epoch in progress has taken so far."""
        return self._watch.running

    @property
    def busy(self) -> list[float]:
        """Return the recent share of its time that each slot works, the epoch in progress included."""
        return busy_shares(self.control.occupancy, self.control.active, self._watch.had, self.running)

    def deliver_again(self) -> None:
        """Deliver the newest outbox again, as every start does, because it may not have reached its sinks."""
        self.store.complete()
        last = self.store.last
        if last is not None:  # other names apply only to the outbox that the run began with
            self._deliverer.deliver(last, self.outbox_names if last.number == self._began_with else {})

    # --- one epoch -------------------------------------------------------------------------------------------------

    def run_epoch(
        self,
        position: Position,
        execute: Execute,
        *,
        final: bool = False,
        idle_sources: Sequence[str] = (),
        idle_partitions: Mapping[str, Sequence[str]] | None = None,
        taken: Mapping[str, Sequence[Item]] | None = None,
    ) -> None:
        """Run one epoch, commit its manifest and deliver its results.

        position: of the sources when the epoch is committed.
        execute: runs the tasks of the epoch and returns their reports.
        final: all sources end with this epoch.
        idle_sources: sources that have been silent for longer than their `idle`.
        idle_partitions: the same of partitions, by source.
        taken: by source that headrace drives, the items that this epoch takes.
        """
        if self.closed:
            raise StateMismatch(
                "the checkpoint is closed because its bounded input has been processed; use a new checkpoint folder"
            )
        with self._watch.epoch():
            epoch = self._next_epoch(final=final, idle_sources=idle_sources, idle_partitions=idle_partitions or {})
            self._execute_and_commit(epoch, position, execute, taken or {})

    def _execute_and_commit(
        self, epoch: Epoch, position: Position, execute: Execute, taken: Mapping[str, Sequence[Item]]
    ) -> None:
        begun, marks = time.time(), [_now()]
        reports = execute_until_agreed(epoch, execute)
        marks.append(_now())
        ledgers = {n: self.ledgers[n].state_after(self.store.storage, epoch.number, f) for n, f in taken.items()}
        amounts = {name: _message_amount(name, reports) for name in taken}
        bytes_read = {name: amount.bytes or self._file_bytes(name, taken[name]) for name, amount in amounts.items()}
        last, manifest = self.store.last, self._manifest(epoch, reports, position, ledgers, bytes_read)
        self.store.commit(manifest)
        self.table_versions.committed(manifest)
        table_use = self.cache_index.accept(reports)
        self._late_warning.note_epoch(epoch.number, reports)
        marks.append(_now())
        for name, items in taken.items():
            self.ledgers[name].note_commit(ledgers[name], items, amounts[name])
        sink_seconds = self._deliverer.deliver(manifest)
        marks.append(_now())
        self.store.clean()
        record = self._record(last, manifest, epoch, reports, marks, sink_seconds, table_use)
        self._tell_listeners(record, last, manifest, reports, begun)

    def _tell_listeners(
        self,
        record: EpochRecord,
        last: Manifest | None,
        manifest: Manifest,
        reports: Sequence[Report],
        begun: float,
    ) -> None:
        """Replace the progress by that after the epoch, and tell listeners the record of the epoch."""
        after = replace(self.progress)  # a reader of the former object keeps the progress of one whole epoch
        after.busy = list(self.control.occupancy)
        after.backlog = self.control.backlog if self.ledgers else None
        after.backlog_of = " and ".join(sorted({ledger.unit for ledger in self.ledgers.values()})) or "files"
        after.update(record, last, manifest, reports, begun)
        self.progress = after
        self.listeners.tell(replace(record, progress=after))

    def _file_bytes(self, source: str, items: Sequence[Item]) -> int:
        return sum(each.bytes for each in self.ledgers[source].inputs(source, items))

    def _record(
        self,
        last: Manifest | None,
        manifest: Manifest,
        epoch: Epoch,
        reports: Sequence[Report],
        marks: Sequence[tuple[float, float]],
        sink_seconds: Mapping[str, float],
        table_use: Mapping[str, TableUse],
    ) -> EpochRecord:
        """Return the record of an epoch. marks: the times before execution, commit and delivery, and at the end."""
        clock, cpu = zip(*marks, strict=True)
        executed, commit, delivery = (after - before for before, after in pairwise(clock))
        found = record_of(last, manifest, sum_counts(report.work for report in reports), self._substreams)
        sent, kept = _block_bytes(epoch.plan, reports)
        return replace(
            found,
            seconds=clock[-1] - clock[0],
            cpu_seconds=sum(report.cpu for report in reports),
            phases=phase_seconds(reports, epoch.slots, executed, commit, delivery),
            driver=DriverFigures(*(round(after - before, 6) for before, after in pairwise(cpu))),
            slots=slot_figures(reports, epoch.slots),
            sent_bytes=sent,
            kept_bytes=kept,
            table_use=table_use,
            results={
                self.labels.get(n, n): replace(each, seconds=sink_seconds.get(n)) for n, each in found.results.items()
            },
        )

    def tell_listeners_again(self) -> None:
        """Tell listeners the newest epoch when a run starts, if they may not have received it."""
        last = self.store.last
        if last is not None and not self.store.all_listeners_told:
            self.listeners.tell(replace(self._record_of(last), repeated=True))

    def _clocks(
        self, idle_sources: Sequence[str], idle_partitions: Mapping[str, Sequence[str]]
    ) -> dict[str, watermarks.SourceClock]:
        """Return the clocks of sources after the last epoch. A source or partition that is silent is proposed as idle."""
        found, last = {}, self.store.last
        for name in (source.name for source in self.plan.sources):
            clock = watermarks.SourceClock.of(last.sources[name] if last else None)
            if name in self.ledgers:
                clock = clock.with_partitions(self.ledgers[name].partitions)
            if clock.partitions:
                clock = clock.silenced(idle_partitions.get(name, ()))
            found[name] = replace(clock, idle=True) if name in idle_sources else clock
        return found

    def _next_epoch(
        self, *, final: bool, idle_sources: Sequence[str], idle_partitions: Mapping[str, Sequence[str]]
    ) -> Epoch:
        """Return the record of the next epoch, with the facts that its tasks need."""
        last, slots, given = self.store.last, self.control.active, self.settings
        groups = last.groups if last else group_count(self.plan, slots, given.limit or 0, given.groups)
        number = last.number + 1 if last else 0
        clocks = self._clocks(idle_sources, idle_partitions)
        state = dict(last.operators) if last else {}
        plan, layouts = self.layouts.plan_epoch(groups, state)
        return Epoch(
            plan=plan,
            number=number,
            folder=self.store.storage.uri,
            slots=slots,
            groups=groups,
            clocks=clocks,
            layouts=layouts,
            state=state,
            table_versions=self.table_versions.of_epoch(number),
            split_times=last.splits if last else {},
            merges=merges_for_slots(self.plan, state, slots, last.number) if last else (),
            renewals=bases_to_renew(self.plan, state, last.number, groups) if last else {},
            ended=tuple(clocks) if final else given.static,
            bounded=given.bounded,
            best_effort=given.best_effort,
            keep_late=given.keep_late,
            keep_failed=given.keep_failed,
            state_id=self.store.state_id,
            run_id=self.store.run_id,
            sinks=self._deliverer.in_tasks,
            caches=self.cache_index.stamps(),
            readers={name: ledger.reader for name, ledger in self.ledgers.items()},
        )

    def _manifest(
        self,
        epoch: Epoch,
        reports: Sequence[Report],
        position: Position,
        ledgers: Mapping[str, TakenState],
        bytes_read: Mapping[str, int],
    ) -> Manifest:
        """Return the next manifest, with the decisions for the epoch after it. bytes_read: by source, bytes of files
        and messages."""
        was_read = self.settings.static if self.store.last else ()  # static sources are read once, in the first epoch
        places = {name: place for name, place in self.places.items() if name not in was_read}
        found = compute_outcome(self.store.last, epoch, reports, places)
        notes = {name: state.notes for name, state in found.operators.items()}
        decisions = self.layouts.decide(epoch, reports, found.needed_tuples, self._watch.lap(), bytes_read, notes)
        return self.store.draft(
            versions=software_versions(self.plan),
            position=position.to_json(),
            query=self._query_after(found.sources),
            groups=epoch.groups,
            layouts={name: layout.to_json() for name, layout in epoch.layout_of.items()},
            sources=found.sources,
            ledgers={name: ledgers.get(name, ledger.state) for name, ledger in self.ledgers.items()},
            tables=dict(epoch.table_versions),
            splits=found.split_times,
            operators=found.operators,
            outbox=found.outbox,
            totals=found.totals,
            work=found.work.to_json(),
            control=self.control.remembered().to_json(),
            decisions=[decision.to_json() for decision in decisions],
            closed=len(epoch.ended) == len(self.plan.sources),
        )

    def _query_after(self, sources: Mapping[str, SourceState]) -> dict[str, Any]:
        """Return the section `query` of the next manifest. It lists the operators that are still incomplete."""
        begun = incomplete.incomplete_operators(self.store.last.query) if self.store.last else {}
        left = incomplete.still_incomplete(
            self.plan, begun, {name: watermarks.SourceClock.of(source) for name, source in sources.items()}
        )
        return {**self.fingerprint, "begun": left} if left else self.fingerprint


def _message_amount(source: str, reports: Sequence[Report]) -> MessageAmount:
    """Return how many messages of a source the tasks have read, and their bytes."""
    told = [report.sources[source] for report in reports if source in report.sources]
    return MessageAmount(sum(each.bytes for each in told), sum(each.messages for each in told))


def _now() -> tuple[float, float]:
    """Return the monotonic time, and the CPU time of this process."""
    return time.monotonic(), time.process_time()


def software_versions(plan: p.PhysicalPlan) -> dict[str, str]:
    """Return the versions of the software that runs epochs of a plan, user code included."""
    return {
        **identity.operator_code(plan),
        "headrace": __version__,
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "duckdb": duckdb.__version__,
    }


def _block_bytes(plan: p.PhysicalPlan, reports: Sequence[Report]) -> tuple[int, int]:
    """Return the bytes of blocks that an exchange sent by reference, and of those that stayed in their slot."""
    sent, kept = dict[str, int](), dict[str, int]()
    for report in reports:
        for added in report.added:
            side = sent if plan.by_name[added.operator].stage > report.task.stage else kept
            side[added.block.name] = added.block.bytes  # once, though two inputs may share it
    return sum(sent.values()), sum(size for name, size in kept.items() if name not in sent)
