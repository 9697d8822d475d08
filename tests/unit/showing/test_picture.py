"""A picture is well-formed, shows every subquery, and no box lies on another."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from typing import Any

import pyarrow as pa
import pytest

from headrace.columnar.types import TS_TYPE
from headrace.showing.picture import svg
from headrace.stream import Stream
from headrace.testing import table_stream
from tests.unit.compile import queries

NS = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    "make", [queries.figure_1, queries.figure_2, queries.figure_8, queries.by_phone, queries.several]
)
@pytest.mark.parametrize("strategy", ["subquery", "operator", "query"])
def test_every_subquery_is_in_the_picture(make: Any, strategy: str) -> None:
    plan = make().plan(slots=3, strategy=strategy)
    picture = ET.fromstring(svg(plan))
    texts = [title.text for title in picture.iter(f"{NS}title")]
    for subquery in plan.subqueries:
        assert f"{subquery.name}, 3 slots" in texts
        assert str(subquery.router) in texts and set(subquery.operators) <= set(texts)
    boxes = [r for r in picture.iter(f"{NS}rect") if r.get("class")]
    places = [tuple(int(r.attrib[name]) for name in ("x", "y", "width", "height")) for r in boxes]
    for (ax, ay, aw, ah), (bx, by, bw, bh) in itertools.combinations(places, 2):
        assert ax + aw <= bx or bx + bw <= ax or ay + ah <= by or by + bh <= ay
    assert len(list(picture.iter(f"{NS}path"))) == sum(len(s.inputs) for s in plan.subqueries)


def test_text_of_a_query_cannot_become_markup() -> None:
    query = queries.calls("<b>&").filter("caller <> '</text><script>'")
    ET.fromstring(svg(query.plan(slots=1)))
    assert "<script>" not in svg(query.plan(slots=1))


def test_a_subquery_may_take_from_one_that_is_listed_after_it() -> None:
    def source(name: str, key: str) -> Stream:
        schema = pa.schema([("ts", TS_TYPE), (key, pa.int64()), (f"x{name}", pa.float64())])
        return table_stream(schema.empty_table(), name=name)

    a, b, c, d, e = (source(*each) for each in (("a", "k"), ("b", "y"), ("c", "k2"), ("d", "k"), ("subquery-1", "k3")))
    first = a.join(b, on="l.xa < r.xb", within="1 second").map("k").join(c, on="l.k = r.k2", within="1 second").map("k")
    second = d.join(e, on="l.k = r.k3", within="1 second").map("k")
    plan = first.union(second).aggregate(by=["k"], window="1 second", n="count(*)").plan(slots=2)
    ET.fromstring(svg(plan))
