"""Which substream the tuples of one window go to.

Invariant: what becomes of a tuple depends on its own columns and on nothing else: not on what came with it, nor on how
often it is asked. `broadcast` is looked at first, `route` only for those that do not go to all substreams. A rule that
cannot be followed (a function that fails, a value that is no substream) ends the run; with `keep`, a tuple on which an
SQL rule fails is put aside.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace import arrow
from headrace.errors import DataError
from headrace.expressions import Expression
from headrace.given import named
from headrace.kernels.aggregate import times
from headrace.kernels.evaluate import show
from headrace.kernels.stateless import Failed, evaluated
from headrace.plan import MapStep, SplitStep
from headrace.processor import Function
from headrace.routing.base import EVERYWHERE
from headrace.routing.hashing import hash_rows, scale
from headrace.types import SUBSTREAM, TS, TS_TYPE

SAMPLE = 16  # tuples of a window that a function is asked about a second time
TRACEBACK = 8  # lines of it that are shown

Values: TypeAlias = pa.Array | pa.ChunkedArray
Substreams = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Counts:
    """What became of the tuples that were split: each is one of these, or failed."""

    routed: int
    broadcast: int
    omitted: int


@dataclass(frozen=True)
class Divided:
    """tuples: with their substream; largest: the latest time of all that came, those that go nowhere included."""

    tuples: pa.Table
    counts: Counts
    largest: int | None
    failed: Sequence[Failed]


@dataclass(frozen=True)
class _Kind:
    """What a rule must give."""

    rule: str
    is_one: Callable[[pa.DataType], bool]
    type: pa.DataType  # of what is null throughout
    words: str
    cast: str


_ROUTE = _Kind("route", pa.types.is_integer, pa.int64(), "whole numbers", "int32")
_BROADCAST = _Kind("broadcast", pa.types.is_boolean, pa.bool_(), "booleans", "bool_")


def split(table: pa.Table, step: SplitStep, *, keep: bool) -> Divided:
    """The tuples of a window with the substream that each goes to; those that go nowhere are left out."""
    to_all, others, failed = _broadcast(table, step, keep)
    asked, targets, more = _routed(others, step, keep)
    somewhere = targets >= 0
    routed, omitted = int(np.count_nonzero(somewhere)), int(np.count_nonzero(~somewhere))
    if omitted:
        asked, targets = asked.filter(pa.array(somewhere)), targets[somewhere]
    parts = [_with(asked, targets), _everywhere(to_all, step)]
    return Divided(
        pa.concat_tables([part for part in parts if part.num_rows] or parts[:1]),
        Counts(routed, to_all.num_rows, omitted),
        int(times(table).max()) if table.num_rows else None,
        [each for each in (failed, more) if each],
    )


def _with(table: pa.Table, targets: Substreams) -> pa.Table:
    return table.append_column(pa.field(SUBSTREAM, pa.int32()), pa.array(targets, pa.int32()))


def _everywhere(table: pa.Table, step: SplitStep) -> pa.Table:
    """Tuples for all substreams: marked so, or one for each."""
    rows, copies = table.num_rows, step.substreams
    if not step.replicate:
        return _with(table, np.full(rows, EVERYWHERE, np.int32))
    repeated = arrow.take(table, np.repeat(np.arange(rows), copies))
    return _with(repeated, np.tile(np.arange(copies, dtype=np.int32), rows))


def _broadcast(table: pa.Table, step: SplitStep, keep: bool) -> tuple[pa.Table, pa.Table, Failed | None]:
    """(tuples for all substreams, the others, those that failed)."""
    if step.broadcast is None or not table.num_rows:
        return table.slice(0, 0), table, None
    rest, values, failed = _values(table, step, step.broadcast, _BROADCAST, keep)
    to_all = pc.fill_null(values, False)
    return rest.filter(to_all), rest.filter(pc.invert(to_all)), failed


def _routed(table: pa.Table, step: SplitStep, keep: bool) -> tuple[pa.Table, Substreams, Failed | None]:
    """(the tuples that did not fail, where each goes, below zero: nowhere; those that failed)."""
    if step.by is not None:
        return table, scale(hash_rows(table, step.by), step.substreams), None
    if not table.num_rows:
        return table, np.zeros(0, np.int32), None
    assert step.route is not None
    rest, values, failed = _values(table, step, step.route, _ROUTE, keep)
    _check_range(rest, values, step)
    return rest, np.asarray(pc.fill_null(values.cast(pa.int32()), -1)), failed


def _check_range(table: pa.Table, values: Values, step: SplitStep) -> None:
    found = pc.min_max(values).as_py()
    last = step.substreams - 1
    if found["min"] is None or (found["min"] >= 0 and found["max"] <= last):
        return
    row, value = next((row, v) for row, v in enumerate(values.to_pylist()) if v is not None and not 0 <= v <= last)
    msg = f"gave {value} for the tuple {show(table.slice(row, 1))}; substreams are 0 .. {last}, and null for a tuple that goes nowhere"
    raise _wrong(step, _ROUTE, msg)


def _values(
    table: pa.Table, step: SplitStep, rule: Expression | Function, kind: _Kind, keep: bool
) -> tuple[pa.Table, Values, Failed | None]:
    """(the tuples that did not fail, what a rule gives for each, those that failed)."""
    if isinstance(rule, Function):
        return table, _twice(table.select(step.columns), step, rule, kind), None
    asked = MapStep(((kind.rule, rule.sql),), pa.schema([(TS, TS_TYPE), (kind.rule, rule.type)]), rule.text)
    try:
        rest, found, failed = evaluated(table, asked, keep=keep)
    except DataError as error:
        raise DataError(
            f"the {kind.rule} of {step.name} ({step.text}): {error}; correct it, or use TRY_CAST or TRY"
        ) from None
    return rest, pa.array([], kind.type) if found is None else found.column(kind.rule), failed


# --- functions of the user's -----------------------------------------------------------------------------------------


def _twice(table: pa.Table, step: SplitStep, function: Function, kind: _Kind) -> Values:
    """What a function gives; of some tuples it is asked again, alone."""
    values = _answer(table, step, function, kind)
    rows = np.unique(np.linspace(0, table.num_rows - 1, min(SAMPLE, table.num_rows)).astype(np.int64))
    sample = arrow.take(table, rows)
    before = [values[int(row)].as_py() for row in rows]
    again = _answer(sample, step, function, kind).to_pylist()
    for place, (one, two) in enumerate(zip(before, again, strict=True)):
        if one != two:
            msg = (
                f"gave {one} and then {two} for the tuple {show(sample.slice(place, 1))}; what it gives may depend on the"
                " columns of that tuple alone: not on the tuples beside it, chance, the time or what came before"
            )
            raise _wrong(step, kind, msg)
    return values


def _answer(table: pa.Table, step: SplitStep, function: Function, kind: _Kind) -> Values:
    try:
        given = function.call(table)
    except Exception as error:
        many = f"{table.num_rows:,} tuple{'s' if table.num_rows > 1 else ''}"
        msg = f"failed on {many}, the first {show(table)}:\n{_last_lines(error)}"
        raise _wrong(step, kind, msg) from error
    values = _as_array(given, step, kind)
    if len(values) != table.num_rows:
        raise _wrong(step, kind, f"gave {len(values)} values for a table of {table.num_rows} tuples; give one for each")
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), kind.type)
    if not kind.is_one(values.type):
        msg = f"gave values of type {values.type} for tuples such as {show(table)}; give {kind.words}, such as an array of pa.{kind.cast}()"
        raise _wrong(step, kind, msg)
    return values


def _as_array(given: Any, step: SplitStep, kind: _Kind) -> Values:
    if isinstance(given, pa.Array | pa.ChunkedArray):
        return given
    if not isinstance(given, str | bytes | Mapping) and given is not None:
        try:
            return pa.array(given)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass
    raise _wrong(
        step,
        kind,
        f"gave {named(given):.200}; give {kind.words}, one for each tuple: an Arrow or NumPy array, or a list",
    )


def _last_lines(error: Exception) -> str:
    """Of the traceback, from the user's own function on."""
    inner = error.__traceback__.tb_next if error.__traceback__ else None
    lines = "".join(traceback.TracebackException(type(error), error, inner).format()).rstrip().splitlines()
    return "\n".join(lines[-TRACEBACK:])


def _wrong(step: SplitStep, kind: _Kind, found: str) -> DataError:
    rule = step.route if kind is _ROUTE else step.broadcast
    words = f"the function {rule.words}" if isinstance(rule, Function) else repr(rule.text if rule else "")
    return DataError(f"the {kind.rule} of {step.name} ({step.text}), {words}, {found}")
