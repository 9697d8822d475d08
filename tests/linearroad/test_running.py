"""What a run looks at before it begins: nothing is answered from half a folder, and answers of two runs are never mixed."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app
from headrace.errors import QueryError, SourceError, WriterConflict
from headrace.testing import LocalRun, table_stream
from headrace_linearroad import query, reading, running
from headrace_linearroad.forms import FIELDS, INPUT, OUTPUTS
from headrace_linearroad.generating import Settings
from headrace_linearroad.generating.writing import Job, write
from headrace_linearroad.history import Histories
from headrace_linearroad.running import Given, Prepared
from headrace_linearroad.telling import Say

LINE = "0,{time},{vid},30,{xway},1,0,10,52900,-1,-1,-1,-1,-1,-1"


def given(tmp_path: Path, path: Path, out: str = "out", checkpoint: str = "checkpoint") -> Given:
    return Given(path, (), "official", tmp_path / out, tmp_path / checkpoint)


def text(tmp_path: Path, name: str = "in.dat") -> Path:
    path = tmp_path / name
    path.write_text("".join(LINE.format(time=time, vid=1, xway=0) + "\n" for time in (0, 30, 60)))
    return path


def prepared(given: Given, say: Say = lambda _: None) -> Prepared:
    with running.prepare(given, running.look(given), say) as found:
        return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(Settings(1), tmp_path / "road", Job(0, 4))
    return tmp_path / "road"


def test_a_folder_that_is_whole_is_taken(tmp_path: Path, folder: Path) -> None:
    assert prepared(given(tmp_path, folder)).seconds == folder.resolve()


@pytest.mark.parametrize(
    ("lost", "words"),
    [("_complete.json", "half written"), ("000002.arrow", "generate wrote 4"), ("*.arrow", "has no Arrow files")],
)
def test_a_folder_of_which_something_is_missing_is_refused(tmp_path: Path, folder: Path, lost: str, words: str) -> None:
    for path in folder.glob(lost):
        path.unlink()
    with pytest.raises(SourceError, match=words):
        prepared(given(tmp_path, folder))
    assert not (tmp_path / "out").exists()


def test_a_folder_that_does_not_say_what_was_written_is_refused(tmp_path: Path, folder: Path) -> None:
    (folder / "_complete.json").write_text(json.dumps({}))
    with pytest.raises(SourceError, match="how many files"):
        prepared(given(tmp_path, folder))


def answer(given: Given) -> None:
    """As if an epoch had been delivered."""
    (given.checkpoint / "state").mkdir(parents=True, exist_ok=True)
    pq.write_table(OUTPUTS["tolls"].empty_table(), given.out / "tolls" / f"{given.checkpoint.name}-0.parquet")


def test_answers_of_two_runs_are_not_mixed(tmp_path: Path) -> None:
    first = given(tmp_path, text(tmp_path))
    prepared(first)
    assert prepared(first).lines == 3, "a second start of the same"
    answer(first)
    prepared(first)
    with pytest.raises(QueryError, match=r"answers of another run.*the --checkpoint of that run, .*checkpoint'"):
        prepared(given(tmp_path, text(tmp_path), checkpoint="another"))


def test_a_run_that_was_killed_early_does_not_go_on_in_the_answers_of_another(tmp_path: Path) -> None:
    first, second = (given(tmp_path, text(tmp_path), checkpoint=name) for name in ("first", "second"))
    prepared(first)
    prepared(second)
    answer(second)
    with pytest.raises(QueryError, match="answers of another run"):
        prepared(first)
    prepared(second)


def test_answers_without_the_checkpoint_that_they_are_of_are_not_written_again(tmp_path: Path) -> None:
    first = given(tmp_path, text(tmp_path))
    prepared(first)
    answer(first)
    shutil.rmtree(first.checkpoint)
    with pytest.raises(QueryError, match=r"has answers, but the checkpoint .* does not exist"):
        prepared(first)


def tolls(path: Path, toll: int = 42) -> Path:
    path.write_text(f"7,1,0,{toll}\n")
    return path


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            {"profile": "walmart"},
            "it has --profile official, and this one has walmart; to resume it, give --profile off",
        ),
        (
            {"input": "other.dat"},
            r"its input is '.*in\.dat', and that of this one is '.*other\.dat'; to resume it, give the same",
        ),
        ({"out": "elsewhere"}, r"it has --out .*out, and this one has .*elsewhere; to resume it, give --out"),
        ({"histories": ()}, r"its history of tolls is '.*tolls\.csv', and that of this one is none; to resume"),
        (
            {"histories": ("a.csv",)},
            r"its history of tolls is '.*tolls\.csv', and that of this one is '.*a\.csv'; to resume",
        ),
    ],
)
def test_what_a_checkpoint_is_of_is_said(tmp_path: Path, other: dict[str, Any], words: str) -> None:
    first = replace(given(tmp_path, text(tmp_path)), histories=(tolls(tmp_path / "tolls.csv"),))
    prepared(first)
    text(tmp_path, "other.dat")
    tolls(tmp_path / "a.csv")
    paths = {"input": tmp_path / str(other.get("input")), "out": tmp_path / str(other.get("out"))}
    paths |= {"histories": tuple(tmp_path / name for name in other.get("histories", ()))}
    with pytest.raises(QueryError, match=f"{words}.*to start over, give another --out and --checkpoint"):
        running.look(replace(first, **{name: paths.get(name, value) for name, value in other.items()}))
    assert not (tmp_path / "elsewhere").exists(), "nothing is begun that is refused"


def test_input_and_histories_that_were_changed_since_are_said(tmp_path: Path) -> None:
    first = replace(given(tmp_path, text(tmp_path)), histories=(tolls(tmp_path / "tolls.csv"),))
    prepared(first)
    tolls(tmp_path / "tolls.csv", 143)
    with pytest.raises(QueryError, match=r"its history of tolls '.*tolls.csv' was changed since"):
        running.look(first)
    (tmp_path / "in.dat").write_text("0")
    (tmp_path / "in.dat").write_text(LINE.format(time=0, vid=1, xway=0))
    with pytest.raises(QueryError, match=r"its input '.*in.dat' was changed since"):
        running.look(first)


def test_answers_that_were_removed_are_missed(tmp_path: Path) -> None:
    first = given(tmp_path, text(tmp_path))
    prepared(first)
    (first.out / "balances" / running.NO_ROWS).unlink()
    with pytest.raises(QueryError, match="removed"):
        prepared(first)


def test_answers_need_a_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(QueryError, match="is a file, so there is no folder"):
        prepared(given(tmp_path, text(tmp_path)))


# --- places -----------------------------------------------------------------------------------------------------------


def everything(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.mark.parametrize(
    ("out", "checkpoint", "words"),
    [
        ("/", "checkpoint", "--out is '/', the root"),
        ("out", "/", "--checkpoint is '/', the root"),
        ("in.dat", "checkpoint", "in.dat' is a file, so there is no folder"),
        ("in.dat/out", "checkpoint", "in.dat' is a file, so there is no folder"),
        ("out", ".", r"one within the other; give another --checkpoint|where the input is; give another --checkpoint"),
        ("out", "out", "one within the other; give another --checkpoint"),
        ("out", "out/tolls", "one within the other; give another --checkpoint"),
        ("checkpoint/out", "checkpoint", "one within the other; give another --checkpoint"),
        ("checkpoint.spool/out", "checkpoint", "one within the other; give another --checkpoint"),
    ],
)
def test_places_that_are_in_the_way_of_each_other(tmp_path: Path, out: str, checkpoint: str, words: str) -> None:
    path = text(tmp_path)
    before = everything(tmp_path)
    with pytest.raises(QueryError, match=words):
        prepared(given(tmp_path, path, out, checkpoint))
    assert everything(tmp_path) == before


@pytest.mark.parametrize(("name", "words"), [("tolls/road", "--out"), ("checkpoint.spool/road", "--checkpoint")])
def test_what_is_read_does_not_lie_where_something_is_written(tmp_path: Path, name: str, words: str) -> None:
    write(Settings(1), tmp_path / name, Job(0, 4))
    before = everything(tmp_path)
    with pytest.raises(QueryError, match=f"where the input is; give another {words}"):
        prepared(given(tmp_path, tmp_path / name, out="."))
    with pytest.raises(QueryError, match=r"where the history '.*' is"):
        prepared(replace(given(tmp_path, text(tmp_path), out="."), histories=(tmp_path / name,)))
    (tmp_path / "in.dat").unlink()
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    ("out", "checkpoint"), [("road", "checkpoint"), ("road/out", "road/checkpoint"), (".", "c"), ("o", "o/c")]
)
def test_folders_within_each_other_do_no_harm_otherwise(
    tmp_path: Path, folder: Path, out: str, checkpoint: str
) -> None:
    before = everything(folder)
    here = given(tmp_path, folder, out, checkpoint)
    for _ in range(2):
        prepared(here)
        answer(here)
    after = everything(folder)
    assert {path: content for path, content in after.items() if path in before} == before
    assert len(list(folder.glob("*.arrow"))) == 4


def test_a_folder_that_has_the_name_of_the_spool_is_left_alone(tmp_path: Path) -> None:
    here = given(tmp_path, text(tmp_path))
    here.spool.mkdir()
    (here.spool / "seconds").mkdir()
    (here.spool / "seconds" / "mine.txt").write_text("years of work")
    before = everything(tmp_path)
    with pytest.raises(QueryError, match=r"checkpoint.spool' was not made by a run.*give another --checkpoint"):
        prepared(here)
    assert everything(tmp_path) == before
    shutil.rmtree(here.spool)
    prepared(here)
    (here.spool / running.NOTE).unlink()  # as if it had been killed while it prepared
    (here.spool / "mine.txt").write_text("put there since")
    prepared(here)
    assert (here.spool / "mine.txt").read_text() == "put there since"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_has_the_name_of_the_spool_and_is_no_folder_is_left_alone(tmp_path: Path, kind: str) -> None:
    here = given(tmp_path, text(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    here.spool.write_text("mine") if kind == "file" else here.spool.symlink_to(tmp_path / "elsewhere")
    before = everything(tmp_path)
    with pytest.raises(QueryError, match="is not a folder, but the run needs a folder of that name"):
        prepared(here)
    assert everything(tmp_path) == before


def test_two_runs_at_once(tmp_path: Path) -> None:
    """The second is refused, whether it has the checkpoint or the answers in common, and nothing of the first is lost."""
    path = text(tmp_path)
    first = given(tmp_path, path)
    for begun in (False, True):
        with running.prepare(first, running.look(first), print) as found:
            before = everything(first.spool) | everything(first.out)
            for other, words in (("checkpoint", "another --checkpoint"), ("another", "another --out")):
                with pytest.raises(WriterConflict, match=f"is in use by process {os.getpid()} .*{words}"):
                    prepared(given(tmp_path, path, checkpoint=other))
            assert everything(first.spool) | everything(first.out) == before
            assert len(list(found.seconds.glob("*.arrow"))) == 3, begun


def test_a_second_start_that_comes_while_the_first_prepares_waits_for_nothing(tmp_path: Path) -> None:
    """Both looked before either began: who comes second finds what the first prepared."""
    here = given(tmp_path, text(tmp_path))
    looked = running.look(here)
    prepared(here)
    kept = {path: path.stat().st_ino for path in here.spool.rglob("*.arrow")}
    with running.prepare(here, looked, print) as found:
        assert found.lines == 3
    assert {path: path.stat().st_ino for path in here.spool.rglob("*.arrow")} == kept


def test_what_a_start_that_was_killed_left_is_made_anew(tmp_path: Path) -> None:
    here = given(tmp_path, text(tmp_path))
    prepared(here)
    (here.spool / running.NOTE).unlink()
    (here.spool / running.SECONDS / "000099.arrow").write_bytes(b"half")
    assert sorted(path.name for path in prepared(here).seconds.iterdir()) == [f"{n:06}.arrow" for n in (0, 30, 60)]


def test_to_explain_only_looks(tmp_path: Path) -> None:
    path = text(tmp_path)
    before = everything(tmp_path)
    found = CliRunner().invoke(
        app, ["linearroad", "run", "--input", str(path), "--out", str(tmp_path / "out"), "--explain"]
    )
    assert found.exit_code == 0, found.output
    assert "apply Roads to each of" in found.stdout and "subquery-1 <- input" in found.stdout
    assert everything(tmp_path) == before
    found = CliRunner().invoke(
        app, ["linearroad", "run", "--input", f"{path}x", "--out", str(tmp_path / "out"), "--explain"]
    )
    assert (found.exit_code, found.stdout) == (1, "")


def test_a_wrong_history_is_said_before_the_text_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is wrong far behind, where a look does not reach."""
    monkeypatch.setattr(reading, "spool", lambda *_: pytest.fail("the text was read"))
    path = tmp_path / "tolls.csv"
    path.write_text("".join(f"{vid},1,0,42\n" for vid in range(20_000)) + "1,2,3\n")
    with pytest.raises(
        SourceError, match=r"has '1,2,3' in line 20,001; expected 4 whole numbers, as it is a history of tolls"
    ):
        prepared(replace(given(tmp_path, text(tmp_path)), histories=(path,)))
    path.write_text("vid,day,xway,toll\n7,1,0,42\n")
    with pytest.raises(SourceError, match=r"has 'vid,day,xway,toll' in line 1; expected 4 whole numbers"):
        running.look(replace(given(tmp_path, text(tmp_path)), histories=(path,)))


