"""What users of Spark, pandas and polars type by habit, on a stream of calls; each works, or answers with what to write."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa

import headrace as hr
from headrace.stream import Stream
from headrace.testing import arrow_table, table_stream

TIMES = pa.array([1, 2, 3], pa.timestamp("us", "UTC"))
CALLS = pa.table({"ts": TIMES, "k": ["a", "b", "a"], "x": [1, 2, 3], "items": [[1, 2], [], None]})
PAIRS = pa.table({"ts": TIMES, "k": ["a", "b", "c"], "y": [4, 5, 6]})

s = table_stream(CALLS, name="calls")
other = table_stream(PAIRS, name="pairs")
counts = s.aggregate(by="k", window="1 minute", n="count(*)")
used = s.join(other, using="k", within="1 minute")
ranked = s.top(3, by="k", order="x", window="1 minute")
table = arrow_table(PAIRS.drop_columns(["ts"]), name="names")
pdf = pd.DataFrame({"k": ["a"], "y": [1]})


class Column:
    """As a column of Spark names itself: one needs no session."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Column<'{self.text}'>"

    def __gt__(self, other: Any) -> Column:
        return type(self)(f"({self.text} > {other})")

    def __add__(self, other: Any) -> Column:
        return type(self)(f"({self.text} + {other})")

    def alias(self, name: str) -> Column:
        return type(self)(f"{self.text} AS {name}")


Column.__module__ = "pyspark.sql.classic.column"


class F:
    """As `pyspark.sql.functions`."""

    col = staticmethod(Column)
    sum = staticmethod(lambda name: Column(f"sum({name})"))
    explode = staticmethod(lambda name: Column(f"explode({name})"))
    window = staticmethod(lambda name, length: Column(f"window({name}, {length})"))


class Expr(Column):
    """As an expression of polars."""

    def __repr__(self) -> str:
        return self.text


Expr.__module__ = "polars.expr.expr"


class pl:
    """As polars."""

    col = staticmethod(lambda name: Expr(f'col("{name}")'))


