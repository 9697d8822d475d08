"""The substream of a tuple.

Invariant: a tuple whose `broadcast` is true is in every substream, once, and its `route` is not evaluated. Any other
tuple is in the substream that `route` gives, or in none if that is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.columnar.values import rows_text
from headrace.errors import DataError
from headrace.expressions import Expression
from headrace.processor import Function
from headrace.query import nodes
from headrace.reference.evaluate import passing_tuples, value_of
from headrace.reference.tuples import row_numbers, single_value
from headrace.routing.hashing import groups_of
from headrace.support import user_code
from headrace.support.argument_errors import describe_argument

ALL_SUBSTREAMS = -1  # the target of a broadcast tuple
RECHECKED_TUPLES = 16  # tuples for which a function is called a second time
VALUE = "__value"  # column with the value of an expression


def split_tuples(rule: nodes.Rule, tuples: pa.Table, *, keep: bool) -> tuple[dict[int, pa.Table], pa.Table]:
    """Return the tuples by substream, and those on which SQL failed. keep: a failure is not an error."""
    everywhere, others, failing = _broadcast(rule, tuples, keep)
    if rule.by is not None:
        numbers: Sequence[int | None] = groups_of(others, rule.by, rule.substreams).tolist()
    else:
        assert rule.route is not None
        others, numbers, unrouted = _valued(rule, rule.route, "route", others, keep)
        failing = single_value([failing, unrouted])
        _check(rule, numbers, others)
    rows: dict[int, list[int]] = {}
    for row, number in enumerate(numbers):
        if number is not None:
            rows.setdefault(number, []).append(row)
    shares = {number: others.take(row_numbers(mine)) for number, mine in rows.items()}
    return shares | ({ALL_SUBSTREAMS: everywhere} if everywhere.num_rows else {}), failing


def _broadcast(rule: nodes.Rule, tuples: pa.Table, keep: bool) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Return the broadcast tuples, the others, and those on which the condition failed; null is not true."""
    nothing = tuples.slice(0, 0)
    if rule.broadcast is None:
        return nothing, tuples, nothing
    asked, values, failing = _valued(rule, rule.broadcast, "broadcast", tuples, keep)
    true = np.array([value is True for value in values], bool)
    return asked.filter(pa.array(true)), asked.filter(pa.array(~true)), failing


def _check(rule: nodes.Rule, numbers: Sequence[int | None], tuples: pa.Table) -> None:
    for row, number in enumerate(numbers):
        if number is not None and not 0 <= number < rule.substreams:
            tuple_ = rows_text(tuples.slice(row, 1))[0]
            raise DataError(
                f"{_words(rule, 'route')} gives {number} for {tuple_}; there are substreams 0 .. {rule.substreams - 1};"
                " give null to omit a tuple"
            )


def _words(rule: nodes.Rule, what: str) -> str:
    return f"the {what} of the split {rule.summary}"


def _valued(
    rule: nodes.Rule, given: Expression | Function, what: str, tuples: pa.Table, keep: bool
) -> tuple[pa.Table, list[Any], pa.Table]:
    """Return the tuples that have a value, their values, and those on which SQL failed."""
    nothing = tuples.slice(0, 0)
    if tuples.num_rows == 0:
        return tuples, [], nothing
    if isinstance(given, Function):
        return tuples, _asked_twice(given, _words(rule, what), what == "route", tuples), nothing

    def asked(some: pa.Table) -> pa.Table:
        return some.append_column(VALUE, value_of(given, some))

    empty = nothing.append_column(VALUE, pa.array([], given.type))
    valued, failing = passing_tuples(asked, empty, tuples) if keep else (asked(tuples), nothing)
    return valued.drop_columns([VALUE]), valued[VALUE].to_pylist(), failing


def _asked_twice(function: Function, what: str, route: bool, tuples: pa.Table) -> list[Any]:
    """Return the values of a function. The first tuples are passed again and must give the same values."""
    found = _called(function, what, route, tuples)
    again = _called(function, what, route, tuples.slice(0, RECHECKED_TUPLES))
    for row, (first, second) in enumerate(zip(found, again, strict=False)):
        if first != second:
            tuple_ = rows_text(tuples.slice(row, 1))[0]
            raise DataError(
                f"{what}, {function.summary}, gives {first} and then {second} for {tuple_}; it may depend on that tuple alone"
            )
    return found


def _called(function: Function, what: str, route: bool, tuples: pa.Table) -> list[Any]:
    """Return one value for every tuple; the function receives all of them."""
    found = user_code.call_user_code(
        what,
        function.call,
        tuples,
        failed=lambda error: DataError(f"{what}, {function.summary}, failed: {type(error).__name__}: {error}"),
    )
    values = _array(found, function, what)
    if len(values) != tuples.num_rows:
        raise DataError(f"{what}, {function.summary}, gives {len(values)} values for {tuples.num_rows} tuples")
    fits = pa.types.is_integer if route else pa.types.is_boolean
    if not fits(values.type) and not pa.types.is_null(values.type):
        wanted = "whole numbers" if route else "booleans"
        raise DataError(f"{what}, {function.summary}, must give {wanted}, one for each tuple; found {values.type}")
    plain: list[Any] = values.to_pylist()
    return plain


def _array(found: Any, function: Function, what: str) -> pa.Array:
    if isinstance(found, pa.Array | pa.ChunkedArray):
        return found
    if isinstance(found, np.ndarray | list | tuple):
        try:
            return pa.array(found)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
            raise DataError(f"{what}, {function.summary}, gave values that are not a column: {error}") from None
    raise DataError(
        f"{what}, {function.summary}, must give an Arrow or NumPy array, or a list; found {describe_argument(found)}"
    )
