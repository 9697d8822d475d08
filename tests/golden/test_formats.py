"""State that older versions left: this one continues formats that it reads, and refuses every other by name, untouched.

A change of what stands on the disk shows here first. It needs a new format number and a golden folder of its own.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app, explaining
from headrace.errors import CorruptState, StateError
from headrace.reference import references
from headrace.state import BlockReader
from headrace.state.folder import LOCK
from headrace.state.formats import FORMAT, OLDEST
from headrace.state.store import StateStore

from . import beside, making

GOLDEN = Path(__file__).parent
MORE = 3  # epochs after those that a golden folder has


def copied(number: int | str, folder: Path) -> Path:
    """A checkpoint that can be written to, as the run of that time would have left it: only its owner's."""
    checkpoint = folder / "checkpoint"
    shutil.copytree(GOLDEN / f"format-{number}", checkpoint)
    for path in (checkpoint, *checkpoint.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return checkpoint


def rows(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in table.to_pylist())


def files(folder: Path) -> dict[str, bytes]:
    """All that lies there, but for the lock, which every look for writing leaves."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != LOCK}


def newest(checkpoint: Path) -> Any:
    return json.loads(sorted((checkpoint / "state" / "manifests").iterdir())[-1].read_text())


def fields_of(tree: Any, at: str = "") -> Iterator[str]:
    """The fields of a manifest, by their path. Operators that a figure counts are values: one that did nothing is left out."""
    if at.startswith(".work.counts."):
        return
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield f"{at}.{name}"
            yield from fields_of(value, f"{at}.{name}")
    elif isinstance(tree, list):
        for value in tree:
            yield from fields_of(value, f"{at}[]")


# --- other formats ---------------------------------------------------------------------------------------------------

OLDER = range(1, OLDEST)
READ = [
    "3",
    "3-parts",
    "4",
    "5",
    "6",
    "7",
]  # the last version that wrote format 3 had tables in parts of substreams, and did not say so


BESIDE = ["6-beside"]  # sessions, asof, outer joins, tables


def start(folder: Path) -> None:
    """Far enough to open the state; there is no Spark behind it."""
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    making.put(folder, 0)
    making.run(session, folder, 1)


def command(*words: str) -> None:
    """A command of the shell; what it says when it refuses is raised."""
    found = CliRunner().invoke(app, [*words], env={"COLUMNS": "2000", "NO_COLOR": "1", "TERM": "dumb"})
    if found.exit_code:
        raise StateError(found.output)


USES: dict[str, Callable[[Path], object]] = {
    "start": start,
    "explain": lambda folder: command("explain", "--checkpoint", str(folder / "checkpoint")),
    "explain as a picture": lambda folder: explaining.of_run(folder / "checkpoint", "svg"),
    "decisions": lambda folder: command("decisions", "--checkpoint", str(folder / "checkpoint")),
    "open": lambda folder: StateStore.open(folder / "checkpoint" / "state"),
    "look": lambda folder: StateStore.open(folder / "checkpoint" / "state", read_only=True),
}


def test_there_is_a_golden_folder_of_every_format() -> None:
    found = {path.name for path in GOLDEN.glob("format-*")}
    assert found == {f"format-{number}" for number in [*OLDER, *READ, *BESIDE]}
    assert {newest(GOLDEN / name)["format"] for name in found} == set(range(1, FORMAT + 1))
    assert all(newest(GOLDEN / name)["format"] == int(name.split("-")[1]) for name in found)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("number", OLDER)
def test_an_older_format_is_refused_by_name_and_left_as_it_is(number: int, use: str, tmp_path: Path) -> None:
    checkpoint = copied(number, tmp_path)
    before = files(checkpoint)
    with pytest.raises(StateError) as caught:
        USES[use](tmp_path)
    text = str(caught.value)
    assert (
        f"an older version of headrace: it has format {number}, this version reads formats {OLDEST} to {FORMAT}" in text
    )
    assert "Nothing was changed" in text and f"a version that reads format {number}" in text
    assert not isinstance(caught.value, CorruptState), "there is nothing wrong with it"
    assert files(checkpoint) == before


# --- formats that are read -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", sorted(set(USES) - {"start"}))
@pytest.mark.parametrize("number", [*READ, *BESIDE])
def test_a_format_that_is_read_can_be_looked_at(number: str, use: str, tmp_path: Path) -> None:
    checkpoint = copied(number, tmp_path)
    before = files(checkpoint)
    USES[use](tmp_path)
    assert files(checkpoint) == before


@pytest.mark.parametrize("number", READ)
def test_tables_of_a_format_that_is_read_are_seen(number: str, tmp_path: Path) -> None:
    calls = [row for n in range(making.EPOCHS) for row in making.window(n).to_pylist()[:12]]
    reached = max(row["ts"] for row in calls) - dt.timedelta(seconds=1)  # the others wait for the watermark
    longest: dict[str, int] = {}
    for row in calls:
        if row["ts"] < reached:
            longest[row["caller"]] = max(row["seconds"], longest.get(row["caller"], 0))
    found = hr.read_state(copied(number, tmp_path), "apply-1", "longest").to_pylist()
    assert {row["caller"] for row in found} == set(longest)
    assert {caller: max(r["seconds"] for r in found if r["caller"] == caller) for caller in longest} == longest


@pytest.mark.spark
@pytest.mark.smoke
@pytest.mark.parametrize("number", READ)
def test_a_run_continues_from_a_format_that_is_read(
    number: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the source is known as 'calls'
    checkpoint = copied(number, tmp_path)
    golden = newest(GOLDEN / f"format-{FORMAT}")
    epochs = [{"calls": making.window(number)} for number in range(making.EPOCHS + MORE)]
    for number in range(len(epochs)):
        making.put(tmp_path, number)
    making.run(spark, tmp_path, sum(table.num_rows for epoch in epochs for table in epoch.values()))
    streams = list(making.query(spark, tmp_path).values())
    whole = references(streams, epochs, end=False)
    known = references(streams, epochs[: making.EPOCHS - 1], end=False)  # the last is delivered once more
    for name, wanted, before in zip(making.RESULTS, whole, known, strict=True):
        found = rows(pq.read_table(tmp_path / name))
        assert rows(wanted) - rows(before) == found, name
        assert found.total() > MORE, name
    assert newest(checkpoint)["number"] == len(epochs) - 1 and newest(checkpoint)["format"] == FORMAT
    changed = set(fields_of(newest(checkpoint))) ^ set(fields_of(golden))
    assert not changed, f"the manifest has other fields than format {FORMAT} had: that is a new format"


@pytest.mark.parametrize("number", BESIDE)
def test_a_folder_of_tables_has_the_version_that_its_epochs_used(number: str, tmp_path: Path) -> None:
    store = StateStore.open(copied(number, tmp_path) / "state", read_only=True)
    assert store.last is not None
    held = store.last.tables["held"]
    assert held.number == 2
    assert rows(BlockReader(store.storage).open(held.block).table) == rows(beside.tariffs(1))


@pytest.mark.spark
@pytest.mark.parametrize("number", BESIDE)
def test_sessions_asof_outer_joins_and_tables_continue(
    number: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was open or waited goes on; the epoch that is delivered once more has the table that it had."""
    monkeypatch.chdir(tmp_path)
    checkpoint = copied(number, tmp_path)
    golden = newest(checkpoint)
    epochs = [{"calls": making.window(each)} for each in range(making.EPOCHS + MORE)]
    for each in range(len(epochs)):
        making.put(tmp_path, each)
    beside.hold(tmp_path, 2)
    making.run(spark, tmp_path, sum(epoch["calls"].num_rows for epoch in epochs), beside.query)
    streams = list(beside.query(spark, tmp_path).values())
    held = [0] * beside.CHANGES_AT + [1] * (making.EPOCHS - beside.CHANGES_AT) + [2] * MORE

    def answers(so_many: int) -> list[pa.Table]:
        versions = [beside.tariffs(version) for version in held[:so_many]]
        return references(streams, epochs[:so_many], end=False, versions=versions)

    for name, wanted, before in zip(beside.RESULTS, answers(len(epochs)), answers(making.EPOCHS - 1), strict=True):
        found = rows(pq.read_table(tmp_path / name))
        assert rows(wanted) - rows(before) == found, name
        assert found.total() > MORE, name
    assert newest(checkpoint)["tables"]["held"]["number"] == 3
    if golden["format"] == FORMAT:
        changed = set(fields_of(newest(checkpoint))) ^ set(fields_of(golden))
        assert not changed, f"the manifest has other fields than format {FORMAT} had: that is a new format"
