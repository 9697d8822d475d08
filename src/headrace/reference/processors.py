"""A processor on one substream: its calls, their order, and the rows that it may emit.

Invariant: the calls of a substream follow only from its tuples and from how far time has advanced. Here tuples are
passed one `ts` at a time, so that every emitted row can be compared with its cause.
"""

from __future__ import annotations

import copy
import datetime as dt
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar.types import TS
from headrace.errors import DataError
from headrace.processor import ONLY, Declaration, Processor, Put
from headrace.query import nodes
from headrace.reference.state_tables import MICROSECOND, UNIX_EPOCH, DictTable, coerce_to_schema, tables_of
from headrace.reference.tuples import times_of
from headrace.support import user_code
from headrace.support.argument_errors import describe_argument
from headrace.support.event_time import FURTHEST
from headrace.support.secrets import SealedSettings, resolve_secrets

Rows = dict[str, pa.Table]  # by output
TICK, PROCESS, END = "tick", "process", "end"


class TooEarly(DataError):
    """The `ts` of an emitted row is before its cause."""


@dataclass(frozen=True)
class DueCall:
    """One call of a processor. time: of the tick, of the end, or of the first tuple."""

    what: str
    time: int
    tuples: pa.Table | None = None

    @property
    def place(self) -> tuple[int, str]:
        """Return the place of the call among those of a substream."""
        return self.time, self.what

    @property
    def summary(self) -> str:
        if self.tuples is None:
            return f"in {self.what} at {call_text(self.time)}"
        last = int(times_of(self.tuples)[-1])
        until = "" if last == self.time else f" to {call_text(last)}"
        return f"in {self.what} of {self.tuples.num_rows} tuples at {call_text(self.time)}{until}"


def run_processor(
    node: nodes.Apply, substream: int, tuples: pa.Table, watermark: float, last: int, most: int, reached: float
) -> list[Rows]:
    """Return the output of each call.

    tuples: those before the watermark, in sequence. last: the last `ts` of the whole stream. reached: the watermark
    before the end, which may be later than `last`.
    """
    if not tuples.num_rows:
        return []
    one_copy = ReferenceCopy(node.processor, node.declared, substream, node.rule.substreams)
    state = tables_of(node.declared.tables)
    calls = calls_of(tuples, node.declared, watermark, last, substream, most, reached)
    return [one_copy.call(call, state) for call in calls]


def calls_of(
    tuples: pa.Table,
    declared: Declaration,
    watermark: float,
    last: int,
    substream: int,
    most: int,
    reached: float = -math.inf,
) -> list[DueCall]:
    """Return the calls in order. At equal times a tick comes before the tuples; the end comes after everything."""
    times = times_of(tuples).tolist()
    ended = watermark == math.inf
    calls = list(_processing(tuples, times))
    if declared.every is not None:
        ticks = _ticks(times[0], declared.every, last, watermark, reached)
        if len(ticks) > most:
            raise DataError(
                f"{declared.name} would get {len(ticks):,} ticks in substream {substream}, at most {most:,} in one epoch:"
                f" from {call_text(times[0])} on, every {declared.every / 1e6:g} seconds; if a time lies too far in the"
                " future, give the source ahead=... so that it is rejected, or give the processor a longer every"
            )
        calls = sorted(
            [*calls, *(DueCall(TICK, time) for time in ticks)], key=lambda call: (call.time, call.what == PROCESS)
        )
    ends = last if reached == -math.inf else max(last, int(reached))  # no output is below the watermark
    return [*calls, DueCall(END, ends)] if ended else calls


def _processing(tuples: pa.Table, times: list[int]) -> Iterator[DueCall]:
    start = 0
    for time, same in groupby(times):
        rows = len(list(same))
        yield DueCall(PROCESS, time, tuples.slice(start, rows).combine_chunks())
        start += rows


