"""Random predicates of joins over columns of every type that loops take, and tables that are hard on them."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

COLUMNS = {
    "x": pa.float64(),
    "y": pa.float64(),
    "f": pa.float32(),
    "n": pa.int64(),
    "i": pa.int32(),
    "q": pa.int16(),
    "u": pa.uint64(),
    "m": pa.decimal128(10, 2),
    "w": pa.decimal128(30, 4),
    "b": pa.bool_(),
    "s": pa.string(),
    "ts": pa.timestamp("us", "UTC"),
    "d": pa.date32(),
}
NAN, INF = float("nan"), float("inf")
AWKWARD: dict[str, list[Any]] = {
    "x": [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        2.5,
        -2.5,
        0.1,
        0.3,
        1e-9,
        1e16,
        2.0**53,
        2.0**53 + 2,
        9.3e18,
        1e30,
        1e200,
        -1e308,
        5e-324,
        1e-200,
        90.0,
        180.0,
        3.141592653589793,
        0.7071067811865476,
        1.005,
        1e300,
        NAN,
        INF,
        -INF,
        None,
    ],
    "f": [0.0, -0.0, 0.1, 1.5, 2.5, 16777216.0, -3.4e38, 1e-45, 1e-20, NAN, INF, -INF, None],
    "n": [
        0,
        1,
        -1,
        2,
        7,
        -7,
        10,
        100,
        2**31,
        -(2**31),
        2**53,
        2**53 + 1,
        -(2**53) - 1,
        2**62,
        2**63 - 1,
        -(2**63),
        None,
    ],
    "i": [0, 1, -1, 2, 3, -7, 100, 2**24 + 1, 2**31 - 1, -(2**31), None],
    "q": [0, 1, -1, 5, 181, -182, 2**15 - 1, -(2**15), None],
    "u": [0, 1, 2, 2**53, 2**53 + 1, 2**63, 2**64 - 1, None],
    "m": [
        Decimal(t) for t in ("0.00", "0.01", "-0.01", "0.50", "2.50", "-2.50", "99999999.99", "-99999999.99", "12.34")
    ]
    + [None],
    "w": [
        Decimal(t)
        for t in (
            "0",
            "0.0001",
            "0.5",
            "-2.5",
            "9007199254740.993",
            "9007199254740993",
            "99999999999999999999999999.9999",
        )
    ]
    + [None],
    "b": [True, False, None],
    "s": ["", "a", "b", "ab", "A", "ä", "\U0001f600", "\uffff", "a\x00b", "zz", None],
    "ts": [
        0,
        1,
        -1,
        1_000_000,
        86_400_000_000,
        1_577_836_800_250_000,
        -62_135_596_800_000_000,
        2**60,
        9_223_372_022_400_000_000,
        None,
    ],
    "d": [0, 1, -1, 18_262, -719_162, 100_000, None],
}
AWKWARD["y"] = AWKWARD["x"]
ORDINARY: dict[str, Callable[[random.Random], Any]] = {
    "x": lambda r: r.choice([r.uniform(-10, 10), r.randint(-20, 20) / 4, r.gauss(0, 1)]),
    "y": lambda r: r.choice([r.uniform(-180, 180), float(r.randint(-3, 3)), 10 ** r.uniform(-3, 3)]),
    "f": lambda r: r.choice([r.uniform(-10, 10), r.randint(-20, 20) / 4]),
    "n": lambda r: r.choice([r.randint(-20, 20), r.randint(-(10**6), 10**6), r.randint(-(2**45), 2**45)]),
    "i": lambda r: r.randint(-50, 50),
    "q": lambda r: r.randint(-50, 50),
    "u": lambda r: r.randint(0, 100),
    "m": lambda r: Decimal(r.randint(-2000, 2000)) / 100,
    "w": lambda r: Decimal(r.randint(-200000, 200000)) / 10000,
    "b": lambda r: r.random() < 0.5,
    "s": lambda r: r.choice(["a", "b", "ab", "abc", "B"]),
    "ts": lambda r: 1_577_836_800_000_000 + r.choice([1, 1000, 500_000, 1_000_000]) * r.randint(-600, 600),
    "d": lambda r: 18_262 + r.randint(-40, 40),
}


def table(r: random.Random, rows: int, *, awkward: bool) -> pa.Table:
    def some(name: str) -> Any:
        return r.choice(AWKWARD[name]) if awkward and r.random() < 0.5 else ORDINARY[name](r)

    return pa.table({name: _array([some(name) for _ in range(rows)], kind) for name, kind in COLUMNS.items()})


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_float32(kind):
        values = [None if v is None else np.float32(v) for v in values]
    return pa.array(values, kind)


class Predicates:
    """Writes predicates as people might, if they were many and did not care."""

    def __init__(self, r: random.Random) -> None:
        self.r = r

    def __call__(self, depth: int = 3) -> str:
        return self.condition(depth)

    def pick(self, *choices: Callable[[], str]) -> str:
        return self.r.choice(choices)()

    def side(self) -> str:
        return self.r.choice("lr")

    def condition(self, depth: int) -> str:
        n, c, d = self.number, self.condition, depth - 1
        if depth <= 0:
            return self.pick(lambda: f"{self.side()}.b", lambda: self.compared(self.plain(), self.plain()))
        return self.pick(
            *[lambda: self.compared(n(d), n(d))] * 5,
            lambda: f"{n(d)} between {n(d)} and {n(d)}",
            lambda: f"({c(d)} and {c(d)})",
            lambda: f"({c(d)} or {c(d)})",
            lambda: f"not ({c(d)})",
            lambda: f"({n(d)}) is {self.r.choice(['', 'not '])}null",
            lambda: f"{n(d)} is {self.r.choice(['', 'not '])}distinct from {n(d)}",
            lambda: f"{self.text(d)} {self.sign()} {self.text(d)}",
            lambda: f"{self.text(d)} in ({self.text(0)}, 'b', {self.text(0)})",
            lambda: f"{n(d)} not in (1, {n(0)}, 2.5)",
            lambda: f"{self.time(d)} {self.sign()} {self.time(d)}",
            lambda: f"{self.span(d)} {self.sign()} {self.span(d)}",
            lambda: f"case when {c(d)} then {c(d)} else {c(d)} end",
            lambda: f"coalesce({c(d)}, {c(d)})",
            lambda: f"({c(d)}) = ({c(d)})",
            lambda: f"(l.d - r.d) {self.sign()} {self.whole(d)}",
        )

    def sign(self) -> str:
        return self.r.choice(["=", "<>", "<", "<=", ">", ">="])

    def compared(self, a: str, b: str) -> str:
        return f"({a} {self.sign()} {b})"

    def plain(self) -> str:
        return f"{self.side()}.{self.r.choice('xyyxfniqumw')}"

    def literal(self) -> str:
        known = ["0", "1", "2", "3", "10", "-1", "0.5", "0.1", "2.5", "-0.25", "1e3", "1e-9", "180", "9007199254740993"]
        return self.r.choice([*known, str(self.r.randint(-9, 9)), f"{self.r.uniform(-5, 5):.3f}"])

    def number(self, depth: int) -> str:
        n, d = self.number, depth - 1
        if depth <= 0:
            return self.pick(self.plain, self.plain, lambda: f"{self.side()}.x", self.literal)
        return self.pick(
            *[lambda: self.double(depth)] * 6,
            *[lambda: self.whole(depth)] * 2,
            lambda: f"({n(d)} {self.r.choice('+-*')} {n(d)})",
            lambda: f"({n(d)} / {n(d)})",
            lambda: f"-({n(d)})",
            lambda: f"abs({n(d)})",
            lambda: f"case when {self.condition(d)} then {n(d)} when {self.condition(d)} then {n(d)} end",
            lambda: f"case when {self.condition(d)} then {n(d)} else {n(d)} end",
            lambda: f"coalesce({n(d)}, {n(d)})",
            lambda: f"nullif({n(d)}, {n(d)})",
            lambda: f"{self.r.choice(['greatest', 'least'])}({n(d)}, {n(d)}, {n(d)})",
            lambda: f"({n(d)})::{self.kind()}",
            lambda: f"try_cast({n(d)} as {self.kind()})",
            lambda: "epoch(l.ts - r.ts)",
        )

    def kind(self) -> str:
        kinds = [
            "double",
            "float",
            "integer",
            "bigint",
            "smallint",
            "decimal(10,2)",
            "decimal(18,6)",
            "decimal(30,3)",
            "ubigint",
        ]
        return self.r.choice([*kinds, "utinyint", "hugeint", "boolean::int"])

    def double(self, depth: int) -> str:
        d = depth - 1
        n = lambda: self.double(d) if d > 0 and self.r.random() < 0.7 else f"({self.number(d)})::double"  # noqa: E731
        one = ["sqrt", "cbrt", "exp", "ln", "log", "log2", "log10", "sin", "cos", "tan", "cot", "asin", "acos", "atan"]
        one += ["sinh", "cosh", "tanh", "radians", "degrees", "floor", "ceil", "round", "trunc", "sign", "abs", "-"]
        return self.pick(
            *[lambda: f"{self.r.choice(one)}({n()})"] * 4,
            *[lambda: f"({n()} {self.r.choice('+-*/')} {n()})"] * 4,
            lambda: f"({self.side()}.x - {self.side()}.y)",
            lambda: f"({n()} % {n()})",
            lambda: f"fmod({n()}, {n()})",
            lambda: f"atan2({n()}, {n()})",
            lambda: f"pow({n()}, {self.r.choice(['2', '3', '0.5', '-1', '0', n()])})",
            lambda: f"({n()} ^ {self.r.choice(['2', '4', n()])})",
            lambda: f"log({self.r.choice(['2', '10', n()])}, {n()})",
            lambda: f"round({n()}, {self.r.randint(-3, 5)})",
            lambda: "pow(sin(radians(l.x - r.y) / 2), 2)",
            lambda: "sqrt(pow(l.x - r.x, 2) + pow(l.y - r.y, 2))",
            lambda: f"(isnan({n()}) or isinf({n()}))::int::double",
            lambda: "pi()",
        )

    def whole(self, depth: int) -> str:
        w, d = self.whole, depth - 1
        if depth <= 0:
            return self.pick(lambda: f"{self.side()}.{self.r.choice('niq')}", lambda: str(self.r.randint(-9, 9)))
        return self.pick(
            *[lambda: f"({w(d)} {self.r.choice(['+', '-', '*', '//', '%'])} {w(d)})"] * 4,
            lambda: f"abs({w(d)})",
            lambda: f"-({w(d)})",
            lambda: f"({self.condition(d)})::int",
            lambda: (
                f"date_diff('{self.r.choice(['second', 'minute', 'hour', 'day', 'millisecond'])}', {self.time(0)}, {self.time(0)})"
            ),
            lambda: f"length({self.side()}.s)",
        )

    def text(self, depth: int) -> str:
        t, d = self.text, depth - 1
        if depth <= 0:
            return self.pick(lambda: f"{self.side()}.s", lambda: self.r.choice(["'a'", "'ab'", "'zzz'", "''"]))
        return self.pick(
            lambda: t(0),
            lambda: f"upper({self.side()}.s)",
            lambda: f"coalesce({t(d)}, {t(d)})",
            lambda: f"greatest({t(d)}, {t(d)})",
            lambda: f"case when {self.condition(d)} then {t(d)} else {t(d)} end",
        )

    def time(self, depth: int) -> str:
        t, d = self.time, depth - 1
        if depth <= 0:
            return f"{self.side()}.ts"
        return self.pick(
            lambda: t(0),
            lambda: (
                f"({t(d)} {self.r.choice('+-')} interval '{self.r.choice(['5 minutes', '1 day', '90 seconds', '1.5 seconds'])}')"
            ),
            lambda: "timestamptz '2020-01-01 00:00:01+00'",
            lambda: f"coalesce({t(d)}, {t(d)})",
            lambda: f"least({t(d)}, {t(d)})",
            lambda: f"({self.side()}.d)::timestamp::timestamptz",
        )

    def span(self, depth: int) -> str:
        return self.pick(
            lambda: f"({self.time(depth - 1)} - {self.time(depth - 1)})",
            lambda: (
                f"interval '{self.r.choice(['5 minutes', '1 day', '1 month', '0 seconds', '36 hours', '-2 days'])}'"
            ),
        )
