"""A run without Spark: its cluster and its feed are moved by hand, and its epochs are only noted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace.control.splitter_count import Splitters
from headrace.driver.cluster_protocol import FeedStatus
from headrace.driver.position import Position
from headrace.run.run import Run, begin_run
from headrace.sources.file_ledger import TakenFile
from headrace.telemetry.listeners import Listeners
from headrace.telemetry.progress import Progress
from tests.patience import PATIENCE


class Clock:
    """Stands for the module `time`."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class HandFeed:
    def __init__(self) -> None:
        self.active, self.drained, self.failure = True, False, None
        self.rests()

    def rests(self) -> None:
        self.status = FeedStatus(may_have=False, at_work=False)

    def looks(self) -> None:
        self.status = FeedStatus(may_have=False, at_work=True)

    def works(self) -> None:
        self.status = FeedStatus(may_have=True, at_work=True)

    def ends(self, *, drained: bool = False, failure: Any = None) -> None:
        self.active, self.drained, self.failure = False, drained, failure
        self.status = FeedStatus(may_have=True, at_work=False)  # Spark says no more of a query that has ended

    def look(self) -> FeedStatus:
        return self.status

    def stop(self) -> None:
        self.active = False


class HandCluster:
    stopped = False

    def __init__(self, feed: HandFeed) -> None:
        self.feed, self.follows = feed, threading.Event()

    def piece_rows(self, taken: Any, splitters: Splitters) -> Any:
        return taken

    def batch(self, batch: Any) -> Any:
        return batch

    def run_tasks(self, rows: Any, epoch: Any) -> list[Any]:
        return []

    def follow(self, sources: Any, on_batch: Callable[[Any, int], None], *_: Any, once: bool) -> HandFeed:
        self.on_batch = on_batch
        self.follows.set()
        return self.feed

    def refuse_batch(self) -> str:
        return "the run is to end"


class HandRun:
    """A run of files, of which an epoch takes one, and perhaps of a stream that the feed delivers.

    `epochs` has (final, files taken, silent sources) of every epoch; what happens elsewhere while one is computed is put
    in `within`, and while the folder is looked at for the n-th time in `seen`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        files: int = 0,
        streaming: bool = True,
        once: bool = False,
        idle: int | None = None,
        within: Callable[[], Any] = lambda: None,
    ) -> None:
        self.folder, self.within = folder, within
        self.files = [TakenFile(str(n), 1, n) for n in range(files)]
        self.epochs, self.looks, self.closed = list[tuple[bool, int, list[str]]](), 0, False
        self.feed = HandFeed()
        self.cluster = HandCluster(self.feed)
        self.driver = self._driver()
        origin = SimpleNamespace(bounded=False)
        names = ["files", *(["stream"] if streaming else [])]
        sources: Any = {name: SimpleNamespace(idle=idle, lateness=0, origin=origin) for name in names}
        self.run = Run(self.cluster, sources, self.driver, folder, 0, once=once)

    def _driver(self) -> Any:
        ledger = SimpleNamespace(
            unit="files",
            waiting=self._waiting,
            choose=lambda waiting, ahead: waiting[:1],
            remaining=lambda waiting, chosen: {"": len(waiting) - len(chosen)},
            inputs=lambda source, chosen: chosen,
            keep_to_list=lambda: None,
            partitions=(),
            must_be_noted=False,
        )
        return SimpleNamespace(
            settings=SimpleNamespace(static=()),
            layouts=SimpleNamespace(backlog=0, splitters=lambda _: Splitters(1)),
            progress=Progress(epoch=0),
            ledgers={"files": ledger},
            plan=SimpleNamespace(operators=[]),
            table_versions=SimpleNamespace(look=lambda: None, figures={}),
            listeners=Listeners(),
            closed=False,
            last=None,
            running=None,
            busy=[],
            run_epoch=self._epoch,
            end=self._end,
            deliver_again=lambda: None,
            tell_listeners_again=lambda: None,
            hurry=lambda: None,
        )

    def begin(self) -> Run:
        """Begin as `start` does."""
        begin_run(self.run)
        return self.run

    def batch(self) -> None:
        """The feed delivers its first batch."""
        (self.folder / "offsets").mkdir()
        (self.folder / "offsets" / "0").write_text("{}")
        assert self.cluster.follows.wait(PATIENCE)
        self.cluster.on_batch([], 0)

    def seen(self, looks: int) -> None: ...

    def _waiting(self) -> list[TakenFile]:
        self.looks += 1
        self.seen(self.looks)
        return list(self.files)

    def _epoch(
        self,
        position: Position,
        execute: Any,
        *,
        final: bool,
        idle_sources: list[str],
        idle_partitions: Any,
        taken: Any,
    ) -> None:
        self.within()
        execute(None)
        self.epochs.append((final, len(taken["files"]), idle_sources))
        self.files = [file for file in self.files if file not in taken["files"]]

    def _end(self, error: BaseException | None) -> None:
        self.closed = True
