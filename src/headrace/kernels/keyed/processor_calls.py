"""The calls of a processor on one substream: their tuples, their times, and the checks of their output.

Invariant: the calls, and their order relative to the tuples, follow only from the substream and the watermarks. The
calls of all epochs together equal the calls of a run in one epoch; only the cuts between calls of `process` may differ.
Tuples with one `ts` are never cut apart, because no watermark or tick divides a time. Every error in a call is a `DataError` that names
processor, substream, method and times, and the line of the user's code.
"""

from __future__ import annotations

import copy
import os
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.columnar.arrow import Numbers
from headrace.columnar.types import TS, TS_TYPE, value_text
from headrace.errors import DataError, HeadraceError, MissingSecret
from headrace.kernels.stateless.coerce_rows import coerce_rows
from headrace.kernels.windows.aggregate import times
from headrace.processor import ONLY, Declaration, Processor, ProcessorTable, State
from headrace.support import user_code
from headrace.support.argument_errors import describe_argument
from headrace.support.event_time import FOREVER, FURTHEST, NEVER, to_datetime
from headrace.support.secrets import resolve_secrets

MOST_TICKS = 100_000  # ticks of a substream in one epoch
MOST_OWNERS = 16  # pairs of run and operator
MOST_COPIES = 10_000  # opened processors that a process keeps
SHOWN_FRAMES = 3  # innermost calls that are shown besides the method
_OWN = str(Path(__file__).parents[1])


# --- times of ticks --------------------------------------------------------------------------------------------------


