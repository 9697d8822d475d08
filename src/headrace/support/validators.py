"""Validation of values from stored files: small checks that are combined into forms.

A form takes a value and its name. It returns the value if it fits, and otherwise raises CorruptState with the name, the
expectation and the value found. A checksum proves that a file is unchanged; a form proves that its values are valid.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from headrace.errors import CorruptState

Form = Callable[[Any, str], Any]


def refuse(key: str, expected: str, found: object) -> CorruptState:
    return CorruptState(f"{key} should be {expected}, found {found!r:.100}")


def of_type(kind: type) -> Form:
    """Return a form for exactly this type: a bool is not an int."""

    def check(value: Any, key: str) -> Any:
        if type(value) is not kind:
            raise refuse(key, f"a {kind.__name__}", value)
        return value

    return check


def whole(low: int, high: int) -> Form:
    def check(value: Any, key: str) -> Any:
        if type(value) is not int or not low <= value <= high:
            raise refuse(key, f"a whole number from {low} to {high}", value)
        return value

    return check


def finite(value: Any, key: str) -> Any:
    """Return a finite number, int or float."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise refuse(key, "a number", value)
    return value


def non_negative(value: Any, key: str) -> Any:
    if finite(value, key) < 0:
        raise refuse(key, "a number from 0 on", value)
    return value


def matching(pattern: re.Pattern[str], expected: str) -> Form:
    def check(value: Any, key: str) -> Any:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise refuse(key, expected, value)
        return value

    return check


def one_of(*choices: str) -> Form:
    def check(value: Any, key: str) -> Any:
        if value not in choices:
            raise refuse(key, f"one of {', '.join(choices)}", value)
        return value

    return check


def optional(form: Form) -> Form:
    return lambda value, key: None if value is None else form(value, key)


def mapping_of(form: Form) -> Form:
    """Return a form for an object whose values all have the given form."""

    def check(value: Any, key: str) -> Any:
        return {name: form(item, f"{key}.{name:.100}") for name, item in table(value, key).items()}

    return check


def list_of(form: Form) -> Form:
    """Return a form for a list whose items all have the given form."""

    def check(value: Any, key: str) -> Any:
        return [form(item, f"{key}[{place}]") for place, item in enumerate(of_type(list)(value, key))]

    return check


def exact_list(*forms: Form) -> Form:
    """Return a form for a list with exactly these items."""

    def check(value: Any, key: str) -> Any:
        if type(value) is not list or len(value) != len(forms):
            raise refuse(key, f"a list of {len(forms)}", value)
        return [form(item, f"{key}[{place}]") for place, (form, item) in enumerate(zip(forms, value, strict=True))]

    return check


def record(**forms: Form) -> Form:
    """Return a form for an object with exactly these fields."""

    def check(value: Any, key: str) -> Any:
        if not isinstance(value, dict) or set(value) != set(forms):
            raise refuse(key, f"an object with the fields {sorted(forms)}", value)
        return {name: form(value[name], f"{key}.{name}") for name, form in forms.items()}

    return check


def record_with(**forms: Form) -> Form:
    """Return a form for an object with at least these fields."""

    def check(value: Any, key: str) -> Any:
        missing = [name for name in forms if name not in table(value, key)]
        if missing:
            raise refuse(key, f"an object with {', '.join(missing)}", value)
        return {**value, **{name: form(value[name], f"{key}.{name}") for name, form in forms.items()}}

    return check


text, flag, table = of_type(str), of_type(bool), of_type(dict)
count = whole(0, 1 << 63)
