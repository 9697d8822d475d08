"""A picture is well-formed, shows every subquery, and no box lies on another."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from headrace.compile.picture import svg

from . import queries

NS = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("make", [queries.figure_1, queries.figure_2, queries.figure_8, queries.by_phone])
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
