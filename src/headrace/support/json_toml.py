"""Parsing of JSON and TOML that users may have written by hand, with limits.

    parse_json(text) returns  =>  nested at most DEEPEST_NESTING, every number finite with at most MOST_DIGITS digits, no name twice in an
    (or parse_toml)               object

so code can recurse over the values, print them and calculate with them, whatever the user wrote.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, QueryError

DEEPEST_NESTING = 50  # levels of nested lists and objects
MOST_DIGITS = 40
BITS = (10**MOST_DIGITS).bit_length()
_TOO_DEEP = f"it is nested more than {DEEPEST_NESTING} deep"


def read_json(
    path: str | os.PathLike[str], what: str, hint: str = "", error: type[HeadraceError] = QueryError
) -> dict[str, Any]:
    """Return the object in a JSON file. `what` names the file in errors, and `hint` says how to create a valid one."""
    return _read(path, "JSON", parse_json, what, hint, error)


def read_toml(
    path: str | os.PathLike[str], what: str, hint: str = "", error: type[HeadraceError] = QueryError
) -> dict[str, Any]:
    """Return the table in a TOML file."""
    return _read(path, "TOML", parse_toml, what, hint, error)


def parse_json(text: str) -> Any:
    """Parse JSON. Raise ValueError for invalid JSON or a value beyond the limits."""
    return _parse(partial(json.loads, object_pairs_hook=_without_twins), text)


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML, with the same limits as `parse_json`."""
    found: dict[str, Any] = _parse(tomllib.loads, text)
    return found


def _read(
    path: str | os.PathLike[str],
    form: str,
    parse: Callable[[str], Any],
    what: str,
    hint: str,
    error: type[HeadraceError],
) -> dict[str, Any]:
    named, hint = f"{what} {str(path)!r}", f"; {hint}" if hint else ""
    try:
        data = Path(path).read_bytes()
    except OSError as problem:
        raise error(f"{named} cannot be read: {problem.strerror}{hint}") from None
    except ValueError as problem:  # a zero byte in the path
        raise error(f"{named} cannot be read: {problem}{hint}") from None
    try:
        found = parse(data.decode("utf-8"))
    except ValueError as problem:  # includes encoding errors
        raise error(f"{named} is not {form}: {str(problem)[:300]}{hint}") from None
    if not isinstance(found, dict):
        raise error(f"{named} must contain an object; found {found!r:.100}{hint}")
    return found


def _parse(parse: Callable[[str], Any], text: str) -> Any:
    try:
        found = parse(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check(found)
    return found


def _check(found: Any) -> None:
    """Raise for a value beyond the limits. Checks level by level, without recursion."""
    level, depth = [found], 0
    while level:
        for value in level:
            kind = type(value)
            if kind is float and not math.isfinite(value):
                raise ValueError(f"{value} is not a finite number")
            if kind is int and value.bit_length() > BITS:
                raise ValueError(f"a number has more than {MOST_DIGITS} digits")
        holders = [value for value in level if isinstance(value, dict | list)]
        depth += bool(holders)
        if depth > DEEPEST_NESTING:
            raise ValueError(_TOO_DEEP)
        level = [inner for each in holders for inner in (each.values() if isinstance(each, dict) else each)]


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twins = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{twins[0][0]!r:.100} occurs {twins[0][1]} times in one object")
    return found
