"""The split of tuples into substreams, for one physical window.

Invariant: the target of a tuple depends only on its own columns, not on tuples beside it or on the number of calls.
`broadcast` is evaluated first, `route` only for the other tuples. A rule that fails (a function that raises, a value
that is not a substream) ends the run; with `keep`, a tuple on which an SQL rule fails is set aside.
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

from headrace.columnar import arrow, duck
from headrace.columnar.types import SUBSTREAM, TS, TS_TYPE
from headrace.errors import DataError
from headrace.expressions import Expression
from headrace.kernels.stateless.evaluate import first_tuple_text, try_evaluate
from headrace.kernels.stateless.steps import FailedTuples, evaluate_step
from headrace.kernels.windows.aggregate import times
from headrace.plan import MapStep, SplitStep
from headrace.processor import Function
from headrace.routing.base import EVERYWHERE, NOWHERE
from headrace.routing.hashing import hash_rows, scale
from headrace.support import user_code
from headrace.support.argument_errors import describe_argument

RECHECKED_TUPLES = 16  # tuples of a window for which a function is called a second time
TRACEBACK = 8  # traceback lines that are shown

Values: TypeAlias = pa.Array | pa.ChunkedArray
Substreams = npt.NDArray[np.int32]


@dataclass(frozen=True)
class SplitCounts:
    """Counts of the split tuples by target; failed tuples are not included."""

    routed: int
    broadcast: int
    omitted: int


@dataclass(frozen=True)
class SplitTuples:
    """The tuples of one window and their targets.

    asked: the tuples that did not fail. targets: a substream, `EVERYWHERE` or `NOWHERE` for each of them. largest: the
    latest time of all tuples of the window, omitted ones included.
    """

    asked: pa.Table
    targets: Substreams
    step: SplitStep
    counts: SplitCounts
    largest: int | None
    failed: Sequence[FailedTuples]

    @property
    def marked(self) -> pa.Table:
        """Return all tuples with their target as a column, omitted tuples included."""
        return _with(self.asked, self.targets)

    @property
    def tuples(self) -> pa.Table:
        """Return the tuples that have a substream. Broadcast tuples are marked, or copied once for each substream."""
        if not self.counts.omitted and not (self.step.replicate and self.counts.broadcast):
            return self.marked
        copies = np.where(self.targets == NOWHERE, 0, 1)
        if self.step.replicate:
            copies[self.targets == EVERYWHERE] = self.step.substreams
        rows = np.repeat(np.arange(len(copies)), copies)
        targets = self.targets[rows]
        if self.step.replicate:
            every = np.arange(self.step.substreams, dtype=np.int32)
            targets[targets == EVERYWHERE] = np.tile(every, self.counts.broadcast)
        return _with(arrow.take_rows(self.asked, rows), targets)


@dataclass(frozen=True)
class _Kind:
    """The values that a rule must return."""

    rule: str
    is_one: Callable[[pa.DataType], bool]
    type: pa.DataType  # for values that are all null
    summary: str
    cast: str


_ROUTE = _Kind("route", pa.types.is_integer, pa.int64(), "whole numbers", "int32")
_BROADCAST = _Kind("broadcast", pa.types.is_boolean, pa.bool_(), "booleans", "bool_")


def split_window(table: pa.Table, step: SplitStep, *, keep: bool) -> SplitTuples:
    """Split the tuples of a window."""
    asked, targets, failed = _at_once(table, step) or _one_by_one(table, step, keep)
    broadcast, omitted = (int(np.count_nonzero(targets == special)) for special in (EVERYWHERE, NOWHERE))
    counts = SplitCounts(len(targets) - broadcast - omitted, broadcast, omitted)
    return SplitTuples(asked, targets, step, counts, int(times(table).max()) if table.num_rows else None, failed)


def count_routed(tuples: pa.Table) -> int:
    """Return the number of tuples that have a substream, or of all tuples if the table is not split."""
    if SUBSTREAM not in tuples.column_names:
        return int(tuples.num_rows)
    return int(np.count_nonzero(np.asarray(tuples.column(SUBSTREAM)) != NOWHERE))


def _with(table: pa.Table, targets: Substreams) -> pa.Table:
    return table.append_column(pa.field(SUBSTREAM, pa.int32()), pa.array(targets, pa.int32()))


# The tuples that did not fail, the target of each, and the failed tuples.
Found = tuple[pa.Table, Substreams, Sequence[FailedTuples]]


def _at_once(table: pa.Table, step: SplitStep) -> Found | None:
    """Evaluate both rules in one query. Return None if a rule is a function or fails; this is rare."""
    route, broadcast = step.route, step.broadcast
    if not isinstance(route, Expression) or isinstance(broadcast, Function) or not table.num_rows:
        return None
    everywhere = f"coalesce({broadcast.sql}, false)" if broadcast else "false"
    sql = f"SELECT {everywhere} AS everywhere, CASE WHEN NOT {everywhere} THEN {route.sql} END AS route FROM __tuples"
    found = try_evaluate(sql, {duck.TUPLES: table}, step.text)
    if not isinstance(found, pa.Table) or not _in_range(found.column("route"), step):
        return None
    somewhere = np.asarray(pc.fill_null(found.column("route").cast(pa.int32()), NOWHERE))
    return table, np.where(np.asarray(found.column("everywhere")), np.int32(EVERYWHERE), somewhere), []


def _one_by_one(table: pa.Table, step: SplitStep, keep: bool) -> Found:
    """Evaluate the rules one by one, to find the failing tuples or to raise an error about one of them."""
    to_all, others, failed = _broadcast(table, step, keep)
    asked, targets, more = _routed(others, step, keep)
    everywhere = np.full(to_all.num_rows, EVERYWHERE, np.int32)
    both = pa.concat_tables([asked, to_all]) if to_all.num_rows else asked
    return both, np.concatenate([targets, everywhere]), [each for each in (failed, more) if each]


def _broadcast(table: pa.Table, step: SplitStep, keep: bool) -> tuple[pa.Table, pa.Table, FailedTuples | None]:
    """Return the tuples for all substreams, the other tuples, and the failed tuples."""
    if step.broadcast is None or not table.num_rows:
        return table.slice(0, 0), table, None
    rest, values, failed = _values(table, step, step.broadcast, _BROADCAST, keep)
    to_all = pc.fill_null(values, False)
    return rest.filter(to_all), rest.filter(pc.invert(to_all)), failed


def _routed(table: pa.Table, step: SplitStep, keep: bool) -> tuple[pa.Table, Substreams, FailedTuples | None]:
    """Return the tuples that did not fail, the target of each, and the failed tuples."""
    if step.by is not None:
        return table, scale(hash_rows(table, step.by), step.substreams), None
    if not table.num_rows:
        return table, np.zeros(0, np.int32), None
    assert step.route is not None
    rest, values, failed = _values(table, step, step.route, _ROUTE, keep)
    _check_range(rest, values, step)
    return rest, np.asarray(pc.fill_null(values.cast(pa.int32()), NOWHERE)), failed


def _in_range(values: Values, step: SplitStep) -> bool:
    found = pc.min_max(values).as_py()
    return found["min"] is None or (found["min"] >= 0 and found["max"] < step.substreams)


def _check_range(table: pa.Table, values: Values, step: SplitStep) -> None:
    last = step.substreams - 1
    if _in_range(values, step):
        return
    row, value = next((row, v) for row, v in enumerate(values.to_pylist()) if v is not None and not 0 <= v <= last)
    msg = f"gave {value} for the tuple {first_tuple_text(table.slice(row, 1))}; substreams are 0 .. {last}, and null omits a tuple"
    raise _wrong(step, _ROUTE, msg)


def _values(
    table: pa.Table, step: SplitStep, rule: Expression | Function, kind: _Kind, keep: bool
) -> tuple[pa.Table, Values, FailedTuples | None]:
    """Return the tuples that did not fail, the value of a rule for each, and the failed tuples."""
    if isinstance(rule, Function):
        return table, _twice(table.select(step.columns), step, rule, kind), None
    asked = MapStep(((kind.rule, rule.sql),), pa.schema([(TS, TS_TYPE), (kind.rule, rule.type)]), rule.text)
    try:
        rest, found, failed = evaluate_step(table, asked, keep=keep)
    except DataError as error:
        raise DataError(
            f"the {kind.rule} of {step.name} ({step.text}): {error}; correct it, or use TRY_CAST or TRY"
        ) from None
    return rest, pa.array([], kind.type) if found is None else found.column(kind.rule), failed


# --- user functions --------------------------------------------------------------------------------------------------


def _twice(table: pa.Table, step: SplitStep, function: Function, kind: _Kind) -> Values:
    """Return the values of a function. Some tuples are passed again, without the others, and must give the same values."""
    values = _answer(table, step, function, kind)
    rows = np.unique(np.linspace(0, table.num_rows - 1, min(RECHECKED_TUPLES, table.num_rows)).astype(np.int64))
    sample = arrow.take_rows(table, rows)
    before = [values[int(row)].as_py() for row in rows]
    again = _answer(sample, step, function, kind).to_pylist()
    for place, (one, two) in enumerate(zip(before, again, strict=True)):
        if one != two:
            msg = (
                f"gave {one} and then {two} for the tuple {first_tuple_text(sample.slice(place, 1))}; what it gives may depend on the"
                " columns of that tuple alone: not on the tuples beside it, chance, the time or what came before"
            )
            raise _wrong(step, kind, msg)
    return values


def _answer(table: pa.Table, step: SplitStep, function: Function, kind: _Kind) -> Values:
    def failed(error: BaseException) -> DataError:
        many = f"{table.num_rows:,} tuple{'s' if table.num_rows > 1 else ''}"
        return _wrong(step, kind, f"failed on {many}, the first {first_tuple_text(table)}:\n{_last_lines(error)}")

    place = f"the {kind.rule} of {step.name}, the function {function.summary}"
    given = user_code.call_user_code(place, function.call, table, failed=failed)
    values = _as_array(given, step, kind)
    if len(values) != table.num_rows:
        raise _wrong(step, kind, f"gave {len(values)} values for a table of {table.num_rows} tuples; give one for each")
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), kind.type)
    if not kind.is_one(values.type):
        msg = f"gave values of type {values.type} for tuples such as {first_tuple_text(table)}; give {kind.summary}, such as an array of pa.{kind.cast}()"
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
    msg = f"gave {describe_argument(given):.200}; give {kind.summary}, one for each tuple: an Arrow or NumPy array, or a list"
    raise _wrong(step, kind, msg)


def _last_lines(error: BaseException) -> str:
    """Return the last lines of the traceback, from the user's function on."""
    inner = error.__traceback__.tb_next if error.__traceback__ else None
    lines = "".join(traceback.TracebackException(type(error), error, inner).format()).rstrip().splitlines()
    return "\n".join(lines[-TRACEBACK:])


def _wrong(step: SplitStep, kind: _Kind, found: str) -> DataError:
    rule = step.route if kind is _ROUTE else step.broadcast
    words = f"the function {rule.summary}" if isinstance(rule, Function) else repr(rule.text if rule else "")
    return DataError(f"the {kind.rule} of {step.name} ({step.text}), {words}, {found}")
