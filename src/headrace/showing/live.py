"""The progress of a run: a live table on a terminal, plain lines elsewhere, JSON for programs.

    run = query.start(sink, checkpoint="ckpt/")
    live.watch_run(run, stop_when=lambda run: run.progress.results_out >= 100)

Everything shown comes from `Run.progress`.
"""

from __future__ import annotations

import io
import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.run.run import Run
from headrace.showing.terminal import on_stderr
from headrace.support.terminal_text import is_visible, printable
from headrace.task.reports import TableUse
from headrace.telemetry.epoch_record import EpochRecord
from headrace.telemetry.progress import Progress, SplitFigures, VersionFigures, Watermark
from headrace.telemetry.table_sizes import TableSize

POLL = 0.05  # seconds between two reads of the run's progress
FRAMES = 4  # per second, of the live table
RATE_EPOCHS = 6  # number of epochs that a rate is averaged over
SHARES = 3  # number of substreams named for each state table
LONG_EPOCH_SECONDS = 5.0  # seconds after which an epoch in progress is mentioned
SILENT = 10.0  # seconds without an epoch after which rates are shown as zero
LINES_EVERY = 1.0  # minimum seconds between two plain lines
SIGN_OF_LIFE = 10.0  # seconds without a line after which a plain line reports what the run is waiting for
JSON_SIGN_OF_LIFE = 30.0  # the same for JSON lines, which programs watch and people do not


class Display(Protocol):
    """A view of a run. `watch_run` calls `show` repeatedly and `close` once."""

    def show(self, progress: Progress) -> None: ...

    def close(self) -> None: ...


def watch_run(
    run: Run,
    stop_when: Callable[[Run], bool] | None = None,
    console: Console | None = None,
    *,
    display: Display | None = None,
) -> None:
    """Show a run until it ends or `stop_when(run)` is true. Raise the error that ended the run. Does not stop the
    run."""
    shown = display or for_console(console or Console())
    try:
        while not run.wait(POLL):
            shown.show(run.progress)
            if stop_when is not None and stop_when(run):
                return
    finally:
        shown.show(run.progress)
        shown.close()


def show_live_line(run: Run) -> None:
    """Show one live line on standard error from another thread. The line disappears when the run ends."""

    def show() -> None:
        with suppress(Exception):  # the caller gets the run's error from run.wait or run.exception
            watch_run(run, display=LiveLine(on_stderr()))

    threading.Thread(target=show, name="headrace-live", daemon=True).start()


def for_console(
    console: Console,
    title: str = "headrace",
    names: Mapping[str, str] | None = None,
    below: Callable[[], RenderableType] | None = None,
    transient: bool = False,
) -> Display:
    """Return a live table if the console is a terminal, otherwise plain lines.

    names: display names of sources and results; below: content below the table; transient: remove the table at the end.
    """
    if console.is_terminal:
        return LiveTable(console, title, names or {}, below, transient)
    return PlainLines(console)


