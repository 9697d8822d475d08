"""More slots than any run can use: refused at once, by every way in, with the bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import headrace as hr
from headrace import cli, deployment
from headrace.compile import CompiledQuery
from headrace.compile.bind import bind_plan
from headrace.compile.subqueries import Plan
from headrace.control.controller import Controller
from headrace.control.policy import Policy
from headrace.spark import session
from headrace.stream import node_of
from headrace.support.limits import MOST_SLOTS, check_physical_window
from headrace.testing import LocalRun, table_stream

MANY = 10**6


def query() -> hr.Stream:
    stream = table_stream(pa.table({"ts": pa.array([1]).cast(pa.timestamp("us", "UTC")), "x": [1]}), name="a")
    return stream.join(stream, on="l.x < r.x", within="1 second")


def edited(**changes: Any) -> dict[str, Any]:
    return {**query().plan().to_json(), **changes}


def with_subquery(**changes: Any) -> dict[str, Any]:
    found = query().plan().to_json()
    found["subqueries"][0] |= changes
    return found


def descriptor(folder: Path, text: str) -> Path:
    path = folder / "cluster.toml"
    path.write_text(f"state = 'state'\n{text}")
    return path


WAYS: dict[str, Callable[[Path], Any]] = {
    "plan": lambda _: query().plan(slots=MANY),
    "explain": lambda _: query().explain(slots=MANY),
    "calibrate": lambda _: hr.calibrate(query(), slots=MANY),
    "session": lambda _: session.session(MANY),
    "a plan": lambda _: Plan.from_json(edited(slots=MANY)),
    "a subquery": lambda _: Plan.from_json(with_subquery(slots=MANY)),
    "set_slots": lambda _: Controller(LocalRun(query(), _ / "s").plan, Policy(), 1, MANY * 2).set_slots(MANY, 0),
    "a deployment": lambda folder: deployment.read_descriptor(
        descriptor(folder, f"master = 'local[2]'\nslots = {MANY}")
    ),
    "cores of a deployment": lambda folder: deployment.read_descriptor(
        descriptor(folder, f"master = 'yarn'\ncores = {MANY}")
    ),
    "a large machine": lambda folder: deployment.read_descriptor(descriptor(folder, f"master = 'local[{MANY}]'")),
    "a run": lambda folder: LocalRun(query(), folder / "s", slots=MANY),
    "a run that may grow": lambda folder: LocalRun(query(), folder / "s", limit=MANY),
}


@pytest.mark.parametrize("way", WAYS)
def test_too_many_slots_are_refused_at_once_and_the_bound_is_said(way: str, tmp_path: Path) -> None:
    since = time.process_time()
    with pytest.raises(hr.HeadraceError, match=str(MOST_SLOTS)):
        WAYS[way](tmp_path)
    assert time.process_time() - since < 5


@pytest.mark.parametrize("command", ["run", "explain", "calibrate"])
def test_the_command_line_says_the_bound(command: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(cli.app, [command, str(tmp_path / "q.py"), "--slots", str(MANY)], env={"COLUMNS": "200"})
    assert found.exit_code == 2 and str(MOST_SLOTS) in found.output


def test_as_many_as_there_may_be_can_be_planned() -> None:
    since = time.process_time()
    plan = query().plan(slots=MOST_SLOTS)
    assert time.process_time() - since < 10
    bind_plan(Plan.from_json(plan.to_json()), CompiledQuery([node_of(query())]))


@pytest.mark.parametrize("wrong", ["four", 2.0, True, 0, None])
@pytest.mark.parametrize("way", [hr.calibrate, hr.Stream.plan, hr.Stream.explain], ids=["calibrate", "plan", "explain"])
def test_what_is_no_number_of_slots_is_called_so(way: Callable[..., Any], wrong: Any) -> None:
    with pytest.raises(hr.HeadraceError, match=f"^slots must be a whole number, .*; found {wrong!r}$"):
        way(query(), slots=wrong)


def test_what_is_no_number_of_tuples_is_called_so() -> None:
    with pytest.raises(hr.HeadraceError, match=r"^tuples must be a whole number of tuples; found 'many'$"):
        hr.calibrate(query(), tuples="many")  # type: ignore[arg-type]


WRONG = [
    *(("splitters", wrong) for wrong in (0, -1, 513, 2.0, "4", True)),
    *(
        ("physical_window", wrong)
        for wrong in (0, 16, 1023, (1 << 30) + 1, "2 GiB", "-1", "1.5 MiB", "many", "", True, 1e6)
    ),
]


@pytest.mark.parametrize(("option", "wrong"), WRONG)
def test_what_is_no_number_of_splitters_or_size_of_windows_is_called_so(
    option: str, wrong: Any, tmp_path: Path
) -> None:
    expected = {
        "splitters": "a whole number, at least 1 and at most 512",
        "physical_window": "bytes, from 1 KiB to 1 GiB, as a whole number or with a unit, such as '16 MiB'",
    }
    with pytest.raises(hr.QueryError) as error:
        query().start(hr.sinks.memory(), checkpoint=tmp_path / "checkpoint", **{option: wrong})
    assert str(error.value) == f"{option} must be {expected[option]}; found {wrong!r}"
    assert not (tmp_path / "checkpoint").exists()


def test_sizes_of_windows_as_users_write_them() -> None:
    given = ["16 MiB", "16MiB", "16m", " 16 mb ", 16 << 20, "16777216", "1 KiB", "1 GiB"]
    assert [check_physical_window(size) for size in given] == [*[16 << 20] * 6, 1 << 10, 1 << 30]
