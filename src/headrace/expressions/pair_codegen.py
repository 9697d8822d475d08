"""Compilation of predicates to the source code of a loop over pairs.

Invariant: for every pair the source gives true, not true, or "DuckDB must decide", and a definite result equals
DuckDB's. It uses the predicate as DuckDB binds it (`bound_expression.py`), with values that may be null or differ
slightly from DuckDB's (`loop_values.py`). DuckDB decides where a comparison, a rounding step or a branch could go
either way, or an error could occur.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa

from headrace.columnar import duck
from headrace.expressions import bound_expression as b
from headrace.expressions.bound_expression import BoundNode, SideColumn, UnknownExpression, ValueType
from headrace.expressions.casts import cast_value
from headrace.expressions.loop_values import (
    COLUMN_FORMS,
    FALSE,
    TRUE,
    UNKNOWN,
    WHOLE_FORMS,
    LoopValue,
    Statements,
    form_of,
)
from headrace.expressions.number_functions import (
    BOOLEAN,
    ERROR_MARGIN,
    EXACT_DOUBLES,
    SMOOTH,
    NumberFunctions,
    Unsupported,
    wide_ends,
)
from headrace.expressions.syntax_tree import Tree, to_sql

LARGEST_DOUBLE = 1e30  # largest magnitude of plain doubles
LARGEST_WHOLE = 2**46  # largest magnitude of plain whole numbers
LARGEST_TIME = 2**55  # largest plain time in microseconds; plain times are not before 1970
END_OF_TIME = 2.0**61  # times beyond this cause errors or infinities in DuckDB

Column = tuple[str, str]  # side, name


@dataclass(frozen=True)
class Variable:
    """A variable of the source: a column, a column's nulls, or a text constant."""

    name: str
    column: Column | None = None
    nulls: bool = False
    text: str | None = None


@dataclass(frozen=True)
class LoopSource:
    """The source of a predicate: assignments, the condition for true, and the condition under which DuckDB must decide
    (None: never).
    """

    variables: tuple[Variable, ...]
    lines: tuple[tuple[str, str], ...]
    true: str
    unsure: str | None


@dataclass(frozen=True)
class CompiledPredicate:
    """A predicate with source code, its columns, and the side columns that DuckDB computes for it."""

    tree: BoundNode
    given: tuple[SideColumn, ...]
    sql: str

    def source(self, *, plain: bool) -> LoopSource:
        """Return the source. plain: no column contains nulls, NaN, infinities or large numbers."""
        return _source(self.tree, plain)

    @functools.cached_property
    def columns(self) -> dict[Column, ValueType]:
        return {node.value: node.kind for node in self.tree.walk() if node.name == "column"}


@dataclass(frozen=True)
class Obstacle:
    """A part of a predicate that cannot be compiled, and the reason."""

    sql: str
    why: str

    def __str__(self) -> str:
        return f"{self.sql}: {self.why}"


def compile_predicate(tree: Tree, schemas: Mapping[str, pa.Schema]) -> CompiledPredicate | Obstacle:
    """Compile a predicate. Return an obstacle if that is impossible, or if it uses no column."""
    sql = to_sql(tree)
    try:
        node, given = b.bind_expression(tree, schemas, COLUMN_FORMS, _FUNCTIONS)
        found = CompiledPredicate(node, given, sql)
        if not found.columns:
            return Obstacle(sql, "it uses no column")
        _source(node, False)
    except Unsupported as reason:
        return Obstacle(sql, str(reason))
    except UnknownExpression as reason:
        return Obstacle(sql, f"{reason} of both sides")
    except duckdb.Error as error:
        return Obstacle(sql, str(error).split("\n")[0])
    return found


def compile_conditions(
    parts: Iterable[Tree], schemas: Mapping[str, pa.Schema]
) -> tuple[CompiledPredicate | None, tuple[Obstacle, ...]]:
    """Compile as many of the conditions as possible together. Return them and the obstacles of the others."""
    parts = list(parts)
    whole = _together(parts, schemas)
    if isinstance(whole, CompiledPredicate):
        return whole, ()
    tried = [(part, compile_predicate(part, schemas)) for part in parts]
    obstacles = tuple(found for _, found in tried if isinstance(found, Obstacle))
    able = _together([part for part, found in tried if isinstance(found, CompiledPredicate)], schemas)
    return (able if isinstance(able, CompiledPredicate) else None), obstacles


