"""Files that somebody wrote by hand, or with malice: a named error, whatever is in them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import deployment
from headrace.cli import explain_output, query_file
from headrace.control.policy import parse_policy
from headrace.errors import HeadraceError
from headrace.support.json_toml import DEEPEST_NESTING, parse_json
from headrace.tools import plan_file

DEEP = 100_000
JSON = {
    "deep lists": "[" * DEEP,
    "deep objects": '{"a":' * DEEP,
    "deep and closed": '{"format": 1, "rates": ' + "[" * 400 + "]" * 400 + "}",
    "a number of 5,000 digits": '{"slots": ' + "9" * 5_000 + "}",
    "a number of 400 digits": '{"format": 1, "rates": {"a": ' + "9" * 400 + "}}",
    "beyond floats": '{"format": 1, "rates": {"a": 1e999}}',
    "no number": '{"format": 1, "rates": {"a": NaN}}',
    "a name twice": '{"format": 1, "format": 1}',
    "a list": "[1]",
    "nothing": "",
    "bytes": b"\xff\xfe\x00",
}
TOML = {
    "deep lists": "a = " + "[" * DEEP,
    "deep and closed": "a = " + "[" * 400 + "]" * 400,
    "deep tables": ".".join("a" * 1_000) + " = 1",
    "a number of 5,000 digits": "every = " + "9" * 5_000,
    "a number of 400 digits": "every = " + "9" * 400,
    "a long hexadecimal number": "slots = 0x" + "f" * 500,
    "beyond floats": "worth = 1e999",
    "no number": "worth = nan",
    "nothing right": "= = =",
    "bytes": b"\xff\xfe\x00",
}
READERS: list[tuple[Callable[[Path], Any], dict[str, Any]]] = [
    (query_file.read_plan, JSON),
    (explain_output.read_figures, JSON),
    (lambda path: plan_file.read_plan(path.parent), JSON),
    (deployment.read_descriptor, TOML),
    (parse_policy, TOML),
]
CASES = [(reader, text) for reader, texts in READERS for text in texts.values()]


@pytest.mark.parametrize(
    ("reader", "text"), CASES, ids=[f"{n}-{name}" for n, (_, texts) in enumerate(READERS) for name in texts]
)
def test_what_is_no_such_file_is_a_named_error_at_once(
    reader: Callable[[Path], Any], text: str | bytes, tmp_path: Path
) -> None:
    path = tmp_path / plan_file.NAME
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    since = time.process_time()
    with pytest.raises(HeadraceError) as caught:
        reader(path)
    assert time.process_time() - since < 2
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("reader", [reader for reader, _ in READERS])
def test_what_cannot_be_opened_is_a_named_error(reader: Callable[[Path], Any], tmp_path: Path) -> None:
    for path in (tmp_path / "absent" / "x", tmp_path / "a\0b" / plan_file.NAME):
        with pytest.raises(HeadraceError):
            reader(path)


def test_the_limits_are_where_they_are_said_to_be() -> None:
    assert parse_json("[" * DEEPEST_NESTING + "]" * DEEPEST_NESTING)
    assert parse_json("9" * 40) == int("9" * 40)
    for text in ("[" * (DEEPEST_NESTING + 1) + "]" * (DEEPEST_NESTING + 1), "9" * 41):
        with pytest.raises(ValueError, match="more than"):
            parse_json(text)


LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text()
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


@settings(max_examples=50)
@given(TREES)
def test_what_is_within_the_limits_comes_back(tree: Any) -> None:
    assert parse_json(json.dumps(tree)) == tree