# --- tuples that cannot be meant, in files of columns ------------------------------------------------------------------


def told(folder: Path, rows: list[dict[str, Any]]) -> dict[str, pa.Table]:
    """What the query makes of tuples."""
    schema = pa.schema([("ts", pa.int64()), *list(INPUT)[1:]])
    table = pa.Table.from_pylist([{"ts": row["time"] and row["time"] * 1_000_000} | row for row in rows], schema).cast(
        INPUT
    )
    streams = query.answers(table_stream(INPUT.empty_table(), name="input"), "official", Histories(None, None))
    sink = hr.sinks.memory()
    run = LocalRun(list(streams.values()), folder, slots=2, sink=sink)
    run.epoch(table)
    run.end()
    run.close()
    found = {name: [stream.schema.empty_table()] for name, stream in streams.items()}
    for (_, _, result), part in sink.epochs.items():
        found[list(streams)[int(result.removeprefix("result-"))]].append(part)
    return {name: pa.concat_tables(parts) for name, parts in found.items()}


def report(**more: Any) -> dict[str, Any]:
    return dict(zip(FIELDS, map(int, LINE.format(time=0, vid=1, xway=0).split(",")), strict=True)) | more


BAD: list[tuple[str, dict[str, Any]]] = [
    ("no such type", {"type": 1}),
    ("time is not that of the tuple", {"ts": 99_000_000}),
    ("null", {"time": None, "ts": 30_000_000}),
    ("qid outside 0..2147483647", {"type": 2, "qid": -1}),
    ("vid outside 0..2147483647", {"vid": -1}),
]
for name, (least, largest) in reading.OF_REPORTS.items():
    BAD += [(f"{name} outside {least}..{largest}", {name: -1}), ("null", {name: None})]
    if largest < 2**15 - 1 or name == "pos":
        BAD.append((f"{name} outside {least}..{largest}", {name: largest + 1}))


