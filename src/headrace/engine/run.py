"""Running a query: `collect` over bounded input, `start` as a continuous run with a checkpoint.

The checkpoint folder holds `state/` (blocks and manifests), `plan.json` (the plan that runs, for people) and, when a
source is a streaming DataFrame, `spark/` (the offsets and commits of Spark's own query). Files are driven by headrace: which were taken stands in the manifest. Batches
come from Spark, and the newest manifest decides: one at its position is a replay, the next is processed, anything else
stops the run.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace import sinks
from headrace.compile import check_strategy, compile_query, plan_of
from headrace.compile import plan as p
from headrace.compile.deploy import Layouts, deploy, with_bounds
from headrace.compile.figures import Figures
from headrace.compile.route import can_be_ranged
from headrace.compile.subqueries import RANGES, Plan
from headrace.control.policy import Policy
from headrace.control.policy import policy as as_policy
from headrace.engine import plan_file
from headrace.engine import spark as engine
from headrace.engine.calibrate import calibrate, glance
from headrace.engine.driver import Driver, Settings
from headrace.engine.progress import Progress
from headrace.errors import HeadraceError, QueryError, QueryTypeError, StateMismatch
from headrace.query import nodes
from headrace.query.durations import parse_duration
from headrace.routing.layout import from_json as layout_from_json
from headrace.sinks import Sink
from headrace.sources.files import FilesOrigin
from headrace.sources.ledger import File
from headrace.state.manifest import Manifest
from headrace.state.store import StateStore
from headrace.stream import Stream, node_of

AUTO = "auto"
ORDERS = ("transparent", "best-effort")
TICK = 0.1  # seconds between two looks for files when there were none
LONGEST_NAP = 0.5  # seconds in which a dead query is noticed
SAMPLE = 5_000  # tuples of each source that tell where the values of a band join lie
PATIENCE = 2.0  # seconds that a stop waits for Spark's own log


def collect(
    query: Stream, *, slots: int | None = None, strategy: str = "subquery", plan: Plan | None = None
) -> pa.Table:
    """The results of a query over bounded input; with a `plan`, as that says."""
    root = node_of(query)
    check_strategy(strategy)
    sources = nodes.named_sources(root)
    for name, source in sources.items():
        if not source.origin.bounded:
            raise QueryError(f"collect needs bounded input; {name!r} is a streaming DataFrame; use start(...)")
    spark = _spark(sources)
    count = _slots(plan.slots if plan and slots is None else slots, spark)
    physical, layouts, _ = compiled([root], [False], strategy, count, plan, None)
    folder = Path(tempfile.mkdtemp(prefix="headrace-collect-", dir=os.environ.get("HEADRACE_SCRATCH")))
    try:
        with StateStore.open(folder / "state", fsync=False) as store:
            result = sinks.memory()
            driver = Driver(
                physical,
                _fingerprint([root], [False], "transparent"),
                store,
                {"result-0": result},
                Settings(count, bounded=True, layouts=layouts),
            )
            sc = spark.sparkContext
            if not sc.master.startswith("local["):
                engine.check_reach(sc, folder / "state")
            rows = engine.bounded_rows(spark, sources, count)
            driver.run({"kind": "bounded"}, lambda epoch: engine.execute(sc, rows, epoch), final=True)
            table = result.table()
        return query.schema.empty_table() if table is None else table
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start(
    results: Sequence[tuple[Stream, Sink]],
    *,
    checkpoint: str | os.PathLike[str],
    epoch: str = "1 second",
    slots: int | str | None = None,
    order: str = "transparent",
    late: Sink | None = None,
    show: bool | None = None,
    strategy: str = "subquery",
    plan: Plan | None = None,
    policy: Policy | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    most_slots: int | None = None,
) -> Run:
    """Run one or more results continuously on Spark.

    checkpoint: folder that belongs to this run alone; a second start on it continues where the first ended.
    epoch: shortest time between two epochs ("0 seconds": the next at once).
    slots: tasks per stage; may differ from one start to the next. "auto": few at first, as many as the load needs.
    order: "transparent" (exactly the sequential answer) or "best-effort" (does not wait; may miss results).
    late: a sink for late and rejected tuples, with their source and the reason.
    show: one live line of progress on standard error; by default when that is a terminal.
    strategy: "subquery", or to compare "operator" or "query"; may differ from one start to the next.
    plan: a plan that `q.plan` made, perhaps edited: its strategy, slots and shapes are used, and not adapted.
    policy: how the run adapts: a `headrace.Policy`, its fields, or a TOML file of them.
    most_slots: what "auto" and `set_slots` may grow to; by default four for each core.
    """
    _check_results(results)
    if order not in ORDERS:
        raise QueryError(f"order must be one of {', '.join(ORDERS)}; found {order!r}")
    interval = parse_duration(epoch, "epoch", zero=True)
    roots = [node_of(query) for query, _ in results]
    sources = nodes.named_sources(*roots)
    spark = _spark(sources)
    ordered = [sink.ordered for _, sink in results]
    check_strategy(strategy)
    if late is not None:
        _check_late(sources)
    auto = slots == AUTO
    if auto and plan is not None:
        raise QueryError('a plan says how many slots there are; leave out slots="auto", or the plan')
    rules = as_policy(policy)
    count = 1 if auto else _slots(plan.slots if plan and slots is None else slots, spark)
    limit = (
        _slots(most_slots, spark) if most_slots is not None else max(count, 4 * spark.sparkContext.defaultParallelism)
    )
    if limit < count:
        raise QueryError(f"most_slots ({limit}) is less than slots ({count})")
    folder = _checkpoint(checkpoint)
    store = StateStore.open(folder / "state")
    try:
        physical, layouts, shown = compiled(roots, ordered, strategy, count, plan, store.last)
        outlets: dict[str, Sink] = {name: sink for name, (_, sink) in zip(physical.results, results, strict=True)}
        outlets |= {f"late:{name}": late for name in sources} if late is not None else {}
        settings = Settings(
            count,
            best_effort=order == "best-effort",
            keep_late=late is not None,
            static=tuple(name for name, source in sources.items() if not _is_stream(source)),
            layouts=layouts,
            policy=rules,
            limit=limit,
            auto=auto,
        )
        engine.check_reach(spark.sparkContext, folder / "state")
        files = {name: s.origin for name, s in sources.items() if isinstance(s.origin, FilesOrigin)}
        driver = Driver(physical, _fingerprint(roots, ordered, order), store, outlets, settings, files)
        run = Run(spark, sources, driver, folder / "spark", interval)
        plan_file.write(folder, roots, shown)
        run._begin()
    except BaseException:
        store.close()
        raise
    if sys.stderr.isatty() if show is None else show:
        from headrace.cli import live

        live.beside(run)
    return run


class _Stopped(HeadraceError):
    """A batch came after `stop`; Spark must not note it as done."""


class Run:
    """A run in progress."""

    def __init__(
        self, spark: Any, sources: Mapping[str, nodes.Source], driver: Driver, checkpoint: Path, interval: int
    ) -> None:
        self._spark, self._sources, self._driver = spark, dict(sources), driver
        self._checkpoint, self._interval = checkpoint, interval
        self._lock = threading.Lock()  # one epoch at a time
        self._stopping = threading.Event()
        self._wake = threading.Event()  # set when the run is to end, for whatever reason
        self._ended = threading.Event()
        self._query: Any = None
        self._error: BaseException | None = None
        self._waiting = 0  # files seen and not taken
        self._waits: dict[str, int] = {}  # the same by source, as last looked
        self._busy_thread: int | None = None  # the thread that runs an epoch
        self._heard = dict.fromkeys(sources, time.monotonic())
        self._static = {n: self._sources[n] for n in driver.settings.static}
        self._streaming = {n: s for n, s in self._sources.items() if _is_stream(s) and n not in driver.ledgers}

    # --- what a user calls -----------------------------------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        """Totals since this state began, the last epoch, watermarks, state size, latency."""
        return replace(self._driver.progress, backlog=self._backlog())

    @property
    def exception(self) -> BaseException | None:
        """What ended the run, if it did not end well."""
        return self._error

    @property
    def active(self) -> bool:
        return not self._ended.is_set()

    @property
    def busy(self) -> bool:
        """Whether an epoch is under way, or input is known to wait for one."""
        return self._lock.locked() or bool(self._waiting) or self._spark_is_busy()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run ends (True) or the timeout is over (False); raises what ended it."""
        ended = self._ended.wait(timeout)
        if ended and self._error is not None:
            raise self._error
        return ended

    def stop(self) -> None:
        """End the run; an epoch in progress is finished first."""
        self._stopping.set()
        self._wake.set()
        if threading.get_ident() == self._busy_thread:  # called by a sink: the epoch it belongs to comes first
            return
        with self._lock:
            self._driver.store.revoke()
        self._ended.wait()

    # --- how it adapts ---------------------------------------------------------------------------------------------

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """What was changed while it ran: when, what, why, what was expected of it, and what came of it."""
        return [decision.to_json() for decision in self._driver.control.history]

    def freeze(self) -> None:
        """Change nothing more. What was decided already stands in the state and takes effect."""
        self._driver.control.frozen = True

    def thaw(self) -> None:
        """Adapt again."""
        self._driver.control.frozen = False

    def rebalance(self, dry_run: bool = False) -> list[dict[str, Any]]:
        """What would be changed now; unless it is a dry run, it is decided with the next epoch."""
        with self._between_epochs():
            control, last = self._driver.control, self._driver.store.last
            if control.frozen and not dry_run:
                raise QueryError("the run is frozen; call thaw() first, or rebalance(dry_run=True)")
            control.asked = control.asked or not dry_run
            if last is None:
                return []
            used = {name: layout_from_json(found) for name, found in last.layouts.items()}
            return [decision.to_json() for decision in control.proposals(last.number, last.groups, used)]

    def set_slots(self, slots: int) -> None:
        """Another number of slots from the next epoch on; with slots="auto" the load may change it again."""
        with self._between_epochs():
            if self._driver.settings.layouts is not None:
                raise QueryError("this run follows a plan, which says how many slots there are; start it without one")
            last = self._driver.store.last
            self._driver.control.set_slots(slots, last.number if last else 0)
            self._driver.settings.slots = slots

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- beginning and end -----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        last = self._driver.store.last
        if self._driver.closed:
            self._driver.deliver_again()
            raise StateMismatch("this checkpoint is closed: its input had an end and was processed; use a new folder")
        if last is not None and last.position["kind"] != self._kind():
            msg = f"the sources were driven by {last.position['kind']!r}, now by {self._kind()!r}; use the sources it began with"
            raise StateMismatch(msg)
        if self._streaming:
            check_alignment(last, self._checkpoint)
        self._driver.deliver_again()
        target = self._follow if self._streaming or self._driver.ledgers else self._to_the_end
        threading.Thread(target=self._guard, args=(target,), name="headrace-run", daemon=True).start()

    def _kind(self) -> str:
        return "spark" if self._streaming else "files" if self._driver.ledgers else "bounded"

    def _guard(self, target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:
            self._fail(error)
        finally:
            self._driver.store.close()
            self._ended.set()

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
        sc = self._spark.sparkContext
        with self._epoch() as wanted:
            if wanted:
                rows = engine.bounded_rows(self._spark, self._static, self._driver.settings.slots)
                self._driver.run({"kind": "bounded"}, lambda e: engine.execute(sc, rows, e), final=True)

    def _follow(self) -> None:
        """Epochs as long as the run lasts: Spark calls with batches of its streams, files are looked for here."""
        if self._streaming:
            self._start_spark()
        try:
            due, worked = time.monotonic(), False
            while not self._wake.is_set() and self._spark_goes_on():
                if time.monotonic() >= due:
                    due = time.monotonic() + self._interval / 1e6
                    with self._epoch() as wanted:
                        worked = wanted and self._own_epoch()
                    due = due if worked else time.monotonic()
                self._wake.wait(min(max(due - time.monotonic(), 0.0 if worked else TICK), LONGEST_NAP))
        finally:  # also when an epoch of our own failed: Spark's query must not go on without us
            if self._query is not None:
                with self._lock:  # let an epoch in progress commit; the next batch is refused by _on_batch
                    pass
                self._let_spark_commit()
                self._query.stop()

    def _let_spark_commit(self) -> None:
        """Give Spark a moment to note the batch we just finished, so that the next start need not repeat it."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self._query.isActive and self._query.status["isTriggerActive"]:
            time.sleep(0.02)

    def _start_spark(self) -> None:
        stream = engine.stream_rows(self._streaming)
        writer = stream.writeStream.foreachBatch(self._on_batch).option("checkpointLocation", str(self._checkpoint))
        self._query = writer.trigger(processingTime=f"{self._interval // 1000} milliseconds").start()

    def _spark_is_busy(self) -> bool:
        if not self._streaming or not self.active:
            return False
        status = self._query.status if self._query is not None else {"message": "Initializing"}
        begun = not status["message"].startswith("Initializing")
        return not begun or bool(status["isTriggerActive"] or status["isDataAvailable"])

    def _spark_goes_on(self) -> bool:
        if self._query is None or self._query.isActive:
            return True
        failure = self._query.exception()
        if failure is not None and self._error is None and not self._stopping.is_set():
            self._error = HeadraceError(f"Spark ended the query: {str(failure)[:2000]}")
        return False

    # --- epochs ----------------------------------------------------------------------------------------------------

    def _on_batch(self, batch: Any, number: int) -> None:
        with self._epoch() as wanted:
            if not wanted:
                raise _Stopped("the run was stopped")
            position = spark_position(self._checkpoint, number)
            if admit(self._driver.store.last, position) == "replay":
                self._driver.deliver_again()
            else:
                self._run_epoch(position, [engine.as_rows(batch)], self._take())

    def _fail(self, error: BaseException) -> None:
        """The first error is what ended the run; that a batch came after `stop` is none."""
        if self._error is None and not isinstance(error, _Stopped):
            self._error = error
        self._wake.set()

    def _own_epoch(self) -> bool:
        """An epoch without a batch: files have come, or a source has newly fallen silent."""
        last, taken = self._driver.store.last, self._take()
        newly = [n for n in self._silent() if last is not None and not last.sources[n]["idle"]]
        if not newly and not any(taken.values()):
            return False
        first: dict[str, Any] = {"kind": self._kind(), **({"query": None, "batch": -1} if self._streaming else {})}
        position = dict(last.position) if last else first
        self._run_epoch({**position, "own": position.get("own", 0) + 1}, [], taken)
        return True

    def _run_epoch(self, position: Mapping[str, Any], rows: list[Any], taken: Mapping[str, list[File]]) -> None:
        sc, slots = self._spark.sparkContext, self._driver.settings.slots
        if self._static and self._driver.store.last is None:
            rows.append(engine.bounded_rows(self._spark, self._static, slots))
        ledgers = self._driver.ledgers
        files = [(n, ledgers[n].path(f), f.bytes, f.modified) for n, chosen in taken.items() for f in chosen]
        if files:
            rows.append(engine.file_rows(sc, files, slots))
        united = sc.union(rows) if len(rows) > 1 else rows[0] if rows else None
        self._driver.run(position, lambda e: engine.execute(sc, united, e), idle=self._silent(), taken=taken)
        last = self._driver.progress.last
        for name, count in last.sources.items() if last else ():
            if count:
                self._heard[name] = time.monotonic()

    def _take(self) -> dict[str, list[File]]:
        """Files for the next epoch. A source that is far ahead of another with files waits for it."""
        waiting = {name: ledger.waiting() for name, ledger in self._driver.ledgers.items()}
        self._waits = {name: len(files) for name, files in waiting.items()}
        taken = {
            name: self._driver.ledgers[name].choose(files) if files and not self._ahead(name, waiting) else []
            for name, files in waiting.items()
        }
        self._waiting = sum(len(files) - len(taken[name]) for name, files in waiting.items())
        self._driver.backlog = self._waiting
        return taken

    def _ahead(self, name: str, waiting: Mapping[str, Sequence[File]]) -> bool:
        last = self._driver.store.last
        if last is None or (longest := longest_window(self._driver.plan)) is None:
            return False
        reached = {n: last.sources[n]["watermark"] for n, files in waiting.items() if files}
        return bool(reached[name] > min(reached.values()) + longest)

    def _silent(self) -> list[str]:
        """Sources that have been quiet for longer than their `idle`, and of which nothing is known to wait."""
        now, spark_busy = time.monotonic(), self._spark_is_busy()
        return [
            name
            for name, source in self._sources.items()
            if source.idle is not None
            and (now - self._heard[name]) * 1e6 > source.idle
            and name not in self._static
            and not self._waits.get(name)
            and not (name in self._streaming and spark_busy)
        ]

    def _backlog(self) -> int | None:
        """Files that wait, where sources are files."""
        return self._waiting if self._driver.ledgers else None


# --- where the source stands ---------------------------------------------------------------------------------------


def spark_position(checkpoint: Path, batch: int) -> dict[str, Any]:
    """Spark's query, the batch, and what the batch covers."""
    offsets = (checkpoint / "offsets" / str(batch)).read_bytes()
    return {
        "kind": "spark",
        "query": _query_id(checkpoint),
        "batch": batch,
        "offsets": hashlib.sha256(offsets).hexdigest(),
    }


def _query_id(checkpoint: Path) -> str | None:
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except FileNotFoundError:
        return None


def admit(last: Manifest | None, position: Mapping[str, Any]) -> str:
    """ "process" or "replay"; an error when the two logs do not fit together."""
    if last is None:
        if position["batch"] != 0:
            msg = f"Spark is at batch {position['batch']}, but the state folder is empty; restore it, or use a new checkpoint"
            raise StateMismatch(msg)
        return "process"
    known = last.position
    if known["query"] not in (None, position["query"]):
        msg = (
            f"the state was made with Spark query {known.get('query')}, this checkpoint is of query {position['query']};"
            " restore the 'spark' folder it belongs to, or use a new checkpoint"
        )
        raise StateMismatch(msg)
    if position["batch"] == known["batch"] + 1:
        return "process"
    if position["batch"] != known["batch"]:
        behind = "the state folder" if position["batch"] > known["batch"] else "Spark's folder"
        msg = f"{behind} is behind: the state is at batch {known['batch']}, Spark at {position['batch']}; restore the newer one"
        raise StateMismatch(msg)
    if position["offsets"] != known["offsets"]:
        msg = f"batch {position['batch']} covers other input than when it was committed; 'spark/offsets' was changed; restore it"
        raise StateMismatch(msg)
    return "replay"


def check_alignment(last: Manifest | None, checkpoint: Path) -> None:
    """Before Spark starts: refuse a checkpoint of which one half is missing or older than the other."""
    query, offsets, commits = _query_id(checkpoint), _newest(checkpoint / "offsets"), _newest(checkpoint / "commits")
    if last is None:
        if commits is not None:
            msg = (
                f"Spark has committed batch {commits}, but there is no state; restore 'state', or use a new checkpoint"
            )
            raise StateMismatch(msg)
        return
    if query is None and last.position["batch"] >= 0:
        msg = "the state folder has manifests, but Spark's folder is missing; restore 'spark', or use a new checkpoint"
        raise StateMismatch(msg)
    batch = last.position["batch"]
    if commits is not None and commits > batch:
        raise StateMismatch(
            f"the state folder is behind: it ends at batch {batch}, Spark at {commits}; restore the newer one"
        )
    if batch >= 0 and (offsets is None or offsets < batch):
        raise StateMismatch(
            f"Spark's folder is behind: it ends at batch {offsets}, the state at {batch}; restore the newer one"
        )
    if batch >= 0:
        admit(last, spark_position(checkpoint, batch))


def _newest(folder: Path) -> int | None:
    numbers = [int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()] if folder.is_dir() else []
    return max(numbers, default=None)


# --- arguments -----------------------------------------------------------------------------------------------------


def _check_results(results: Sequence[tuple[Stream, Sink]]) -> None:
    if not results:
        raise QueryError("start needs at least one (stream, sink)")
    for item in results:
        if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], Stream):
            raise QueryTypeError(f"start takes pairs of a stream and a sink; found {item!r}")
        if not hasattr(item[1], "deliver") or not hasattr(item[1], "ordered"):
            raise QueryTypeError(f"{item[1]!r} is not a sink; such as headrace.sinks.parquet('out/')")


