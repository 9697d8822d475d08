"""A policy says what it allows; what is wrong with it is said before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.control.policy import Policy, check_pins, parse_policy
from headrace.errors import QueryError


def test_a_policy_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('diffusion = "grid"\nevery = 3\nhot = false\n\n[pinned.join-1]\n12 = 0\n7 = 1\n')
    assert parse_policy(path) == Policy(diffusion="grid", every=3, hot=False, pinned={"join-1": {12: 0, 7: 1}})
    assert parse_policy(None) == Policy()
    assert parse_policy({"moves": 2}) == Policy(moves=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"supplier": 0.3, "consumer": 0.5},
            r"thresholds are out of order: consumer \(0.5\) must be less than supplier",
        ),
        ({"supplier": 1.5}, "supplier must be a share, more than 0 and at most 1; found 1.5"),
        ({"every": 0}, "every must be a whole number, at least 1; found 0"),
        ({"moves": True}, "moves must be a whole number"),
        ({"diffusion": "magic"}, "diffusion must be one of ragged, grid, adaptive-ssp, ssp, off; found 'magic'"),
        ({"elastic": "no"}, "elastic must be one of gain, paper, off"),
        ({"hot": 1}, "hot must be true or false; found 1"),
        ({"splitters": 2}, "splitters must be true or false; found 2"),
        ({"suplier": 0.5}, "unknown entry 'suplier'; the entries are .*; did you mean 'supplier'"),
        ({"pinned": 5}, "pinned must be a table by operator; found 5"),
        ({"pinned": {"join-1": {"x": 1}}}, "pinned.join-1 must name groups by number"),
        ({"pinned": {"join-1": {"1": "two"}}}, "groups and slots as whole numbers"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, Any], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        parse_policy(given)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(QueryError, match="cannot be read: No such file"):
        parse_policy(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("every = = 3")
    with pytest.raises(QueryError, match="is not TOML"):
        parse_policy(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("pinned", "message"),
    [
        ({"join-9": {0: 0}}, "pins groups of 'join-9'; operators with groups to pin: join-1"),
        ({"order-1": {0: 0}}, "pins groups of 'order-1'; operators with groups to pin: join-1"),
        ({"join-1": {64: 0}}, "pins group 64 of join-1, which has groups 0 to 63"),
        ({"join-1": {0: 4}}, "pins group 0 of join-1 to slot 4; this run has slots 0 to 3"),
    ],
)
def test_pins_of_what_is_not_there(pinned: dict[str, dict[int, int]], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        check_pins(Policy(pinned=pinned), {"join-1": True, "order-1": False}, groups=64, slots=4)
