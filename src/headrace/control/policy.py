"""The policy of the controller: thresholds, periods, and fixed or disabled decisions. It comes from TOML or Python."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_type_hints

from headrace.errors import QueryError
from headrace.support.json_toml import read_toml
from headrace.support.paths import given_path

Diffusion = Literal["ragged", "grid", "adaptive-ssp", "ssp", "off"]


@dataclass(frozen=True)
class Policy:
    """The rules by which a run adapts: how it moves load between slots, how often, and what is forbidden or fixed.

    Give it to `start` as `policy=`. A mapping or a TOML file with the same fields works too.

    Attributes:
        diffusion: how joins without an equality spread their tuples: "ragged", "grid", "adaptive-ssp", "ssp" or "off".
        elastic: how groups of equality joins and aggregates move between slots: "gain", "paper" or "off".
        hot: whether groups that are too much for one slot are split.
        splitters: whether the run chooses how many tasks read files, and how large their windows are.
        every: epochs between reorganisations.
        supplier: a slot that is busy for more than this share of its time gives groups away.
        consumer: a slot that is busy for less than this share of its time takes groups; less than `supplier`.
        beta: slots are added when there are more suppliers than beta times the consumers.
        moves: how many groups may move at once.
        worth: the share of the cost that a change must be expected to save, beside what varies by chance.
        pinned: for an operator, the slot in which each named group stays.

    Raises:
        QueryError: a field is out of range.

    Examples:
        >>> hr.Policy(every=20, hot=False).every
        20
        >>> hr.Policy(every=0)
        Traceback (most recent call last):
            ...
        headrace.errors.QueryError: the policy's every must be a whole number, at least 1; found 0
    """

    diffusion: Diffusion = "ragged"  # shape of joins without an equality
    elastic: Literal["gain", "paper", "off"] = "gain"  # placement of the groups of equality joins and aggregates
    hot: bool = True  # spread groups that are too large for one slot over several
    splitters: bool = True  # adapt the number of splitters and the size of their windows
    every: int = 5  # epochs between reorganisations
    supplier: float = 0.7  # a slot that is busier than this share of its time gives groups away
    consumer: float = 0.4  # a slot that is less busy than this share receives groups
    beta: float = 0.5  # slots are added when suppliers outnumber beta times the consumers
    moves: int = 16  # most groups that move at one reorganisation
    worth: float = 0.1  # share that a change must save; it must also exceed the variation by chance (`control.gain`)
    pinned: Mapping[str, Mapping[int, int]] = field(default_factory=dict)  # operator -> group -> slot in which it stays

    def __post_init__(self) -> None:
        _demand(self.diffusion in DIFFUSION, "diffusion", self.diffusion, f"one of {', '.join(DIFFUSION)}")
        _demand(self.elastic in ELASTIC, "elastic", self.elastic, f"one of {', '.join(ELASTIC)}")
        for name in ("hot", "splitters"):
            _demand(isinstance(getattr(self, name), bool), name, getattr(self, name), "true or false")
        for name in ("every", "moves"):
            value = getattr(self, name)
            _demand(type(value) is int and value >= 1, name, value, "a whole number, at least 1")
        for name in ("supplier", "consumer", "beta", "worth"):
            value = getattr(self, name)
            fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
            _demand(fits, name, value, "a share, more than 0 and at most 1")
        if self.consumer >= self.supplier:
            msg = f"the policy's thresholds are out of order: consumer ({self.consumer}) must be less than supplier ({self.supplier})"
            raise QueryError(msg)
        for operator, groups in self.pinned.items():
            fits = all(type(g) is int and type(s) is int and g >= 0 and s >= 0 for g, s in groups.items())
            _demand(fits, f"pinned.{operator}", dict(groups), "groups and slots as whole numbers")


DIFFUSION, ELASTIC = (get_args(get_type_hints(Policy)[name]) for name in ("diffusion", "elastic"))


def _demand(holds: bool, name: str, found: object, expected: str) -> None:
    if not holds:
        raise QueryError(f"the policy's {name} must be {expected}; found {found!r:.200}")


def parse_policy(given: Policy | Mapping[str, Any] | str | os.PathLike[str] | None) -> Policy:
    """Return the policy from a record, its fields, or a TOML file. None: the default policy."""
    if given is None:
        return Policy()
    if isinstance(given, Policy):
        return given
    return _from_fields(
        given if isinstance(given, Mapping) else read_toml(given_path(given, "the policy file"), "the policy file")
    )


def _from_fields(data: Mapping[str, Any]) -> Policy:
    known = [f.name for f in fields(Policy)]
    for name in data:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise QueryError(f"the policy has an unknown entry {name!r}; the entries are {', '.join(known)}{hint}")
    given = dict(data)
    if "pinned" in given:
        given["pinned"] = {name: _groups(name, groups) for name, groups in _table(given["pinned"]).items()}
    return Policy(**given)


def _table(value: Any) -> Mapping[str, Any]:
    _demand(isinstance(value, Mapping), "pinned", value, "a table by operator")
    found: Mapping[str, Any] = value
    return found


def _groups(operator: str, groups: Any) -> dict[int, int]:
    """Return the pins of an operator with group numbers as keys, which TOML stores as text."""
    _demand(isinstance(groups, Mapping), f"pinned.{operator}", groups, "a table of groups and slots")
    try:
        return {int(group): slot for group, slot in groups.items()}
    except ValueError:
        raise QueryError(
            f"the policy's pinned.{operator} must name groups by number; found {list(groups)!r:.200}"
        ) from None


def check_pins(given: Policy, operators: Mapping[str, bool], groups: int, slots: int) -> None:
    """Raise if the policy pins unknown operators, groups or slots. `operators` maps names to whether their groups can
    be placed.
    """
    for operator, pins in given.pinned.items():
        if not operators.get(operator):
            names = [name for name, can in operators.items() if can]
            raise QueryError(
                f"the policy pins groups of {operator!r}; operators with groups to pin: {', '.join(names) or 'none'}"
            )
        for group, slot in pins.items():
            if group >= groups:
                raise QueryError(f"the policy pins group {group} of {operator}, which has groups 0 to {groups - 1}")
            if slot >= slots:
                raise QueryError(
                    f"the policy pins group {group} of {operator} to slot {slot}; this run has slots 0 to {slots - 1}"
                )
