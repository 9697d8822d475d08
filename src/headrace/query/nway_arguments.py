"""The arguments of a join of several streams, checked, and the node that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace import expressions
from headrace.columnar.types import EVENT_TIME, fold_name
from headrace.errors import QueryError, QueryTypeError
from headrace.query import nodes
from headrace.support.argument_errors import describe_argument
from headrace.support.durations import Duration, parse_duration

FEWEST_ALIASES, MOST_ALIASES = 2, 8
_EXAMPLE = "hr.join({'a': a, 'b': b, 'c': c}, on='a.id = b.id and b.id = c.id', within='60 seconds')"
_REFUSED = {
    "last": "its windows are windows of time; a join over count windows has two streams: a.join(b, on=..., last=1000)",
    "how": "it is an inner join; a join that keeps tuples without a match has two streams: a.join(b, ..., how='left')",
    "using": "write the equalities of the aliases: on='a.id = b.id and b.id = c.id'",
}


def nway_join(
    streams: Mapping[str, nodes.Node],
    on: str | None,
    within: Duration | Mapping[str, Duration] | None,
    others: Mapping[str, Any],
) -> nodes.NWayJoin:
    """Return the join of streams under aliases. others: arguments that the join does not take."""
    _refuse_others(others)
    aliases = _checked_aliases(streams)
    if on is None:
        raise QueryError(f"join needs a condition over its aliases; found no on; such as {_EXAMPLE}")
    windows = _checked_windows(within, aliases)
    nodes_of = tuple(streams.values())
    predicate = expressions.nway_predicate(on, aliases, [node.schema for node in nodes_of])
    return nodes.NWayJoin(aliases, nodes_of, predicate, windows)


def _refuse_others(others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name not in _REFUSED:
            raise QueryTypeError(
                f"join takes streams, on and within; found {name}={describe_argument(value)}; leave it out"
            )
        raise QueryError(f"a join of several streams takes no {name}; found {name}={value!r:.100}; {_REFUSED[name]}")


def _checked_aliases(streams: Mapping[str, nodes.Node]) -> tuple[str, ...]:
    if not FEWEST_ALIASES <= len(streams) <= MOST_ALIASES:
        raise QueryError(
            f"join takes {FEWEST_ALIASES} to {MOST_ALIASES} streams; found {len(streams)}; such as {_EXAMPLE}"
        )
    seen: dict[str, str] = {}
    for alias in streams:
        _check_alias(alias)
        if (twin := seen.setdefault(fold_name(alias), alias)) != alias:
            raise QueryError(
                f"the aliases {twin!r} and {alias!r} differ only in case; SQL does not distinguish them; rename one"
            )
    return tuple(streams)


def _check_alias(alias: str) -> None:
    if not isinstance(alias, str):
        raise QueryTypeError(f"an alias must be text; found {describe_argument(alias)}; such as {_EXAMPLE}")
    if not alias.isidentifier():
        raise QueryError(
            f"an alias must be a name of letters, digits and _, which begins with no digit; found {alias!r}"
        )
    if fold_name(alias) in EVENT_TIME:
        raise QueryError(f"an alias cannot be {alias!r}, which is the event time; choose another name")
    expressions.check_alias(alias)


def _checked_windows(within: Duration | Mapping[str, Duration] | None, aliases: Sequence[str]) -> tuple[int, ...]:
    """Return the window of each alias in microseconds. At least one is more than zero."""
    example = "{" + ", ".join(f"{alias!r}: '60 seconds'" for alias in aliases) + "}"
    if within is None:
        raise QueryError(f"join needs a window; found no within; write within='60 seconds', or within={example}")
    if isinstance(within, Mapping):
        if missing := [alias for alias in aliases if alias not in within]:
            raise QueryError(f"within lacks the window of {', '.join(map(repr, missing))}; write within={example}")
        if unknown := [name for name in within if name not in aliases]:
            raise QueryError(f"within names an unknown alias {unknown[0]!r}; the join has {', '.join(aliases)}")
        windows = tuple(parse_duration(within[alias], f"within[{alias!r}]", zero=True) for alias in aliases)
    elif isinstance(within, list | tuple):
        raise QueryTypeError(
            f"within takes one duration, or one for each alias by its name; found {describe_argument(within)};"
            f" write within={example}"
        )
    else:
        windows = (parse_duration(within, "within", zero=True),) * len(aliases)
    if not any(windows):
        raise QueryError(f"within must be more than zero for at least one alias; found {within!r}")
    return windows
