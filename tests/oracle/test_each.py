"""`each`: a query on every substream is that query on the tuples of each substream alone.

The other answer is made here: the rows of a substream are picked by plain Python, and the body of the `each`, as an
ordinary query over them, is handed to the reference, one substream after the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace import duck
from headrace.compile import compile_query, substreams
from headrace.difference import difference
from headrace.kernels import order, split
from headrace.operators import count_join
from headrace.reference import reference
from headrace.routing.hashing import groups_of
from headrace.state import runs
from headrace.stream import Stream, node_of
from headrace.testing import LocalRun, table_stream

from .driving import drive, shrink
from .strategies import ALL, AGGREGATES, Case, cut, make_case, transplanted
from .test_local import same, seeds

Row = dict[str, Any]
SPLIT = "split-1"


@dataclass(frozen=True)
class Rule:
    """A split as a user writes it, and the same of one tuple in plain Python: a substream, or all of them, or none."""

    substreams: int
    given: dict[str, Any]
    target: Callable[[Row], int | None]
    to_all: Callable[[Row], bool]
    by: tuple[str, ...] = ()

    def targets(self, rows: pa.Table) -> list[list[int]]:
        """Of every row, the substreams that it goes to."""
        hashed = groups_of(rows, self.by, self.substreams).tolist() if self.by else [None] * rows.num_rows
        found = []
        for row, number in zip(rows.to_pylist(), hashed, strict=True):
            target = self.target(row) if number is None else number
            found.append([*range(self.substreams)] if self.to_all(row) else [] if target is None else [target])
        return found


def vectorised(rule: Callable[[Row], Any], form: int) -> Callable[[pa.Table], Any]:
    """As users write them: what they give is a list, or an array of Arrow, in one piece or in several, or of NumPy."""

    def call(table: pa.Table) -> Any:
        values = [rule(row) for row in table.to_pylist()]
        arrow = pa.array(values)
        if form == 1:
            return arrow if arrow.null_count < len(arrow) else pa.nulls(len(arrow), pa.int8())
        if form == 2:
            return pa.chunked_array([pa.array([value], arrow.type) for value in values])
        return np.array(values) if form == 3 and None not in values else values

    return call


def random_rule(r: random.Random) -> Rule:
    q = r.choice([1, 2, 3, 5, 8, 40])
    way = r.choice(["by", "sql", "sql", "function"])
    to_all, broadcast = random_broadcast(r) if r.random() < 0.5 else (lambda row: False, {})
    if way == "by":
        by = tuple(r.sample(["k", "x", "f"], r.choice([1, 1, 2])))
        return Rule(q, {"by": list(by), **broadcast}, lambda row: None, to_all, by)
    text, target = random_route(r, q)
    route = text if way == "sql" else vectorised(target, r.randrange(4))
    return Rule(q, {"route": route, **broadcast}, target, to_all)


def random_route(r: random.Random, q: int) -> tuple[str, Callable[[Row], int | None]]:
    return r.choice(
        [
            (f"k % {q}", lambda row: None if row["k"] is None else row["k"] % q),
            (f"CAST(coalesce(abs(x), 0) % {q} AS TINYINT)", lambda row: abs(row["x"] or 0) % q),
            ("0", lambda row: 0),  # all in one
            (
                f"CASE WHEN x > 30 THEN {q - 1} WHEN x < 0 THEN NULL ELSE k % {q} END",
                lambda row: (
                    q - 1
                    if (row["x"] or 0) > 30
                    else None
                    if (row["x"] or 0) < 0 or row["k"] is None
                    else row["k"] % q
                ),
            ),
            ("CAST(NULL AS INT)", lambda row: None),
        ]
    )


def random_broadcast(r: random.Random) -> tuple[Callable[[Row], bool], dict[str, Any]]:
    text, rule = r.choice(
        [
            ("abs(x) % 7 = 3", lambda row: None if row["x"] is None else abs(row["x"]) % 7 == 3),
            ("k = 3", lambda row: None if row["k"] is None else row["k"] == 3),
            ("false", lambda row: False),
        ]
    )
    return lambda row: bool(rule(row)), {"broadcast": text if r.random() < 0.5 else vectorised(rule, r.randrange(4))}


# --- the two answers -------------------------------------------------------------------------------------------------


def over(query: Stream, stream: Stream) -> Stream:
    return transplanted(query, {"a": stream})


def each(case: Case, rule: Rule) -> Stream:
    table = case.tables["a"]
    source = table_stream(table.rows, lateness=table.lateness, name="a")
    return source.split(rule.substreams, **rule.given).each(lambda stream: over(case.query, stream))


def one_by_one(case: Case, rule: Rule, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The body over the rows of every substream alone."""
    targets, found = rule.targets(rows), [schema.empty_table()]
    for number in sorted({target for those in targets for target in those}):
        mine = rows.filter(pa.array([number in those for those in targets], pa.bool_()))
        answer = reference(over(case.query, table_stream(mine, name="a")))
        found.append(answer.append_column(schema.field("substream"), pa.array([number] * answer.num_rows, pa.int64())))
    return pa.concat_tables(found)


