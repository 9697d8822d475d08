"""What counts of an input, and what a run does about the rest; the judge, which reads it in another way, finds the same."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import SourceError
from headrace_linearroad import folders, reading
from headrace_linearroad.forms import FIELDS, INPUT
from headrace_linearroad.reading import USED
from headrace_linearroad.validating import reading as judging
from headrace_linearroad.wandering import FIELDS as WATCHED
from headrace_linearroad.wandering import Watch

REPORT = "0,{time},{vid},30,0,1,0,10,52900,-1,-1,-1,-1,-1,-1"
REASONS = {reading.MALFORMED: judging.MALFORMED, reading.NO_TYPE: judging.NO_TYPE, reading.BACKWARDS: judging.BACKWARDS}


def spooled(tmp_path: Path, text: bytes, block: int = 1 << 16) -> tuple[reading.Spooled, list[dict[str, Any]]]:
    (tmp_path / "text").write_bytes(text)
    folder = tmp_path / "seconds"
    folder.mkdir()
    found = reading.spool(tmp_path / "text", folder, tmp_path / "apart", block=block)
    rows = [row for path in sorted(folder.iterdir()) for row in pa.ipc.open_file(str(path)).read_all().to_pylist()]
    return found, rows


def test_fields_of_no_use_may_hold_anything(tmp_path: Path) -> None:
    lines = [
        "2,5,6,,x y,1.5,-, ,+3,2,0x1,'',\"\",--1,None",
        "0,5,7,50,1,2,0,10,52900,,,,,,",
        "3,5,8,a,3,b,c,d,e,4,f,g,h,i,12\r",
        "4,5,9,a,3,b,c,d,e,4,10,20,3,700,i",
    ]
    found, rows = spooled(tmp_path, "\n".join(lines).encode())
    assert not found.apart
    nothing = dict.fromkeys(FIELDS, -1)
    expected = [
        {"type": 2, "time": 5, "vid": 6, "qid": 2},
        {"type": 0, "time": 5, "vid": 7, "spd": 50, "xway": 1, "lane": 2, "dir": 0, "seg": 10, "pos": 52_900},
        {"type": 3, "time": 5, "vid": 8, "xway": 3, "qid": 4, "day": 12},
        {"type": 4, "time": 5, "vid": 9, "xway": 3, "qid": 4, "sinit": 10, "send": 20, "dow": 3, "tod": 700},
    ]
    assert [{name: row[name] for name in FIELDS} for row in rows] == [{**nothing, **each} for each in expected]


@pytest.mark.parametrize("seed", range(6))
def test_text_is_read_as_the_judge_reads_it(seed: int, tmp_path: Path) -> None:
    """Lines with all sorts of things in their fields."""
    r = Random(seed)
    odd = [
        "",
        " ",
        "x",
        "1.0",
        "12.5",
        "-",
        "+1",
        " 7",
        "7\t",
        "7 7",
        "1e3",
        "-0",
        "00005",
        "9" * 19,
        "9" * 18,
        "é",
        '"7"',
    ]
    lines, time = [], 0
    for _ in range(400):
        time += r.choice((0, 0, 1))
        kind = r.choice((0, 0, 0, 2, 3, 4, 1, 7))
        fields = [kind, time + r.choice((0,) * 9 + (-1, 1)), *(r.randrange(5) for _ in range(13))]
        for _ in range(r.choice((0, 0, 1, 2))):
            fields[r.randrange(15)] = r.choice(odd)
        if r.random() < 0.05:
            fields = r.choice((fields[:14], [*fields, ""], [*fields, 1], fields[:1], []))
        lines.append(",".join(map(str, fields)))
    text = r.choice(("\n", "\r\n")).join(lines).encode()
    found, rows = spooled(tmp_path, text, block=r.choice((500, 1 << 16)))
    judged = judging.read(tmp_path / "text")
    apart: Counter[str] = Counter()
    for reason, many in found.apart.items():
        apart[REASONS.get(reason, judging.OUTSIDE)] += many
    assert apart == +judged.left and len(apart) == 4
    kept = Counter(tuple(row[name] for name in USED[row["type"]]) for row in rows)
    reports = list(zip(*(judged.reports[name].tolist() for name in USED[0]), strict=True))
    queries = zip(*(judged.queries[name].tolist() for name in judging.ASKED), strict=True)
    asked = [dict(zip(judging.ASKED, row, strict=True)) for row in queries]
    in_files = {name: np.iinfo(INPUT.field(name).type.to_pandas_dtype()) for name in FIELDS}
    fitting = [
        tuple(row[n] if in_files[n].min <= row[n] <= in_files[n].max else in_files[n].min for n in USED[row["type"]])
        for row in asked
    ]
    assert kept == Counter([*reports, *fitting])


# --- folders ---------------------------------------------------------------------------------------------------------


def seconds(tmp_path: Path, files: dict[str, list[tuple[int | None, int, int]]]) -> Path:
    """By name (microsecond, time, car)."""
    folder = tmp_path / "road"
    folder.mkdir()
    for name, rows in files.items():
        values = [dict(zip(FIELDS, map(int, REPORT.format(time=t, vid=v).split(",")), strict=True)) for _, t, v in rows]
        table = pa.Table.from_pylist(values, pa.schema(list(INPUT)[1:]))
        table = table.add_column(
            0, INPUT.field(0), pa.array([row[0] for row in rows], pa.int64()).cast(INPUT.field(0).type)
        )
        with pa.ipc.new_file(str(folder / name), INPUT) as file:
            file.write_table(table)
    (folder / "_complete.json").write_text(json.dumps({"files": len(files), "tuples": 1}))
    return folder


S = 1_000_000


def test_a_folder_of_seconds_is_looked_through(tmp_path: Path) -> None:
    folder = seconds(tmp_path, {"000001.arrow": [(S, 1, 5), (None, 1, 6)], "000031.arrow": [(31 * S, 31, 5)]})
    assert folders.look_through(folder, "official") == ""


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"000001.arrow": [(S, 1, 5), (S, 1, 6), (2 * S, 2, 77)]}, r"000001.arrow.*more than one second.*77.*row 3"),
        ({"000001.arrow": [(0, 0, 77), (S, 1, 5), (S, 1, 6)]}, r"000001.arrow.*more than one second.*77.*row 1"),
        ({"000001.arrow": [(2 * S, 2, 5)], "000002.arrow": [(S, 1, 5)]}, r"000002.arrow.*of 1 s.*000001.arrow.*of 2 s"),
        ({"000001.arrow": [(S, 1, 5)], "000002.arrow": [(S, 1, 5)]}, r"000002.arrow.*of 1 s.*000001.arrow.*of 1 s"),
    ],
)
def test_a_tuple_in_the_file_of_another_second_is_an_error_for_both(
    files: dict[str, list[tuple[int | None, int, int]]], words: str, tmp_path: Path
) -> None:
    folder = seconds(tmp_path, files)
    with pytest.raises(SourceError, match=words):
        folders.look_through(folder, "official")
    with pytest.raises(SourceError, match=r"more than one second|a file before it"):
        judging.read(folder)


# --- wandering -------------------------------------------------------------------------------------------------------

Step = tuple[int, int, int, int, int]  # time, road, lane, segment, position
ORDINARY: dict[str, list[Step]] = {
    "drives": [(0, 0, 0, 5, 1), (30, 0, 1, 5, 2), (60, 0, 1, 6, 3), (90, 0, 4, 6, 4)],
    "comes back at once": [(0, 0, 0, 5, 1), (30, 0, 4, 5, 2), (31, 0, 0, 5, 3)],
    "gets on another road at once": [(0, 0, 0, 5, 1), (30, 0, 4, 5, 2), (31, 1, 0, 5, 3)],
    "gets on another road without an exit": [(0, 0, 0, 5, 1), (30, 0, 1, 5, 2), (91, 1, 0, 5, 3)],
    "is silent": [(0, 0, 0, 5, 1), (600, 0, 1, 5, 2), (1201, 0, 0, 5, 2)],
    "stands, and goes on": [(0, 0, 1, 5, 1), (30, 0, 1, 5, 1), (60, 0, 1, 5, 1), (90, 0, 1, 5, 2), (160, 1, 0, 5, 1)],
}
ODD: dict[str, list[Step]] = {
    "gets on another road after 60 s": [(0, 0, 0, 5, 1), (30, 0, 1, 5, 2), (90, 1, 0, 5, 3)],
    "jumps": [(0, 0, 0, 5, 1), (30, 0, 4, 5, 2), (60, 1, 1, 5, 3)],
    "vanishes where it stands": [(0, 0, 1, 5, 1), (30, 0, 1, 5, 1), (130, 1, 0, 5, 3)],
    "goes on after ten minutes": [(0, 0, 0, 5, 1), (601, 0, 1, 5, 2)],
    "twice in a second": [(0, 0, 0, 5, 1), (0, 0, 1, 5, 2)],
    "three segments and back": [(0, 0, 1, 5, 1), (10, 0, 1, 6, 1), (20, 0, 1, 7, 1), (30, 0, 1, 5, 1)],
    "eleven times in a minute": [(t, 0, 1, 5, t) for t in range(11)],
}


def watched(steps: list[Step], profile: str, vid: int) -> str:
    watch = Watch(profile)
    for time, road, lane, seg, pos in steps:
        report = {"time": time, "vid": vid, "xway": road // 2, "lane": lane, "dir": road % 2, "seg": seg, "pos": pos}
        watch.see({name: np.array([report[name]]) for name in WATCHED})
    return watch.found


@pytest.mark.parametrize("profile", ["official", "walmart"])
def test_what_needs_the_longer_plan(profile: str) -> None:
    largest = 2**31 - 1
    assert {name: watched(steps, profile, 0) for name, steps in ORDINARY.items()} == dict.fromkeys(ORDINARY, "")
    for name, steps in ODD.items():
        assert f"car {largest} " in watched(steps, profile, largest), name


def test_what_is_dropped_moves_nothing() -> None:
    """After an exit, in the reading that drops: it is the exit that is ten minutes ago."""
    after_an_exit: list[Step] = [(0, 0, 1, 5, 1), (30, 0, 4, 5, 2), *((30 + 30 * n, 0, 1, 5, n) for n in range(1, 22))]
    assert watched(after_an_exit, "official", 1) == ""
    assert "ten minutes, at 660 s" in watched(after_an_exit, "walmart", 1)
    assert watched([(0, 0, 4, 5, 1), (30, 1, 1, 5, 1)], "walmart", 1) == "", "the first was never there"
    assert "another road" in watched([(0, 0, 4, 5, 1), (30, 1, 1, 5, 1)], "official", 1)


@pytest.mark.parametrize(
    "steps",
    [[(30, 1, 1, 5, 2), (90, 1, 4, 5, 2), (120, 1, 1, 5, 9), (120, 0, 0, 5, 1)], [(9, 0, 4, 5, 1), (9, 1, 1, 5, 1)]],
)
def test_what_is_dropped_is_heard_of_in_its_second(steps: list[Step]) -> None:
    """Whether it is dropped depends on what comes first, and nobody says what does."""
    assert "more often" in watched(steps, "walmart", 1)


def test_many_cars_are_watched() -> None:
    watch, r = Watch("official"), Random(1)
    vids = np.array(r.sample(range(2**31), 100_000), np.int64)
    report = {name: np.zeros(len(vids), np.int64) for name in WATCHED}
    for time in (0, 30):
        watch.see(report | {"vid": vids, "time": report["time"] + time})
    assert watch.found == "" and watch.known == len(vids)
    watch.see(
        {
            **{name: np.array([0]) for name in WATCHED},
            "vid": vids[70_000:70_001],
            "time": np.array([60]),
            "xway": np.array([1]),
        }
    )
    assert f"car {vids[70_000]} reports from another road" in watch.found
