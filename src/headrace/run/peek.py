"""`peek`: the first tuples that arrive at a query of sources and stateless verbs, in order of arrival.

Rows pass through the query in this process in small groups. Each group is an epoch of a temporary state in which no
tuple is late. So `peek` checks and computes what a run would, and Spark only reads DataFrames. It commits nothing:
neither a checkpoint nor offsets.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from headrace import sinks
from headrace.columnar import scratch
from headrace.compile import CompiledQuery
from headrace.driver.driver import Driver, Settings
from headrace.driver.position import Position
from headrace.errors import QueryError
from headrace.operators import PLANNERS
from headrace.query import nodes
from headrace.run.arguments import check_whole
from headrace.run.checkpoint_path import SPARK_FOLDER, STATE_FOLDER
from headrace.run.run import is_stream
from headrace.sources.protocol import Item, Ledger, PhysicalWindow, Piece, driven_sources
from headrace.state.store import StateStore
from headrace.stream import Stream, count_of_tuples, node_of
from headrace.support.durations import Duration, parse_duration
from headrace.task.epoch import Epoch
from headrace.task.in_process import execute_locally
from headrace.task.messages import Message
from headrace.task.splitters import SourcePiece, read_windows

READ_BYTES = 1 << 20  # bytes to read at once from a file or topic
PAUSE = 0.1  # seconds between polls of sources that had no input

Read = Callable[[Epoch], Iterable[PhysicalWindow]]
# The first step opens a source. Each later step processes the rows that have arrived and yields whether there were any.
Feed = Generator[bool]


def peek(query: Stream, n: int = 10, timeout: Duration = "10 seconds") -> pa.Table:
    """Return the first tuples that arrive. See `Stream.peek`."""
    root = node_of(query)
    count, seconds = count_of_tuples(n, "n"), parse_duration(timeout, "timeout") / 1e6
    check_whole(root, "peek")
    _demand_stateless([root])
    compiled = CompiledQuery([root])
    results = sinks.memory()
    with (
        scratch.temporary_folder("peek") as folder,
        StateStore.open(folder / STATE_FOLDER, fsync=False) as store,
    ):
        driver = Driver(
            compiled.physical("subquery"),
            {"operators": []},
            store,
            {"result-0": results},
            Settings(1, bounded=True),
            driven_sources({name: source.origin for name, source in nodes.named_sources(root).items()}),
            tables=nodes.named_tables(root),
        ).open()
        _Arrival(driver, store, seconds).process(nodes.named_sources(root), count, folder)
        found = results.table()
    return query.schema.empty_table() if found is None else found.slice(0, count).combine_chunks()


def _demand_stateless(roots: Sequence[nodes.Node]) -> None:
    for node in nodes.walk_nodes(*roots):
        if isinstance(node, nodes.Splitting):
            _demand_stateless([node.body.root])
        if type(node) in PLANNERS:
            raise QueryError(
                f"peek shows tuples as they arrive, so it takes sources and stateless verbs only;"
                f" found {node.describe()['operator']}: {node.summary};"
                " peek at the stream before it, or use head, which needs bounded input"
            )


@dataclass
class _Arrival:
    """The rows of all sources while they pass through the query."""

    driver: Driver
    store: StateStore
    seconds: float  # time limit, counted after all sources are open
    deadline: float = math.inf  # on the monotonic clock

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def process(self, sources: Mapping[str, nodes.Source], count: int, folder: Path) -> None:
        """Poll the sources in turn until there are `count` results, the time is up or all sources have ended."""
        with ExitStack() as closes:
            feeds: list[Feed] = [closes.enter_context(closing(feed)) for feed in self._feeds(sources, folder)]
            for feed in feeds:
                next(feed)
            self.deadline = time.monotonic() + self.seconds
            self._hurry_at_deadline(closes)
            while feeds and self.left > 0:
                arrived = False
                for feed in list(feeds):
                    try:
                        arrived = next(feed) or arrived
                    except StopIteration:
                        feeds.remove(feed)
                    if self.driver.progress.results_out >= count:
                        return
                if feeds and not arrived:
                    time.sleep(max(min(PAUSE, self.left), 0.0))

    def _hurry_at_deadline(self, closes: ExitStack) -> None:
        """Interrupt ledgers at the deadline, because they would wait longer for unreachable brokers."""
        if self.driver.ledgers:
            timer = threading.Timer(self.left, self.driver.hurry)
            timer.daemon = True
            timer.start()
            closes.callback(timer.cancel)

    def _feeds(self, sources: Mapping[str, nodes.Source], folder: Path) -> Iterator[Feed]:
        others = {name: source for name, source in sources.items() if name not in self.driver.ledgers}
        frames = {name: source for name, source in others.items() if hasattr(source.origin, "df")}
        if static := {name: source for name, source in frames.items() if not is_stream(source)}:
            yield self._static(static)
        if streams := {name: source for name, source in frames.items() if is_stream(source)}:
            yield self._streaming(streams, folder / SPARK_FOLDER)
        for name, source in others.items():
            if name not in frames:
                yield self._whole(name, source)
        for name, ledger in self.driver.ledgers.items():
            yield self._driven(name, ledger)

    # --- kinds of sources ----------------------------------------------------------------------------------------------

    def _static(self, sources: Mapping[str, nodes.Source]) -> Feed:
        from headrace.spark.arrivals import static_arrivals

        yield False
        for name, rows in static_arrivals(sources, self.driver.columns):
            self._rows(name, rows)
            yield True

    def _streaming(self, sources: Mapping[str, nodes.Source], checkpoint: Path) -> Feed:
        from headrace.spark.arrivals import StreamArrivals

        with StreamArrivals(sources, self.driver.columns, checkpoint) as arrivals:
            arrivals.await_first_look()
            yield False
            while True:
                arrived = arrivals.next(max(min(PAUSE, self.left), 0.0))
                if arrived is not None:
                    self._rows(*arrived)
                yield arrived is not None

    def _whole(self, name: str, source: nodes.Source) -> Feed:
        yield False
        self._rows(name, source.origin.table())
        yield True

    def _driven(self, name: str, ledger: Ledger) -> Feed:
        """Read a folder or topic. A folder that has delivered tuples ends with its last file; otherwise it is watched
        like a topic.
        """
        yield False
        while True:
            waiting = ledger.waiting()
            if waiting:
                yield from self._pieces(name, ledger, ledger.choose(waiting if ledger.partitions else waiting[:1]))
            elif not ledger.partitions and self.driver.progress.tuples_in:
                return
            else:
                yield False

    def _pieces(self, name: str, ledger: Ledger, chosen: Sequence[Item]) -> Feed:
        """Process the chosen input piece by piece. The ledger counts the input as taken with the last piece."""
        inputs = ledger.inputs(name, chosen)
        pieces: list[Piece] = [piece for taken in inputs for piece in taken.pieces(READ_BYTES)]
        for number, piece in enumerate(pieces, start=1):
            taken_now = {name: chosen} if number == len(pieces) else {}
            self._run(partial(read_windows, pieces=[SourcePiece(name, piece)]), taken_now)
            yield True

    def _rows(self, name: str, rows: pa.Table) -> None:
        self._run(lambda _: [PhysicalWindow(name, rows)])

    def _run(self, read: Read, taken: Mapping[str, Sequence[Item]] | None = None) -> None:
        def execute(epoch: Epoch) -> list[Message]:
            return execute_locally(epoch, [read(epoch)], self.store.storage)

        self.driver.run_epoch(Position("sample"), execute, taken=taken)