def all_rows(epochs: Sequence[dict[str, pa.Table]], case: Case) -> pa.Table:
    return pa.concat_tables([case.tables["a"].rows.slice(0, 0), *(epoch["a"] for epoch in epochs if "a" in epoch)])


def counted(rule: Rule, rows: pa.Table) -> list[int]:
    targets, everywhere = rule.targets(rows), [rule.to_all(row) for row in rows.to_pylist()]
    pairs = list(zip(targets, everywhere, strict=True))
    return [
        sum(bool(to) and not every for to, every in pairs),
        sum(every for _, every in pairs),
        sum(not to and not every for to, every in pairs),
    ]


def check(case: Case, rule: Rule, seed: int, **options: Any) -> pa.Table:
    query = each(case, rule)
    arrived = cut(case.tables, random.Random(seed).choice([1, 2, 3, 4, 6]), seed)
    rows = all_rows(arrived, case)

    def look(run: Any) -> None:
        assert run.last.splits == ({SPLIT: max(rows["ts"].cast(pa.int64()).to_pylist())} if rows.num_rows else {})
        if run.lives == 1 and rows.num_rows:
            assert run.last.work["counts"]["split"] == {SPLIT: counted(rule, rows)}

    found = drive(query, arrived, seed, check=look, change_slots=0.5, **options)
    expected = one_by_one(case, rule, rows, query.schema)
    assert found.schema.equals(expected.schema)
    if (text := difference(expected, found)) is not None:
        pytest.fail(explained(case, rule, query, seed, arrived, text, **options))
    return found


def explained(
    case: Case, rule: Rule, query: Stream, seed: int, arrived: list[dict[str, pa.Table]], text: str, **options: Any
) -> str:
    def differs(epochs: list[dict[str, pa.Table]]) -> str | None:
        expected = one_by_one(case, rule, all_rows(epochs, case), query.schema)
        return difference(expected, drive(query, epochs, seed, change_slots=0.5, **options))

    few = shrink(arrived, lambda epochs: differs(epochs) is not None)
    shown = "\n".join(f"epoch {n}: {table.to_pylist()}" for n, epoch in enumerate(few) for table in epoch.values())
    return f"seed {seed}: {text}\n{query!r}\n{rule}\nwith few rows:\n{shown}\n{differs(few)}"


def of_one_source(seed: object, operators: tuple[str, ...] = ALL, **options: Any) -> Case:
    return make_case(seed, operators, suitable=lambda case: case.names == ["a"], **options)


# --- exactness -------------------------------------------------------------------------------------------------------


@seeds(60)
def test_a_query_on_each_substream(seed: int) -> None:
    case = of_one_source(f"each-{seed}")
    check(case, random_rule(random.Random(f"rule-{seed}")), seed)


@seeds(30)
@pytest.mark.parametrize("operators", [("count_join",), ("time_join", "count_join", "filter"), (*AGGREGATES, "distinct")])
def test_operators_that_count_or_order(operators: tuple[str, ...], seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are merged at once: what a merge of counted tuples drops is not missed."""
    monkeypatch.setattr(runs, "FAN_IN", 2)
    case = of_one_source(f"{operators}-{seed}", operators, depth=(1, 1, 2))
    check(case, random_rule(random.Random(f"rule-{seed}")), seed, reopen=0.1)


@seeds(12)
def test_under_another_strategy_in_every_life(seed: int) -> None:
    case = of_one_source(f"strategies-{seed}")
    strategies = random.Random(seed).sample(["subquery", "operator", "query"], 3)
    check(case, random_rule(random.Random(f"rule-{seed}")), seed, reopen=0.7, strategies=strategies)