def _together(parts: list[Tree], schemas: Mapping[str, pa.Schema]) -> CompiledPredicate | Obstacle | None:
    if len(parts) > 1:
        return compile_predicate(
            {"type": "CONJUNCTION_AND", "class": "CONJUNCTION", "alias": "", "children": parts}, schemas
        )
    return compile_predicate(parts[0], schemas) if parts else None


# --- from nodes to source code ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _source(tree: BoundNode, plain: bool) -> LoopSource:
    made = _Translator(plain)
    found = made.value(tree)
    if found.form != "boolean":
        raise Unsupported(f"a condition of type {found.kind}")
    s = made.s
    true = s.both(found.value, s.negated(found.null)) or FALSE
    unsure = s.either(found.doubt, *s.fails)
    return LoopSource(
        tuple(made.variables.values()), tuple((name, text) for text, name in s.lines.items()), true, unsure
    )


_COMPARED = {"=": "==", "!=": "!=", "<>": "!=", "<": "<", ">": ">", "<=": "<=", ">=": ">="}
_SAME, _OTHER = "is not distinct from", "is distinct from"


class _Translator:
    """Translates a bound expression into the statements of a loop over pairs."""

    def __init__(self, plain: bool) -> None:
        self.plain = plain
        self.s = Statements()
        self.n = NumberFunctions(self.s)
        self.variables: dict[Any, Variable] = {}

    def value(self, node: BoundNode) -> LoopValue:
        if not _is_known(node.kind):
            raise Unsupported(f"a value of type {node.kind}")
        if b.is_constant_node(node) and _can_compute(node):
            return self._constant(node)
        if node.name in _NODES:
            return _NODES[node.name](self, node)
        if node.name in _COMPARED or node.name in (_SAME, _OTHER):
            return self._comparison(node)
        told = node.children[1:] if node.name in _TOLD else node.children
        return self._function(node, tuple(self.value(child) for child in told))

    # --- columns and constants ---------------------------------------------------------------------------------------

    def _column(self, node: BoundNode) -> LoopValue:
        name = self._variable(Variable("", column=node.value), node.value[0])
        null = None if self.plain else self._variable(Variable("", column=node.value, nulls=True), node.value[0])
        top = self._top(node.kind)
        error = None
        if form_of(node.kind) == "wide" and top > EXACT_DOUBLES:
            error = self.s.let(f"where(abs({name}) < {EXACT_DOUBLES!r}, 0.0, abs({name}) * {2.0**-52!r})")
        return LoopValue(node.kind, name, error, null, top=top)

    def _top(self, kind: ValueType) -> float:
        match form_of(kind):
            case "double" | "single":
                return LARGEST_DOUBLE if self.plain else UNKNOWN
            case "whole":
                high = WHOLE_FORMS[kind.name][1] + 1
                return min(high, LARGEST_WHOLE) if self.plain else high
            case "wide":
                return -wide_ends(kind)[0] or wide_ends(kind)[1]
            case "time":
                return float(LARGEST_TIME) if self.plain else 2.0**63
            case "date":
                return 2.0**31
        return 1.0

    def _variable(self, wanted: Variable, letter: str) -> str:
        known = self.variables.get(wanted)
        if known is None:
            known = self.variables[wanted] = replace(wanted, name=f"{letter}{len(self.variables)}")
        return known.name

    def _constant(self, node: BoundNode) -> LoopValue:
        found = _computed(node)
        null = TRUE if found is None else None
        kind = node.kind if node.kind.name != "NULL" else ValueType("BOOLEAN")
        if form_of(kind) == "text":
            return LoopValue(kind, "0" if found is None else self._variable(Variable("", text=found), "k"), null=null)
        if form_of(kind) == "boolean":
            return LoopValue(kind, TRUE if found else FALSE, null=null, top=1.0)
        if form_of(kind) in ("double", "single"):
            return _double(kind, 0.0 if found is None else found, null)
        whole = found or 0
        if form_of(kind) == "wide":
            exact = abs(whole) <= EXACT_DOUBLES
            return LoopValue(
                kind,
                repr(float(whole)),
                None if exact else repr(abs(float(whole)) * 2.0**-52),
                null,
                top=abs(whole),
            )
        return LoopValue(
            kind, f"({whole})" if whole < 0 else str(whole), null=null, top=abs(whole), positive=whole >= 0
        )

    # --- conditions --------------------------------------------------------------------------------------------------

    def _and(self, node: BoundNode) -> LoopValue:
        return self._joined([self.value(child) for child in node.children], of_all=True)

    def _or(self, node: BoundNode) -> LoopValue:
        return self._joined([self.value(child) for child in node.children], of_all=False)

    def _joined(self, parts: Sequence[LoopValue], *, of_all: bool) -> LoopValue:
        """Combine conditions in three-valued logic with doubt: one certain false decides `and`, one certain true
        decides `or`.
        """
        s = self.s
        values = [part.value if not of_all else s.negated(part.value) for part in parts]
        decides = [s.both(value, s.negated(part.null)) for value, part in zip(values, parts, strict=True)]
        certain = s.either(*(s.both(each, s.negated(part.doubt)) for each, part in zip(decides, parts, strict=True)))
        decided = s.either(*decides)
        null = s.both(s.either(*(part.null for part in parts)), s.negated(decided))
        doubt = s.both(s.either(*(part.doubt for part in parts)), s.negated(certain))
        value = (s.negated(decided) if of_all else decided) or FALSE
        return LoopValue(BOOLEAN, value, null=null, doubt=doubt, top=1.0)

    def _not(self, node: BoundNode) -> LoopValue:
        found = self.value(node.children[0])
        return replace(found, value=self.s.negated(found.value))

    def _is_null(self, node: BoundNode) -> LoopValue:
        found = self.value(node.children[0])
        null = found.null or FALSE
        value = null if node.name == "is null" else self.s.negated(null)
        return LoopValue(BOOLEAN, value, doubt=found.doubt, top=1.0)

    def _in(self, node: BoundNode) -> LoopValue:
        one, *others = (self.value(child) for child in node.children)
        found = self._joined([self._compared("==", one, other) for other in others], of_all=False)
        return found if node.name == "in" else replace(found, value=self.s.negated(found.value))

    def _comparison(self, node: BoundNode) -> LoopValue:
        one, other = (self.value(child) for child in node.children)
        if node.name in _COMPARED:
            return self._compared(_COMPARED[node.name], one, other)
        s, same = self.s, self._compared("==", one, other)
        nulls = s.both(one.null, other.null) or FALSE
        equal = s.either(s.both(same.value, s.negated(s.either(one.null, other.null))), nulls) or FALSE
        value = equal if node.name == _SAME else s.negated(equal)
        return LoopValue(BOOLEAN, value, doubt=same.doubt, top=1.0)

    def _compared(self, sign: str, a: LoopValue, c: LoopValue) -> LoopValue:
        if a.form != c.form or (a.form == "wide" and a.kind.scale != c.kind.scale):
            raise Unsupported(f"a comparison of {a.kind} with {c.kind}")
        found = self.n.strict((a, c), LoopValue(BOOLEAN, TRUE, top=1.0))
        plain = f"{a.value} {sign} {c.value}"
        if a.error or c.error:
            apart = self.s.let(f"{a.value} - {c.value}")
            off = self.s.let(f"({' + '.join(each.error for each in (a, c) if each.error)}) * {ERROR_MARGIN}")
            sure = self.s.let(f"(abs({apart}) > {off}) | (({apart} == 0.0) & ({off} == 0.0))")
            doubt = self.s.both(self.s.negated(sure), self.s.negated(found.null))
            return self.s.doubted(replace(found, value=self.s.let(plain)), doubt)
        if a.form in ("double", "single") and not (a.finite and c.finite):
            return replace(found, value=self.s.let(_with_nan(sign, a.value, c.value)))
        return replace(found, value=self.s.let(plain))

    # --- branches ----------------------------------------------------------------------------------------------------

    def _reached(self, node: BoundNode, reach: str | None) -> LoopValue:
        """Return a value that is computed only where `reach` is true (None: nowhere), so that it can fail only there."""
        before, self.s.fails = self.s.fails, []
        found = self.value(node)
        inside, self.s.fails = self.s.either(*self.s.fails), before
        reached = self.s.both(inside, reach)
        if reached is not None:
            self.s.fails.append(reached)
        return found

    def _case(self, node: BoundNode) -> LoopValue:
        s = self.s
        *checks, last = node.children
        reach: str | None = TRUE  # condition that no earlier branch is certainly taken
        branches = []
        for when, then in zip(checks[::2], checks[1::2], strict=True):
            condition = self._reached(when, reach)
            true = s.both(condition.value, s.negated(condition.null))
            maybe = s.both(s.either(true, condition.doubt), reach)
            branches.append((true or FALSE, condition.doubt, self._reached(then, maybe)))
            certain = s.both(true, s.negated(condition.doubt))
            reach = s.both(reach, s.negated(certain))
        found = self._reached(last, reach)
        for true, doubt, value in reversed(branches):
            found = s.doubted(self._chosen(true, value, found), doubt)
        return replace(found, kind=node.kind)

    def _coalesce(self, node: BoundNode) -> LoopValue:
        s = self.s
        reach: str | None = TRUE
        values = []
        for child in node.children:
            values.append(self._reached(child, reach))
            reach = s.both(reach, s.either(values[-1].null, values[-1].doubt))
        found = values[-1]
        for value in reversed(values[:-1]):
            null = value.null or FALSE
            found = s.doubted(self._chosen(null, found, value), value.doubt)
        return replace(found, kind=node.kind)

    def _chosen(self, condition: str, one: LoopValue, other: LoopValue) -> LoopValue:
        s = self.s
        if one.form != other.form or one.kind.scale != other.kind.scale:
            raise Unsupported(f"a choice between {one.kind} and {other.kind}")
        error = None
        if one.error or other.error:
            error = s.chosen(condition, one.error or "0.0", other.error or "0.0")
        null = s.chosen(condition, one.null or FALSE, other.null or FALSE)
        doubt = s.chosen(condition, one.doubt or FALSE, other.doubt or FALSE)
        return LoopValue(
            one.kind,
            s.chosen(condition, one.value, other.value),
            error,
            None if null == FALSE else null,
            None if doubt == FALSE else doubt,
            max(one.top, other.top),
            one.positive and other.positive,
        )

    def _cast(self, node: BoundNode) -> LoopValue:
        return cast_value(self.n, self.value(node.children[0]), node.kind, lenient=node.lenient)

    # --- functions ---------------------------------------------------------------------------------------------------

    def _function(self, node: BoundNode, of: tuple[LoopValue, ...]) -> LoopValue:
        found = self._of_times(node, of) or self._of_numbers(node, of)
        if found is None:
            kinds = ", ".join(str(child.kind) for child in node.children)
            raise Unsupported(f"{node.name}({kinds}) of both sides")
        return replace(found, kind=node.kind)

    def _of_numbers(self, node: BoundNode, of: tuple[LoopValue, ...]) -> LoopValue | None:
        name = _ALIASES.get(node.name, node.name)
        forms = {each.form for each in of}
        if name in ("greatest", "least") and len(forms) == 1:
            return functools.reduce(functools.partial(self._extreme, name), of)
        if len(forms) != 1 and name != "round":
            return None
        match forms.pop() if len(forms) == 1 else of[0].form:
            case "double" | "single" as here:
                found = self._of_doubles(name, of, node)
                return self.n.single(found) if found and here == "single" and found.form == "double" else found
            case "whole":
                return self._of_whole(name, of, node)
            case "wide":
                return self._of_wide(name, of, node)
            case "boolean":
                return None
        return None

    def _of_doubles(self, name: str, of: tuple[LoopValue, ...], node: BoundNode) -> LoopValue | None:
        n, a, other = self.n, of[0], of[1] if len(of) > 1 else of[0]
        match name, len(of):
            case (("+" | "-"), 2):
                return n.plus(a, other, name)
            case "*", 2:
                return n.times(a, other)
            case "/", 2:
                return n.over(a, other)
            case "%", 2:
                return n.remainder(a, other)
            case "pow", 2:
                return n.power(a, other)
            case "atan2", 2:
                return n.angle(a, other)
            case "log", 2:
                return n.over(n.logarithm("log", other), n.logarithm("log", a))
            case (("floor" | "ceil" | "trunc"), 1):
                return n.stepped(name, a)
            case "round", 1:
                return n.rounded(a)
            case "round", 2:
                return n.rounded_to(a, _places(node.children[1])) if a.form == "double" else None
            case "sign", 1:
                return n.sign(a, node.kind)
            case "abs", 1:
                return n.size(a)
            case "-", 1:
                return n.negative(a)
            case (("isnan" | "isinf" | "isfinite"), 1) if a.error is None:
                test = {"isnan": "({0} != {0})", "isinf": "(abs({0}) == INF)", "isfinite": "(abs({0}) < INF)"}[name]
                return n.strict(of, LoopValue(BOOLEAN, self.s.let(test.format(a.value)), top=1.0))
            case _, 1 if name in SMOOTH:
                return SMOOTH[name](n, a)
        return None

    def _of_whole(self, name: str, of: tuple[LoopValue, ...], node: BoundNode) -> LoopValue | None:
        match name, of:
            case (("+" | "-" | "*"), (a, other)):
                return self.n.whole(name, a, other, node.kind)
            case (("//" | "%"), (a, other)):
                return self.n.divided(name, a, other, node.kind)
            case "abs", (a,):
                return self.n.size(a)
            case "-", (a,):
                return self.n.negative(a)
            case "sign", (a,):
                return self.n.sign(a, node.kind)
        return None

    def _of_wide(self, name: str, of: tuple[LoopValue, ...], node: BoundNode) -> LoopValue | None:
        match name, of:
            case (("+" | "-"), (a, other)):
                return self.n.wide_sum(a, other, name, node.kind)
            case "*", (a, other):
                return self.n.wide_product(a, other, node.kind)
            case "abs", (a,):
                return self.n.size(a)
            case "-", (a,):
                return self.n.negative(a)
        return None

    def _of_times(self, node: BoundNode, of: tuple[LoopValue, ...]) -> LoopValue | None:
        strict = self.n.strict
        match node.name, tuple(each.form for each in of):
            case "normalized_interval", ("span",):
                return of[0]
            case "-", ("time", "time"):
                found = self._moved(of, "-", ValueType("INTERVAL"))
                if self.plain or of[0].kind.name == "TIMESTAMP":
                    return found
                # before 1970 DuckDB's differences are inexact
                before = self.s.let(f"({of[0].value} < 0) | ({of[1].value} < 0)")
                return self.s.doubted(found, self.s.both(before, self.s.negated(found.null)))
            case ("+" | "-") as sign, ("time", "span"):
                self._refuse_months(node)
                return self._moved(of, sign, node.kind)
            case "+", ("span", "time"):
                self._refuse_months(node)
                return self._moved(of, "+", node.kind)
            case "-", ("date", "date"):
                self.s.fail(f"(abs({of[0].value}) > 100000000) | (abs({of[1].value}) > 100000000)", *of)
                return strict(of, LoopValue(node.kind, self.s.let(f"{of[0].value} - {of[1].value}"), top=2.0**32))
            case "epoch", ("span",):
                self._refuse_months(node)
                value = self.s.let(f"f64({of[0].value}) / 1000000.0")
                error = self.s.let(f"abs({value}) * {2.0**-50!r}")
                return strict(of, LoopValue(node.kind, value, error, top=of[0].top / 1e6))
            case (("date_diff" | "datediff"), ("time", "time")):
                return self._difference(node, of)
        return None

    def _moved(self, of: tuple[LoopValue, ...], sign: str, kind: ValueType) -> LoopValue:
        top = of[0].top + of[1].top
        if top >= END_OF_TIME:
            far = [f"(abs(f64({each.value})) >= {END_OF_TIME / 2!r})" for each in of]
            self.s.fail(" | ".join(far), *of)
        return self.n.strict(
            of, LoopValue(kind, self.s.let(f"{of[0].value} {sign} {of[1].value}"), top=min(top, END_OF_TIME))
        )

    def _refuse_months(self, node: BoundNode) -> None:
        spans = [each for each in node.walk() if each.kind.name == "INTERVAL" and b.is_constant_node(each)]
        if any(map(_months, spans)):
            raise Unsupported("months and years, whose lengths vary")

    def _difference(self, node: BoundNode, of: tuple[LoopValue, ...]) -> LoopValue:
        unit = _computed(node.children[0])
        size = _UNITS.get(str(unit).lower().removesuffix("s"))
        if size is None:
            raise Unsupported(f"date_diff in {unit}")
        self._moved(of, "-", ValueType("INTERVAL"))  # only to record its failures
        source = f"{of[1].value} // {size} - {of[0].value} // {size}"
        return self.n.strict(of, LoopValue(node.kind, self.s.let(source), top=(of[0].top + of[1].top) / size + 1.0))

    def _extreme(self, name: str, a: LoopValue, c: LoopValue) -> LoopValue:
        """Compute greatest or least, ignoring nulls. The error is the larger of both errors."""
        s = self.s
        sign = ">" if name == "greatest" else "<"
        exact = a.error is None and c.error is None
        safe = a.form not in ("double", "single") or (a.finite and c.finite)
        first = s.let(f"{a.value} {sign} {c.value}" if safe or not exact else _with_nan(sign, a.value, c.value))
        value = s.chosen(first, a.value, c.value)
        error = None
        if not exact:
            one, other = a.error or "0.0", c.error or "0.0"
            larger = s.let(f"where({one} > {other}, {one}, {other})")
            error = s.let(
                f"where(({a.value} == {a.value}) & ({c.value} == {c.value}) & ({one} == {one}) & ({other} == {other}), {larger}, INF)"
            )
        both = LoopValue(a.kind, value, error, top=max(a.top, c.top), positive=a.positive and c.positive)
        found = both
        if a.null or c.null:
            found = self._chosen(a.null or FALSE, replace(c, null=None, doubt=None), both)
            found = self._chosen(c.null or FALSE, replace(a, null=None, doubt=None), found)
        return replace(found, null=s.both(a.null, c.null), doubt=s.either(a.doubt, c.doubt))


