"""A run in progress: epochs as input comes, one at a time, until it is stopped or something ends it.

Sources that headrace drives (folders, topics) are asked here what waits: what was taken of them stands in the manifest
(`headrace.sources.protocol`). Batches of streaming DataFrames come from Spark's own query, which calls back
(`headrace.driver.position` says what a batch is). All epochs run under one lock.

A run that takes what is there (`once`) ends its input when all of its list is taken and Spark has found nothing more: one
last epoch, without tuples, closes all windows and the checkpoint.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from headrace.driver.cluster_protocol import Cluster, Feed
from headrace.driver.driver import Driver
from headrace.driver.position import Position, admit_batch, check_alignment, make_durable, spark_batch
from headrace.errors import EngineError, HeadraceError, QueryError, SourceAway, StateMismatch
from headrace.query import nodes
from headrace.run.feed_watch import FeedWatch
from headrace.run.intake import Intake, longest_window
from headrace.run.silence import Silence
from headrace.sources.protocol import Item
from headrace.support import shutdown
from headrace.support.terminal_text import printable
from headrace.task.epoch import Epoch
from headrace.task.messages import Message
from headrace.telemetry.listeners import Listener
from headrace.telemetry.progress import Progress

_log = logging.getLogger(__name__)

TICK = 0.1  # seconds between two looks at our own sources when nothing waited
MOST_RETRIES = 5  # times that an epoch is begun anew with what waits, when what waited could not be read
LONGEST_NAP = 0.5  # seconds in which a dead query is noticed
STOP_SECONDS = 2.0  # seconds that a stop waits for Spark's own log
LOST_JOB_SECONDS = 10.0  # seconds after which a job of a session that was stopped will not come back
SPARK_STOPPED = (
    "Spark's query of this run was stopped from outside (spark.streams, or the query's own stop) while the run went on;"
    " what was committed is safe: start again with the same checkpoint, and it continues; to end a run, call its stop()"
)
SESSION_STOPPED = (
    "the Spark session was stopped, or its JVM ended, while the run went on; what was committed is safe: make a new"
    " session, build the query on it and start again with the same checkpoint, and it continues"
)


class _RunStopped(HeadraceError):
    """A batch came after `stop`, and Spark must not note it as done; or the run is to end while it waits for a source."""


class Run:
    """A run in progress, as `start` returns it. It processes epochs until `stop`, until its input ends, or until an
    error.

    Leaving a `with` block stops the run. In the examples of its members, `run` is this one, after its first epoch.

    Examples:
        >>> calls = hr.files(spark, "calls/", time="ts", name="calls")
        >>> zones = hr.table("zones/", name="zones")
        >>> counts = calls.join(zones, on="l.caller = r.number").aggregate(by=["zone"], window="1 second", n="count(*)")
        >>> with counts.start(hr.sinks.memory(), checkpoint="ckpt/") as run:
        ...     active = run.active
        >>> active, run.active
        (True, False)
    """

    def __init__(
        self,
        cluster: Cluster,
        sources: Mapping[str, nodes.Source],
        driver: Driver,
        checkpoint: Path,
        interval: int,
        *,
        once: bool = False,
        queries: Sequence[str] = (),
    ) -> None:
        """queries: the last operator of each result, on one line, for people."""
        self._cluster, self._sources, self._driver = cluster, dict(sources), driver
        self._checkpoint, self._interval = checkpoint, interval
        self._once = once  # takes what is there, and ends
        self._queries, self._since = tuple(queries), datetime.now(UTC)
        self._lock = threading.Lock()  # one epoch at a time
        self._ending = threading.Lock()
        self._stopping = threading.Event()
        self._wake = threading.Event()  # set when the run is to end, for whatever reason
        self._ended = threading.Event()
        self._refused = threading.Event()  # a batch came after `stop`, so Spark has noted all before it
        self._error: BaseException | None = None
        self._busy_thread: int | None = None  # the thread that runs an epoch, or looks whether there is one to run
        self._job_since: float | None = None  # when the job that Spark has now was given to it
        self._working = True  # there is an epoch to run, or nobody has looked yet
        self._static = {n: self._sources[n] for n in driver.settings.static}
        self._streaming = {n: s for n, s in self._sources.items() if is_stream(s) and n not in driver.ledgers}
        self._intake = Intake(sources, driver.ledgers, longest_window(driver.plan))
        self._silence = Silence(sources, driver.ledgers, static=self._static, streaming=self._streaming, ends=once)
        self._watch = FeedWatch(interval, exists=bool(self._streaming))

    # --- what a user calls -----------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        """Say what runs, since when, and how far it is."""
        progress = self.progress
        if not self._ended.is_set():
            state = "running"
        else:
            state = "ended" if self._error is None else f"failed with {type(self._error).__name__}"
        epoch = "no epoch yet" if progress.epoch < 0 else f"epoch {progress.epoch}"
        what = "; ".join(f"{name}: {query}" for name, query in zip(progress.results, self._queries, strict=False))
        return printable(
            f"Run({state} since {self._since:%Y-%m-%d %H:%M:%S} UTC, {epoch}, {progress.tuples_in:,} tuples in,"
            f" {progress.results_out:,} results, checkpoint {str(self._checkpoint.parent)!r}; {what})"
        )

    def _repr_html_(self) -> str:
        """The same for a notebook, as a table."""
        from headrace.showing.notebook import run_html

        return run_html(self)

    def _ipython_display_(self) -> None:
        """In a notebook: a table that is updated in place until the run ends."""
        from headrace.showing.notebook import display_run

        display_run(self)

    @property
    def progress(self) -> Progress:
        """Totals since this state began, the last epoch, watermarks, size of the state, latency: a `Progress`.

        Examples:
            >>> run.progress.tuples_in
            3
            >>> run.progress.sources
            {'calls': 3}
        """
        driver = self._driver
        return replace(
            driver.progress,
            backlog=self._intake.backlog if driver.ledgers else None,
            running=driver.running,
            busy=driver.busy,
            versions=driver.versions.figures or driver.progress.versions,
        )

    @property
    def slots(self) -> int:
        """The number of slots that are active, a whole number.

        Examples:
            >>> run.slots
            2
        """
        return self._driver.control.active

    @property
    def exception(self) -> BaseException | None:
        """The error that ended the run. None while the run is active, and after it ended without an error.

        Examples:
            >>> run.exception is None
            True
        """
        return self._error

    @property
    def active(self) -> bool:
        """Whether the run has not ended yet: True or False.

        Examples:
            >>> run.active
            True
        """
        if self._job_is_lost():
            self._fail(EngineError(SESSION_STOPPED))
            self._end()
        return not self._ended.is_set()

    @property
    def busy(self) -> bool:
        """Whether an epoch is in progress, or input is known to wait for one: True or False.

        Examples:
            >>> import time
            >>> while run.busy:
            ...     time.sleep(0.1)
        """
        return self.active and (
            self._once or self._working or bool(self._intake.backlog) or self._watch.may_have_tuples()
        )

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run ends, or until the timeout is over.

        Args:
            timeout: seconds to wait. None: without a limit.

        Returns:
            True if the run has ended, False if the timeout was over first.

        Raises:
            HeadraceError: the error that ended the run. An error of another library is raised as it is.

        Examples:
            >>> run.wait(timeout=0.1)
            False
            >>> calls = hr.files(spark, "calls/", time="ts")
            >>> calls.start(hr.sinks.memory(), checkpoint="ckpt/", once=True).wait(timeout=60)
            True
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self._ended.wait(min(LONGEST_NAP, max(deadline - time.monotonic(), 0.0))):
            if self.active and time.monotonic() >= deadline:
                return False
        if self._error is not None:
            raise self._error
        return True

    def listen(self, function: Listener) -> Callable[[], None]:
        """Call a function for every epoch of this run from now on, in order, in a separate thread.

        Args:
            function: a function of one argument, the record of the epoch, an `EpochRecord`.

        Returns:
            A function that ends the calls.

        Examples:
            >>> records = []
            >>> stop_listening = run.listen(records.append)
            >>> stop_listening()
        """
        return self._driver.listeners.add(function)

    def stop(self) -> None:
        """End the run. An epoch in progress is finished first. A later start with the same checkpoint resumes where the
        run ended.

        Examples:
            >>> calls = hr.files(spark, "calls/", time="ts")
            >>> run = calls.start(hr.sinks.memory(), checkpoint="ckpt/")
            >>> run.stop()
            >>> run.active
            False
        """
        self._ask_to_stop()
        if threading.get_ident() == self._busy_thread:  # called by a sink: the epoch it belongs to comes first
            return
        if self._driver.listeners.is_calling():  # the run ends when who listens has heard all
            return
        while self.active:
            self._ended.wait(LONGEST_NAP)

    # --- how it adapts ---------------------------------------------------------------------------------------------

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """The changes that the run decided on, a list of dicts.

        Each has `epoch`, `operator`, `kind`, `change` and `reason`, the cost `before`, and the `predicted` and
        `measured` cost.

        Examples:
            >>> changes = [decision["change"] for decision in run.decisions]
        """
        return self._driver.layouts.decisions

    def freeze(self) -> None:
        """Stop adapting: decide on no further changes. A change that was decided already is stored in the state and takes
        effect.

        Examples:
            >>> run.freeze()
            >>> run.thaw()
        """
        self._driver.layouts.frozen = True

    def thaw(self) -> None:
        """Adapt again, after `freeze`.

        Examples:
            >>> run.freeze()
            >>> run.thaw()
        """
        self._driver.layouts.frozen = False

    def rebalance(self, dry_run: bool = False) -> list[dict[str, Any]]:
        """Return the changes that the run would decide on now, and let it decide on them with the next epoch.

        Args:
            dry_run: True: only return them.

        Returns:
            The changes, a list of dicts like `decisions`.

        Raises:
            QueryError: the run is frozen, and this is no dry run.

        Examples:
            >>> changes = run.rebalance(dry_run=True)
            >>> all(change["measured"] is None for change in changes)
            True
        """
        with self._between_epochs():
            return self._driver.layouts.rebalance(self._driver.last, dry_run=dry_run)

    def set_slots(self, slots: int) -> None:
        """Set the number of slots from the next epoch on. With slots="auto" the run may change it again.

        Args:
            slots: at least 1, at most `most_slots`.

        Raises:
            QueryError: the number is out of range, or the run follows a plan.

        Examples:
            >>> run.set_slots(2)
        """
        with self._between_epochs():
            self._driver.layouts.set_slots(slots, self._driver.last)

    def refresh(self, table: str) -> int:
        """Read a table again, now. Epochs that begin after this call returns use it.

        A table that cannot be read stays as it was; a warning is logged, and `progress.versions` has the reason.

        Args:
            table: the name of the table.

        Returns:
            The number of its version.

        Raises:
            QueryError: the run has ended, or has no such table.

        Examples:
            >>> run.refresh("zones")
            1
        """
        if not self.active:
            raise QueryError("this run has ended, and reads no table any more; a new start reads it")
        return self._driver.versions.renew(table)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- beginning and end -----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Check that the checkpoint fits, deliver what may not have arrived, and go on from there."""
        last = self._driver.last
        if self._driver.closed:
            self._driver.deliver_again()
            if self._once:
                self._driver.publish_again()
                self._end()
                return
            raise StateMismatch("this checkpoint is closed: its input had an end and was processed; use a new folder")
        if last is not None and (was := Position.from_json(last.position)).kind != self._kind():
            now = Position(self._kind()).driven_by
            msg = f"the sources were driven by {was.driven_by}, now by {now}; use the sources it began with"
            raise StateMismatch(msg)
        if self._streaming:
            check_alignment(last, self._checkpoint)
        if self._once:
            for ledger in self._driver.ledgers.values():
                ledger.keep_to_list()
        self._driver.deliver_again()
        self._driver.publish_again()
        shutdown.stop_at_exit(self)
        target = self._follow if self._streaming or self._driver.ledgers else self._to_the_end
        threading.Thread(target=self._guard, args=(target,), name="headrace-run", daemon=True).start()

    def _ask_to_stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        self._driver.hurry()

    def _kind(self) -> str:
        return "spark" if self._streaming else "files" if self._driver.ledgers else "bounded"

    def _guard(self, target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:
            self._fail(error)
        finally:
            self._end()

    def _end(self) -> None:
        with self._ending:  # once, though several may find that the cluster is gone
            if self._ended.is_set():
                return
            try:
                self._driver.end(self._error)  # waits for a commit in progress
            finally:
                self._say_the_end()

    def _say_the_end(self) -> None:
        _log.info("a run ended: %s", self._error or "as it was asked to, or with its input")
        self._ended.set()

    def _job_is_lost(self) -> bool:
        """The cluster never answers for a job that it is given while its session is being stopped."""
        since = self._job_since
        if since is None or time.monotonic() - since < LOST_JOB_SECONDS:
            return False
        return self._cluster.stopped

    def _between_epochs(self) -> AbstractContextManager[Any]:
        """No epoch is under way in it; a sink calls when its epoch is committed, from within the lock."""
        return nullcontext() if threading.get_ident() == self._busy_thread else self._lock

    @contextmanager
    def _epoch(self) -> Iterator[bool]:
        """One epoch at a time; false when the run is to end. An error is known before the next epoch can begin."""
        with self._lock:
            self._busy_thread = threading.get_ident()
            try:
                yield not self._stopping.is_set() and self._error is None
            except BaseException as error:
                self._fail(error)
                raise
            finally:
                self._busy_thread = None

    def _to_the_end(self) -> None:
        """Every source is static: one epoch, and the end."""
        with self._epoch() as wanted:
            if wanted:
                rows = [self._cluster.static(self._static)]
                self._driver.run_epoch(Position("bounded"), partial(self._execute, rows), final=True)

    def _follow(self) -> None:
        """Epochs as long as the run lasts: Spark calls with batches of its streams, files are looked for here."""
        if self._streaming:
            self._watch.feed = self._cluster.follow(
                self._streaming, self._on_batch, self._checkpoint, self._interval, once=self._once
            )
        try:
            due, worked = time.monotonic(), False
            while not self._wake.is_set() and self._feed_continues():
                self._driver.versions.look()
                if time.monotonic() >= due:
                    due = time.monotonic() + self._interval / 1e6
                    with self._epoch() as wanted:
                        worked = wanted and self._own_epoch()
                        if wanted and not worked and self._once and self._watch.drained:
                            self._last_epoch()
                            return
                    due = due if worked else time.monotonic()
                self._wake.wait(min(max(due - time.monotonic(), 0.0 if worked else TICK), LONGEST_NAP))
        finally:  # also when an epoch of our own failed: Spark's query must not go on without us
            if self._watch.feed is not None:
                with self._lock:  # let an epoch in progress commit; the next batch is refused by _on_batch
                    pass
                self._let_it_note(self._watch.feed)
                self._watch.feed.stop()

    def _let_it_note(self, feed: Feed) -> None:
        """Give Spark a moment to note the batch we just finished, so that the next start need not repeat it."""
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline and feed.active and feed.look().at_work:
            if self._refused.wait(0.02):
                return

    def _feed_continues(self) -> bool:
        watch = self._watch
        if watch.drained or watch.feed is None or watch.feed.active:
            return True
        if self._once and watch.feed.drained:
            watch.drained = True
            return True
        if not self._stopping.is_set():
            self._fail(EngineError(f"Spark ended the query: {str(watch.feed.failure)[:2000]}"))
        return False

    # --- epochs ----------------------------------------------------------------------------------------------------

    def _on_batch(self, batch: Any, number: int) -> None:
        if not self._process_batch(batch, number):
            self._refused.set()
            raise _RunStopped(self._cluster.refuse_batch())

    def _process_batch(self, batch: Any, number: int) -> bool:
        """Whether the batch is done; not if the run is to end."""
        with self._epoch() as wanted:
            if not wanted:
                return False
            make_durable(self._checkpoint, number)
            found = spark_batch(self._checkpoint, number)
            self._watch.note_batch_begins()
            if admit_batch(self._driver.last, found) == "replay":
                self._driver.deliver_again()
            else:
                try:
                    self._patiently(lambda: self._with_batch(Position("spark", found), batch))
                except _RunStopped:
                    return False
            self._watch.note_batch_ended()
        return True

    def _with_batch(self, position: Position, batch: Any) -> bool:
        self._run_epoch(position, [self._cluster.batch(batch)], self._take())
        return True

    def _patiently(self, attempt: Callable[[], bool]) -> bool:
        """Begin an epoch; again with what waits then, if what waited could not be read: nothing was committed."""
        for left in reversed(range(MOST_RETRIES)):
            try:
                return attempt()
            except SourceAway as error:
                if self._stopping.is_set():
                    raise _RunStopped("the run is to end, and a source is away") from error
                if not left:
                    raise
                _log.warning("an epoch is begun again: %s", printable(str(error)))
        raise AssertionError("the last attempt returns or raises")

    def _fail(self, error: BaseException) -> None:
        """The first error is what ended the run; that a batch came after `stop` is none."""
        if self._error is None and not isinstance(error, _RunStopped):
            self._error = self._named_errors(error)
        self._wake.set()

    def _named_errors(self, error: BaseException) -> BaseException:
        """That Spark was stopped shows itself in as many ways as there are calls to it; say that it was."""
        ours = isinstance(error, HeadraceError) and not isinstance(error, EngineError)
        if ours or not isinstance(error, Exception):
            return error
        if self._cluster.stopped:
            found = EngineError(SESSION_STOPPED)
        elif self._watch.was_stopped:
            found = EngineError(SPARK_STOPPED)
        else:
            return error
        found.__cause__ = error
        return found

    def _own_epoch(self) -> bool:
        return self._patiently(self._try_own_epoch)

    def _try_own_epoch(self) -> bool:
        """An epoch without a batch: something waits of our own, or a source or partition has newly fallen silent."""
        taken = self._take()
        begins = self._intake.must_begin or any(taken.values())
        if not begins and not self._silence.is_news(self._driver.last, self._watch.looked, self._intake.waits):
            return False
        self._run_epoch(self._own_position(), [], taken)
        return True

    def _last_epoch(self) -> None:
        """All that was to be taken is taken: without tuples, it sets every watermark to the end of time."""
        self._run_epoch(self._own_position(), [], {name: [] for name in self._driver.ledgers}, final=True)

    def _own_position(self) -> Position:
        last = self._driver.last
        position = Position.from_json(last.position) if last else Position(self._kind())
        return replace(position, own=position.own + 1)

    def _run_epoch(
        self, position: Position, rows: list[Any], taken: Mapping[str, Sequence[Item]], *, final: bool = False
    ) -> None:
        self._working = True
        if self._static and self._driver.last is None:
            rows.append(self._cluster.static(self._static))
        ledgers = self._driver.ledgers
        inputs = [cut for name, items in taken.items() for cut in ledgers[name].inputs(name, items)]
        if inputs:
            read = sum(cut.bytes for cut in inputs)
            rows.append(self._cluster.piece_rows(inputs, self._driver.layouts.splitters(read)))
        before, waits = self._driver.last, self._intake.waits
        idle, quiet = self._silence.silent_sources(self._watch.looked, waits), self._silence.silent_partitions(waits)
        self._driver.run_epoch(
            position, partial(self._execute, rows), final=final, idle_sources=idle, idle_partitions=quiet, taken=taken
        )
        self._silence.note_epoch(before, self._driver.last)
        self._working = bool(ledgers)  # until the next look at the sources

    def _execute(self, rows: Sequence[Any], epoch: Epoch) -> list[Message]:
        self._job_since = time.monotonic()
        try:
            return self._cluster.execute(rows, epoch)
        finally:
            self._job_since = None

    def _take(self) -> dict[str, Sequence[Item]]:
        taken = self._intake.take(self._driver.last)
        self._working = any(taken.values())
        self._driver.layouts.backlog = self._intake.backlog
        return taken


def is_stream(source: nodes.Source) -> bool:
    return not source.origin.bounded