def test_a_tuple_that_cannot_be_meant_is_kept_apart_and_nothing_follows_from_it(tmp_path: Path) -> None:
    """Sixty slow cars make a toll; one more that is wrong in anything makes none and is told none."""
    good = [report(time=time, vid=vid) for time in (0, 30) for vid in range(60)]
    for time in (60, 90):
        good += [report(time=time, vid=100 + time), report(time=time, vid=5, type=2, qid=time)]
    wrong = [report(time=30, vid=200 + n) | each for n, (_, each) in enumerate(BAD)]
    alone = told(tmp_path / "alone", good)
    beside = told(tmp_path / "beside", [*good[:60], *wrong, *good[60:]])
    kept = beside.pop(query.APART)
    assert sorted(kept["reason"].to_pylist()) == sorted(reason for reason, _ in BAD)
    assert alone.pop(query.APART).num_rows == 0
    assert any(alone["tolls"]["toll"].to_pylist()) and alone["balances"].num_rows == 2
    for name, table in alone.items():
        assert sorted(beside[name].to_pylist(), key=str) == sorted(table.to_pylist(), key=str), name


def test_the_last_second_and_the_last_expressway_there_can_be(tmp_path: Path) -> None:
    """No product of columns is larger than its type."""
    found = told(tmp_path / "state", [report(time=10_799, vid=2**31 - 1, xway=32_767)])["tolls"]
    assert found.select(["vid", "time", "xway", "lav"]).to_pylist() == [
        {"vid": 2**31 - 1, "time": 10_799, "xway": 32_767, "lav": -1}
    ]
