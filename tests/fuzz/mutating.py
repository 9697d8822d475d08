"""Random changes to what was written by real code: to a JSON value, and to the text of a file."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

HOSTILE = "[/s] \x1b[2J\u202e\x00\ud800 <&>"
NUMBERS = (
    *(0, 1, -1, 7, 1023, 1024, 1025, 2**31, 2**53, 2**61, 2**62, -(2**62), 2**63, 2**64, 10**30, 10**39, -(10**39)),
    *(0.5, -0.5, 1.0, 1e-300, 5e-324, 1e18, 1e300, 1.7e308, -1e300, 10**400),
)
TEXTS = (
    *("", "x", "0", "hash", "grid", "one", "ranges", "windows", "content", "diagonal", "rectangles", "spark", "local"),
    *("join-1", "result-0", "left", "9" * 50, "\0", HOSTILE, "a" * 5_000),
)
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [0], [1, 2], [None], {"": {}}, {"kind": "ranges"})
TOKENS = ("NaN", "Infinity", "-Infinity", "1e999", "9" * 400, "9" * 5_000, "[" * 100_000, '{"a":' * 2_000, "0x1", "'")


def changed(rng: random.Random, tree: Any) -> Any:
    """A copy with one to three changes, each somewhere: every level of nesting is as likely as any other."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        holder, key = _place(rng, tree)
        if holder is not None:
            _change(rng, tree, holder, key)
    return tree


def spoiled(rng: random.Random, text: str) -> bytes:
    """The bytes of a text, perhaps damaged beyond what a change of values can do."""
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    match rng.randrange(20):
        case 0:
            del data[rng.randrange(len(data) + 1) :]
        case 1:
            for _ in range(rng.randrange(1, 8)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        case 2:
            at = rng.randrange(len(data))
            data[at:at] = rng.choice(TOKENS).encode()
        case 3:
            at, length = rng.randrange(len(data)), rng.randrange(1, 200)
            data[at:at] = data[at : at + length]
        case 4:
            numbers = [at for at, byte in enumerate(data) if chr(byte).isdigit()]
            if numbers:
                at = rng.choice(numbers)
                data[at : at + 1] = rng.choice(TOKENS).encode()
    return bytes(data)


def dumped(tree: Any) -> str:
    """As JSON, also what is none: deep, and not a number."""
    return json.dumps(tree)


def _place(rng: random.Random, tree: Any) -> tuple[Any, Any]:
    """A holder and the key or place of something in it; down a random way from the top."""
    holder: Any = None
    key: Any = None
    while isinstance(tree, dict | list) and tree:
        holder, key = tree, rng.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
        tree = holder[key]
        if rng.random() < 0.1:
            break
    return holder, key


def _change(rng: random.Random, tree: Any, holder: Any, key: Any) -> None:
    match rng.randrange(10):
        case 0:
            del holder[key]
        case 1:
            holder[key] = _odd(rng)
        case 2 | 3:
            holder[key] = rng.choice(NUMBERS) if _is_number(holder[key]) else _odd(rng)
        case 4:
            holder[key] = _near(rng, holder[key])
        case 5:
            other, place = _place(rng, tree)
            if other is not None:
                holder[key], other[place] = copy.deepcopy(other[place]), copy.deepcopy(holder[key])
        case 6:
            other, place = _place(rng, tree)
            if other is not None:
                holder[key] = copy.deepcopy(other[place])
        case 7:
            for _ in range(rng.choice((1, 2, 30, 60, 200))):
                holder[key] = [holder[key]] if rng.random() < 0.5 else {"a": holder[key]}
        case 8 if isinstance(holder, dict):
            holder[rng.choice((*map(str, holder), "x", "", HOSTILE))] = _odd(rng)
        case _ if isinstance(holder, list):
            holder[key:key] = [copy.deepcopy(holder[key])] * rng.choice((1, 2, 50))


def _odd(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(rng.choice((NUMBERS, TEXTS, OTHERS))))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _near(rng: random.Random, value: Any) -> Any:
    """A value of the same kind, and a little beside."""
    match value:
        case bool():
            return not value
        case int() | float():
            return rng.choice((value + 1, value - 1, -value, value * 2, value // 2, value * 1000, str(value)))
        case str():
            return rng.choice((value[:-1], value + "x", value.upper(), value * 2, HOSTILE + value))
        case list():
            return rng.choice((value[::-1], value[1:], value * 2, dict.fromkeys(map(str, value)), tuple(value)[:1]))
        case dict():
            return rng.choice((list(value), list(value.values()), dict(list(value.items())[1:])))
    return 0
