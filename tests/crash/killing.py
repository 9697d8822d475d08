"""Runs that kill themselves: a real process, real files, SIGKILL at a chosen step.

Invariant of `check`: whatever was killed, and wherever, one more run to the end leaves in the sink exactly what the
sequential reference gives for all rows, and in the state folder nothing damaged.

A run is a job (a dict) handed to a *nursery*, a process that has imported everything and forks a child per job: the
child works as if it had been started afresh, without the second that Python and Arrow need to start. The source is a
list of rows in order of arrival; where a run goes on is read from the manifest, and every run cuts its rest of the rows into epochs
of its own size, so that a result delivered for an epoch that was never committed cannot hide.

With `keyed`, the queries are those whose state is per key and of a form of its own: sessions, `asof` and outer joins.
With `tabled`, they are those of `tabling`, beside tables that are others in every life of a run and in most epochs.
With `processors`, the queries are those of `watching`, and what the processors' tables hold in the end counts too.
With `listed`, the rows lie in files, and a run takes those that are there when it begins; after every death more files
come, which are none of its business once an epoch was committed.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas  # noqa: F401  # Arrow does it when it is first given a list, which every child would wait for
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numba.core.registry import cpu_target

import headrace as hr
from headrace import sinks
from headrace.driver.driver import Driver
from headrace.driver.position import Position
from headrace.driver.table_versions import TableVersions
from headrace.errors import HeadraceError
from headrace.reference import failed_tuples, reference
from headrace.sinks import Delivery, Part, Publication, parquet_parts
from headrace.sources.file_ledger import FileLedger
from headrace.sources.files import FilesOrigin, read_file
from headrace.sources.protocol import PhysicalWindow
from headrace.state import BlockReader, LocalStorage, StateStore, state_tables
from headrace.state import storage as storage_module
from headrace.state.manifest import FolderState, Manifest
from headrace.stream import Stream
from headrace.task import step_runner
from headrace.task.in_process import execute_locally
from headrace.testing import LocalRun, table_stream
from tests.crash import tabling, watching
from tests.helpers import count_rows, rows_of, write_whole
from tests.patience import PATIENCE

ROWS = 120
RESULTS = ("result-0", "result-1", "result-2")
FAILED = "failed-events-2"  # of the only step that can fail
SECOND = 1_000_000
SOURCE, PER_FILE = "events", 10  # with `listed`
SHAPES = ((2, 40), (3, 29), (1, 50))  # (slots, rows per epoch) of the first run, the next, ...


def events(rows: int = ROWS) -> pa.Table:
    """In order of arrival; no row is more than a second behind the largest time before it."""
    rng = random.Random(7)
    times = [i * 200_000 + rng.randrange(0, SECOND) for i in range(rows)]
    return pa.table(
        {
            "ts": pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC")),
            "k": pa.array([rng.randrange(4) for _ in range(rows)], pa.int64()),
            "side": pa.array([rng.randrange(2) for _ in range(rows)], pa.int64()),
            "v": pa.array(range(rows), pa.int64()),
        }
    )


@functools.cache
def queries() -> list[Stream]:
    """A join, count windows over its results, and sliding windows; every row counts in each, unless it fails before them."""
    source = table_stream(events(), lateness="1 second", name=SOURCE)
    left, right = source.case("side = 0")
    joined = left.join(right, on="l.k = r.k", within="2 seconds").map("l_v", "r_v", k="l_k")
    counted = joined.aggregate(by=["k"], last=4, every=2, n="count(*)", total="sum(l_v * 1000 + r_v)")
    safe = source.map("k", "v", w="100 // (v % 5)")
    sliding = safe.aggregate(by=["k"], window="3 seconds", every="1 second", n="count(*)", total="sum(v)")
    return [joined, counted, sliding]


@functools.cache
def processors() -> list[Stream]:
    return watching.results(table_stream(watching.events(ROWS), lateness="1 second", name=SOURCE), watching.FastWatch)


@functools.cache
def keyed() -> list[Stream]:
    """Sessions in a row each and in tuples, and changes that are looked up, for each of them and for every row; and rows of
    either side that have a partner, or none."""
    source = table_stream(events(), lateness="1 second", name=SOURCE)
    asking, changes = source.case("side = 0")
    met = asking.join(changes, on="l.k = r.k and l.v < r.v", within="0.4 seconds", how="full")
    found = asking.asof(changes, by=["k"], how="left").union(met)
    sessions = source.aggregate(by=["k"], session="0.9 seconds", n="count(*)", total="sum(v)")
    told = source.aggregate(by=["k"], session="1.5 seconds", told="list(v)").asof(
        sessions, by=["k"], within="8 seconds"
    )
    return [found, sessions, told.map("n", "total", told="CAST(told AS VARCHAR)", k="l_k")]


@functools.cache
def tabled() -> list[Stream]:
    return tabling.queries(table_stream(events(), lateness="1 second", name=SOURCE))


# --- dying ---------------------------------------------------------------------------------------------------------


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Moment:
    """When to die: at the k-th step of a kind (None: never), before, within or after it.

    kinds: "storage", "sink", "part", "call" (of a processor; within it)
    """

    kind: str | None = None
    k: int = 0
    when: str = "before"
    log: Path | None = None  # where to note every step, to learn how many there are
    seen: int = 0

    def step(self, kind: str, what: str) -> Callable[[str], bool]:
        """Counts the step; what it returns says whether this is the moment."""
        number = self.seen if kind == self.kind or self.kind is None else -1
        self.seen += number >= 0
        if self.log is not None:
            with open(self.log, "a") as file:
                file.write(f"{kind} {what}\n")
        return lambda when: self.kind == kind and number == self.k and self.when == when


class KillingStorage:
    """A local storage whose process dies at a moment.

    write:   before, torn (half of it is there), after
    publish: before, torn (half of the temporary file), unlinked (all of it, no name yet), linked (both names), after
    sync, delete: before, after
    """

    def __init__(self, inner: LocalStorage, moment: Moment) -> None:
        self.inner, self.moment = inner, moment
        self.root, self.uri = inner.root, inner.uri

    def require(self) -> None:
        self.inner.require()

    def write(self, name: str, *data: Any) -> None:
        now = self._begin(f"write {name}")
        if now("torn"):
            self._torn(self.root / name, b"".join(map(memoryview, data)))
        self.inner.write(name, *data)
        self._end(now)

    def sync(self, names: Iterable[str]) -> None:
        now = self._begin("sync")
        self.inner.sync(names)
        self._end(now)

    def publish(self, name: str, data: Any) -> bool:
        now = self._begin(f"publish {name}")
        temporary = self.root / "manifests" / f"_{Path(name).name}.{uuid.uuid4().hex}"
        if now("torn"):
            self._torn(temporary, data)
        if now("unlinked") or now("linked"):
            storage_module._create(temporary, data, sync=True)
            if now("linked"):
                os.link(temporary, self.root / name)
            die()
        won = self.inner.publish(name, data)
        self._end(now)
        return won

    def delete(self, name: str) -> None:
        now = self._begin(f"delete {name}")
        self.inner.delete(name)
        self._end(now)

    def read(self, name: str) -> bytes:
        return self.inner.read(name)

    def map(self, name: str) -> pa.Buffer:
        return self.inner.map(name)

    def size(self, name: str) -> int | None:
        return self.inner.size(name)

    def list(self, folder: str) -> list[str]:
        return self.inner.list(folder)

    def _begin(self, what: str) -> Callable[[str], bool]:
        now = self.moment.step("storage", what)
        if now("before"):
            die()
        return now

    def _end(self, now: Callable[[str], bool]) -> None:
        if now("after"):
            die()

    def _torn(self, path: Path, data: Any) -> None:
        whole = bytes(memoryview(data))
        path.write_bytes(whole[: len(whole) // 2])
        die()


class KillingSink:
    """One Parquet folder per result, and a process that dies before, within or after a delivery."""

    ordered = False

    def __init__(self, folder: Path, moment: Moment) -> None:
        self.folder, self.moment = folder, moment

    def deliver(self, delivery: Delivery) -> None:
        now = self.moment.step("sink", f"deliver {delivery.epoch} {delivery.result}")
        if now("before"):
            die()
        sink = self.sink(self.folder / delivery.result.replace(":", "-"))
        if now("within"):
            os.replace = lambda *_: die()  # the temporary file is written, its name is not there yet
        sink.deliver(delivery)
        if now("after"):
            die()

    def sink(self, folder: Path) -> sinks.Sink:
        return sinks.parquet(folder)


class KillingParts:
    """The same for results that tasks write in parts.

    write:   before, torn (half of it is there), within (all of it, nothing synced, no receipt), after
    publish: before, moving (one part is where it goes), gathered (all are, the epoch is not there), renamed, after
    """

    def __init__(self, folder: Path, moment: Moment) -> None:
        self.folder, self.moment = folder, moment

    def write(self, part: Part) -> Any:
        now = self.moment.step("part", f"write {part.epoch} {part.result}")
        if now("before"):
            die()
        if now("torn"):
            pq.write_table = _write_half
        if now("within"):
            os.fsync = lambda *_: die()
        receipt = self.sink(part.result).write(part)
        if now("after"):
            die()
        return receipt

    def publish(self, publication: Publication) -> None:
        now = self.moment.step("sink", f"publish {publication.epoch} {publication.result} {len(publication.receipts)}")
        if now("before"):
            die()
        if now("moving") or now("gathered") or now("renamed"):
            _die_renaming(now)
        self.sink(publication.result).publish(publication)
        if now("after"):
            die()

    def sink(self, result: str) -> sinks.PartSink:
        sink = sinks.parquet(self.folder / result.replace(":", "-"), parts=True)
        assert sinks.takes_parts(sink)
        return sink


def _write_half(table: pa.Table, path: Path, **_: object) -> None:
    written = pa.BufferOutputStream()
    write_table(table, written)
    whole = written.getvalue().to_pybytes()
    path.write_bytes(whole[: len(whole) // 2])
    die()


def _die_renaming(now: Callable[[str], bool]) -> None:
    rename = os.rename

    def renaming(source: Any, target: Any) -> None:
        epoch = Path(source).is_dir()
        if epoch and now("gathered"):
            die()
        rename(source, target)
        if now("renamed") if epoch else now("moving"):
            die()

    os.rename = renaming


write_table = pq.write_table


# --- broken on purpose: what the check must see ---------------------------------------------------------------------


class _Appending(KillingSink):
    """Keeps no record of what it has: every delivery is a new file."""

    def deliver(self, delivery: Delivery) -> None:
        now = self.moment.step("sink", "deliver")
        if now("before"):
            die()
        folder = self.folder / delivery.result.replace(":", "-")
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(delivery.table, folder / f"{uuid.uuid4().hex}.parquet")
        if now("after"):
            die()


class _Torn(KillingSink):
    """Writes under the final name at once."""

    def deliver(self, delivery: Delivery) -> None:
        now = self.moment.step("sink", "deliver")
        folder = self.folder / delivery.result.replace(":", "-")
        folder.mkdir(parents=True, exist_ok=True)
        final = folder / f"epoch-{delivery.epoch:09d}.parquet"
        if final.exists():
            return
        pq.write_table(delivery.table, final)
        if now("within"):
            final.write_bytes(final.read_bytes()[:-20])
            die()


def _deliver_before_commit() -> None:
    run_epoch, commit = Driver.run_epoch, StateStore.commit

    def early(store: StateStore, manifest: Manifest) -> None:
        store.driver._deliverer.deliver(manifest)  # type: ignore[attr-defined]
        commit(store, manifest)

    def running(self: Driver, *given: Any, **options: Any) -> None:
        self.store.driver = self  # type: ignore[attr-defined]
        run_epoch(self, *given, **options)

    StateStore.commit, Driver.run_epoch = early, running  # type: ignore[method-assign]


def _forget_the_commit() -> None:
    """The manifest is believed to be published, and is not."""
    StateStore._publish = lambda self, number, data: None  # type: ignore[method-assign]
    StateStore.clean = lambda self, keep=3: 0  # type: ignore[method-assign]  # it would notice


def _never_deliver_again() -> None:
    Driver.deliver_again = lambda self: None  # type: ignore[method-assign]


def _clean_too_much() -> None:
    """Outbox blocks are taken for garbage as soon as they are delivered, and one epoch of state with them."""

    def clean(self: StateStore, keep: int = 3) -> int:
        for name in self.storage.list("blocks"):
            self.storage.delete(name)
        return 0

    StateStore.clean = clean  # type: ignore[method-assign]


def _believe_every_block() -> None:
    BlockReader._verify = lambda self, block, data: None  # type: ignore[method-assign]


def _forget_the_list() -> None:
    """A run that is to end lists the folder anew whenever it starts."""
    keep = FileLedger.keep_to_list

    def forgetful(self: FileLedger) -> None:
        self.state = replace(self.state, listed=None)
        keep(self)

    FileLedger.keep_to_list = forgetful  # type: ignore[method-assign]


def _start_again_when_in_doubt() -> None:
    """State that cannot be read is thrown away."""
    load = StateStore._load

    def lenient(self: StateStore) -> None:
        try:
            load(self)
        except HeadraceError:
            self._named, self.last, self._digest = {}, None, None
            for folder in ("blocks", "manifests"):
                for name in self.storage.list(folder):
                    self.storage.delete(name)

    StateStore._load = lenient  # type: ignore[method-assign]


def _publish_what_is_there() -> None:
    """Without asking whose parts they are: those of an attempt that came to nothing too."""
    publish = sinks.ParquetParts.publish

    def careless(self: Any, publication: Publication) -> None:
        for place, path in enumerate(sorted(self.path.glob("_staging*/*.part"))):
            path.rename(self.path / f"{path.name}-{place}.parquet")
        publish(self, replace(publication, receipts=()))

    sinks.ParquetParts.publish = careless  # type: ignore[method-assign]


def _never_sweep() -> None:
    parquet_parts._sweep = lambda place, publication: None


def _let_older_rows_win() -> None:
    """Of a table in which no row goes: of others the rows would no longer be as many as the manifest says."""
    newest = state_tables.newest_rows

    def oldest(declared: Any, parts: Any) -> pa.Table:
        if "closes" in declared.columns.names:
            return newest(declared, parts)
        place = parts[0].schema.get_field_index(state_tables.EPOCH_COLUMN)
        turned = [p.set_column(place, p.schema.field(place), pc.negate(p.column(place))) for p in parts]
        found = newest(declared, turned)
        return found.set_column(place, found.schema.field(place), pc.negate(found.column(place)))

    state_tables.newest_rows = oldest


def _read_no_table_again() -> None:
    """A run that comes back goes on with what the manifest has of a table."""
    look = TableVersions._look
    TableVersions._look = lambda self, table: None if table.known else look(self, table)  # type: ignore[method-assign]


def _mix_up_versions() -> None:
    """What a task has of a table is taken for every later version."""
    kept = step_runner.indexed_table
    step_runner.indexed_table = lambda step, rows, checksum: kept(step, rows, "the same")


def _count_tables_as_garbage() -> None:
    live = Manifest.live_blocks

    def without_tables(self: Manifest) -> Any:
        tables = {version.block.name for version in self.tables.values()}
        return [block for block in live(self) if block.name not in tables]

    Manifest.live_blocks = without_tables  # type: ignore[method-assign]


BROKEN: dict[str, Callable[[], None]] = {
    "deliver before commit": _deliver_before_commit,
    "commit forgotten": _forget_the_commit,
    "never deliver again": _never_deliver_again,
    "clean-up too eager": _clean_too_much,
    "blocks not verified": _believe_every_block,
    "starts empty in doubt": _start_again_when_in_doubt,
    "list forgotten": _forget_the_list,
    "parts of anybody": _publish_what_is_there,
    "parts never swept": _never_sweep,
    "older rows win": _let_older_rows_win,
    "tables not read again": _read_no_table_again,
    "versions mixed up": _mix_up_versions,
    "tables are garbage": _count_tables_as_garbage,
    "sink appends": lambda: None,
    "sink not atomic": lambda: None,
}
_SINKS: dict[str | None, type[KillingSink]] = {"sink appends": _Appending, "sink not atomic": _Torn}


# --- a run ---------------------------------------------------------------------------------------------------------


def open_store(root: Path, moment: Moment, *, fsync: bool) -> StateStore:
    """As `StateStore.open`, on a storage that can kill."""
    inner = LocalStorage(root, fsync=fsync)
    return StateStore(KillingStorage(inner, moment), lease=inner.lease())


def work(job: dict[str, Any]) -> None:
    """One run, from where the state is to the end of the rows, unless it dies."""
    broken = job.get("broken")
    if broken:
        BROKEN[broken]()
    folder = Path(job["folder"])
    moment = Moment(*job.get("kill", ()), log=Path(job["log"]) if job.get("log") else None)
    processed = job.get("processors")
    table = watching.events(ROWS) if processed else events()
    watching.between = functools.partial(_called, moment)
    kind: Any = KillingParts if job.get("parts") else _SINKS.get(broken, KillingSink)
    sink = kind(folder / "out", moment)
    store = open_store(folder / "state", moment, fsync=job.get("fsync", False))
    if job.get("tabled"):
        tabling.begin(folder)
    run = LocalRun(
        _streams(job), folder / "state", slots=job["slots"], sink=sink, late=sink, errors="keep", store=store
    )
    try:
        if job.get("listed"):
            take_files(run, folder / "in", max(1, job["cut"] // PER_FILE))
        while not run.driver.closed:
            at = store.last.totals.delivered if store.last else 0
            if job.get("tabled"):
                tabling.before_epoch(run, folder, at, min(at + job["cut"], ROWS))
            if at >= table.num_rows:
                run.end()
            else:
                run.epoch(table.slice(at, job["cut"]), splitters=2)
    finally:  # where dying is an exception
        run.close()


def _streams(job: dict[str, Any]) -> list[Stream]:
    kinds = {"processors": processors, "keyed": keyed, "tabled": tabled}
    return next((make for kind, make in kinds.items() if job.get(kind)), queries)()


def _called(moment: Moment, what: str) -> None:
    if moment.step("call", what)("within"):
        die()


def take_files(run: LocalRun, folder: Path, files_per_epoch: int) -> None:
    """What a run with `once` does: the files of its list, in epochs of so many, and then the end of the input."""
    known, storage = run.store.last.ledgers if run.store.last else {}, run.store.storage
    ledger = FileLedger(
        FilesOrigin(None, folder, files_per_epoch), known.get(SOURCE, FolderState()), BlockReader(storage)
    )
    run.driver.ledgers = {SOURCE: ledger}
    ledger.keep_to_list()
    while not run.driver.closed:
        files = ledger.choose(ledger.waiting())
        windows = [[PhysicalWindow(SOURCE, read_file(ledger.path(f), (f.bytes, f.modified)))] for f in files] or [[]]
        execute = functools.partial(execute_locally, windows=windows, storage=storage)
        run.driver.run_epoch(Position("files"), execute, taken={SOURCE: files}, final=not files)


def put_files(folder: Path) -> None:
    """All rows as files, in order of arrival."""
    folder.mkdir()
    for start in range(0, ROWS, PER_FILE):
        _put(folder, start, events().slice(start, PER_FILE))


def put_later(folder: Path, number: int) -> None:
    """A file of rows that would count, and make others late, were they taken: they would come first."""
    _put(folder, -number, events().slice(ROWS - PER_FILE))


def _put(folder: Path, number: int, table: pa.Table) -> None:
    write_whole(folder / f"{number}.parquet", table, 1_700_000_000 + number)


class Nursery:
    """Forks a child per job. Nothing but imports has happened in it, so its children are as good as new. Numba has read its
    tables too, which takes half a second and starts no thread.

    The queries are built here and handed over: DuckDB must not be used before a fork, and building them takes a while.
    """

    def __init__(self) -> None:
        root, name = Path(__file__).resolve().parents[2], "tests.crash.killing"
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([sys.executable, "-m", name], text=True, cwd=root, **pipes)
        assert self.process.stdin
        built = [queries(), processors(), keyed(), tabled()]
        self.process.stdin.write(base64.b64encode(pickle.dumps(built)).decode() + "\n")

    def run(self, **job: Any) -> int:
        """How the child ended: 0, an exit code, or minus a signal."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(job, default=str) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.process.stdout.close()