def ticks_due(
    every: int | None, first: int | None, before: int, after: int, last: int | None, reached: int = NEVER
) -> range:
    """Return the times of the ticks while the watermark moves from `before` to `after`, in microseconds.

    every    ticks are multiples of this number, counted from 1970; None: no ticks
    first    the first `ts` of the substream, this epoch's tuples included; None: it has had no tuple
    last     the last `ts` of the whole stream that was split; needed at the end, where `after` is FOREVER
    reached  the watermark before the end; it may be later than the last split tuple
    """
    if every is None or first is None:
        return range(0)
    if after == FOREVER:
        assert last is not None, "a stream that has had a tuple has a last one"
        after = max(_next(last, every), reached // every * every)
    return range(_next(max(first, before), every), after + 1, every)


def _next(time: int, every: int) -> int:
    """Return the first multiple of `every` after a time."""
    return (time // every + 1) * every


# --- calls -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProcessorCall:
    """One call of a processor, for errors and for the check of output times."""

    declared: Declaration
    substream: int
    method: str
    first: int
    last: int

    @property
    def summary(self) -> str:
        span = f"at {_time(self.first)}"
        if self.method == "process":
            until = f"from {_time(self.first)} to {_time(self.last)}"
            span = f"of tuples {span if self.first == self.last else until}"
        return f"{self.place}, {span}"

    @property
    def place(self) -> str:
        """Return the method and the substream, a text that is cheap to build."""
        return f"{self.declared.name}.{self.method} on substream {self.substream}"


class _Tables(dict[str, ProcessorTable]):
    """The state tables of a processor. An unknown name raises an error that lists the tables."""

    def __missing__(self, name: str) -> ProcessorTable:
        known = ", ".join(self) or "none; declare it: tables = {name: headrace.StateTable(...)}"
        raise DataError(f"there is no table {name!r}; the processor's tables are {known}")


def run_processor(
    processor: Processor,
    declared: Declaration,
    substream: int,
    tuples: pa.Table,
    state: State,
    ticks: Sequence[int],
    end: int | None,
) -> Iterator[tuple[int, pa.Table]]:
    """Pass tuples (in sequence) and ticks to a processor, then `end` unless it is None; yield (number of the output,
    rows).

    The calls happen while the caller iterates, so it must consume all results.
    """
    _check_ticks(declared, substream, ticks)
    state = _Tables(state)
    at = times(tuples)
    cuts = [*np.searchsorted(at, np.asarray(ticks, np.int64), side="left").tolist(), len(at)]
    start = 0
    for cut, tick in zip(cuts, [*ticks, None], strict=True):
        if start < cut:
            piece = ProcessorCall(declared, substream, "process", int(at[start]), int(at[cut - 1]))
            yield from _called(piece, processor.process, tuples.slice(start, cut - start), state)
            start = cut
        if tick is not None:
            yield from _timed(ProcessorCall(declared, substream, "tick", tick, tick), processor.tick, state)
    if end is not None and type(processor).end is not Processor.end:
        yield from _timed(ProcessorCall(declared, substream, "end", end, end), processor.end, state)


def _check_ticks(declared: Declaration, substream: int, ticks: Sequence[int]) -> None:
    if len(ticks) > MOST_TICKS:
        msg = (
            f"{declared.name} on substream {substream} would tick {len(ticks):,} times in one epoch, from {_time(ticks[0])}"
            f" to {_time(ticks[-1])}; at most {MOST_TICKS:,}; if a tuple's time is wrong, reject such tuples with"
            " ahead='1 hour' of its source; else let it tick less often (every)"
        )
        raise DataError(msg)


def _timed(call: ProcessorCall, method: Callable[..., Any], state: State) -> Iterator[tuple[int, pa.Table]]:
    try:
        time = to_datetime(call.first)
    except OverflowError:
        msg = f"{call.summary} cannot be called: Python has no such date; reject times too far ahead with ahead='1 hour' of the source"
        raise DataError(msg) from None
    yield from _called(call, method, time, state)


def _called(
    call: ProcessorCall, method: Callable[..., Any], given: Any, state: State
) -> Iterator[tuple[int, pa.Table]]:
    put = user_code.call_user_code(
        call.place, method, given, state, failed=lambda error: user_code_error(call.summary, error)
    )
    return _checked(call, put)


# --- output ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _CallOutput:
    """The name of one output of a call, built only for error messages because calls are frequent."""

    call: ProcessorCall
    output: str

    def __str__(self) -> str:
        what = "its output" if self.output == ONLY else f"its output {self.output!r}"
        return f"{self.call.summary}: {what}"


def _checked(call: ProcessorCall, put: Any) -> Iterator[tuple[int, pa.Table]]:
    """Yield the number and rows of each output of a call, in the declared schema."""
    if put is None:
        return
    by_name = _by_name(call, put)
    for number, (name, schema) in enumerate(call.declared.outputs):
        if by_name.get(name) is not None:
            what = _CallOutput(call, name)
            rows = coerce_rows(_in_utc(by_name[name]), schema, what)
            if rows.num_rows:
                _check_times(call, rows, what)
                yield number, rows


def _in_utc(given: Any) -> Any:
    """Return the table with an event time without a zone as UTC, as sources treat it."""
    if isinstance(given, pa.Table) and given.column_names.count(TS) == 1:
        kind = given.schema.field(TS).type
        if pa.types.is_timestamp(kind) and not kind.tz:
            place = given.column_names.index(TS)
            return given.set_column(place, TS, given.column(place).cast(pa.timestamp(kind.unit, "UTC")))
    return given


def _by_name(call: ProcessorCall, put: Any) -> Mapping[str, Any]:
    names = [name for name, _ in call.declared.outputs]
    if not call.declared.several:
        if isinstance(put, Mapping):
            msg = f"{call.summary}: it has one output, so it must return a pyarrow Table or None; found {describe_argument(put)}; for several declare outputs = {{name: schema}}"
            raise DataError(msg)
        return {ONLY: put}
    if not isinstance(put, Mapping):
        msg = f"{call.summary}: it has several outputs, so it must return {{name: table}} or None; found {describe_argument(put)}; the names are {', '.join(names)}"
        raise DataError(msg)
    for name in put:
        if name not in names:
            raise DataError(f"{call.summary}: it has no output {name!r}; it has {', '.join(names)}")
    return put


def _check_times(call: ProcessorCall, rows: pa.Table, what: _CallOutput) -> None:
    if rows.column(TS).null_count:
        row = int(np.flatnonzero(np.asarray(rows.column(TS).is_null()))[0])
        msg = f"{what} has no ts (null) in row {row}; every row needs its event time, such as that of its tuple"
        raise DataError(msg)
    found: Numbers = times(rows)
    if int(found.max()) > FURTHEST:
        row = int(np.argmax(found))
        msg = f"{what} has ts {_time(int(found[row]))} in row {row}, which is beyond 73,000 years; no stream has such times"
        raise DataError(msg)
    if int(found.min()) < call.first:
        row = int(np.argmin(found))
        cause = "the first tuple it was handed" if call.method == "process" else "its own time"
        msg = (
            f"{what} has ts {_time(int(found[row]))} in row {row}, which is before {cause}, {_time(call.first)};"
            " a row's ts must not be before its cause: use that time as ts, and put the earlier time into another column"
        )
        raise DataError(msg)


# --- errors ----------------------------------------------------------------------------------------------------------


def user_code_error(what: str, error: BaseException) -> DataError:
    """Return an error for a failure in user code, with the lines that raised it as text, because it may cross
    processes."""
    own = isinstance(error, HeadraceError)
    summary = str(error) if own else "".join(traceback.format_exception_only(error)).strip()
    return DataError(f"{what}, failed: {summary}\n{_lines(error)}".rstrip())


def _lines(error: BaseException) -> str:
    """Return the user's method and the innermost calls. Calls of headrace below them are omitted."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is `call_user_code`
    if isinstance(error, HeadraceError):
        while len(frames) > 1 and frames[-1].filename.startswith(_OWN):
            frames.pop()
    some = [*frames[:1], *frames[1:][-SHOWN_FRAMES:]]
    lines = traceback.StackSummary.from_list(some).format()
    if len(some) < len(frames):
        lines.insert(1, f"  ... {len(frames) - len(some)} calls between\n")
    return "".join(lines)


def _time(micros: int) -> str:
    return value_text(pa.scalar(micros, TS_TYPE))


# --- copies ----------------------------------------------------------------------------------------------------------


class ProcessorCopies:
    """Opened copies of processors, one for each substream: the most recently used, of a few owners.

    Python workers outlive runs and are not notified when a run ends.
    """

    def __init__(self, most: int = MOST_COPIES, owners: int = MOST_OWNERS) -> None:
        self._most, self._most_owners = most, owners
        self.forget()

    def forget(self) -> None:
        """Start without copies. A forked process needs its own copies and its own lock."""
        self._kept: OrderedDict[tuple[str, int, int], Processor] = OrderedDict()
        self._owners: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.RLock()

    def copy_of(self, processor: Processor, owner: str, substream: int, substreams: int) -> Processor:
        """Return the opened copy for a substream in this process. owner: identifies run, operator and settings."""
        key = (owner, substream, substreams)
        with self._lock:
            self._use(owner)
            if key not in self._kept:
                self._kept[key] = _opened(processor, substream, substreams)
                while len(self._kept) > self._most:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]

    def _use(self, owner: str) -> None:
        self._owners[owner] = None
        self._owners.move_to_end(owner)
        if len(self._owners) > self._most_owners:
            gone, _ = self._owners.popitem(last=False)
            for key in [key for key in self._kept if key[0] == gone]:
                del self._kept[key]

    def __len__(self) -> int:
        return len(self._kept)


def _opened(processor: Processor, substream: int, substreams: int) -> Processor:
    name = type(processor).__name__
    made: Processor = user_code.call_user_code(
        f"the copy of {name} for substream {substream}",
        copy.deepcopy,
        processor,
        failed=lambda error: DataError(
            f"{name} cannot be copied for substream {substream}: {error}; set plain values on it, and make the rest in open"
        ),
    )
    try:
        vars(made).update(resolve_secrets(vars(made)))
    except MissingSecret as error:
        raise MissingSecret(f"{name} on substream {substream} of {substreams}: {error}") from None
    place = f"{name}.open on substream {substream} of {substreams}"
    user_code.call_user_code(
        place, made.open, substream, substreams, failed=lambda error: user_code_error(place, error)
    )
    return made


COPIES = ProcessorCopies()
copy_of = COPIES.copy_of
os.register_at_fork(after_in_child=COPIES.forget)
