"""The driver (the papers' master): it prepares, starts, commits and delivers one epoch after another.

`Driver` fixes the order of the steps. Each step is in a module of its own:

    agreement       repeats an epoch until the reports of its tasks agree
    cache_index     the caches of state tables that tasks may use
    delivery        hands results to their sinks
    fingerprint     describes a logical query
    identity        decides whether the state belongs to this query and to these inputs
    layouts         layouts, slots and splitters of each epoch
    merge_choice    chooses the blocks that an epoch merges
    outcome         computes the next state from the reports
    position        decides what to do with a batch of Spark
    stored_checks   checks the newest manifest when a run starts
    table_versions  versions of the tables that streams are joined with

An epoch runs in this order, and a crash after any step is safe: make the record `Epoch` - run the stages - check that
all slots received messages of the same attempt of every producer - commit the manifest - deliver its outbox - delete
unused files. For sources that headrace drives, the offsets and files of an epoch follow from the last manifest. A batch
of Spark is processed, replayed or refused (`position`). The state of manifest n follows from manifest n - 1 and the
reports of epoch n alone.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import duckdb
import pyarrow as pa

from headrace import plan as p
from headrace.control.control_state import ControlState
from headrace.control.controller import Controller
from headrace.control.policy import Policy, check_pins
from headrace.control.splitter_count import FixedSplitters
from headrace.driver import identity, stored_checks
from headrace.driver.agreement import Execute, execute_until_agreed
from headrace.driver.cache_index import CacheIndex
from headrace.driver.delivery import Deliverer
from headrace.driver.layouts import Chosen, RunLayouts, group_count
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
    """What a run was asked for."""

    slots: int  # to begin with
    best_effort: bool = False
    bounded: bool = False
    keep_late: bool = False
    keep_failed: bool = False  # tuples that fail in a step do not stop the run
    static: tuple[str, ...] = ()  # sources that are read whole in the first epoch
    layouts: Chosen | None = None  # those of a plan, or a test's own choice
    groups: int | None = None
    policy: Policy = field(default_factory=Policy)
    limit: int | None = None  # slots that the run may grow to; None: those it has
    auto: bool = False  # the controller chooses how many slots are active
    cache: int = 0  # bytes that tables may take in place on each machine; 0: none stay there
    beside: bool = False  # tasks run on this machine, so what they leave can be removed here
    splitters: FixedSplitters = field(
        default_factory=FixedSplitters
    )  # if one of its numbers is given, the controller changes neither


@dataclass
class Driver:
    plan: p.PhysicalPlan
    query: dict[str, Any]  # the fingerprint
    store: StateStore
    sinks: Mapping[str, AnySink]  # by result; late tuples of a source: "late:<source>"
    settings: Settings
    driven: Mapping[str, DrivenOrigin] = field(default_factory=dict)  # sources that headrace drives itself
    progress: Progress = field(default_factory=Progress)
    places: Mapping[str, str] = field(default_factory=dict)  # what each source reads, where that can be told
    tables: Mapping[str, nodes.TableDefinition] = field(default_factory=dict)  # that streams are joined with
    waiting: Mapping[str, str | None] = field(
        default_factory=dict
    )  # result: what the newest outbox calls it, if it does
    labels: Mapping[str, str] = field(default_factory=dict)  # of results that have another name for people

    def __post_init__(self) -> None:
        if self.settings.best_effort:
            watermarks.check_best_effort(self.plan)
        self.query = identity.query_fingerprint(self.query, self.plan)
        last = self.store.last
        if last is not None:
            stored_checks.check_manifest(last)
            identity.check_state_arrangement(last, self.plan)
            identity.log_changed_code(last, self.plan)
            stored_checks.check_manifest_for(self.plan, last, self.driven)
            identity.check_source_places(last, self.places, self.driven, self.settings.static)
            self.plan = incomplete.withhold_incomplete(self.plan, incomplete.incomplete_operators(last.query))
            self.plan = incomplete.complete_functions(self.plan, last.query)
            for result, time_ in incomplete.incomplete_results(last).items():
                _log.warning("%s", printable(incomplete.warning_text(self.labels.get(result, result), time_)))
        self.versions = TableVersions({} if self.closed else self.tables, self.store.storage, last)
        self.progress.begin(self.plan, last, self.store.previous, self.labels)
        self.control = self._controller(last)
        self.adapting = RunLayouts(self.plan, self.control, self.settings.layouts, self.settings.splitters)
        self._deliverer = Deliverer(self.plan, self.store, self.sinks, self.labels)
        if self._deliverer.in_tasks:
            self.store.keep_name()
        self._deliverer.begin(self._aside())
        self._deliverer.resume(self.waiting)
        self.kept = CacheIndex(self.plan, self.store.run, self.settings.cache, beside=self.settings.beside)
        self._watch, self.listeners = Stopwatch(), Listeners()
        self._substreams = substream_counts(self.plan)
        self._began_with = last.number if last else None
        known = last.ledgers if last else {}
        reader = BlockReader(
            self.store.storage, capacity=0
        )  # a ledger reads a block once: a mapping would outlive the file
        self.ledgers: dict[str, Ledger] = {
            name: origin.ledger(known[name] if name in known else origin.state_type(), reader)
            for name, origin in self.driven.items()
        }

    def _aside(self) -> Mapping[str, tuple[str, pa.Schema]]:
        """What may come to the sink `late`, if there is one."""
        return rejected_results(self.plan, failed=self.settings.keep_failed) if self.settings.keep_late else {}

    def _controller(self, last: Manifest | None) -> Controller:
        given = self.settings
        limit = check_slots(max(given.limit or 0, given.slots))
        policy = replace(given.policy, splitters=False) if given.splitters.is_fixed else given.policy
        control = Controller(self.plan, policy, given.slots, limit, auto=given.auto)
        placed = {o.name: control.can_place(o) for o in self.plan.operators}
        groups = last.groups if last else group_count(self.plan, given.slots, given.limit or 0, given.groups)
        check_pins(given.policy, placed, groups, limit)
        if last is not None and last.control:
            control.restore(ControlState.from_json(last.control))
        return control

    @property
    def columns(self) -> dict[str, list[str]]:
        """By source, the columns of it that are read, as it calls them."""
        return {s.name: raw_names(s.reads(whole=self.settings.keep_late), s) for s in self.plan.sources}

    @property
    def last(self) -> Manifest | None:
        """The newest manifest."""
        return self.store.last

    @property
    def closed(self) -> bool:
        return self.last is not None and self.last.closed

    def end(self, error: BaseException | None) -> None:
        """Give the state back: nothing is committed any more, and who listens hears what ended it."""
        self.store.revoke()
        self.versions.end()
        self._deliverer.close()
        self.kept.remove()
        if error is not None:
            self.listeners.tell(replace(self._untold(), error=f"{type(error).__name__}: {error}"))
        told = self.last is None or self.listeners.newest == self.last.number
        self.store.close(all_listeners_told=self.listeners.close() and told)

    def hurry(self) -> None:
        """The run is to end: who waits for a server that is away waits no longer."""
        self._deliverer.hurry()
        for ledger in self.ledgers.values():
            ledger.hurry()

    def _untold(self) -> EpochRecord:
        """The epoch that an error belongs to: one that was committed and not told, or the one after it."""
        last = self.last
        if last is None or last.number in (self.listeners.newest, self._began_with):
            return EpochRecord(last.number + 1 if last else 0, progress=self.progress)
        return self._told_by(last)

    def _told_by(self, last: Manifest) -> EpochRecord:
        return record_from_manifests(self.store.previous, last, self._substreams, self.labels)

    @property
    def running(self) -> float | None:
        """Seconds that the epoch under way has taken so far."""
        return self._watch.running

    @property
    def busy(self) -> list[float]:
        """Share of its time that each slot works, lately, the epoch under way included."""
        return busy_shares(self.control.occupancy, self.control.active, self._watch.had, self.running)

    def deliver_again(self) -> None:
        """On start: the newest outbox may not have reached its sinks."""
        self.store.complete()
        last = self.store.last
        if last is not None:  # other names count for the outbox that the run began with, and for none of its own
            self._deliverer.deliver(last, self.waiting if last.number == self._began_with else {})

    # --- one epoch -------------------------------------------------------------------------------------------------

    def run(
        self,
        position: Position,
        execute: Execute,
        *,
        final: bool = False,
        idle: Sequence[str] = (),
        quiet: Mapping[str, Sequence[str]] | None = None,
        taken: Mapping[str, Sequence[Item]] | None = None,
    ) -> None:
        """Process the input at a source position, and what was taken of our own with it: one more manifest.

        idle: sources that have been silent for too long; quiet: partitions that have, by source.
        """
        if self.closed:
            raise StateMismatch("this checkpoint is closed: its input had an end and was processed; use a new folder")
        with self._watch.epoch():
            self._run(position, execute, final, idle, quiet or {}, taken or {})

    def _run(
        self,
        position: Position,
        execute: Execute,
        final: bool,
        idle: Sequence[str],
        quiet: Mapping[str, Sequence[str]],
        taken: Mapping[str, Sequence[Item]],
    ) -> None:
        begun, watch = time.time(), [_now()]
        epoch = self._epoch(final=final, idle=idle, quiet=quiet)
        reports = execute_until_agreed(epoch, execute)
        watch.append(_now())
        ledgers = {n: self.ledgers[n].record(self.store.storage, epoch.number, f) for n, f in taken.items()}
        read = {name: _messages(name, reports) for name in taken}
        sizes = {name: amount.bytes or self._file_bytes(name, taken[name]) for name, amount in read.items()}
        last, manifest = self.store.last, self._manifest(epoch, reports, position, ledgers, sizes)
        self.store.commit(manifest)
        self.versions.committed(manifest)
        used = self.kept.accept(reports)
        watch.append(_now())
        for name, items in taken.items():
            self.ledgers[name].accept(ledgers[name], items, read[name])
        took = self._deliverer.deliver(manifest)
        watch.append(_now())
        self.store.clean()
        record = self._record(last, manifest, epoch, reports, watch, took, used)
        after = replace(self.progress)  # whoever holds the old one keeps a whole epoch
        after.busy = list(self.control.occupancy)
        after.backlog = self.control.backlog if self.ledgers else None
        after.backlog_of = " and ".join(sorted({ledger.counts for ledger in self.ledgers.values()})) or "files"
        after.update(record, last, manifest, reports, begun)
        self.progress = after
        self.listeners.tell(replace(record, progress=after))

    def _file_bytes(self, source: str, items: Sequence[Item]) -> int:
        return sum(cut.bytes for cut in self.ledgers[source].inputs(source, items))

    def _record(
        self,
        last: Manifest | None,
        manifest: Manifest,
        epoch: Epoch,
        reports: Sequence[Report],
        watch: Sequence[tuple[float, float]],
        took: Mapping[str, float],
        used: Mapping[str, TableUse],
    ) -> EpochRecord:
        clock, processor = zip(*watch, strict=True)
        executed, commit, delivery = (after - before for before, after in pairwise(clock))
        found = record_of(last, manifest, sum_counts(report.work for report in reports), self._substreams)
        sent, kept = _block_bytes(self.plan, reports)
        return replace(
            found,
            seconds=clock[-1] - clock[0],
            cpu_seconds=sum(report.cpu for report in reports),
            phases=phase_seconds(reports, epoch.slots, executed, commit, delivery),
            driver=DriverFigures(*(round(after - before, 6) for before, after in pairwise(processor))),
            slots=slot_figures(reports, epoch.slots),
            sent_bytes=sent,
            kept_bytes=kept,
            table_use=used,
            results={self.labels.get(n, n): replace(each, seconds=took.get(n)) for n, each in found.results.items()},
        )

    def tell_again(self) -> None:
        """On start: who listened may not have heard of the newest epoch."""
        last = self.store.last
        if last is not None and not self.store.all_listeners_told:
            self.listeners.tell(replace(self._told_by(last), repeated=True))

    def _clocks(self, idle: Sequence[str], quiet: Mapping[str, Sequence[str]]) -> dict[str, watermarks.SourceClock]:
        """Where sources stood after the last epoch; who was silent for too long since is proposed as idle."""
        found, last = {}, self.store.last
        for name in (source.name for source in self.plan.sources):
            clock = watermarks.SourceClock.of(last.sources[name] if last else None)
            if name in self.ledgers:
                clock = clock.with_partitions(self.ledgers[name].partitions)
            if clock.partitions:
                clock = clock.silenced(quiet.get(name, ()))
            found[name] = replace(clock, idle=True) if name in idle else clock
        return found

    def _epoch(self, *, final: bool, idle: Sequence[str], quiet: Mapping[str, Sequence[str]]) -> Epoch:
        """Everything that the tasks of the next epoch must know."""
        last, slots, given = self.store.last, self.control.active, self.settings
        groups = last.groups if last else group_count(self.plan, slots, given.limit or 0, given.groups)
        number = last.number + 1 if last else 0
        clocks = self._clocks(idle, quiet)
        state = dict(last.operators) if last else {}
        plan, layouts = self.adapting.laid_out(groups, state)
        return Epoch(
            plan=plan,
            number=number,
            folder=self.store.storage.uri,
            slots=slots,
            groups=groups,
            clocks=clocks,
            layouts=layouts,
            state=state,
            tables=self.versions.of_epoch(number),
            split_times=last.splits if last else {},
            merges=merges_for_slots(self.plan, state, slots, last.number) if last else (),
            renewals=bases_to_renew(self.plan, state, last.number, groups) if last else {},
            ended=tuple(clocks) if final else given.static,
            bounded=given.bounded,
            best_effort=given.best_effort,
            keep_late=given.keep_late,
            keep_failed=given.keep_failed,
            query=self.store.state_id,
            run=self.store.run,
            sinks=self._deliverer.in_tasks,
            caches=self.kept.trust(),
            readers={name: ledger.reader for name, ledger in self.ledgers.items()},
        )

    def _manifest(
        self,
        epoch: Epoch,
        reports: Sequence[Report],
        position: Position,
        ledgers: Mapping[str, TakenState],
        read: Mapping[str, int],
    ) -> Manifest:
        """The next one, with what is decided for the epoch after it; read: bytes of files and messages, by source."""
        was_read = self.settings.static if self.store.last else ()  # static sources are read once, in the first epoch
        places = {name: place for name, place in self.places.items() if name not in was_read}
        found = compute_outcome(self.store.last, epoch, reports, places)
        decisions = self.adapting.decide(epoch, reports, found.held, self._watch.lap(), read)
        return self.store.draft(
            versions=versions(self.plan),
            position=position.to_json(),
            query=self._query_after(found.sources),
            groups=epoch.groups,
            layouts={name: layout.to_json() for name, layout in epoch.layout_of.items()},
            sources=found.sources,
            ledgers={name: ledgers.get(name, ledger.state) for name, ledger in self.ledgers.items()},
            tables=dict(epoch.tables),
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
        """What a manifest says of the query when its sources stand there: what is incomplete may be so no longer."""
        begun = incomplete.incomplete_operators(self.store.last.query) if self.store.last else {}
        left = incomplete.still_incomplete(
            self.plan, begun, {name: watermarks.SourceClock.of(source) for name, source in sources.items()}
        )
        return {**self.query, "begun": left} if left else self.query


def _messages(source: str, reports: Sequence[Report]) -> MessageAmount:
    """Who read them knows how much it was."""
    told = [report.sources[source] for report in reports if source in report.sources]
    return MessageAmount(sum(each.bytes for each in told), sum(each.messages for each in told))


def _now() -> tuple[float, float]:
    """By the clock, and of this process by the processor."""
    return time.monotonic(), time.process_time()


def versions(plan: p.PhysicalPlan) -> dict[str, str]:
    """Of what made an epoch, the user's own code included."""
    return {
        **identity.operator_code(plan),
        "headrace": __version__,
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "duckdb": duckdb.__version__,
    }


def _block_bytes(plan: p.PhysicalPlan, reports: Sequence[Report]) -> tuple[int, int]:
    """Bytes of the blocks that an exchange sent on by reference, and of those that stayed in their slot."""
    sent, kept = dict[str, int](), dict[str, int]()
    for report in reports:
        for added in report.added:
            side = sent if plan.by_name[added.operator].stage > report.task.stage else kept
            side[added.block.name] = added.block.bytes  # once, though two inputs may share it
    return sum(sent.values()), sum(size for name, size in kept.items() if name not in sent)
