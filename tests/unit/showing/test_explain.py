"""What a person reads: the query, every subquery, each way of routing with its numbers, and who does most."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.compile.subqueries import MeasuredRates
from headrace.errors import QueryError
from headrace.plan.figures import Figures
from headrace.query import nodes
from headrace.showing.explain import explain
from headrace.stream import node_of
from headrace.testing import table_stream
from tests.unit.compile import queries

FIGURES = Figures(
    rates={"calls": 2000.0, "suspects": 10.0},
    matching={"join-1": 0.001},
    partials={"aggregate-1": 0.5},
    results={"aggregate-1": 4.0},
    held={"aggregate-1": 90.0},
    costs={"calls": 1.0, "suspects": 1.0, "join-1": 60.0, "aggregate-1": 20.0},
)


def test_a_plan_with_figures() -> None:
    assert (
        queries.figure_1().explain(slots=60, figures=FIGURES)
        == """\
aggregate by minutes window 1 minute every 1 minute: n = count(*)
  map minutes = (ended - began) // 60
    join on l.caller = r.phone within 1 minute, 1 minute
      source calls (ts timestamp[us, tz=UTC], caller string, callee string, began int64, ended int64)
      source suspects (ts timestamp[us, tz=UTC], phone string, reason string)

strategy subquery, 60 slots, 2 shuffles
numbers for full windows, from a sample of the input
  calls: 2,000 tuples/s
  suspects: 10 tuples/s

subquery-1 <- calls, suspects
  join on l.caller = r.phone within 1 minute, 1 minute
  map minutes = (ended - began) // 60
  pairs: index, looked up by their key
  routed by                                     sent/s     held  read by a slot  compared by a slot/s
  chosen: hash of l.caller = r.phone             2,010  120,600           2,044                    40
  rejected: grid of 60 x 1 cells, left by rows   2,600  120,600           2,643                40,000
  rejected: one slot, in sequence                2,010  120,600         122,610             2,400,000
  slots: 60 (43 if each subquery had its own); cost: 60 us per tuple; busy: 0.2 % of them; results: 2,400/s

subquery-2 <- subquery-1
  aggregate by minutes window 1 minute every 1 minute: count(*)
  routed by                        sent/s  held  read by a slot  compared by a slot/s
  chosen: hash of minutes           1,200    90            21.5                0.0667
  rejected: one slot, in sequence   1,200    90           1,290                     4
  slots: 60 (17 if each subquery had its own); cost: 20 us per tuple; busy: 0.08 % of them; results: 4/s

