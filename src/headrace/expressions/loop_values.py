"""Values in the source code of a loop over pairs, and the statements that compute them.

Invariant: for a pair where neither `fails` nor a value's `doubt` is true, the value is null exactly if DuckDB's value
is, and differs from it by at most `error`. Without an error the bits are equal, except for the sign of zero; NaN and
infinity are then ordinary values. An infinite or NaN error leaves the value unknown. A value that is null or in doubt
is meaningless.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from headrace.expressions.bound_expression import ValueType

UNKNOWN = math.inf  # as `top`: the value may be infinite or NaN
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
    **dict.fromkeys(WHOLE_FORMS, "whole"),  # as 64-bit integers
    **dict.fromkeys([*WIDE, "DECIMAL"], "wide"),  # units of the last place, as a double that has an error beyond 2**53
    "DOUBLE": "double",
    "FLOAT": "single",  # as a double
    **dict.fromkeys(TIMES, "time"),  # microseconds
    "DATE": "date",  # days
    "INTERVAL": "span",  # microseconds; a month counts as 30 days, as in DuckDB's comparison of intervals
    "VARCHAR": "text",  # rank of the text among all texts
}
COLUMN_FORMS = frozenset(FORMS) - {"INTERVAL", "HUGEINT"}  # forms that a column may have


def form_of(kind: ValueType) -> str:
    return FORMS.get(kind.name, "")


@dataclass(frozen=True)
class LoopValue:
    """Source code of a value, its error, whether it is null and whether it is in doubt. None: no error, never null,
    never in doubt.

    `top`: upper bound of the magnitude, an integer for integer values. `positive`: DuckDB's value is never negative,
    but may be NaN.
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
    """Assignments in order, each expression once, and the conditions under which a pair may fail."""

    lines: dict[str, str] = field(default_factory=dict)  # expression -> name
    fails: list[str] = field(default_factory=list)

    def let(self, expression: str) -> str:
        if expression in (TRUE, FALSE) or expression.isidentifier():
            return expression
        return self.lines.setdefault(expression, f"t{len(self.lines)}")

    def either(self, *conditions: str | None) -> str | None:
        """Return a condition that is true if any of these is. None: never true."""
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
        """Record that DuckDB may raise an error if the condition is true and none of the values is null."""
        known = self.both(self.let(condition), self.negated(self.either(*(value.null for value in of))))
        if known is not None:
            self.fails.append(known)

    def doubted(self, value: LoopValue, condition: str | None) -> LoopValue:
        return replace(value, doubt=self.either(value.doubt, condition)) if condition else value
