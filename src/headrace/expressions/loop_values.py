"""What is known of a value in the source of a loop over pairs, and the statements that make it.

Invariant: where neither `fails` nor a value's `doubt` is true, DuckDB has the same null, and a value that differs by no
more than `error` (no error: the same bits, but for the sign of zero; NaN and infinity are values like others then). An
error that is infinite or NaN says nothing of the value. What a value is where it is null, or in doubt, means nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from headrace.expressions.bound_expression import ValueType

UNKNOWN = math.inf  # a magnitude: the value may be infinite or NaN
TRUE, FALSE = "True", "False"

WHOLE_FORMS = {
    "TINYINT": (-(2**7), 2**7 - 1),
    "SMALLINT": (-(2**15), 2**15 - 1),
    "INTEGER": (-(2**31), 2**31 - 1),
    "BIGINT": (-(2**63), 2**63 - 1),
    "UTINYINT": (0, 2**8 - 1),
    "USMALLINT": (0, 2**16 - 1),
    "UINTEGER": (0, 2**32 - 1),
}
WIDE = {"UBIGINT": (0, 2**64 - 1), "HUGEINT": (-(2**127), 2**127 - 1)}
TIMES = frozenset(["TIMESTAMP", "TIMESTAMP WITH TIME ZONE"])
FORMS = {
    "BOOLEAN": "boolean",
    **dict.fromkeys(WHOLE_FORMS, "whole"),  # as 64 bits
    **dict.fromkeys([*WIDE, "DECIMAL"], "wide"),  # units of the last place, as a double with an error beyond 2**53
    "DOUBLE": "double",
    "FLOAT": "single",  # as a double
    **dict.fromkeys(TIMES, "time"),  # microseconds
    "DATE": "date",  # days
    "INTERVAL": "span",  # microseconds, a month taken as 30 days, as when intervals are compared
    "VARCHAR": "text",  # its place among all texts there are
}
COLUMN_FORMS = frozenset(FORMS) - {"INTERVAL", "HUGEINT"}  # what a column may be


def form_of(kind: ValueType) -> str:
    return FORMS.get(kind.name, "")


@dataclass(frozen=True)
class LoopValue:
    """Source of a value, of its error, of whether it is null and of whether it is in doubt; None: zero, never.

    `top`: it is no larger than that, a whole number where the value is one; `positive`: DuckDB's own is never below zero (but may be NaN).
    """

    kind: ValueType
    value: str
    error: str | None = None
    null: str | None = None
    doubt: str | None = None
    top: float = UNKNOWN
    positive: bool = False

    @property
    def form(self) -> str:
        return form_of(self.kind)

    @property
    def finite(self) -> bool:
        return self.top < 1e300


@dataclass
class Statements:
    """Assignments in order, each value once; and when a pair could fail."""

    lines: dict[str, str] = field(default_factory=dict)  # expression -> name
    fails: list[str] = field(default_factory=list)

    def let(self, expression: str) -> str:
        if expression in (TRUE, FALSE) or expression.isidentifier():
            return expression
        return self.lines.setdefault(expression, f"t{len(self.lines)}")

    def either(self, *conditions: str | None) -> str | None:
        """Whether one is true; None: never."""
        found = list(dict.fromkeys(c for c in conditions if c not in (None, FALSE)))
        if TRUE in found:
            return TRUE
        return self.let(" | ".join(map(str, found))) if len(found) > 1 else found[0] if found else None

    def both(self, one: str | None, other: str | None) -> str | None:
        if None in (one, other) or FALSE in (one, other):
            return None
        if TRUE in (one, other):
            return other if one == TRUE else one
        return self.let(f"{one} & {other}")

    def negated(self, condition: str | None) -> str:
        if condition in (None, FALSE):
            return TRUE
        return FALSE if condition == TRUE else self.let(f"{condition} ^ True")

    def chosen(self, condition: str, one: str, other: str) -> str:
        if one == other or condition == TRUE:
            return one
        return other if condition == FALSE else self.let(f"where({condition}, {one}, {other})")

    def fail(self, condition: str, *of: LoopValue) -> None:
        """A pair for which this is true, and none of these values null, may make DuckDB raise an error."""
        known = self.both(self.let(condition), self.negated(self.either(*(value.null for value in of))))
        if known is not None:
            self.fails.append(known)

    def doubted(self, value: LoopValue, condition: str | None) -> LoopValue:
        return replace(value, doubt=self.either(value.doubt, condition)) if condition else value
