"""Text files that users write or edit, as JSON or TOML: read with limits, or refused with the file's name.

    read_json(path, ...) returns  =>  at most MOST_BYTES of text, nested at most DEEPEST, every number finite and of at
                                      most DIGITS digits, no name twice in an object

so whoever looks at the values can recurse, print and calculate without a thought for what somebody might have written.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from headrace.errors import HeadraceError, QueryError

MOST_BYTES = 16 << 20
DEEPEST = 50  # lists and objects in each other
DIGITS = 40
BITS = (10**DIGITS).bit_length()
LONGEST_LINE = 4096  # of TOML: its parser takes the square of the length for a key of many parts


def read_json(
    path: str | os.PathLike[str], what: str, hint: str = "", error: type[HeadraceError] = QueryError
) -> dict[str, Any]:
    """The object in a JSON file; `what` names the file in errors, `hint` says how to get a good one."""
    return _read(path, "JSON", parse_json, what, hint, error)


def read_toml(
    path: str | os.PathLike[str], what: str, hint: str = "", error: type[HeadraceError] = QueryError
) -> dict[str, Any]:
    """The table in a TOML file."""
    return _read(path, "TOML", parse_toml, what, hint, error)


def parse_json(text: str) -> Any:
    """The value that the text spells; a ValueError for anything that is not JSON, or beyond the limits."""
    try:
        found = json.loads(text, parse_int=_integer, parse_constant=_refuse_constant, object_pairs_hook=_without_twins)
    except RecursionError:
        _too_deep()
    check_limits(found)
    return found


def parse_toml(text: str) -> dict[str, Any]:
    """The same for TOML."""
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > LONGEST_LINE:
            raise ValueError(f"line {number} has more than {LONGEST_LINE} characters; lists may go over several lines")
    try:
        found = tomllib.loads(text)
    except RecursionError:
        _too_deep()
    check_limits(found)
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
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as problem:
        raise error(f"{named} cannot be read: {problem.strerror}{hint}") from None
    except ValueError as problem:  # a zero byte in the path
        raise error(f"{named} cannot be read: {problem}{hint}") from None
    if len(data) > MOST_BYTES:
        raise error(f"{named} is larger than {MOST_BYTES >> 20} MiB{hint}")
    try:
        found = parse(data.decode("utf-8"))
    except ValueError as problem:  # which a wrong encoding is too
        raise error(f"{named} is not {form}: {str(problem)[:300]}{hint}") from None
    if not isinstance(found, dict):
        raise error(f"{named} must hold an object; found {found!r:.100}{hint}")
    return found


def check_limits(found: Any) -> None:
    """Refuse a value beyond the limits; level by level, so that depth costs nothing."""
    level, depth = [found], 0
    while level:
        for value in level:
            kind = type(value)
            if kind is float and not math.isfinite(value):
                raise ValueError(f"{value} is not a number that can be used")
            if kind is int and value.bit_length() > BITS:
                raise ValueError(f"a number has more than {DIGITS} digits")
        holders = [value for value in level if isinstance(value, dict | list | tuple)]
        depth += bool(holders)
        if depth > DEEPEST:
            _too_deep()
        level = [inner for each in holders for inner in (each.values() if isinstance(each, dict) else each)]


def _too_deep() -> NoReturn:
    raise ValueError(f"it is nested more than {DEEPEST} deep") from None


def _integer(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"a number has more than {DIGITS} digits: {text[:20]}...")
    return int(text)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twins = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{twins[0][0]!r:.100} is there {twins[0][1]} times in one object")
    return found