def _check_late(sources: Mapping[str, nodes.Source]) -> None:
    for name, source in sources.items():
        if taken := {"_source", "_reason"} & set(source.schema.names):
            raise QueryError(f"late= adds {', '.join(sorted(taken))}, but source {name!r} has such a column; rename it")


def _slots(slots: int | str | None, spark: Any) -> int:
    count = spark.sparkContext.defaultParallelism if slots is None else slots
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise QueryError(f'slots must be a whole number, at least 1, or for start "auto"; found {slots!r}')
    return count


def _spark(sources: Mapping[str, nodes.Source]) -> Any:
    sessions = [s.origin.spark for s in sources.values() if hasattr(s.origin, "spark")]
    if len(sessions) != len(sources):
        raise QueryTypeError(
            "a source is not on Spark; make sources with headrace.stream(df, ...) or headrace.files(...)"
        )
    return sessions[0]


def compiled(
    roots: Sequence[nodes.Node],
    ordered: Sequence[bool],
    strategy: str,
    slots: int,
    plan: Plan | None,
    last: Manifest | None,
) -> tuple[p.Plan, Layouts | None, Plan]:
    """What the engine runs, the layouts that a given plan wants, and the plan as a user sees it."""
    if plan is not None:
        return *deploy(plan, roots, ordered), plan
    figures = _sampled(roots, ordered, strategy, slots)
    if last is not None and figures is not None:  # ranges were chosen once: blocks are grouped by them
        figures = replace(figures, bounds={})
    shown = plan_of(roots, ordered, strategy, slots, figures)
    if last is None:
        bounds = {name: s.router.bounds for s in shown.subqueries if s.router.kind == RANGES for name in s.members}
    else:
        bounds = {name: tuple(found) for name, found in last.query.get("bounds", {}).items()}
    physical = compile_query(roots, ordered, strategy, bounds)
    shown = with_bounds(shown, physical, bounds)
    if strategy == "operator" and figures is not None:  # slots by share
        return *deploy(shown, roots, ordered), shown
    return physical, None, shown