bottleneck: subquery-1 with 71 % of the work
utilisation: 0.28 % of 60 slots at these rates (stages take turns, so each subquery may use all of its slots)
with separate slots for each subquery: 43 + 17; 0.48 % of the capacity would be idle"""
    )


def test_without_figures_it_says_what_was_assumed() -> None:
    text = queries.figure_1().explain(slots=4)
    assert "nothing was measured; assumptions: every source delivers 1,000 tuples/s" in text
    assert "bottleneck" not in text and "(by tuples alone: costs are unknown)" in text


def test_measured_figures_stand_beside_the_predicted_ones() -> None:
    plan = queries.figure_1().plan(slots=4, figures=FIGURES)
    found = {
        "calls": MeasuredRates(1990.0, 0.0, 0.0, 1990.0, 1.5),
        "subquery-1": MeasuredRates(2000.0, 2000.5, 119_000.0, 2_350.0, 66.0),
    }
    text = explain([], plan, found)
    assert "calls: 2,000 tuples/s (1,990 measured)" in text
    assert "  measured                                      2,000  119,000" in text.replace("2,001", "2,000")
    assert "measured: 66 us per tuple; results: 2,400/s (2,350 measured)" in text


def test_no_work_is_no_division() -> None:
    steps = queries.calls().filter("caller > 'b'")
    for rate in (0.0, 10.0):
        text = steps.explain(slots=2, figures=Figures(rates={"calls": rate}))
        assert "inf" not in text and "nan" not in text


@pytest.mark.parametrize("cost", ["5", True, -1, float("nan")])
def test_a_cost_is_a_number(cost: Any) -> None:
    with pytest.raises(QueryError, match="the cost of subquery-1 must be a number of microseconds per tuple"):
        queries.figure_1().plan(slots=2, costs={"subquery-1": cost})


def test_sources_without_names_are_called_alike_everywhere() -> None:
    one, other = (node_of(table_stream(queries.calls().schema.empty_table())) for _ in range(2))
    first, second = nodes.outline(one, other)
    assert "source source-1 " in first and "source source-2 " in second


def test_explain_says_how_tuples_are_taken_in_sequence() -> None:
    a, b = (hr.testing.source(name, {"k": "int64", "x": "double"}) for name in "ab")
    stretches = "slots first number the tuples, each in a stretch of ts; tuples of one ts share a slot"
    joined = a.join(b, on="l.k = r.k", last=5)
    assert stretches in joined.explain(slots=4)
    split = a.union(b).split(4, by=["k"]).each(lambda s: s.join(s, on="l.k = r.k", last=5))
    assert stretches not in split.explain(slots=4)
    alone = "in one slot, because all tuples are one group without a key"
    assert alone in a.aggregate(last=3, n="count(*)").explain(slots=4)
    assert alone not in a.aggregate(by="k", last=3, n="count(*)").explain(slots=4)
    near = a.join(b, on="abs(l.x - r.x) < 1", within="5 seconds")
    assert "ranges of r.x replace a grid if that is less work, and follow the values" in near.explain(slots=4)


def test_a_chain_of_joins_is_told_of_joins_of_several_streams() -> None:
    a, b, c, d = (hr.testing.source(name, {"k": "int64"}) for name in "abcd")
    pairs = a.join(b, on="l.k = r.k", within="10 seconds")
    chain = pairs.filter("l_k > 3").map(k="l_k").join(c, on="l.k = r.k", within=("1 minute", "0 seconds"))
    hint = "hint: this is a chain of 2 joins of two streams"
    assert f"{hint}, which stores the pairs of each join as state" in chain.explain(slots=2)
    assert "hr.join({'a': a, 'b': b, 'c': c}, on=..., within='1 minute')" in chain.explain(slots=2)
    longer = chain.map(k="l_k").join(d.join(d, on="true", within="1 second"), on="l.k = r.l_k", within="1 second")
    assert longer.explain(slots=2).count("hint: ") == 1 and "a chain of 4 joins" in longer.explain(slots=2)
    inside = (
        a.union(b)
        .split(2, by="k")
        .each(lambda s: s.join(s, on="true", within="1 second").map(k="l_k").join(s, on="true", within="1 second"))
    )
    assert hint in inside.explain(slots=2)


def test_other_joins_get_no_hint() -> None:
    a, b, c = (hr.testing.source(name, {"k": "int64"}) for name in "abc")
    pairs = a.join(b, on="l.k = r.k", within="10 seconds")
    several = hr.join({"a": a, "b": b, "c": c}, on="a.k = b.k and b.k = c.k", within="10 seconds")
    counts = pairs.aggregate(by="l_k", window="10 seconds", n="count(*)")
    others = [
        pairs,
        several,
        pairs.map(k="l_k").join(c, on="l.k = r.k", within="1 second", how="left"),
        pairs.map(k="l_k").join(c, on="l.k = r.k", last=3),
        counts.join(c, on="l.l_k = r.k", within="1 second"),
    ]
    assert not [query for query in others if "hint:" in query.explain(slots=2)]


def test_a_join_of_several_streams_shows_its_ways_to_route() -> None:
    a, b, c = (hr.testing.source(name, {"k": "int64", "x": "double"}) for name in "abc")
    shared = hr.join({"a": a, "b": b, "c": c}, on="a.k = b.k and b.k = c.k", within="10 seconds")
    assert "chosen: hash of a.k = b.k = c.k" in shared.explain(slots=4)
    assert "a chain of 2 joins of two streams would send about 4,000 tuples/s and hold 40,000" in shared.explain(
        slots=4
    )
    two = hr.join({"a": a, "b": b, "c": c}, on="a.k = b.k and b.x = c.x", within="10 seconds")
    assert "chosen: hash of a.k = b.k, the other streams to every slot" in two.explain(slots=4)
    assert "rejected: hash of b.x = c.x, the other streams to every slot" in two.explain(slots=4)
    rates = Figures(rates={"a": 10.0, "b": 1000.0, "c": 1000.0})
    assert "chosen: hash of b.x = c.x, the other streams to every slot" in two.explain(slots=4, figures=rates)
    none = hr.join({"a": a, "b": b, "c": c}, on="a.x < c.x", within="10 seconds")
    assert "chosen: grid of 2 + 2 cells, left by rows" in none.explain(slots=4)


def test_a_join_of_several_streams_shows_how_it_probes() -> None:
    streams = {name: hr.testing.source(name, {"k": "int64", "x": "double", "s": "string"}) for name in "abc"}
    ways = {
        "a.k = b.k and b.k = c.k": "by key\n",
        "a.k = b.k and b.x = c.x": "by key or by time; every slot reads the streams without the chosen key\n",
        "a.k = b.k and abs(b.x - c.x) <= 1": "by key, along a number or by time; every slot reads c\n",
        "a.x < c.x": "by time; every slot reads c\n",
        "a.k = b.k and a.s::int = c.k": "; (CAST(a.s AS INTEGER) = c.k) may fail, so it is evaluated last\n",
    }
    for on, way in ways.items():
        text = hr.join(streams, on=on, within="10 seconds").explain(slots=4)
        assert "pairs: each new tuple probes the other streams by" in text and way in text, on
