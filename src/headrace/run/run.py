"""A run in progress: it executes epochs one at a time as input arrives, until it is stopped or fails.

The run polls the sources that headrace drives (folders, topics), and the manifest records what was taken from them
(`headrace.sources.protocol`). Batches of streaming DataFrames come from a Spark query, which calls back
(`headrace.driver.position` defines a batch). All epochs run under one lock.

A run with `once` ends its input when everything on its list is taken and Spark has found nothing more. A final epoch
without tuples then closes all windows and the checkpoint.

The way of a tuple through epoch n, from a topic to a table of a database: the process, the function, the form of the
tuple, and where it is durable. Splitters and slots are tasks of the Spark job.

    driver   | run/run.py: Run._try_own_epoch              | a message that waits at an offset        | topic
    driver   | run/intake.py: Intake.take                  | the same                                 | topic
    driver   | sources/kafka/ledger.py: KafkaLedger.choose | in an `OffsetRange` that the epoch takes | topic
    driver   | run/run.py: Run._process_input              | in `TakenOffsets`, an input of the epoch | topic
    driver   | spark/dataframes.py: piece_rows             | in an `OffsetPiece` for one splitter     | topic
    driver   | driver/driver.py: Driver.run_epoch          | the same; the record `Epoch` is made     | topic
    driver   | driver/agreement.py: execute_until_agreed   | the same; the job may be run again       | topic
    driver   | spark/cluster.py: SparkCluster.run_tasks    | the same                                 | topic
    driver   | spark/job.py: run_spark_job                 | the same; Spark sends it to the splitter | topic
    splitter | sources/kafka/reader.py: KafkaReader.read   | a message, then a row of `ReadRows`      | topic
    splitter | task/stages.py: run_splitter                | a tuple of a `PhysicalWindow`, accepted  | topic
    splitter | task/step_runner.py: EdgeWalk.along         | a tuple after the steps of an edge       | topic
    splitter | task/outlet.py: Outlet.flush                | in a block or a message, for the slots   | topic
    slot     | task/stages.py: run_stage                   | in an input of an operator               | topic
    slot     | operators/base.py: Operator.run             | in state, and in results                 | topic
    slot     | task/outbox_writer.py: write_output         | in a block of results                    | topic
    driver   | driver/outcome.py: compute_outcome          | in the next state and its outbox         | topic
    driver   | state/store.py: StateStore.commit           | in blocks that manifest n names          | checkpoint
    driver   | driver/delivery.py: Deliverer.deliver       | in results, as a `Delivery`              | checkpoint
    driver   | sinks/database.py: DatabaseTable.deliver    | in results, as rows of the table         | database
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
from headrace.run.first_times import first_times
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

TICK = 0.1  # seconds between polls of headrace's own sources when they had no input
MOST_RETRIES = 5  # attempts to run an epoch when its input became unreadable
LONGEST_NAP = 0.5  # seconds within which a dead query is noticed
STOP_SECONDS = 2.0  # seconds that a stop waits for Spark's own commit log
LOST_JOB_SECONDS = 10.0  # seconds after which a job of a stopped session is considered lost
SPARK_STOPPED = (
    "Spark's query of this run was stopped from outside (spark.streams, or the query's own stop) during the run;"
    " what was committed is safe; start again with the same checkpoint to continue; to end a run, call its stop()"
)
SESSION_STOPPED = (
    "the Spark session was stopped, or its JVM ended, during the run; what was committed is safe; create a new"
    " session, build the query on it and start again with the same checkpoint to continue"
)
NOTHING_READ = (
    "nothing was read, because the checkpoint is closed: once=True (--once) ended the query for good; to read more, use a"
    " new checkpoint folder; a job that continues whenever it is started again uses until_idle=True (headrace run --until-idle)"
)


class _RunStopped(HeadraceError):
    """A batch that arrived after `stop`, which Spark must not mark as done, or a stop while the run waits for a source."""


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
        """queries: a one-line summary of each result's last operator."""
        self._cluster, self._sources, self._driver = cluster, dict(sources), driver
        self._checkpoint, self._interval = checkpoint, interval
        self._once = once  # process the existing input and end
        self._queries, self._since = tuple(queries), datetime.now(UTC)
        self._lock = threading.Lock()  # held during each epoch
        self._ending = threading.Lock()
        self._stopping = threading.Event()
        self._wake = threading.Event()  # set when the run must end, for any reason
        self._ended = threading.Event()
        self._refused = threading.Event()  # a batch arrived after `stop`, so Spark has recorded all earlier batches
        self._error: BaseException | None = None
        self._busy_thread: int | None = None  # the thread that runs an epoch or checks for input
        self._job_since: float | None = None  # start time of the current Spark job
        self._working = True  # an epoch runs or input may be waiting
        self._static = {n: self._sources[n] for n in driver.settings.static}
        self._streaming = {n: s for n, s in self._sources.items() if is_stream(s) and n not in driver.ledgers}
        self._intake = Intake(sources, driver.ledgers, longest_window(driver.plan))
        self._silence = Silence(sources, driver.ledgers, static=self._static, streaming=self._streaming, ends=once)
        self._watch = FeedWatch(interval, exists=bool(self._streaming))

    # --- for users -------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        """Return the state of the run, its start time and its progress."""
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
        """Return the run as an HTML table for notebooks."""
        from headrace.showing.notebook import run_html

        return run_html(self)

    def _ipython_display_(self) -> None:
        """Display a table in a notebook and update it until the run ends."""
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
            versions=driver.table_versions.figures or driver.progress.versions,
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
        if threading.get_ident() == self._busy_thread:  # called by a sink: its epoch must finish first
            return
        if self._driver.listeners.is_calling():  # called by a listener: the run ends after all listeners have returned
            return
        while self.active:
            self._ended.wait(LONGEST_NAP)

    # --- adaptation ------------------------------------------------------------------------------------------------

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
            raise QueryError("this run has ended, so it cannot read the table again; a new start reads it")
        return self._driver.table_versions.renew(table)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- begin and end ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Check that the checkpoint fits, deliver results that may not have arrived, and start the run's thread."""
        last = self._driver.last
        if self._driver.closed:
            self._driver.deliver_again()
            if self._once:
                self._warn_of_unread_input()
                self._driver.tell_listeners_again()
                self._end()
                return
            raise StateMismatch(
                "the checkpoint is closed because its bounded input has been processed; use a new checkpoint folder"
            )
        if last is not None and (was := Position.from_json(last.position)).kind != self._kind():
            now = Position(self._kind()).driven_by
            msg = f"the checkpoint began with sources driven by {was.driven_by}, but these are driven by {now}; use the original sources"
            raise StateMismatch(msg)
        if self._streaming:
            check_alignment(last, self._checkpoint)
        if self._once:
            for ledger in self._driver.ledgers.values():
                ledger.keep_to_list()
        self._driver.deliver_again()
        self._driver.tell_listeners_again()
        shutdown.stop_at_exit(self)
        target = self._follow if self._streaming or self._driver.ledgers else self._to_the_end
        threading.Thread(target=self._guard, args=(target,), name="headrace-run", daemon=True).start()

    def _warn_of_unread_input(self) -> None:
        """Log what a run with `once` on a closed checkpoint leaves unread."""
        unread = [f"{name} may have new input" for name in self._streaming]
        for name, ledger in self._driver.ledgers.items():
            try:
                waits = sum(ledger.remaining(ledger.waiting(), []).values())
            except HeadraceError as error:  # the run ends well without this source
                unread.append(f"{name} could not be looked at ({error})")
            else:
                unread += [f"{ledger.unit} of {name} that wait: {waits:,}"] if waits else []
        if unread:
            _log.warning("%s: %s", NOTHING_READ, printable("; ".join(unread)))

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
        with self._ending:  # only once, though several threads may notice that the cluster has stopped
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
        """Return whether the current job is lost: a cluster never answers a job that it receives while its session is
        stopping.
        """
        since = self._job_since
        if since is None or time.monotonic() - since < LOST_JOB_SECONDS:
            return False
        return self._cluster.stopped

    def _between_epochs(self) -> AbstractContextManager[Any]:
        """Return a context in which no epoch runs. A sink calls from within the lock, after its epoch is committed."""
        return nullcontext() if threading.get_ident() == self._busy_thread else self._lock

    @contextmanager
    def _locked_epoch(self) -> Iterator[bool]:
        """Yield under the lock; False means that the run must end. An error is recorded before the next epoch can
        begin.
        """
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
        """Run the only epoch of a query whose sources are all static."""
        with self._locked_epoch() as wanted:
            if wanted:
                rows = [self._cluster.static(self._static)]
                self._driver.run_epoch(Position("bounded"), partial(self._run_job, rows), final=True)

    def _follow(self) -> None:
        """Run epochs until the run ends. Spark calls back with batches of its streams; this loop polls the other
        sources.
        """
        if self._streaming:
            self._watch.feed = self._cluster.follow(
                self._streaming, self._on_batch, self._checkpoint, self._interval, once=self._once
            )
        try:
            due, worked = time.monotonic(), False
            while not self._wake.is_set() and self._feed_continues():
                self._driver.table_versions.look()
                if time.monotonic() >= due:
                    due = time.monotonic() + self._interval / 1e6
                    with self._locked_epoch() as wanted:
                        worked = wanted and self._own_epoch()
                        if wanted and not worked and self._once and self._watch.drained:
                            self._last_epoch()
                            return
                    due = due if worked else time.monotonic()
                self._wake.wait(min(max(due - time.monotonic(), 0.0 if worked else TICK), LONGEST_NAP))
        finally:  # also after a failed epoch: Spark's query must not continue without the run
            if self._watch.feed is not None:
                with self._lock:  # waits until an epoch in progress commits; _on_batch refuses the next batch
                    pass
                self._let_it_note(self._watch.feed)
                self._watch.feed.stop()

    def _let_it_note(self, feed: Feed) -> None:
        """Give Spark a moment to record the finished batch, so that the next start need not repeat it."""
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
        """Process a batch. Return False if the run must end instead."""
        with self._locked_epoch() as wanted:
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
        self._process_input(position, [self._cluster.batch(batch)], self._take())
        return True

    def _patiently(self, attempt: Callable[[], bool]) -> bool:
        """Run an epoch. If its input became unreadable, retry with the input that is waiting then; nothing was
        committed.
        """
        for left in reversed(range(MOST_RETRIES)):
            try:
                return attempt()
            except SourceAway as error:
                if self._stopping.is_set():
                    raise _RunStopped("the run must end, and a source is unreachable") from error
                if not left:
                    raise
                _log.warning("an epoch is repeated: %s", printable(str(error)))
        raise AssertionError("the last attempt returns or raises")

    def _fail(self, error: BaseException) -> None:
        """Record the first error as the one that ended the run. A batch after `stop` is not an error."""
        if self._error is None and not isinstance(error, _RunStopped):
            self._error = self._named_errors(error)
        self._wake.set()

    def _named_errors(self, error: BaseException) -> BaseException:
        """Return one clear error if Spark was stopped, because that makes different calls to Spark fail in different
        ways.
        """
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
        """Run an epoch without a batch if input is waiting, or if a source or partition has become silent."""
        taken = self._take()
        begins = self._intake.must_begin or any(taken.values())
        if not begins and not self._silence.is_news(self._driver.last, self._watch.looked, self._intake.waits):
            return False
        self._process_input(self._own_position(), [], taken)
        return True

    def _last_epoch(self) -> None:
        """Run the final epoch, without tuples. It moves every watermark to the end of time."""
        self._process_input(self._own_position(), [], {name: [] for name in self._driver.ledgers}, final=True)

    def _own_position(self) -> Position:
        last = self._driver.last
        position = Position.from_json(last.position) if last else Position(self._kind())
        return replace(position, own=position.own + 1)

    def _process_input(
        self, position: Position, rows: list[Any], taken: Mapping[str, Sequence[Item]], *, final: bool = False
    ) -> None:
        """Run an epoch on the rows of a batch and on the items that were taken from other sources."""
        self._working = True
        if self._static and self._driver.last is None:
            rows.append(self._cluster.static(self._static))
        ledgers = self._driver.ledgers
        inputs = [cut for name, items in taken.items() for cut in ledgers[name].inputs(name, items)]
        if inputs:
            read = sum(cut.bytes for cut in inputs)
            rows.append(self._cluster.piece_rows(inputs, self._driver.layouts.splitters(read)))
        if self._driver.last is None:
            self._driver.layouts.first_times = first_times(self._driver.plan, self._sources, self._static, inputs)
        before, waits = self._driver.last, self._intake.waits
        idle, quiet = self._silence.silent_sources(self._watch.looked, waits), self._silence.silent_partitions(waits)
        self._driver.run_epoch(
            position, partial(self._run_job, rows), final=final, idle_sources=idle, idle_partitions=quiet, taken=taken
        )
        self._silence.note_epoch(before, self._driver.last)
        self._working = bool(ledgers)  # until the next poll of the sources

    def _run_job(self, rows: Sequence[Any], epoch: Epoch) -> list[Message]:
        """Run the tasks of an epoch on the cluster, and note since when, so that a lost job is detected."""
        self._job_since = time.monotonic()
        try:
            return self._cluster.run_tasks(rows, epoch)
        finally:
            self._job_since = None

    def _take(self) -> dict[str, Sequence[Item]]:
        taken = self._intake.take(self._driver.last)
        self._working = any(taken.values())
        self._driver.layouts.backlog = self._intake.backlog
        return taken


def begin_run(run: Run) -> None:
    """Begin a run that `start` has created. This is no method of `Run`, because users receive runs that have begun."""
    run._begin()


def is_stream(source: nodes.Source) -> bool:
    return not source.origin.bounded
