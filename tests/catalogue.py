"""Random predicates over everything that DuckDB binds: its own catalogue of functions, every type, constants at the limits.

Nothing here knows what the compiler of predicates can do, except `known`: functions that are drawn more often than others.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.columnar import duck
from headrace.columnar.types import plain_type
from headrace.expressions.gates import NOT_REPEATABLE

# Constants of every type, as text that DuckDB casts to it: limits, what lies beside them, and what is ordinary.
WHOLE = ["0", "1", "2", "3", "7", "100"]
SIGNED = [*WHOLE, "-1", "-2", "-7"]
FLOATS = [*SIGNED, "-0.0", "0.1", "0.5", "2.5", "-2.5", "1e-9", "nan", "-nan", "inf", "-inf", "1e16", "16777217"]
MOMENTS = ["1970-01-01", "1969-12-31 23:59:59.999999", "2020-02-29 12:00:00", "2020-03-01", "2021-01-02 00:00:01"]
ENDS = ["infinity", "-infinity", "0001-01-01", "9999-12-31", "290000-01-01", "290000-01-01 (BC)"]
VALUES: dict[str, list[str]] = {
    "BOOLEAN": ["true", "false"],
    "TINYINT": [*SIGNED, "127", "-128", "-127"],
    "SMALLINT": [*SIGNED, "32767", "-32768", "181"],
    "INTEGER": [*SIGNED, "2147483647", "-2147483648", "46341", "16777217"],
    "BIGINT": [*SIGNED, "9223372036854775807", "-9223372036854775808", "9007199254740993", "3037000500"],
    "HUGEINT": [
        *SIGNED,
        "170141183460469231731687303715884105727",
        "-170141183460469231731687303715884105728",
        "170141183460469231722463931679029329919",  # as far from the end as the largest bigint
        "99999999999999999999999999999999999999",
        "9007199254740993",
    ],
    "UTINYINT": [*WHOLE, "255", "254"],
    "USMALLINT": [*WHOLE, "65535"],
    "UINTEGER": [*WHOLE, "4294967295", "65536"],
    "UBIGINT": [*WHOLE, "18446744073709551615", "9223372036854775808", "9007199254740993"],
    "UHUGEINT": [*WHOLE, "340282366920938463463374607431768211455"],
    "FLOAT": [*FLOATS, "3.4028235e38", "-3.4028235e38", "1e-45"],
    "DOUBLE": [*FLOATS, "1.7976931348623157e308", "5e-324", "9007199254740993", "9223372036854775807", "1e38", "1e200"],
    "DECIMAL(4,1)": [*SIGNED, "999.9", "-999.9", "0.5", "2.5"],
    "DECIMAL(9,0)": [*SIGNED, "999999999", "-999999999"],
    "DECIMAL(18,3)": [*SIGNED, "999999999999999.999", "-999999999999999.999", "0.001", "2.5", "9007199254740.993"],
    "DECIMAL(38,0)": [
        *SIGNED,
        "99999999999999999999999999999999999999",
        "-99999999999999999999999999999999999999",
        "99999999999999999990776627963145224192",  # 10^38 - 2^63
        "9007199254740993",
    ],
    "DECIMAL(38,10)": [*SIGNED, "9999999999999999999999999999.9999999999", "-2.5", "0.0000000001"],
    "DECIMAL(38,38)": ["0", "0.5", "-0.5", "0.99999999999999999999999999999999999999"],
    "VARCHAR": [
        *("", "a", "A", "b", "B", "ab", "é", "É", "e", "E", "z", "ß", "ss", "\U0001f600", "a%", "_", " a", "a "),
        *("1", "-1", "2.5", "1e3", "nan", "true", "2020-01-01", "day", "second", "month", "%Y-%m-%d", "[a-b]", "$.a"),
    ],
    "BLOB": ["", "a", "A", "ab", "\\x00", "\\xFF"],
    "DATE": [*(each[:10] for each in MOMENTS), "infinity", "-infinity", "5877642-06-25 (BC)", "5881580-07-10"],
    "TIME": ["00:00:00", "00:00:00.000001", "12:00:00", "23:59:59.999999", "24:00:00"],
    "TIMESTAMP": [*MOMENTS, *ENDS],
    "TIMESTAMP WITH TIME ZONE": [*MOMENTS, *ENDS],
    "INTERVAL": ["0 seconds", "1 microsecond", "5 minutes", "-2 days", "1 month", "30 days", "1 year", "1000000 years"],
    "TIMESTAMP_S": [*MOMENTS, "infinity"],
    "TIMESTAMP_MS": [*MOMENTS, "infinity"],
    "TIMESTAMP_NS": [*MOMENTS, "infinity"],
    "TIME WITH TIME ZONE": ["00:00:00+00", "12:00:00+01", "11:00:00+00", "23:59:59.999999-15:59:59"],
    "UUID": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "BIT": ["0", "1", "101", "0001"],
    "JSON": ['{"a": 1}', "[1, 2]", "null", "1"],
    "ENUM('b', 'a')": ["a", "b"],
    "BIGINT[]": ["[]", "[1, 2]", "[1, NULL]", "[9223372036854775807]"],
    "VARCHAR[]": ["[]", "[a, b]", "[A]", "[NULL]"],
    "STRUCT(a BIGINT, b VARCHAR)": ["{'a': 1, 'b': 'x'}", "{'a': 1, 'b': 'X'}", "{'a': NULL, 'b': NULL}"],
    "MAP(VARCHAR, BIGINT)": ["{}", "{a=1}", "{a=1, b=2}", "{A=NULL}"],
}
# Columns of every type that a stream carries.
COLUMNS = {
    "b": "BOOLEAN",
    "i1": "TINYINT",
    "i2": "SMALLINT",
    "i4": "INTEGER",
    "i8": "BIGINT",
    "u1": "UTINYINT",
    "u2": "USMALLINT",
    "u4": "UINTEGER",
    "u8": "UBIGINT",
    "f4": "FLOAT",
    "f8": "DOUBLE",
    "d4": "DECIMAL(4,1)",
    "d9": "DECIMAL(9,0)",
    "d18": "DECIMAL(18,3)",
    "d38": "DECIMAL(38,0)",
    "e38": "DECIMAL(38,10)",
    "s38": "DECIMAL(38,38)",
    "s": "VARCHAR",
    "z": "BLOB",
    "d": "DATE",
    "t": "TIME",
    "m": "TIMESTAMP",
    "ts": "TIMESTAMP WITH TIME ZONE",
    "li": "BIGINT[]",
    "ls": "VARCHAR[]",
    "st": "STRUCT(a BIGINT, b VARCHAR)",
    "mp": "MAP(VARCHAR, BIGINT)",
}
CARRIED = list(COLUMNS.values())
NUMBERS = [
    kind for kind in VALUES if re.match(r"(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL\(.*\))$", kind)
]
LARGE = ["BIGINT", "UBIGINT", "HUGEINT", "DECIMAL(38,0)"]  # next to each other, their limits are hard to tell apart
COLLATIONS = ["nocase", "noaccent", "nfc", "nocase.noaccent", "de", "sv", "binary"]
GROWING = frozenset(  # their results grow with a number that they are given, beyond all memory
    [
        *("array_resize", "bar", "bitstring", "equi_width_bins", "generate_series", "list_resize"),
        *("lpad", "range", "repeat", "rpad", "to_base"),
    ]
)
PER_LANGUAGE = re.compile(r"(icu_)?collate_(?!de$)")  # some hundred functions that differ in their tables alone
SIGNS = ["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]


@dataclass(frozen=True)
class Signature:
    name: str
    parameters: tuple[str, ...]
    varargs: str | None
    returns: str


@functools.cache
def signatures() -> tuple[Signature, ...]:
    """Of every scalar function and macro of DuckDB; some are refused by the gates of expressions."""
    found = duck.fetch_rows(
        "SELECT DISTINCT function_name, CASE WHEN function_type = 'macro' THEN list_transform(parameters, lambda p: 'ANY')"
        " ELSE parameter_types END, varargs, coalesce(return_type, 'ANY') FROM duckdb_functions()"
        " WHERE function_type = 'macro' OR (function_type = 'scalar' AND stability = 'CONSISTENT') ORDER BY ALL"
    )
    every = [Signature(name, tuple(kinds), varargs, returns) for name, kinds, varargs, returns in found]
    return tuple(each for each in every if _is_drawn(each))


def _is_drawn(signature: Signature) -> bool:
    """Functions that every expression is refused for are left out too: they could fail in ways of their own."""
    if signature.name in GROWING | NOT_REPEATABLE or PER_LANGUAGE.match(signature.name):
        return False
    return "LAMBDA" not in signature.parameters


@functools.cache
def schema() -> pa.Schema:
    return pa.schema([(name, plain_type(_pool(kind).type, name)) for name, kind in COLUMNS.items()])


@functools.cache
def _pool(kind: str) -> pa.ChunkedArray:
    rows = ", ".join(f"({constant(kind, text)})" for text in VALUES[kind])
    found: pa.ChunkedArray = duck.run_select(f"SELECT c FROM (VALUES {rows}, (NULL)) v(c)", {}).column(0)
    return found


def table(r: random.Random, rows: int) -> pa.Table:
    """Tuples with a column of every type; one in four has no nulls, and nothing that is near a limit."""
    tame = r.random() < 0.25
    columns = {}
    for name, kind in COLUMNS.items():
        pool = _pool(kind)
        known = min(3, len(pool) - 1) if tame else len(pool)
        columns[name] = pool.take(pa.array(np.array([r.randrange(known) for _ in range(rows)])))
    return pa.table(columns).cast(schema())


def constant(kind: str, text: str) -> str:
    quoted = text.replace("'", "''")
    if text == "-nan":
        return f"(-(CAST('nan' AS {kind})))"
    return f"CAST('{quoted}' AS {kind})"


class Predicates:
    """Writes predicates over columns of the sides `l` and `r`; some bind, and some do not."""

    def __init__(self, r: random.Random, known: Collection[str]) -> None:
        self.r = r
        self.by_kind: dict[str, list[list[Signature]]] = {}
        for every, kind in ((each, each.returns.partition("(")[0]) for each in signatures()):
            often, rest = self.by_kind.setdefault(kind, [[], []])
            (often if every.name in known else rest).append(every)

    def __call__(self, depth: int = 3) -> str:
        return self.condition(depth)

    def pick(self, *choices: Callable[[], str]) -> str:
        return self.r.choice(choices)()

    def kind(self) -> str:
        return self.r.choice(self.r.choice([NUMBERS, LARGE, ["VARCHAR"], CARRIED, CARRIED, CARRIED, list(VALUES)]))

    # --- conditions --------------------------------------------------------------------------------------------------

    def condition(self, depth: int) -> str:
        c, d = self.condition, depth - 1
        if depth <= 0:
            return self.comparison(0)
        return self.pick(
            *[lambda: self.comparison(d)] * 8,
            lambda: self.of("BOOLEAN", depth),
            lambda: f"({c(d)} AND {c(d)})",
            lambda: f"({c(d)} OR {c(d)})",
            lambda: f"(NOT {c(d)})",
            lambda: f"(CASE WHEN {c(d)} THEN {c(d)} ELSE {c(d)} END)",
            lambda: f"({c(d)} = {c(d)})",
            lambda: f"(TRY({c(d)}) IS NULL)",
        )

    def comparison(self, depth: int) -> str:
        """Of two values, mostly of one type and one from each side."""
        kind = self.kind()
        a, b = self.sides()
        one = self.sum(kind, depth) if self.r.random() < 0.4 else self.of(kind, depth, a)
        other = self.of(kind if self.r.random() < 0.8 else self.kind(), depth, b)
        third = self.of(kind, 0)
        return self.pick(
            *[lambda: f"({one} {self.r.choice(SIGNS)} {other})"] * 6,
            lambda: f"({one} {self.r.choice(['', 'NOT '])}BETWEEN {other} AND {third})",
            lambda: f"({one} {self.r.choice(['', 'NOT '])}IN ({other}, {third}))",
            lambda: f"(({one}) IS {self.r.choice(['', 'NOT '])}NULL OR {other} > {third})",
            lambda: f"({one} {self.r.choice(['LIKE', 'ILIKE', 'NOT LIKE', 'GLOB', 'SIMILAR TO'])} {other})",
        )

    # --- values ------------------------------------------------------------------------------------------------------

    def of(self, kind: str, depth: int, side: str = "") -> str:
        """An expression of a type, if it binds; `side`: that its columns belong to, mostly."""
        if depth <= 0 or self.r.random() < 0.15:
            return self.collated(kind, self.leaf(kind, side))
        here = functools.partial(self.of, kind, depth - 1)
        found = self.pick(
            *[lambda: self.call(kind, depth)] * 6,
            *[lambda: self.sum(kind, depth)] * 2,
            lambda: f"{self.r.choice(['CAST', 'CAST', 'TRY_CAST'])}({self.of(self.kind(), depth - 1)} AS {kind})",
            lambda: f"(CASE WHEN {self.condition(depth - 1)} THEN {here()} ELSE {here()} END)",
            lambda: f"(CASE {here()} WHEN {here()} THEN {here()} END)",
            lambda: f"coalesce({here()}, {here()})",
            lambda: f"nullif({here()}, {here()})",
            lambda: f"{self.r.choice(['greatest', 'least'])}({here()}, {here()}, {here()})",
            lambda: f"TRY({here()})",
        )
        return self.collated(kind, found)

    def sum(self, kind: str, depth: int) -> str:
        """What numbers and times have, mostly of both sides; numbers of all types mixed."""
        other = self.r.choice([kind, *NUMBERS, *LARGE * 4]) if kind in NUMBERS else kind
        one, two = (self.of(each, depth - 2, side) for each, side in zip((kind, other), self.sides(), strict=True))
        return f"({one} {self.r.choice('+++---**/%')} {two})"

    def sides(self) -> str:
        return self.r.choice(["lr", "rl"])

    def collated(self, kind: str, text: str) -> str:
        if kind != "VARCHAR" or self.r.random() < 0.7:
            return text
        return f"({text} COLLATE {self.r.choice(COLLATIONS)})"

    def leaf(self, kind: str, side: str) -> str:
        columns = [name for name, each in COLUMNS.items() if each == kind]
        if columns and self.r.random() < 0.75:
            of = side if side and self.r.random() < 0.8 else self.r.choice("lr")
            return f"{of}.{self.r.choice(columns)}"
        if self.r.random() < 0.05:
            return f"CAST(NULL AS {kind})"
        return constant(kind, self.r.choice(VALUES[kind]))

    def call(self, kind: str, depth: int) -> str:
        often, rest = self.by_kind.get(kind.partition("(")[0], ([], []))
        among = often if often and self.r.random() < 0.6 else rest or often
        if not among:
            return self.leaf(kind, "")
        name = self.r.choice(sorted({each.name for each in among}))
        signature = self.r.choice([each for each in among if each.name == name])
        kinds = [*signature.parameters, *[signature.varargs] * (self.r.randint(1, 3) if signature.varargs else 0)]
        same = self.kind()
        return spelt(name, [self.argument(each or "ANY", same, depth - 1) for each in kinds])

    def argument(self, kind: str, same: str, depth: int) -> str:
        """`same`: the type that the unknown ones of a call stand for."""
        if kind == "DECIMAL":
            return self.of(self.r.choice([each for each in COLUMNS.values() if each.startswith("DECIMAL")]), depth)
        if kind in VALUES:
            return self.of(kind, depth)
        if kind.endswith("]"):
            element, size = kind[:-1].split("[")[0], kind[:-1].split("[")[-1]
            inner = ", ".join(self.argument(element, same, 0) for _ in range(int(size) if size.isdigit() else 2))
            return f"array_value({inner})" if size else f"[{inner}]"
        return self.of(same, depth)


def spelt(name: str, arguments: list[str]) -> str:
    """
    >>> spelt("sin", ["1"]), spelt("+", ["1", "2"]), spelt("-", ["1"]), spelt("!__postfix", ["1"])
    ('sin(1)', '(1 + 2)', '(- 1)', '(1 !)')
    """
    if name.isidentifier():
        return f"{name}({', '.join(arguments)})"
    if name == "!__postfix":
        return f"({arguments[0]} !)"
    return f"({arguments[0]} {name} {arguments[1]})" if len(arguments) == 2 else f"({name} {' '.join(arguments)})"