_NODES: dict[str, Callable[[_Translator, BoundNode], LoopValue]] = {
    "column": _Translator._column,
    "and": _Translator._and,
    "or": _Translator._or,
    "not": _Translator._not,
    "is null": _Translator._is_null,
    "is not null": _Translator._is_null,
    "in": _Translator._in,
    "not in": _Translator._in,
    "case": _Translator._case,
    "coalesce": _Translator._coalesce,
    "cast": _Translator._cast,
}
_ALIASES = {
    "^": "pow",
    "**": "pow",
    "power": "pow",
    "mod": "%",
    "ceiling": "ceil",
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "//",
    "@": "abs",
}
_TOLD = frozenset(["date_diff", "datediff"])  # functions whose first argument is an option
_UNITS = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
}


def _with_nan(sign: str, a: str, c: str) -> str:
    """Return a comparison in which NaN equals NaN and is above all numbers, as in DuckDB."""
    nan, other = f"({a} != {a})", f"({c} != {c})"
    match sign:
        case "==":
            return f"({a} == {c}) | ({nan} & {other})"
        case "!=":
            return f"(({a} == {c}) | ({nan} & {other})) ^ True"
        case "<":
            return f"({a} < {c}) | ({other} & ({a} == {a}))"
        case ">":
            return f"({a} > {c}) | ({nan} & ({c} == {c}))"
        case "<=":
            return f"({a} <= {c}) | {other}"
    return f"({a} >= {c}) | {nan}"