class StopAfter:
    """A condition for `stop_when`: true `seconds` after the first call. None: never."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._since: float | None = None

    def __call__(self, run: Run) -> bool:
        self._since = time.monotonic() if self._since is None else self._since
        return self.seconds is not None and time.monotonic() - self._since >= self.seconds


@dataclass
class RecentRates:
    """Tuples per second over the last epochs, for each source and result."""

    _samples: deque[tuple[float, int, dict[str, int]]] = field(default_factory=lambda: deque(maxlen=RATE_EPOCHS))

    def see(self, progress: Progress) -> None:
        epoch = progress.last.epoch if progress.last else progress.epoch
        if not self._samples or epoch != self._samples[-1][1]:
            self._samples.append((time.monotonic(), epoch, {**progress.sources, **progress.results}))

    def of(self, *names: str) -> float:
        """Return the total rate of these sources or results."""
        first, last = self._samples[0], self._samples[-1]
        if last[0] == first[0] or time.monotonic() - last[0] > SILENT:
            return 0.0
        return sum(last[2].get(n, 0) - first[2].get(n, 0) for n in names) / (last[0] - first[0])


class AboveTable(io.TextIOBase):
    """A text file that prints its lines above a live table. Sinks may print from another thread, because rich uses a
    lock.
    """

    def __init__(self, console: Console) -> None:
        self._console, self._begun = console, ""

    def write(self, text: str) -> int:
        whole, newline, self._begun = (self._begun + text).rpartition("\n")
        if newline:
            shown = Text.from_ansi(whole)  # keeps colours; other control characters are replaced below
            shown.plain = "".join(c if is_visible(c) or c in "\n\t" else "\ufffd" for c in shown.plain)
            self._console.print(shown, soft_wrap=True)
        return len(text)

    def isatty(self) -> bool:
        return True


# --- on a terminal -------------------------------------------------------------------------------------------------


class LiveTable:
    """A live table that is updated in place."""

    def __init__(
        self,
        console: Console,
        title: str,
        names: Mapping[str, str],
        below: Callable[[], RenderableType] | None,
        transient: bool,
    ) -> None:
        self._title, self._names, self._below = printable(title), names, below
        self._rates = RecentRates()
        self._began, self._painted = time.monotonic(), 0.0
        console.file = console.file  # pins the file, so that other output is printed above the table
        self._live = Live(
            console=console, auto_refresh=False, transient=transient, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()
        self._above = redirect_stdout(AboveTable(console))
        self._above.__enter__()

    def show(self, progress: Progress) -> None:
        self._rates.see(progress)
        if time.monotonic() - self._painted >= 1 / FRAMES:
            self._paint(progress)
        self._progress = progress

    def close(self) -> None:
        self._above.__exit__(None, None, None)
        self._paint(self._progress)
        self._live.stop()

    def _paint(self, progress: Progress) -> None:
        self._painted = time.monotonic()
        parts: list[RenderableType] = [self._head(progress), self._flows(progress), _condition(progress)]
        if self._below is not None:
            parts.append(self._below())
        spaced = [item for part in parts for item in (part, "")]
        self._live.update(Group(*spaced[:-1]), refresh=True)

    def _head(self, progress: Progress) -> Text:
        running = str(timedelta(seconds=int(time.monotonic() - self._began)))
        head = Text.assemble((self._title, "bold"), "  ", (f"running {running}", "dim"), "  ")
        if progress.last is None:
            under_way = "waiting for" if progress.running is None else "in"
            return head.append(f"{under_way} the first epoch", "yellow")
        head.append(f"epoch {progress.epoch:,} took {seconds_text(progress.last.seconds)}")
        if progress.running is not None and progress.running >= LONG_EPOCH_SECONDS:
            head.append(f", the next has been running for {seconds_text(progress.running)}", "yellow")
        return head

    def _flows(self, progress: Progress) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False)
        for heading, how in (("", "left"), ("", "left"), ("per second", "right"), ("total", "right"), ("", "left")):
            table.add_column(heading, justify=how)  # type: ignore[arg-type]
        for name, total in progress.sources.items():
            until = f"complete until {time_text(progress.watermark.get(name))}"
            until += ", furthest behind" if name == slowest_source(progress.watermark) else ""
            table.add_row(Text("in", "green"), *self._flow(name, total), Text(until, "dim"))
        for name, total in progress.results.items():
            table.add_row(Text("out", "cyan"), *self._flow(name, total), "")
        return table

    def _flow(self, name: str, total: int) -> tuple[Text, str, str]:
        return Text(printable(self._names.get(name, name))), rate_text(self._rates.of(name)), f"{total:,}"


class LiveLine:
    """The progress of a run on one line that is updated in place."""

    def __init__(self, console: Console) -> None:
        self._rates, self._painted = RecentRates(), 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, progress: Progress) -> None:
        self._rates.see(progress)
        if progress.last is not None and time.monotonic() - self._painted >= 1 / FRAMES:
            self._painted = time.monotonic()
            self._live.update(
                Text(progress_line(progress, self._rates), "dim", no_wrap=True, overflow="ellipsis"), refresh=True
            )

    def close(self) -> None:
        self._live.stop()


def _condition(progress: Progress) -> Table:
    """Return latency, slots, backlog, dropped tuples and state, one row per subject."""
    table = Table.grid(padding=(0, 2, 0, 1))
    waiting = [] if progress.backlog is None else [("backlog", _waiting(progress))]
    lost = Text(dropped_text(progress), "yellow" if _lost(progress) else "")
    subjects: list[tuple[str, RenderableType]] = [
        ("latency", _latency(progress)),
        *([("slots", busy_bars(progress.busy))] if progress.busy else []),
        *waiting,
        ("dropped", lost),
        *splits_text(progress, progress.last.splits if progress.last else {}),
        ("state", f"{size_text(progress.state_bytes)} in {progress.blocks:,} blocks"),
        *tables_text(progress),
        *((f"table {name}", Text(printable(words))) for name, words in versions_text(progress.versions)),
        *((name, Text(words, "yellow")) for name, words in incomplete_text(progress)),
        *(
            (name, Text(f"pairs: {how}", "yellow" if "DuckDB, one" in how else ""))
            for name, how in progress.joins.items()
        ),
    ]
    for subject, text in subjects:
        table.add_row(Text(printable(subject), "dim"), text)
    return table


def _lost(progress: Progress) -> bool:
    return bool(progress.late or progress.rejected or progress.failed or progress.lost)


def dropped_text(progress: Progress) -> str:
    """Describe the tuples that were not processed. Failed and lost tuples are mentioned only if there are any."""
    failed = f", {progress.failed:,} failed" if progress.failed else ""
    lost = f", {progress.lost:,} messages gone before they were read" if progress.lost else ""
    return f"{progress.late:,} late, {progress.rejected:,} rejected{failed}{lost}"


def splits_text(progress: Progress, newest: Mapping[str, SplitFigures]) -> list[tuple[str, str]]:
    """Return, for each split, the counts of its tuples in total and in the newest epoch."""
    nothing = SplitFigures(0, 0, 0)
    return [(name, _split(all_, newest.get(name, nothing))) for name, all_ in progress.splits.items()]


def _split(all_: SplitFigures, newest: SplitFigures) -> str:
    words = {"routed": "routed to one substream", "broadcast": "broadcast to all", "omitted": "omitted"}
    return ", ".join(
        f"{getattr(all_, field):,} {text}{_change(getattr(newest, field))}" for field, text in words.items()
    )


def tables_text(progress: Progress) -> list[tuple[str, str]]:
    """Return the size and growth of each state table, its largest substreams, and how its rows were loaded."""
    sizes = [
        (f"table {name} of {operator}", _table(found))
        for operator, own in progress.tables.items()
        for name, found in own.items()
    ]
    return sizes + [(f"tables of {operator}", _use(use)) for operator, use in progress.table_use.items()]


def versions_text(found: Mapping[str, VersionFigures]) -> list[tuple[str, str]]:
    """Return the version of each joined table, and the error if the newest version could not be read."""
    return [(name, _version(each)) for name, each in found.items()]


def incomplete_text(progress: Progress) -> list[tuple[str, str]]:
    """Return which results are still incomplete because an operator started with empty state, and the windows
    withheld."""
    results = [
        (name, "never complete" if time is None else f"complete from {time} on")
        for name, time in progress.incomplete.items()
    ]
    return results + [(name, f"{count:,} windows withheld") for name, count in progress.withheld.items()]


def _version(found: VersionFigures) -> str:
    """
    >>> _version(VersionFigures(3, 5000, 240_000, "the disk is gone"))
    'version 3, 5,000 rows, 234.4 KiB; it could not be read again: the disk is gone'
    """
    text = f"version {found.version}, {found.rows:,} row{'' if found.rows == 1 else 's'}, {size_text(found.bytes)}"
    return text if found.trouble is None else f"{text}; it could not be read again: {found.trouble}"


def _use(use: TableUse) -> str:
    """
    >>> _use(TableUse(6, {"cold": 2}, 1200, 0.25))
    '6 in place, 2 built from blocks (cold 2; 1,200 rows in 0.25 s)'
    """
    text = f"{use.found:,} in place"
    if use.built:
        reasons = ", ".join(f"{why} {many:,}" for why, many in use.built.items())
        text += f", {sum(use.built.values()):,} built from blocks ({reasons}; {use.rows:,} rows in {use.seconds:.2f} s)"
    return text


def _table(found: TableSize) -> str:
    text = f"{found.rows:,} row{'' if found.rows == 1 else 's'}{_change(found.grown)}, {size_text(found.bytes)}"
    for words, shares in (("most", found.largest), ("growing most", found.growing)):
        if shares:
            text += f"; {words} in substream " + ", ".join(f"{share} ({share.rows:,})" for share in shares[:SHARES])
    return text


def _change(rows: int) -> str:
    """Format the change in the newest epoch."""
    return f" ({rows:+,})" if rows else ""


def busy_bars(busy: Sequence[float]) -> str:
    """Return a small chart of how busy each slot is.

    >>> busy_bars([0.0, 0.5, 1.0])
    '3, busy: ▁▅█'
    """
    levels = "▁▂▃▄▅▆▇█"
    return f"{len(busy)}, busy: " + "".join(levels[min(int(share * len(levels)), len(levels) - 1)] for share in busy)


def _latency(progress: Progress) -> str:
    if progress.latency["p50"] is None:
        return "-"
    return f"half of the tuples within {seconds_text(progress.latency['p50'])}, 99% within {seconds_text(progress.latency['p99'])}"


def _waiting(progress: Progress) -> str:
    count, of = progress.backlog or 0, progress.backlog_of
    return f"{count:,} {of.removesuffix('s') if count == 1 else of} waiting"


# --- elsewhere -----------------------------------------------------------------------------------------------------


class PlainLines:
    """One line per epoch, at most one per second, and a status line when an epoch takes long or no input arrives."""

    def __init__(self, console: Console) -> None:
        self._console, self._rates = console, RecentRates()
        self._shown, self._at = -1, -LINES_EVERY
        self._said = self._began = time.monotonic()
        self._progress: Progress | None = None

    def show(self, progress: Progress) -> None:
        self._rates.see(progress)
        self._progress = progress
        if time.monotonic() - self._at >= LINES_EVERY:
            self._print()
        if time.monotonic() - self._said >= SIGN_OF_LIFE:
            self._say(waiting_text(progress, time.monotonic() - self._began))

    def close(self) -> None:
        self._print()

    def _print(self) -> None:
        progress = self._progress
        if progress is None or progress.last is None or progress.last.epoch == self._shown:
            return
        self._shown, self._at = progress.last.epoch, time.monotonic()
        self._say(progress_line(progress, self._rates))

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)


def waiting_text(progress: Progress, since: float) -> str:
    """Describe the state of a run while no epoch ends."""
    done = f"{progress.tuples_in:,} tuples in, {progress.results_out:,} results out so far"
    backlog = "" if not progress.backlog else f", {_waiting(progress)}"
    if progress.running is not None:
        return f"epoch {progress.epoch + 1} has been running for {seconds_text(progress.running)}; {done}{backlog}"
    return f"waiting for input, running for {seconds_text(since)}; {done}{backlog}"


def progress_line(progress: Progress, rates: RecentRates) -> str:
    """Return the progress of a run as one line."""
    assert progress.last is not None
    parts = [
        f"epoch {progress.epoch} {seconds_text(progress.last.seconds)}",
        f"in {progress.tuples_in:,} ({rate_text(rates.of(*progress.sources))}/s)",
        f"out {progress.results_out:,} ({rate_text(rates.of(*progress.results))}/s)",
        f"late {progress.late:,} rejected {progress.rejected:,}"
        + (f" failed {progress.failed:,}" if progress.failed else "")
        + (f" lost {progress.lost:,}" if progress.lost else ""),
        *([] if progress.backlog is None else [_waiting(progress)]),
        sources_text(progress.watermark),
        *(
            f"{name} routed {s.routed:,} to all {s.broadcast:,} omitted {s.omitted:,}"
            for name, s in progress.splits.items()
        ),
        f"state {size_text(progress.state_bytes)} in {progress.blocks} blocks",
        *(f"{name} {t.rows:,} rows{_change(t.grown)}" for own in progress.tables.values() for name, t in own.items()),
        f"latency p50 {seconds_text(progress.latency['p50'])} p99 {seconds_text(progress.latency['p99'])}",
    ]
    return "  ".join(parts)


class JsonLines:
    """One JSON object per epoch, without gaps: `Progress.to_json` after the epoch, and the epoch's own figures.

    While no epoch ends, a line without these figures shows from time to time that the program is alive. `tell` is a
    listener for `Run.listen`.
    """

    def __init__(self, file: TextIO) -> None:
        self._file, self._written = file, time.monotonic()
        self._lock = threading.Lock()  # listeners have their own thread
        self._error: OSError | ValueError | None = None

    def tell(self, record: EpochRecord) -> None:
        own = record.to_json()
        self._write({**own.pop("progress"), "record": own})

    def show(self, progress: Progress) -> None:
        """Write a sign of life if it is due. Raise the error of the last write, if any: `tell` runs in a listener, where
        an error cannot end the program."""
        if time.monotonic() - self._written >= JSON_SIGN_OF_LIFE:
            self._write({**progress.to_json(), "record": None})
        if self._error is not None:
            raise self._error

    def _write(self, content: Mapping[str, Any]) -> None:
        line = json.dumps({"time": datetime.now(UTC).isoformat(), **content})
        try:
            with self._lock:
                print(line, file=self._file, flush=True)
                self._written = time.monotonic()
        except (OSError, ValueError) as error:  # the reader closed the pipe, or the file is closed
            self._error = error

    def close(self) -> None:
        pass


# --- values as text ------------------------------------------------------------------------------------------------


def rate_text(value: float) -> str:
    """
    >>> rate_text(12345.6), rate_text(3.21), rate_text(0)
    ('12,346', '3.2', '0')
    """
    return f"{value:.1f}" if 0 < value < 10 else f"{value:,.0f}"


def seconds_text(value: float | None) -> str:
    """
    >>> seconds_text(0.0421), seconds_text(1.24), seconds_text(None)
    ('42 ms', '1.2 s', '-')
    """
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 0.995 else f"{value:.1f} s"


def size_text(count: float) -> str:
    """
    >>> size_text(812), size_text(1536), size_text(3 << 30)
    ('812 B', '1.5 KiB', '3.0 GiB')
    """
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:,.1f} TiB"


def slowest_source(watermarks: Mapping[str, Watermark]) -> str | None:
    """Return the source with the smallest watermark, which holds back the others, or None.

    >>> slowest_source({"calls": 5, "prices": None}), slowest_source({"calls": 5, "prices": "end"})
    ('prices', 'calls')
    >>> slowest_source({"calls": 5}), slowest_source({"calls": 5, "prices": 5})
    (None, None)
    """
    reached = {name: _instant(watermark) for name, watermark in watermarks.items()}
    least = [name for name, time in reached.items() if time == min(reached.values())]
    return least[0] if len(least) == 1 < len(reached) else None


def _instant(watermark: Watermark) -> float:
    if watermark == "end":
        return math.inf
    return -math.inf if watermark is None else watermark


def sources_text(watermarks: Mapping[str, Watermark]) -> str:
    """Return the watermarks of all sources as one line.

    >>> sources_text({"calls": 1_700_000_000_500_000})
    'complete until 2023-11-14 22:13:20 UTC'
    >>> sources_text({"calls": 1_700_000_000_500_000, "prices": None})
    'complete until 2023-11-14 22:13:20 UTC (calls), - (prices, furthest behind)'
    """
    if len(watermarks) == 1:
        return f"complete until {time_text(*watermarks.values())}"
    last = slowest_source(watermarks)
    words = {name: printable(name) + (", furthest behind" if name == last else "") for name in watermarks}
    return "complete until " + ", ".join(f"{time_text(time)} ({words[name]})" for name, time in watermarks.items())


def time_text(micros: Watermark) -> str:
    """Format a watermark as a UTC time, or as a dash before the first tuple.

    >>> time_text(1_700_000_000_500_000), time_text(None), time_text("end")
    ('2023-11-14 22:13:20 UTC', '-', 'the end')
    """
    if micros == "end":
        return "the end"
    try:
        moment: Any = None if micros is None else datetime.fromtimestamp(micros // 1_000_000, UTC)
    except (OverflowError, ValueError, OSError):
        moment = None
    return "-" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