def _sampled(roots: Sequence[nodes.Node], ordered: Sequence[bool], strategy: str, slots: int) -> Figures | None:
    """Where the values of band joins lie, and what operators cost that get slots by cost; if a sample can be had."""
    try:
        if strategy == "operator" and slots >= len(compile_query(roots, ordered, strategy).operators):
            return calibrate(roots, ordered, slots=slots, tuples=SAMPLE)
        if any(map(can_be_ranged, compile_query(roots, ordered).operators)):
            return glance(roots, ordered, slots=slots, tuples=SAMPLE)
    except HeadraceError:  # no file yet, a stream that cannot be read twice, or data that the run itself will refuse
        pass
    return None


def longest_window(plan: p.Plan) -> int | None:
    """The longest time window of a plan, in microseconds."""
    joins = [max(o.w1, o.w2) for o in plan.operators if isinstance(o, p.TimeJoinOperator)]
    return max(joins + [w for o in plan.operators if (w := getattr(o, "window", None))], default=None)


def _is_stream(source: nodes.Source) -> bool:
    return isinstance(source.origin, FilesOrigin) or not source.origin.bounded


def _fingerprint(roots: Sequence[nodes.Node], ordered: Sequence[bool], order: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps({"operators": nodes.fingerprint(roots, ordered, order)}))
    return found


def _checkpoint(path: str | os.PathLike[str]) -> Path:
    folder = Path(path)
    if folder.is_symlink():
        raise QueryError(f"the checkpoint {str(folder)!r} is a symbolic link; give the folder itself")
    if folder.exists() and not folder.is_dir():
        raise QueryError(f"the checkpoint {str(folder)!r} is a file; give a folder")
    if folder.is_dir() and (strange := {p.name for p in folder.iterdir()} - {"spark", "state", *plan_file.NAMES}):
        raise QueryError(
            f"the checkpoint {str(folder)!r} holds other things: {', '.join(sorted(strange))}; give a folder of its own"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise QueryError(f"the checkpoint {str(folder)!r} cannot be made: {error.strerror}") from None
    return folder.resolve()