# --- constants -------------------------------------------------------------------------------------------------------

_CONSTANT_FUNCTIONS = frozenset(SMOOTH) | frozenset(
    [
        "+",
        "-",
        "*",
        "/",
        "//",
        "%",
        "^",
        "**",
        "pow",
        "power",
        "abs",
        "pi",
        "round",
        "floor",
        "ceil",
        "trunc",
        "log",
        "atan2",
        "mod",
        "greatest",
        "least",
        "isnan",
        "isinf",
        "isfinite",
        "normalized_interval",
    ]
)
_FUNCTIONS = (
    _CONSTANT_FUNCTIONS
    | frozenset([*_ALIASES, *_TOLD])
    | frozenset(
        [
            "sign",
            "epoch",
            "fmod",
            "nullif",
            "ifnull",
            "if",
            "to_microseconds",
            "to_milliseconds",
            "to_seconds",
            "to_minutes",
            "to_hours",
            "to_days",
            "to_weeks",
            "to_months",
            "to_years",
        ]
    )
)


def _can_compute(node: BoundNode) -> bool:
    return all(_is_known(each.kind) and each.name in _CONSTANT_FUNCTIONS | {"constant", "cast"} for each in node.walk())


def _is_known(kind: ValueType) -> bool:
    return bool(form_of(kind)) or kind.name == "NULL"