def _serve() -> None:
    built = pickle.loads(base64.b64decode(sys.stdin.readline()))
    makers = (queries, processors, keyed, tabled)
    globals().update({make.__name__: functools.partial(list, each) for make, each in zip(makers, built, strict=True)})
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _child(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _child(job: dict[str, Any]) -> None:
    try:
        work(job)
    except BaseException as error:
        Path(job["folder"], "error.txt").write_text(f"{type(error).__name__}: {error}")
        os._exit(3)
    os._exit(0)


# --- the check -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What a reader of the sink has in the end, against the sequential answer."""

    lost: int
    duplicated: int
    trouble: str | None = None  # a run that ended badly, a file that cannot be read, a block that is not there
    wrong: int = 0  # rows of the processors' tables that are not there, or were not to be

    @property
    def good(self) -> bool:
        return self == Outcome(0, 0)


Rows = Counter[tuple[Any, ...]]


def expected() -> dict[str, Rows]:
    found = {n: count_rows(reference(q, errors="keep")) for n, q in zip(RESULTS, queries(), strict=True)}
    (failed,) = failed_tuples(queries()[2])
    return {**found, FAILED: count_rows(failed.table)}


def expected_of_keyed() -> dict[str, Rows]:
    return {n: count_rows(reference(q)) for n, q in zip(RESULTS, keyed(), strict=True)}


def expected_of_tabled(folder: Path) -> dict[str, Rows]:
    """Of the epochs that the runs in this folder had."""
    return dict(zip(RESULTS, map(count_rows, tabling.answers(tabled(), events(), folder)), strict=True))


def expected_of_processors() -> dict[str, Rows]:
    """Of their tables too, under operator/table."""
    results, watched = watching.model(rows_of(watching.events(ROWS)))
    held = {}
    for number, each in enumerate(watched, 1):
        held |= {f"apply-{number}/keys": Rows(each.keys), f"apply-{number}/open": Rows(each.open)}
    return {**dict(zip(RESULTS, results, strict=True)), **held}


def delivered(out: Path, names: Iterable[str] = (*RESULTS, FAILED)) -> dict[str, Rows]:
    """What a reader finds: every file whose name, or whose folder's, does not begin with `_`."""
    found: dict[str, Rows] = {name: Counter() for name in names}
    for name in found:
        for path in sorted([*(out / name).glob("[!_]*.parquet"), *(out / name).glob("[!_]*/[!_]*.parquet")]):
            table = pq.ParquetFile(path).read()
            found[name] += count_rows(table.drop_columns(["_source", "_reason"]) if name == FAILED else table)
    return found


def compare(wanted: dict[str, Rows], out: Path) -> Outcome:
    if left := sorted(out.glob("*/_staging*/*")):
        return Outcome(0, 0, f"parts were not swept: {left}")
    names = [name for name in wanted if "/" not in name]
    try:
        found = delivered(out, names)
    except (pa.ArrowException, OSError) as error:
        return Outcome(0, 0, f"a result cannot be read: {error}")
    wrong = sum(_wrong_in_table(wanted[name], out.parent, name) for name in wanted if name not in names)
    lost = sum((wanted[name] - found[name]).total() for name in names)
    return Outcome(lost, sum((found[name] - wanted[name]).total() for name in names), wrong=wrong)


def _wrong_in_table(wanted: Rows, folder: Path, name: str) -> int:
    (folder / "plan.json").touch()  # a run that was started would have one
    found = count_rows(hr.read_state(folder, *name.split("/")))
    return max((wanted - found).total(), (found - wanted).total())


def state_trouble(root: Path) -> str | None:
    """What is wrong with a state folder right now; every block that the newest manifest needs is read and verified."""
    if not (root / "manifests").is_dir():
        return None
    try:
        store = StateStore.open(root, read_only=True)
        reader = BlockReader(store.storage)
        for block in store.last.live_blocks() if store.last else ():
            reader.open(block)
    except HeadraceError as error:
        return f"{type(error).__name__}: {error}"
    return None


def steps_of(nursery: Nursery, folder: Path, *, listed: bool = False, **more: Any) -> list[str]:
    """Every step of a first run that is left alone."""
    folder.mkdir()
    if listed:
        put_files(folder / "in")
    slots, cut = SHAPES[0]
    job = {"folder": folder, "slots": slots, "cut": cut, "listed": listed, **more}
    assert nursery.run(**job, log=folder / "steps.txt") == 0, _error(folder)
    return (folder / "steps.txt").read_text().splitlines()


def check(nursery: Nursery, folder: Path, wanted: dict[str, Rows] | None, kills: Iterable[Any], **job: Any) -> Outcome:
    """Die at each of these moments in turn, then run to the end: what came of it.

    With `tabled`, what is wanted depends on what the runs did.
    """
    folder.mkdir()
    if job.get("listed"):
        put_files(folder / "in")
    for attempt, kill in enumerate(kills):
        slots, cut = SHAPES[attempt % len(SHAPES)]
        code = nursery.run(folder=folder, slots=slots, cut=cut, kill=kill, **job)
        if code not in (0, -signal.SIGKILL):
            return Outcome(0, 0, f"a run ended with {code}: {_error(folder)}")
        if trouble := state_trouble(folder / "state"):
            return Outcome(0, 0, trouble)
        if job.get("listed") and StateStore.open(folder / "state", read_only=True).last is not None:
            put_later(folder / "in", attempt + 1)
    slots, cut = SHAPES[1]
    code = nursery.run(folder=folder, slots=slots, cut=cut, **job)
    if code != 0:
        return Outcome(0, 0, f"the last run ended with {code}: {_error(folder)}")
    if trouble := state_trouble(folder / "state"):
        return Outcome(0, 0, trouble)
    return compare(expected_of_tabled(folder) if wanted is None else wanted, folder / "out")


def survival(nursery: Nursery, folder: Path, wanted: dict[str, Rows] | None, **job: Any) -> Callable[..., None]:
    """Return what dies at each of some moments, each time from the start, comes back, and checks what came of it."""

    def survive(kind: str, when: str, moments: Iterable[int]) -> None:
        moments = list(moments)
        assert moments
        for k in moments:
            place = folder / f"{kind}-{when}-{k}"
            outcome = check(nursery, place, wanted, [(kind, k, when)], **job)
            assert outcome == Outcome(0, 0), f"killed {when} {kind} step {k}"
            shutil.rmtree(place)

    return survive


def _error(folder: Path) -> str:
    path = folder / "error.txt"
    return path.read_text() if path.exists() else "killed"


if __name__ == "__main__":
    _serve()
