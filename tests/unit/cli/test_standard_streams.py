"""Standard streams that are closed, full or broken, and query files that print or leave: the command line as a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headrace import cli
from headrace.showing import terminal
from headrace.stream import node_of
from headrace.testing import LocalRun, table_stream
from headrace.tools import plan_file
from tests.patience import PATIENCE

TABLE = pa.table({"ts": pa.array([1, 2]).cast(pa.timestamp("us", "UTC")), "x": [1, 2]})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    query = table_stream(TABLE, name="a").aggregate(by=["x"], window="1 second", n="count(*)")
    run = LocalRun(query, folder / "state")
    run.epoch({"a": TABLE})
    run.close()
    plan_file.write_plan(folder, [node_of(query)], query.plan())
    shown = json.loads((folder / plan_file.NAME).read_text())
    shown["plan"]["subqueries"][0]["operators"].append("filter größer")
    (folder / plan_file.NAME).write_text(json.dumps(shown))
    return folder


def headrace(*arguments: str, streams: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a shell, so that its streams can be what only a shell makes of them."""
    command = ["bash", "-c", f'exec "{sys.executable}" -m headrace "$@" {streams}', "headrace", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, **environment})


def test_nobody_listens_on_standard_error(checkpoint: Path) -> None:
    found = headrace("explain", "--checkpoint", str(checkpoint), streams="2>&-", PYTHONIOENCODING="ascii")
    assert (found.returncode, r"filter gr\xf6\xdfer" in found.stdout) == (0, True)
    found = headrace("decisions", "--checkpoint", str(checkpoint / "absent"), streams="<&- >&- 2>&-")
    assert found.returncode == 1


@pytest.mark.parametrize("broken", ["/dev/full", "a pipe"])
def test_what_cannot_be_said_changes_nothing(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    end, begin = os.pipe() if broken == "a pipe" else (None, os.open(broken, os.O_WRONLY))
    if end is not None:
        os.close(end)
    with open(begin, "w") as nobody:
        monkeypatch.setattr(sys, "stderr", nobody)
        terminal.say_on_stderr("error: to nobody")
        terminal.say_on_stderr("and again")


def test_output_that_cannot_be_written_is_an_error_that_says_so(checkpoint: Path) -> None:
    found = headrace("explain", "--checkpoint", str(checkpoint), streams=">/dev/full")
    assert found.returncode == 1
    assert found.stderr == "error: [Errno 28] No space left on device; --traceback shows where\n"


def test_whoever_reads_our_output_may_have_seen_enough(checkpoint: Path) -> None:
    found = headrace("explain", "--checkpoint", str(checkpoint), streams="> >(exec true)")
    assert found.stderr == "" and found.returncode in (0, 1)  # 0: all was written before the reader had left


def test_figures_that_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(cli.QueryError, match="'/dev/full' cannot be written: No space left on device"):
        cli._save(Path("/dev/full"), "figures")


@pytest.mark.parametrize("code", ["import sys; sys.exit(0)", "raise SystemExit", "def query(spark): exit('so')"])
def test_a_query_file_that_ends_the_program(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_spark", lambda *_, **__: terminal.for_programs(False))
    path = tmp_path / "leaving.py"
    path.write_text(code)
    found = CliRunner().invoke(cli.app, ["explain", str(path)], env={"COLUMNS": "200"})
    assert found.exit_code == 1 and "leaving.py, line 1: the file exited" in found.stderr


TALKATIVE = """
import pyarrow as pa
from headrace.testing import table_stream
print("loading")
def query(spark):
    print("asked")
    return table_stream(pa.table({"ts": pa.array([1]).cast(pa.timestamp("us", "UTC")), "x": [1]})).filter("x > 0")
"""


@pytest.mark.parametrize("format", ["json", "svg", "text"])
def test_what_a_file_prints_is_not_part_of_what_programs_read(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "_spark", lambda *_, **__: terminal.for_programs(False))
    path = tmp_path / "talking.py"
    path.write_text(TALKATIVE)
    found = CliRunner().invoke(cli.app, ["explain", str(path), "--format", format])
    assert found.exit_code == 0
    said = found.stdout if format == "text" else found.stderr
    assert "loading\nasked\n" in said
    if format == "json":
        assert json.loads(found.stdout)["strategy"] == "subquery"
    if format == "svg":
        assert found.stdout.startswith("<svg")


def test_progress_for_programs_is_all_that_a_run_prints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "talking.py"
    path.write_text(TALKATIVE)

    def follow(found: Any, options: Any, enough: Any, title: str, json: Any) -> None:
        print("a sink prints")
        json.write("{}\n")

    monkeypatch.setattr(cli, "_spark", lambda *_, **__: terminal.for_programs(False))
    monkeypatch.setattr(cli, "_follow", follow)
    found = CliRunner().invoke(cli.app, ["run", str(path), "--json"])
    assert (found.stdout, found.stderr) == ("{}\n", "loading\nasked\na sink prints\n")


def test_names_that_a_terminal_would_obey_stand_in_errors_as_text(tmp_path: Path) -> None:
    found = CliRunner().invoke(cli.app, ["run", str(tmp_path / "\x1b[2J[/b]\u202e.py")])
    assert found.exit_code == 1 and r"\x1b[2J[/b]\u202e.py" in found.stderr
