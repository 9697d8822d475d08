"""What a run looks at before it begins: nothing is answered from half a folder, and answers of two runs are never mixed."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import HeadraceError, QueryError, SourceError
from headrace.testing import LocalRun, table_stream
from headrace_linearroad import history, query, running
from headrace_linearroad.forms import FIELDS, INPUT, OUTPUTS
from headrace_linearroad.generating import Settings
from headrace_linearroad.generating.writing import Job, write
from headrace_linearroad.history import Histories
from headrace_linearroad.running import Given

LINE = "0,{time},{vid},30,{xway},1,0,10,52900,-1,-1,-1,-1,-1,-1"


def given(tmp_path: Path, path: Path, out: str = "out", checkpoint: str = "checkpoint") -> Given:
    return Given(path, (), "official", tmp_path / out, tmp_path / checkpoint)


def text(tmp_path: Path, name: str = "in.dat") -> Path:
    path = tmp_path / name
    path.write_text("".join(LINE.format(time=time, vid=1, xway=0) + "\n" for time in (0, 30, 60)))
    return path


def quiet(_: str) -> None: ...


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(Settings(1), tmp_path / "road", Job(0, 4))
    return tmp_path / "road"


def test_a_folder_that_is_whole_is_taken(tmp_path: Path, folder: Path) -> None:
    assert running.prepare(given(tmp_path, folder), quiet).seconds == folder.resolve()


@pytest.mark.parametrize(
    ("lost", "words"),
    [("_complete.json", "half written"), ("000002.arrow", "4 were written"), ("*.arrow", "no files of seconds")],
)
def test_a_folder_of_which_something_is_missing_is_refused(tmp_path: Path, folder: Path, lost: str, words: str) -> None:
    for path in folder.glob(lost):
        path.unlink()
    with pytest.raises(SourceError, match=words):
        running.prepare(given(tmp_path, folder), quiet)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_does_not_say_what_was_written_is_refused(tmp_path: Path, folder: Path) -> None:
    (folder / "_complete.json").write_text(json.dumps({}))
    with pytest.raises(SourceError, match="how many files"):
        running.prepare(given(tmp_path, folder), quiet)


def test_answers_of_two_runs_are_not_mixed(tmp_path: Path) -> None:
    first = given(tmp_path, text(tmp_path))
    running.prepare(first, quiet)
    assert running.prepare(first, quiet).lines == 3, "a second start of the same"
    pq.write_table(OUTPUTS["tolls"].empty_table(), first.out / "tolls" / "epoch-0.parquet")
    running.prepare(first, quiet)
    with pytest.raises(QueryError, match="answers of another run"):
        running.prepare(given(tmp_path, text(tmp_path), checkpoint="another"), quiet)
    with pytest.raises(QueryError, match="another input"):
        running.prepare(given(tmp_path, text(tmp_path, "other.dat")), quiet)


def test_answers_that_were_removed_are_missed(tmp_path: Path) -> None:
    first = given(tmp_path, text(tmp_path))
    running.prepare(first, quiet)
    (first.out / "balances" / running.NO_ROWS).unlink()
    with pytest.raises(QueryError, match="removed"):
        running.prepare(first, quiet)


def test_answers_need_a_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(QueryError, match="no folder"):
        running.prepare(given(tmp_path, text(tmp_path)), quiet)


def test_histories_are_found_in_a_folder_as_text_too(tmp_path: Path) -> None:
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "tolls.csv").write_text("7,1,0,42\n")
    (tmp_path / "history" / "segments.csv").write_text("1,1,0,0,0,50,60,200\n")
    assert all(history.files_of([tmp_path]).values()) and all(history.files_of([tmp_path / "history"]).values())


def test_a_history_that_is_cut_off_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "tolls.arrow").write_bytes(b"ARROW1\0\0 and no more")
    with pytest.raises(HeadraceError, match="no Arrow file"):
        history.files_of([tmp_path])


def test_the_last_second_and_the_last_expressway_there_can_be(tmp_path: Path) -> None:
    """No product of columns is larger than its type."""
    report = dict(zip(FIELDS, map(int, LINE.format(time=10_799, vid=2**31 - 1, xway=32_767).split(",")), strict=True))
    row = pa.Table.from_pylist(
        [{"ts": report["time"] * 1_000_000, **report}], pa.schema([("ts", pa.int64()), *list(INPUT)[1:]])
    )
    streams = query.answers(table_stream(INPUT.empty_table(), name="input"), "official", Histories(None, None))
    sink = hr.sinks.memory()
    run = LocalRun(list(streams.values()), tmp_path / "state", slots=2, sink=sink)
    run.epoch(row.cast(INPUT))
    run.end()
    run.close()
    told = pa.concat_tables([table for (_, _, result), table in sink.epochs.items() if result == "result-0"])
    assert told.select(["vid", "time", "xway", "lav"]).to_pylist() == [
        {"vid": 2**31 - 1, "time": 10_799, "xway": 32_767, "lav": -1}
    ]