def _ticks(first: int, every: int, last: int, watermark: float, reached: float) -> range:
    """Return the ticks: multiples of `every` after the first time, up to the watermark; at the end, up to the one after
    the last time, or up to the watermark before the end."""
    if watermark == math.inf:
        behind = (last // every + 1) * every  # // rounds down, also below zero
        until = behind if reached == -math.inf else max(behind, int(reached))
    else:
        until = int(watermark)
    return range((first // every + 1) * every, until + 1, every)


class ReferenceCopy:
    """A processor's copy for one substream."""

    def __init__(self, processor: Processor, declared: Declaration, substream: int, substreams: int) -> None:
        self.processor, self.declared, self.substream = copy.deepcopy(processor), declared, substream
        self._settings = SealedSettings(vars(processor))
        vars(self.processor).update(resolve_secrets(vars(self.processor)))
        with self._settings.hiding():
            user_code.call_user_code(
                f"{self._where}, open",
                self.opened,
                substreams,
                failed=lambda error: DataError(f"{self._where} failed in open: {_told(error)}"),
            )

    def opened(self, substreams: int) -> None:
        self.processor.open(self.substream, substreams)

    @property
    def _where(self) -> str:
        return f"{self.declared.name} in substream {self.substream}"

    def call(self, call: DueCall, state: Mapping[str, DictTable]) -> Rows:
        """Call the processor and return its rows by output."""
        if getattr(type(self.processor), call.what) is getattr(Processor, call.what):  # not defined
            return self._checked(None, call)
        given = to_time(call.time) if call.tuples is None else call.tuples
        with self._settings.hiding():
            put = user_code.call_user_code(
                self._where,
                self.made,
                getattr(self.processor, call.what),
                given,
                state,
                failed=lambda error: DataError(f"{self._where} failed {call.summary}: {_told(error)}"),
            )
        try:
            return self._checked(put, call)
        except DataError as error:
            raise type(error)(f"{self._where}, {call.summary}: {error}") from None

    def made(self, method: Any, given: Any, state: Mapping[str, DictTable]) -> Put:
        put: Put = method(given, state)
        for table in state.values():
            table.demand_told()
        return put

    def _checked(self, put: Put, call: DueCall) -> Rows:
        schemas = dict(self.declared.outputs)
        tables = self._by_output(put)
        for name in tables:
            if name not in schemas:
                raise DataError(f"there is no output {name!r}; it has {', '.join(schemas)}")
        return {name: _rows(tables.get(name), schema, name, call) for name, schema in schemas.items()}

    def _by_output(self, put: Put) -> Mapping[str, pa.Table | None]:
        if put is None:
            return {}
        if not self.declared.several:
            return {ONLY: put}
        if not isinstance(put, Mapping):
            names = ", ".join(name for name, _ in self.declared.outputs)
            raise DataError(
                f"its output must be a dict {{output: table}} of {names}, or None; found {describe_argument(put)}"
            )
        return put


def _rows(table: pa.Table | None, schema: pa.Schema, output: str, call: DueCall) -> pa.Table:
    if table is None:
        return schema.empty_table()
    rows = coerce_to_schema(_in_utc(table), schema, f"output {output!r}" if output != ONLY else "its output")
    if rows[TS].null_count:
        raise DataError(f"an emitted row has no time: {TS!r} is null; give it that of its tuple, or a later one")
    if not rows.num_rows:
        return rows
    earliest, latest = pc.min_max(rows[TS].cast(pa.int64())).as_py().values()
    if latest > FURTHEST:
        raise DataError(
            f"an emitted row has ts {call_text(latest)}, which is beyond 73,000 years; no stream has such times"
        )
    if earliest < call.time:
        raise TooEarly(
            f"a row is emitted too early: its ts is {call_text(earliest)}, which is before its cause, {call_text(call.time)};"
            " use that time or a later one as ts, and put the earlier time into another column"
        )
    return rows


def _in_utc(table: Any) -> Any:
    """Return the table with a time without a zone as UTC."""
    if not isinstance(table, pa.Table) or table.column_names.count(TS) != 1:
        return table
    kind, place = table.schema.field(TS).type, table.column_names.index(TS)
    if not pa.types.is_timestamp(kind) or kind.tz:
        return table
    return table.set_column(place, TS, table[TS].cast(pa.timestamp(kind.unit, "UTC")))


def to_time(time: int) -> dt.datetime:
    try:
        return UNIX_EPOCH + time * MICROSECOND
    except OverflowError:
        raise DataError(f"the time {time} (microseconds since 1970) is beyond those that Python has") from None


def call_text(time: int) -> str:
    try:
        return str(UNIX_EPOCH + time * MICROSECOND)
    except OverflowError:
        return f"{time} microseconds since 1970"


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