HABITS = """
# pyspark: columns and rows
s.x
s["x"]
s[["k", "x"]]
s.filter(s.x > 1)
s.filter(F.col("x") > 1)
s.where("x > 1")
s.filter("x > 1")
s.select("k", "x")
s.select("*")
s.select(F.col("k"), F.col("x"))
s.select(["k", "x"])
s.select("x + 1 as y")
s.selectExpr("x + 1 as y")
s.withColumn("y", F.col("x") + 1)
s.withColumnRenamed("x", "y")
s.drop("x")
s.dropDuplicates(["k"])
s.distinct()
s.select(F.explode("items"))
s.map(lambda row: row.x + 1)

# pyspark: groups, joins, order
s.groupBy("k").agg(F.sum("x"))
s.aggregate(by="k", window="1 minute", total=F.sum("x"))
s.groupBy(F.window("ts", "1 minute"))
s.agg({"x": "sum"})
s.count()
s.join(other, "k")
s.join(other, on=["k"], how="left")
s.join(other, F.col("k") > 1, within="1 minute")
s.join(other, s.k == other.k)
s.join(other, using="k", within="1 minute")
s.join(table, using="k")
s.unionByName(other)
s.orderBy("ts")
s.withWatermark("ts", "10 seconds")
s.alias("l")

# pyspark: actions
s.first()
s.toPandas()
s.writeStream.format("parquet")
s.foreachBatch(print)
s.printSchema()
s.cache()
for row in s: print(row)

# pandas
len(s)
s.shape
s["y"] = 1
"x" in s
list(s)
del s["x"]
s[s["x"] > 1]
s.loc[0]
s[0:10]
s.groupby("k").sum()
s.query("x > 1")
s.assign(y="x + 1")
s.rename(columns={"x": "y"})
s.rename({"x": "y"})
s.drop(columns=["x"])
s.merge(other, on="k")
s.join(pdf, using="k", within="1 minute")
s.nlargest(3, "x")
s.sort_values("x")
s.fillna(0)
s.dropna()
s.rolling("10s").mean()
s.explode("items")
s.apply(lambda row: row.x)
s.describe()

# polars
s.with_columns(pl.col("x") + 1)
s.with_columns((pl.col("x") + 1).alias("y"))
s.with_columns(y=pl.col("x") + 1)
s.with_columns(y="x + 1")
s.filter(x=1)
s.filter("x > 1", "k = 'a'")
s.group_by("k")
s.group_by_dynamic("ts", every="1m")
s.join(other, left_on="k", right_on="k", within="1 minute")
s.join_asof(other, by="k")
s.unique("k")
s.select(pl.col("k"))
s.drop(["x", "k"])
s.to_dicts()

# slips of the pen
s.agregate(by="k")
s.filtr("x > 1")
s.map("*")
s.aggregate(by="k, x", window="1 minute", n="count(*)")
s.aggregate(by="k", n="count(*)")
s.apply(print)
table.filter("y > 4")
table.y
s.split(4, by="k").count()
s.top(3)
s.top("x")
s.sample(seed=1)
s.limit()
s.case(x="x > 1")
s.head(rows=5)
s.show(truncate=False)
s.peek(seconds=3)
s.unnest()
s.aggregate(by="k", window="1 minute", slide="30 seconds", n="count(*)")
s.aggregate(by="k", gap="30 minutes", n="count(*)")
counts.top(3, order="n desc", window="1 hour")
ranked.top(3, by="window_start", order="x", window="1 hour")
ranked.top(3, order="x", window="1 hour")
counts.aggregate(by="window_start", window="1 hour", n="sum(n)")
counts.aggregate(window="1 hour", window_end="max(window_end)")
s.aggregate(window="1 minute", last="max(x)", n="count(*)")
s.aggregate(window="1 minute", zone="max(k)")
s.aggregate(window="1 minute", by="count(*)")
s.unnest(["items", "b"])
s.unnest("items, b")
s.distinct(by=[["k", "x"]], within="1 minute")
s.drop("k, x")
s.join(other, using="k, y", within="1 minute")
s.asof(other, by="x")
s.asof(other.with_columns(k="y"), by="k")
s.union(other)
s.distinct(by="ts", within="1 minute")
s.split(2, by="k").each(lambda t: t.with_columns(substream="x"))
s.with_columns(n="row_number() over (partition by k order by x)")
s.filter("sum(x) over w > 3")
s.map(n="(select 1)")
s.map(item="unnest(items)")
s.with_columns(item="explode(items) + 1")
s.join(other, other, using="k", within="1 minute")
s.join(other, table, using="k")
s.join([other, table], using="k", within="1 minute")
s.join(table, other, using="k")
used.select("l_k")
used.filter("R_K = 'a'")
s.join(other, on="l.k = r.k", within="1 minute").select("k")
used.join(other, using="k", within="1 minute").filter("ts > r_ts and l_ts < r_ts")
used.join(other, using="k", within="1 minute").aggregate(by="y", window="1 minute", n="count(*)")
s.join(other, on="k = k", within="1 minute")
s.join(s, on="k = k AND x == x", within="1 minute")
s.join(other, on="ts", within="1 minute")
s.join(other, on="k = y", within="1 minute")
s.join(other, on="a.k = b.k", within="1 minute")
s.top(3, order="1", window="1 minute")
s.top(3, order="x desc, 'k'", window="1 minute")
s.top(3, order="x ascending", window="1 minute")
s.top(3, order="k, x + 1 DESCENDING nulls last", window="1 minute")
s.top(3, order="x down", window="1 minute")
hr.session(cores=2)
hr.read_parquet("folder")
hr.sinks.csv("out")
hr.sinks.postgres("db")
hr.stream(pdf, time="ts")
hr.col("x")
"""


def listed() -> list[str]:
    """The habits, with the headings between them."""
    return HABITS.strip().splitlines()


def answer(habit: str) -> str:
    """What comes of it, on one line: the columns of a stream, or the error."""
    names = {**globals(), "s": s, "hr": hr}
    try:
        found = eval(habit, names)
    except SyntaxError:
        try:
            exec(habit, names)
        except Exception as error:
            return _told(error)
        return "works"
    except Exception as error:
        return _told(error)
    if isinstance(found, Stream):
        return f"works: {', '.join(found.columns)}"
    return f"works: {type(found).__name__}"


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def answers() -> str:
    """All of them, for people to read."""
    lines = []
    for line in listed():
        lines += [line, f"    {answer(line)}"] if line and not line.startswith("#") else [line]
    return "\n".join(lines) + "\n"
