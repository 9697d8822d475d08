"""Casts between values of a compiled loop. Each gives DuckDB's result or marks the pair for DuckDB.

If a cast would fail, the pair is marked as failing. If it would be null instead (`try_cast`), the value is marked as in
doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace.expressions.bound_expression import ValueType
from headrace.expressions.loop_values import WHOLE_FORMS, LoopValue, form_of
from headrace.expressions.number_functions import DOUBLE, ERROR_MARGIN, EXACT_DOUBLES, NumberFunctions, Unsupported


def cast_value(n: NumberFunctions, a: LoopValue, kind: ValueType, *, lenient: bool) -> LoopValue:
    """Return the value in another type. lenient: a failing cast gives null instead of an error."""
    inner = len(n.s.fails)
    make = _CASTS.get((a.form, form_of(kind)))
    if make is None and a.kind != kind:
        raise Unsupported(f"a cast from {a.kind} to {kind}")
    found = make(n, a, kind) if make else a
    if lenient and len(n.s.fails) > inner:  # DuckDB decides whether the cast fails and the value is null
        doubt = n.s.either(*n.s.fails[inner:])
        del n.s.fails[inner:]
        found = n.s.doubted(found, doubt)
    return found


def _to_double(n: NumberFunctions, a: LoopValue, kind: ValueType) -> LoopValue:
    return replace(a, kind=kind, value=n.s.let(f"f64({a.value})"), top=float(a.top))


def _to_single(n: NumberFunctions, a: LoopValue, kind: ValueType) -> LoopValue:
    if a.form == "double" and a.top > 3e38:
        n.s.fail(f"(abs({a.value}) + {a.error or 0.0} < 3e38) ^ True", a)
    return n.single(a)


def _double_to_whole(n: NumberFunctions, a: LoopValue, kind: ValueType) -> LoopValue:
    """Round to the nearest whole number, halves to even."""
    low, high = WHOLE_FORMS[kind.name]
    value = n.s.let(f"rint({a.value})")
    ends = f"({value} > {low + 0.0 if low else -1.0!r}) & ({value} < {high - 1024.0 if high > 2**53 else high + 0.0!r})"
    inside = n.s.let(ends)
    if a.error:
        same = f"(rint({a.value} - {a.error}) == {value}) & (rint({a.value} + {a.error}) == {value})"
        a = n.s.doubted(a, n.s.let(f"({same}) ^ True"))
    n.s.fail(n.s.negated(inside), a)
    whole = n.s.let(f"i64(where({inside}, {value}, 0.0))")
    return LoopValue(kind, whole, None, a.null, a.doubt, min(a.top + 1.0, high), a.positive)


def _whole_to_whole(n: NumberFunctions, a: LoopValue, kind: ValueType) -> LoopValue:
    low, high = WHOLE_FORMS[kind.name]
    own_low, own_high = WHOLE_FORMS.get(a.kind.name, (0, 1))
    if own_low < low or own_high > high:
        n.s.fail(f"(({a.value} >= {low}) & ({a.value} <= {high})) ^ True", a)
    return replace(a, kind=kind, top=min(a.top, high + 1))


def _flag_to_whole(n: NumberFunctions, a: LoopValue, kind: ValueType) -> LoopValue:
    return replace(a, kind=kind, value=n.s.let(f"i64({a.value})"), positive=True)


def _whole_to_wide(n: NumberFunctions, a: LoopValue, kind: ValueType) -> LoopValue:
    source = f"f64({a.value})"
    if a.top > EXACT_DOUBLES:
        error = f"where(abs({source}) < {EXACT_DOUBLES!r}, 0.0, abs({source}) * {2.0**-52!r}) * {10.0**kind.scale!r}"
    else:
        error = None
    return n.wide((a,), f"{source} * {10.0**kind.scale!r}", error, a.top * 10**kind.scale, kind)


def _wide_to_wide(n: NumberFunctions, a: LoopValue, kind: ValueType) -> LoopValue:
    return n.rescaled(a, kind)


def _wide_to_double(n: NumberFunctions, a: LoopValue, kind: ValueType) -> LoopValue:
    ten = repr(10.0**a.kind.scale)
    value = n.s.let(f"{a.value} / {ten}")
    error = None
    if a.top > EXACT_DOUBLES:
        error = n.s.let(
            f"({a.error or 0.0} / {ten}) * {ERROR_MARGIN} + where(abs({a.value}) < {EXACT_DOUBLES!r}, 0.0, abs({value}) * {2.0**-50!r})"
        )
    elif a.error:
        error = n.s.let(f"({a.error} / {ten}) * {ERROR_MARGIN} + abs({value}) * {2.0**-50!r}")
    return replace(a, kind=kind, value=value, error=error, top=a.top / 10.0**a.kind.scale)


def _wide_to_single(n: NumberFunctions, a: LoopValue, kind: ValueType) -> LoopValue:
    found = _wide_to_double(n, a, DOUBLE)
    error = n.s.let(f"{found.error or 0.0} + abs({found.value}) * {2.0**-21!r}")
    return replace(found, kind=kind, error=error)


def _wide_to_whole(n: NumberFunctions, a: LoopValue, kind: ValueType) -> LoopValue:
    low, high = WHOLE_FORMS[kind.name]
    found = n.rescaled(a, ValueType("DECIMAL", 38, 0))
    inside = n.s.let(f"abs({found.value}) < {min(float(high), EXACT_DOUBLES)!r}")
    if low == 0:
        inside = n.s.let(f"{inside} & ({found.value} >= 0.0)")
    n.s.fail(n.s.negated(inside), found)
    whole = n.s.let(f"i64(where({inside}, {found.value}, 0.0))")
    return LoopValue(kind, whole, None, found.null, found.doubt, min(found.top, high))


def _double_to_wide(n: NumberFunctions, a: LoopValue, kind: ValueType) -> LoopValue:
    """Convert to a decimal. DuckDB moves values slightly away from zero before rounding, so values near a half are in
    doubt.
    """
    if kind.name != "DECIMAL":
        raise Unsupported(f"a cast from {a.kind} to {kind}")
    scaled = n.times(replace(a, kind=DOUBLE), LoopValue(DOUBLE, repr(10.0**kind.scale), top=10.0**kind.scale))
    most = min(10.0**kind.width, EXACT_DOUBLES)
    n.s.fail(f"(abs({scaled.value}) + {scaled.error or 0.0} < {most * (1 - 1e-9)!r}) ^ True", a)
    found = n.rounded(scaled, margin=1e-6)
    return replace(found, kind=kind, top=most)


def _to_flag(n: NumberFunctions, a: LoopValue, kind: ValueType) -> LoopValue:
    zero = "0" if a.form == "whole" else "0.0"
    found = LoopValue(kind, n.s.let(f"{a.value} != {zero}"), None, a.null, a.doubt, 1.0)
    if not a.error:
        return found
    return n.s.doubted(found, n.s.let(f"((abs({a.value}) > {a.error}) | ({a.error} == 0.0)) ^ True"))


def _date_to_time(n: NumberFunctions, a: LoopValue, kind: ValueType) -> LoopValue:
    n.s.fail(f"abs({a.value}) > 20000000", a)
    return replace(a, kind=kind, value=n.s.let(f"{a.value} * 86400000000"), top=2.0**61)


def _time_to_time(n: NumberFunctions, a: LoopValue, kind: ValueType) -> LoopValue:
    return replace(a, kind=kind)  # both types are in UTC


_Cast = Callable[[NumberFunctions, LoopValue, ValueType], LoopValue]
_CASTS: dict[tuple[str, str], _Cast] = {
    ("whole", "whole"): _whole_to_whole,
    ("boolean", "whole"): _flag_to_whole,
    ("whole", "double"): _to_double,
    ("boolean", "double"): _to_double,
    ("single", "double"): lambda n, a, kind: replace(a, kind=kind),
    ("double", "single"): _to_single,
    ("whole", "single"): _to_single,
    ("boolean", "single"): _to_double,
    ("double", "whole"): _double_to_whole,
    ("single", "whole"): _double_to_whole,
    ("whole", "wide"): _whole_to_wide,
    ("boolean", "wide"): _whole_to_wide,
    ("wide", "wide"): _wide_to_wide,
    ("wide", "double"): _wide_to_double,
    ("wide", "single"): _wide_to_single,
    ("wide", "whole"): _wide_to_whole,
    ("double", "wide"): _double_to_wide,
    ("single", "wide"): _double_to_wide,
    **{(each, "boolean"): _to_flag for each in ("whole", "double", "single", "wide")},
    ("date", "time"): _date_to_time,
    ("time", "time"): _time_to_time,
}