@functools.lru_cache(maxsize=1024)
def _computed(node: BoundNode) -> Any:
    """Return the value of a constant: decimals in units of the last place, times and intervals in microseconds, dates
    in days.
    """
    if node.name == "constant" and node.kind.name in ("VARCHAR", "BOOLEAN"):
        return node.value
    found = _asked(node, partial(_as_number, node.kind))
    if form_of(node.kind) in ("time", "date") and _asked(node, "isfinite({})".format) is False:
        raise Unsupported("a time without an end")
    return int(found.scaleb(node.kind.scale)) if isinstance(found, Decimal) else found


def _months(node: BoundNode) -> int:
    """Return the months of a constant interval."""
    return int(_asked(node, "extract(year FROM {0}) * 12 + extract(month FROM {0})".format) or 0)


def _asked(node: BoundNode, of: Callable[[str], str]) -> Any:
    """Evaluate a function of a constant in DuckDB."""
    try:
        return duck.fetch_rows(f"SELECT {of(b.constant_sql(node, _CONSTANT_FUNCTIONS))}")[0][0]
    except duckdb.Error as error:
        raise Unsupported(str(error).split("\n")[0]) from None
    except UnknownExpression as reason:
        raise Unsupported(f"{reason} of constants") from None


def _as_number(kind: ValueType, sql: str) -> str:
    match form_of(kind):
        case "time":
            return f"epoch_us({sql})"
        case "span":
            days = f"(extract(year FROM {sql}) * 12 + extract(month FROM {sql})) * 30 + extract(day FROM {sql})"
            return f"({days}) * 86400000000 + extract(hour FROM {sql}) * 3600000000 + extract(minute FROM {sql}) * 60000000 + extract(microsecond FROM {sql})"
        case "date":
            return f"({sql} - DATE '1970-01-01')"
    return sql


