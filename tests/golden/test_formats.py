"""State that an earlier run left: the present format is continued, every other one is refused by name, untouched.

A change of what stands on the disk shows here first. It needs a new format number, a reader for the format before it and
a golden folder of its own.
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
from headrace.cli import app, explain_output
from headrace.errors import CorruptState, StateError
from headrace.reference import references
from headrace.state import BlockReader
from headrace.state.checkpoint_folder import LOCK
from headrace.state.manifest import READABLE_FORMATS, STATE_FORMAT
from headrace.state.store import StateStore

from . import making

FOLDERS = {number: Path(__file__).parent / f"format-{number}" for number in READABLE_FORMATS}
GOLDEN = FOLDERS[STATE_FORMAT]
every_format = pytest.mark.parametrize("number", READABLE_FORMATS)
MORE = 3  # epochs after those that the golden folder has


def copied(folder: Path, number: int = STATE_FORMAT) -> Path:
    """A checkpoint that can be written to, as the run of that time would have left it: only its owner's."""
    checkpoint = folder / "checkpoint"
    shutil.copytree(FOLDERS[number], checkpoint)
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


def start(folder: Path) -> None:
    """Far enough to open the state; there is no Spark behind it."""
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    making.put(folder, 0)
    making.hold(folder, 0)
    making.run(session, folder, 1)


def command(*words: str) -> None:
    """A command of the shell; what it says when it refuses is raised."""
    found = CliRunner().invoke(app, [*words], env={"COLUMNS": "2000", "NO_COLOR": "1", "TERM": "dumb"})
    if found.exit_code:
        raise StateError(found.output)


USES: dict[str, Callable[[Path], object]] = {
    "start": start,
    "explain": lambda folder: command("explain", "--checkpoint", str(folder / "checkpoint")),
    "explain as a picture": lambda folder: explain_output.explain_run(folder / "checkpoint", "svg"),
    "decisions": lambda folder: command("decisions", "--checkpoint", str(folder / "checkpoint")),
    "open": lambda folder: StateStore.open(folder / "checkpoint" / "state"),
    "look": lambda folder: StateStore.open(folder / "checkpoint" / "state", read_only=True),
}


def test_there_is_a_golden_folder_of_every_format_that_is_read() -> None:
    assert sorted(GOLDEN.parent.glob("format-*")) == sorted(FOLDERS.values())
    assert [newest(folder)["format"] for folder in FOLDERS.values()] == list(READABLE_FORMATS)
    assert READABLE_FORMATS[-1] == STATE_FORMAT


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(("number", "age"), [(READABLE_FORMATS[0] - 1, "an older"), (STATE_FORMAT + 1, "a newer")])
def test_another_format_is_refused_by_name_and_left_as_it_is(number: int, age: str, use: str, tmp_path: Path) -> None:
    checkpoint = copied(tmp_path)
    for manifest in (checkpoint / "state" / "manifests").iterdir():
        manifest.write_text(manifest.read_text().replace(f'"format":{STATE_FORMAT}', f'"format":{number}'))
    assert newest(checkpoint)["format"] == number
    before = files(checkpoint)
    with pytest.raises(StateError) as caught:
        USES[use](tmp_path)
    text = str(caught.value)
    assert (
        f"{age} version of headrace: it has format {number}, this version reads formats {READABLE_FORMATS[0]} and {STATE_FORMAT}"
        in text
    )
    assert "Nothing was changed" in text and f"a version that reads format {number}" in text
    assert not isinstance(caught.value, CorruptState), "there is nothing wrong with it"
    assert files(checkpoint) == before


# --- readable formats ------------------------------------------------------------------------------------------------


@every_format
@pytest.mark.parametrize("use", sorted(set(USES) - {"start"}))
def test_it_can_be_looked_at(use: str, number: int, tmp_path: Path) -> None:
    checkpoint = copied(tmp_path, number)
    before = files(checkpoint)
    USES[use](tmp_path)
    assert files(checkpoint) == before


@every_format
def test_keyed_tables_are_read(number: int, tmp_path: Path) -> None:
    calls = [row for n in range(making.EPOCHS) for row in making.window(n).to_pylist()[:12]]
    reached = max(row["ts"] for row in calls) - dt.timedelta(seconds=1)  # the others wait for the watermark
    longest: dict[str, int] = {}
    for row in calls:
        if row["ts"] < reached:
            longest[row["caller"]] = max(row["seconds"], longest.get(row["caller"], 0))
    found = hr.read_state(copied(tmp_path, number), "apply-1", "longest").to_pylist()
    assert {row["caller"] for row in found} == set(longest)
    assert {caller: max(r["seconds"] for r in found if r["caller"] == caller) for caller in longest} == longest


@every_format
def test_a_table_beside_streams_has_the_version_that_its_epochs_used(number: int, tmp_path: Path) -> None:
    store = StateStore.open(copied(tmp_path, number) / "state", read_only=True)
    assert store.last is not None
    held = store.last.tables["tariffs"]
    assert held.number == 2
    assert rows(BlockReader(store.storage).open(held.block).table) == rows(making.tariffs(1))


def reached(epochs: list[dict[str, pa.Table]]) -> dt.datetime:
    """The watermark after these epochs."""
    return max(time for epoch in epochs for time in epoch["calls"]["ts"].to_pylist()) - dt.timedelta(seconds=1)


@every_format
@pytest.mark.spark
@pytest.mark.smoke
def test_a_run_continues_with_every_kind_of_state(
    number: int, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is open or waits is continued; the epoch that is delivered once more has the table that it had."""
    monkeypatch.chdir(tmp_path)  # the source is known as 'calls'
    checkpoint = copied(tmp_path, number)
    epochs = [{"calls": making.window(place)} for place in range(making.EPOCHS + MORE)]
    for place in range(len(epochs)):
        making.put(tmp_path, place)
    making.hold(tmp_path, 2)
    making.run(spark, tmp_path, sum(epoch["calls"].num_rows for epoch in epochs))
    streams = making.query(spark, tmp_path)
    versions = [0] * making.CHANGES_AT + [1] * (making.EPOCHS - making.CHANGES_AT) + [2] * MORE
    tables = [making.tariffs(version) for version in versions]

    def answers(so_many: int) -> list[pa.Table]:
        return references(list(streams.values()), epochs[:so_many], end=False, versions=tables[:so_many])

    for name, wanted, before in zip(streams, answers(len(epochs)), answers(making.EPOCHS - 1), strict=True):
        table = pq.read_table(tmp_path / name)
        found, delivered = rows(table), rows(wanted) - rows(before)
        if name == "sequence":  # results wait for the watermark
            start, stop = (reached(epochs[:many]) for many in (making.EPOCHS - 1, len(epochs)))
            delivered = Counter({row: many for row, many in rows(wanted).items() if start <= row[0] < stop})
            assert table["ts"].to_pylist() == sorted(table["ts"].to_pylist())
        assert delivered == found, name
        assert found.total() > MORE, name
    now = newest(checkpoint)
    assert (
        now["number"] == len(epochs) - 1 and now["format"] == STATE_FORMAT and now["tables"]["tariffs"]["number"] == 3
    )
    changed = set(fields_of(now)) ^ set(fields_of(newest(GOLDEN)))
    assert not changed, f"the manifest has other fields than format {STATE_FORMAT} had: that is a new format"
