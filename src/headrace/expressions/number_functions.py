"""Numeric functions as statements of a loop, each with the error that it adds and propagates.

Functions of exact values that every machine computes identically (sums, products, quotients and square roots of
doubles, whole numbers within their range) are exact. Others may differ from DuckDB's results in their last bits, by at
most `LAST_BITS`, which is several times the error that mathematical libraries guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from headrace.expressions.bound_expression import ValueType
from headrace.expressions.loop_values import UNKNOWN, WHOLE_FORMS, WIDE, LoopValue, Statements

ROUNDING = repr(2.0**-51)  # relative error of one operation, for both engines
LAST_BITS = repr(2.0**-47)
SINGLE = repr(2.0**-22)
ERROR_MARGIN = "1.0000001"  # factor for rounding errors in the computation of errors
TINY = "1e-300"  # absolute error for results so small that they lose digits
EXACT_DOUBLES = 2.0**53  # doubles represent whole numbers exactly up to this
DOUBLE, BOOLEAN = ValueType("DOUBLE"), ValueType("BOOLEAN")
POWERS = 15  # powers of ten to which doubles can be rounded


class Unsupported(Exception):
    """An expression that a loop cannot compute. The text names it."""


class NumberFunctions:
    """Functions of values. Each adds its statements to `s`."""

    def __init__(self, statements: Statements) -> None:
        self.s = statements

    # --- doubles -----------------------------------------------------------------------------------------------------

    def made(
        self,
        of: tuple[LoopValue, ...],
        source: str,
        spread: str | None,
        top: float,
        *,
        last: str | None = None,
        positive: bool = False,
    ) -> LoopValue:
        """Return a value of doubles. `spread` is the error propagated from the arguments, `last` the function's own
        relative error.
        """
        let = self.s.let
        value = let(source)
        parts = [f"({spread}) * {ERROR_MARGIN}"] if spread else []
        if last or spread:
            parts.append(f"abs({value}) * {last or ROUNDING}")
        error = let(" + ".join(parts)) if parts else None
        return self.strict(of, LoopValue(DOUBLE, value, error, top=top, positive=positive))

    def strict(self, of: tuple[LoopValue, ...], value: LoopValue) -> LoopValue:
        """Make a value null or in doubt wherever an argument is."""
        null = self.s.either(value.null, *(each.null for each in of))
        return replace(value, null=null, doubt=self.s.either(value.doubt, *(each.doubt for each in of)))

    def plus(self, a: LoopValue, b: LoopValue, sign: str) -> LoopValue:
        positive = sign == "+" and a.positive and b.positive
        return self.made((a, b), f"{a.value} {sign} {b.value}", _sum(a, b), a.top + b.top, positive=positive)

    def times(self, a: LoopValue, b: LoopValue) -> LoopValue:
        positive = (a.positive and b.positive) or a.value == b.value
        top = UNKNOWN if UNKNOWN in (a.top, b.top) else a.top * b.top  # infinity times zero is NaN
        return self.made((a, b), f"{a.value} * {b.value}", _product(a, b), top, positive=positive)

    def over(self, a: LoopValue, b: LoopValue) -> LoopValue:
        value = self.s.let(f"{a.value} / {b.value}")
        constant = _number(b)
        top = a.top / abs(constant) if constant else UNKNOWN
        if b.error is None:
            spread = f"{a.error} / abs({b.value}) + {TINY}" if a.error else None
        else:
            rest = f"({a.error or 0.0} + abs({value}) * {b.error}) / (abs({b.value}) - {b.error})"
            spread = f"where(abs({b.value}) > {b.error}, {rest}, INF) + {TINY}"
        found = self.made((a, b), value, spread, top, positive=a.positive and b.positive)
        # DuckDB treats the sign of a zero divisor differently
        return found if constant else self.s.doubted(found, self.s.let(f"{b.value} == 0.0"))

    def remainder(self, a: LoopValue, b: LoopValue) -> LoopValue:
        if a.error or b.error:
            raise Unsupported("the remainder of a value that is not exact")
        return self.made((a, b), f"fmod({a.value}, {b.value})", None, a.top if _number(b) else UNKNOWN)

    def root(self, a: LoopValue) -> LoopValue:
        top = math.sqrt(a.top) if a.positive else UNKNOWN
        if a.error is None:
            return self.made((a,), f"sqrt({a.value})", None, top, positive=True)
        value = self.s.let(f"sqrt(abs({a.value}))")
        spread = f"where({a.value} > 0.0, {a.error} / {value}, sqrt({a.error}))"
        if not a.positive:
            spread = f"where({a.value} >= {a.error}, {spread}, INF)"
        return self.made((a,), value, spread, top, positive=True)

    def smooth(self, name: str, a: LoopValue, slope: str, top: float = UNKNOWN, positive: bool = False) -> LoopValue:
        """Apply a function whose slope is at most `slope`."""
        spread = f"{slope} * {a.error}" if a.error else None
        return self.made((a,), f"{name}({a.value})", spread, top, last=LAST_BITS, positive=positive)

    def tangent(self, a: LoopValue) -> LoopValue:
        value = self.s.let(f"tan({a.value})")
        steep = f"(1.0 + {value} * {value}) * {a.error}"
        spread = f"where({a.error} * (1.0 + abs({value})) < 0.25, 2.5 * {steep}, INF)" if a.error else None
        return self.made((a,), value, spread, UNKNOWN, last=LAST_BITS)

    def arc(self, name: str, a: LoopValue) -> LoopValue:
        """asin or acos, which are infinitely steep at the ends of their domain."""
        spread = None
        if a.error:
            far = self.s.let(f"abs({a.value}) + {a.error}")
            spread = f"where({far} < 1.0, {a.error} / sqrt((1.0 - {far}) * (1.0 + {far})), INF)"
        return self.made((a,), f"{name}({a.value})", spread, UNKNOWN, last=LAST_BITS)

    def angle(self, y: LoopValue, x: LoopValue) -> LoopValue:
        """atan2, which is discontinuous where y changes its sign and x is negative."""
        off = _sum(y, x)
        jump = self.s.let(f"(abs({y.value}) <= {y.error or 0.0}) & ({x.value} <= {x.error or 0.0})")
        spread = f"where({jump}, INF, 0.0)"
        if off:
            far = self.s.let(f"where(abs({x.value}) > abs({y.value}), abs({x.value}), abs({y.value}))")
            spread = f"where({jump} | (({off}) * 4.0 >= {far}), INF, 1.1 * ({off}) / {far})"
        return self.made(
            (y, x), f"atan2({y.value}, {x.value})", spread, 4.0 if x.finite and y.finite else UNKNOWN, last=LAST_BITS
        )

    def exponential(self, a: LoopValue) -> LoopValue:
        value = self.s.let(f"exp({a.value})")
        spread = f"where({a.error} < 1.0, 2.0 * {value} * {a.error}, INF) + {TINY}" if a.error else TINY
        return self.made((a,), value, spread, UNKNOWN, last=LAST_BITS, positive=True)

    def logarithm(self, name: str, a: LoopValue) -> LoopValue:
        spread = f"where({a.value} > {a.error}, 1.5 * {a.error} / ({a.value} - {a.error}), INF)" if a.error else None
        return self.made((a,), f"{name}({a.value})", spread, UNKNOWN, last=LAST_BITS)

    def power(self, a: LoopValue, b: LoopValue) -> LoopValue:
        exponent = _number(b)
        if exponent == 2.0:
            spread = f"(2.0 * abs({a.value}) + {a.error}) * {a.error} + {TINY}" if a.error else TINY
            return self.made((a,), f"{a.value} * {a.value}", spread, a.top * a.top, last=LAST_BITS, positive=True)
        source = f"power({a.value}, {b.value})"
        whole = exponent is not None and exponent == int(exponent) and 1.0 <= exponent <= 9.0
        top = a.top**exponent if whole and exponent is not None and a.top < 1e30 else UNKNOWN
        if a.error is None and b.error is None:
            return self.made((a, b), source, TINY, top, last=LAST_BITS)
        if whole and exponent is not None:
            near = self.s.let(f"abs({a.value}) + {a.error}")
            spread = f"{exponent} * power({near}, {exponent - 1.0}) * {a.error} + {TINY}"
            return self.made((a, b), source, spread, top, last=LAST_BITS, positive=exponent % 2 == 0)
        return self.made((a, b), source, self._power_spread(a, b, self.s.let(source)), UNKNOWN, last=LAST_BITS)

    def _power_spread(self, a: LoopValue, b: LoopValue, value: str) -> str:
        parts = []
        if a.error:
            parts.append(f"(abs({b.value}) + {b.error or 0.0}) * {a.error} / ({a.value} - {a.error})")
        if b.error:
            parts.append(f"{b.error} * abs(log({a.value}))")
        off = self.s.let(" + ".join(parts))
        return f"where(({a.value} > {a.error or 0.0}) & ({off} < 0.1), 2.0 * abs({value}) * {off}, INF) + {TINY}"

    def cube_root(self, a: LoopValue) -> LoopValue:
        size = self.s.let(f"power(abs({a.value}), {1 / 3!r})")
        value = self.s.let(f"where({a.value} < 0.0, -{size}, {size})")
        spread = None
        if a.error:
            near = f"{size} * {a.error} / abs({a.value})"
            spread = f"where(abs({a.value}) > 2.0 * {a.error}, {near}, INF)"
        return self.made((a,), value, spread, UNKNOWN if not a.finite else max(a.top, 1.0), last=repr(2.0**-43))

    # --- rounding: results are exact again, or in doubt --------------------------------------------------------------

    def stepped(self, name: str, a: LoopValue) -> LoopValue:
        """Apply floor, ceil or trunc."""
        value = self.s.let(f"{name}({a.value})")
        found = self.made((a,), value, None, a.top, positive=a.positive)
        if a.error:
            same = f"({name}({a.value} - {a.error}) == {value}) & ({name}({a.value} + {a.error}) == {value})"
            found = self.s.doubted(found, self.s.let(f"({same}) ^ True"))
        return found

    def rounded(self, a: LoopValue, margin: float = 0.0) -> LoopValue:
        """Round to whole numbers, halves away from zero. `margin`: distance from a half at which DuckDB may round
        either way.
        """
        let = self.s.let
        whole = let(f"trunc({a.value})")
        rest = let(f"abs({a.value} - {whole})")
        value = let(f"where({rest} >= 0.5, {whole} + where({a.value} < 0.0, -1.0, 1.0), {whole})")
        found = self.made((a,), value, None, a.top + 1.0, positive=a.positive)
        near = f"{a.error} + {margin!r}" if a.error and margin else a.error or (repr(margin) if margin else None)
        return self.s.doubted(found, let(f"(abs({rest} - 0.5) > {near}) ^ True")) if near else found

    def rounded_to(self, a: LoopValue, places: int) -> LoopValue:
        if abs(places) > POWERS:
            raise Unsupported(f"round to {places} places")
        ten = LoopValue(DOUBLE, repr(10.0 ** abs(places)), top=10.0 ** abs(places), positive=True)
        there = self.times(a, ten) if places >= 0 else self.over(a, ten)
        back = self.rounded(there)
        found = self.over(back, ten) if places >= 0 else self.times(back, ten)
        if there.finite:
            return found
        # DuckDB leaves larger values unchanged
        return self.s.doubted(found, self.s.let(f"(abs({there.value}) < 1e300) ^ True"))

    def sign(self, a: LoopValue, kind: ValueType) -> LoopValue:
        zero = "0" if a.form == "whole" else "0.0"
        value = self.s.let(f"where({a.value} > {zero}, 1, where({a.value} < {zero}, -1, 0))")
        found = self.strict((a,), LoopValue(kind, value, top=1.0))
        if not a.error:
            return found
        return self.s.doubted(found, self.s.let(f"((abs({a.value}) > {a.error}) | ({a.error} == 0.0)) ^ True"))

    def size(self, a: LoopValue) -> LoopValue:
        self._within_mirrored(a)
        return self.strict((a,), replace(a, value=self.s.let(f"abs({a.value})"), positive=True))

    def negative(self, a: LoopValue) -> LoopValue:
        self._within_mirrored(a)
        if a.kind.name.startswith("U"):
            raise Unsupported(f"the negative of {a.kind}")
        return self.strict((a,), replace(a, value=self.s.let(f"-{a.value}"), positive=False))

    def _within_mirrored(self, a: LoopValue) -> None:
        """Fail for the smallest number of a signed type, whose negative is outside the type."""
        if a.form == "whole" and (low := WHOLE_FORMS[a.kind.name][0]):
            self._within(self.s.let(f"{a.value} > {low}"), a)
        if a.form == "wide" and a.top > wide_ends(a.kind)[1]:
            self._within(self.s.let(_below(a.value, a.error, a.kind)), a)

    def _within(self, condition: str, *of: LoopValue) -> None:
        self.s.fail(self.s.negated(condition), *of)

    # --- singles: doubles that are rounded ---------------------------------------------------------------------------

    def single(self, found: LoopValue) -> LoopValue:
        """Round a result to 32 bits."""
        value = self.s.let(f"single({found.value})")
        error = self.s.let(f"{found.error} + abs({value}) * {SINGLE} + 1e-44") if found.error else None
        top = found.top if found.top < 1e38 else UNKNOWN
        return replace(found, kind=ValueType("FLOAT"), value=value, error=error, top=top)

    # --- whole numbers -----------------------------------------------------------------------------------------------

    def whole(self, name: str, a: LoopValue, b: LoopValue, kind: ValueType) -> LoopValue:
        """Compute + - * within the range of the type. Outside it DuckDB raises an error."""
        low, high = WHOLE_FORMS[kind.name]
        top = a.top * b.top if name == "*" else a.top + b.top
        value = self.s.let(f"{a.value} {name} {b.value}")
        if kind.name.startswith("U") and name == "-":
            self._within(self.s.let(f"{value} >= 0"), a, b)
        if top > high:
            self._within(self._in_range(name, a, b, value, top, (low, high)), a, b)
        return self.strict((a, b), LoopValue(kind, value, top=min(top, high + 1)))

    def _in_range(self, name: str, a: LoopValue, b: LoopValue, value: str, top: float, ends: tuple[int, int]) -> str:
        if top < 2.0**62:
            return self.s.let(f"({value} >= {ends[0]}) & ({value} <= {ends[1]})")
        return self.s.let(f"abs(f64({a.value}) {name} f64({b.value})) < {min(float(ends[1]), 9.2e18)!r}")

    def divided(self, name: str, a: LoopValue, b: LoopValue, kind: ValueType) -> LoopValue:
        """Compute // and %, which truncate towards zero. DuckDB raises an error for a zero divisor or a quotient out of
        range.
        """
        let = self.s.let
        self._within(let(f"({b.value} != 0) & (({b.value} != -1) | ({a.value} > {WHOLE_FORMS[kind.name][0]}))"), a, b)
        by = let(f"where(({b.value} == 0) | ({b.value} == -1), 1, {b.value})")
        down = let(f"{a.value} // {by}")
        rest = let(f"{a.value} - {down} * {by}")
        up = let(f"({rest} != 0) & (({a.value} < 0) ^ ({by} < 0))")
        if name == "//":
            towards = let(f"where({up}, {down} + 1, {down})")
            value = let(f"where({b.value} == -1, -{a.value}, {towards})")
        else:
            value = let(f"where({up}, {rest} - {by}, {rest})")
        return self.strict((a, b), LoopValue(kind, value, top=a.top))

    # --- decimals and numbers of more than 64 bits -------------------------------------------------------------------

    def wide(
        self, of: tuple[LoopValue, ...], source: str, spread: str | None, top: float, kind: ValueType
    ) -> LoopValue:
        """Return a value in units of the last place, which is exact while a double can represent it."""
        value = self.s.let(source)
        parts = [f"({spread}) * {ERROR_MARGIN}"] if spread else []
        if top > EXACT_DOUBLES:
            parts.append(f"where(abs({value}) < {EXACT_DOUBLES!r}, 0.0, abs({value}) * {ROUNDING})")
        error = self.s.let(" + ".join(parts)) if parts else None
        low, high = wide_ends(kind)
        if top > high or low == 0:
            most = _below(value, error, kind)
            self._within(self.s.let(f"({most}) & ({value} >= {error or 0.0})" if low == 0 else most), *of)
        return self.strict(of, LoopValue(kind, value, error, top=min(top, high)))

    def wide_sum(self, a: LoopValue, b: LoopValue, sign: str, kind: ValueType) -> LoopValue:
        if not a.kind.scale == b.kind.scale == kind.scale:
            raise Unsupported(f"a sum of {a.kind} and {b.kind}")
        return self.wide((a, b), f"{a.value} {sign} {b.value}", _sum(a, b), a.top + b.top, kind)

    def wide_product(self, a: LoopValue, b: LoopValue, kind: ValueType) -> LoopValue:
        if a.kind.scale + b.kind.scale != kind.scale:
            raise Unsupported(f"a product of {a.kind} and {b.kind}")
        return self.wide((a, b), f"{a.value} * {b.value}", _product(a, b, tiny=False), a.top * b.top, kind)

    def rescaled(self, a: LoopValue, kind: ValueType) -> LoopValue:
        """Change the scale of a decimal. Dropped digits are rounded, halves away from zero."""
        more = kind.scale - a.kind.scale
        if more >= 0:
            ten = repr(10.0**more)
            spread = f"{a.error} * {ten}" if a.error else None
            return self.wide((a,), f"{a.value} * {ten}", spread, a.top * 10**more, kind)
        let, ten = self.s.let, repr(10.0**-more)
        rest = let(f"fmod({a.value}, {ten})")
        down = let(f"({a.value} - {rest}) / {ten}")
        away = f"where({a.value} < 0.0, -1.0, 1.0)"
        source = f"where(abs({rest}) * 2.0 >= {ten}, {down} + {away}, {down})"
        found = self.wide((a,), source, None, a.top // 10**-more + 1, kind)
        return self.s.doubted(found, let(f"{a.error} > 0.0")) if a.error else found


def wide_ends(kind: ValueType) -> tuple[int, int]:
    """Return the range of a type in units of the last place, as exact integers."""
    return (1 - 10**kind.width, 10**kind.width - 1) if kind.name == "DECIMAL" else WIDE[kind.name]


def _below(value: str, error: str | None, kind: ValueType) -> str:
    """Return the condition that a value is certainly within its type."""
    return f"abs({value}) + {error or 0.0} < {wide_ends(kind)[1] * (1 - 1e-9)!r}"


def _sum(a: LoopValue, b: LoopValue) -> str | None:
    return " + ".join(each.error for each in (a, b) if each.error) or None


def _product(a: LoopValue, b: LoopValue, *, tiny: bool = True) -> str | None:
    parts = [f"abs({a.value}) * {b.error}"] if b.error else []
    if a.error:
        parts.append(f"(abs({b.value}) + {b.error or 0.0}) * {a.error}")
    return " + ".join([*parts, *([TINY] if tiny else [])]) if parts else None


def _number(value: LoopValue) -> float | None:
    """Return the value of a constant, or None for other values."""
    try:
        found = float(value.value)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


Function = Callable[[NumberFunctions, LoopValue], LoopValue]
SMOOTH: dict[str, Function] = {
    "sqrt": NumberFunctions.root,
    "cbrt": NumberFunctions.cube_root,
    "exp": NumberFunctions.exponential,
    "ln": lambda n, a: n.logarithm("log", a),
    "log": lambda n, a: n.logarithm("log10", a),
    "log10": lambda n, a: n.logarithm("log10", a),
    "log2": lambda n, a: n.logarithm("log2", a),
    "sin": lambda n, a: n.smooth("sin", a, "1.0", 1.5 if a.finite else UNKNOWN),
    "cos": lambda n, a: n.smooth("cos", a, "1.0", 1.5 if a.finite else UNKNOWN),
    "tan": NumberFunctions.tangent,
    "cot": lambda n, a: n.over(LoopValue(DOUBLE, "1.0", top=1.0, positive=True), n.tangent(a)),
    "asin": lambda n, a: n.arc("asin", a),
    "acos": lambda n, a: n.arc("acos", a),
    "atan": lambda n, a: n.smooth("atan", a, "1.0", 2.0 if a.finite else UNKNOWN),
    "sinh": lambda n, a: n.smooth("sinh", a, f"where({a.error} < 1.0, 3.0 * (1.0 + abs(sinh({a.value}))), INF)"),
    "cosh": lambda n, a: n.smooth("cosh", a, f"where({a.error} < 1.0, 3.0 * cosh({a.value}), INF)", positive=True),
    "tanh": lambda n, a: n.smooth("tanh", a, "1.0", 1.5 if a.finite else UNKNOWN),
    "radians": lambda n, a: n.times(a, _factor(math.pi / 180)),
    "degrees": lambda n, a: n.times(a, _factor(180 / math.pi)),
}


def _factor(number: float) -> LoopValue:
    return LoopValue(DOUBLE, repr(number), top=number, positive=True)