def _double(kind: ValueType, number: float, null: str | None) -> LoopValue:
    if not math.isfinite(number):
        return LoopValue(kind, "NAN" if math.isnan(number) else "INF" if number > 0 else "(-INF)", null=null)
    text = f"({number!r})" if number < 0 or repr(number).startswith("-") else repr(number)
    return LoopValue(kind, text, null=null, top=abs(number), positive=number >= 0)


def _places(node: BoundNode) -> int:
    if not b.is_constant_node(node):
        raise Unsupported("round with a number of places that is not constant")
    return int(_computed(node))


# --- number literals -------------------------------------------------------------------------------------------------


def number_constant(tree: Tree) -> float:
    """Return the value of a number literal that is compared with doubles. Raise if it is no plain number or too large."""
    literal = tree.get("literal") or {}
    text = literal.get("text", "")
    if literal.get("kind") not in ("INTEGER", "NUMERIC") or not _NUMBER.fullmatch(text):
        raise Unsupported("no plain number")
    value = _as_double(text)
    if abs(value) > LARGEST_DOUBLE:
        raise Unsupported("a large number")
    return value


_NUMBER = re.compile(r"-?[0-9_]*\.?[0-9_]*(?:[eE][+-]?[0-9]+)?")


@functools.lru_cache(maxsize=1024)
def _as_double(text: str) -> float:
    """Return a literal as DuckDB converts it to a double: literals with many digits are decimals first."""
    return float(duck.fetch_rows(f"SELECT CAST({text} AS DOUBLE)")[0][0])


def is_constant(tree: Tree) -> bool:
    try:
        number_constant(tree)
    except Unsupported:
        return False
    return True
