"""Which formats of the state can be read: the present one, and older ones as the present one would have said it.

    1   ledgers, control and work stood among the operators
    2   without splits and keyed tables
    3   blocks were described by objects; how epochs came by their tables was not counted. What lies in its blocks is read as
        it is (`blocks`, `tables`): offsets of groups of eight bytes each, rows of tables with `__substream` and `__at` in full
    4   of a table it was not known how many rows of an epoch are live: what older epochs wrote goes by bases alone
    5   without tables beside streams; a query was known by its nodes alone, not by what each operator and result means: it is gone
        on with unchanged
    6   sources were not known by their partitions
    7   this one

Invariant: whatever is committed has the present format. State of formats 3 to 6 is gone on with, and is of format 7 from
the first epoch on; what the earlier epochs left is read as it is until it goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FORMAT = 7
OLDEST = 3  # that can be read

_BLOCK = ("name", "bytes", "checksum", "rows", "low", "high")


def as_present(body: dict[str, Any]) -> dict[str, Any]:
    """A manifest of a format that can be read, as one of the present format; nothing is checked here."""
    for number in range(body["format"], FORMAT):
        body = {**_LATER[number](body), "format": number + 1}
    return body


def _later_than_3(body: dict[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {
        name: _rows_of_blocks(body[name]) for name in ("operators", "ledgers", "outbox") if name in body
    }
    work = body.get("work")
    if isinstance(work, dict) and isinstance(counts := work.get("counts"), dict):
        known["work"] = {**work, "counts": {**counts, "tables": {}}}
    return {**body, **known}


def _later_than_4(body: dict[str, Any]) -> dict[str, Any]:
    operators = body.get("operators")
    if not isinstance(operators, dict):
        return body
    return {**body, "operators": {name: _with_ages(operator) for name, operator in operators.items()}}


def _later_than_5(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "tables": {}}


def _later_than_6(body: dict[str, Any]) -> dict[str, Any]:
    sources = body.get("sources")
    if not isinstance(sources, dict):
        return body
    known = {n: {**source, "partitions": {}} if isinstance(source, dict) else source for n, source in sources.items()}
    return {**body, "sources": known}


def _with_ages(operator: Any) -> Any:
    if not isinstance(operator, dict) or not isinstance(tables := operator.get("tables"), dict):
        return operator
    return {**operator, "tables": {n: {**t, "ages": None} if isinstance(t, dict) else t for n, t in tables.items()}}


def _rows_of_blocks(tree: Any) -> Any:
    """Wherever in it a block is described."""
    if isinstance(tree, list):
        return [_rows_of_blocks(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if set(tree) == set(_BLOCK):
        name = tree["name"]
        short = name.removeprefix("blocks/").removesuffix(".arrow") if isinstance(name, str) else name
        return [short, *(tree[field] for field in _BLOCK[1:])]
    return {name: _rows_of_blocks(item) for name, item in tree.items()}


_LATER: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    3: _later_than_3,
    4: _later_than_4,
    5: _later_than_5,
    6: _later_than_6,
}
