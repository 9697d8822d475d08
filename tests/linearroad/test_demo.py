"""The demo: the picture and the events from given tables, and all of it as anybody would start it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console
from rich.text import Text

from headrace.errors import WorkloadError
from headrace_linearroad.demo import picture, traffic
from headrace_linearroad.demo.seen import Event, Place, Seen, place
from headrace_linearroad.demo.show import Options
from headrace_linearroad.demo.traffic import Crash
from headrace_linearroad.forms import COMPLETE, FIELDS, HISTORY, INPUT, NOTHING, OUTPUTS
from tests.patience import PATIENCE

CRASH = Crash(xway=0, dir=0, seg=47, begins=100, cleared=400)


def reports(*cars: tuple[int, int, int, int]) -> pa.Table:
    """(xway, dir, seg, spd) of each."""
    rows = [
        {"ts": 0, **dict.fromkeys(FIELDS, NOTHING), "type": 0, "xway": x, "dir": d, "seg": s, "spd": v}
        for x, d, s, v in cars
    ]
    return pa.Table.from_pylist(rows, INPUT)


def tolls(*rows: tuple[int, int, int, int, int]) -> pa.Table:
    """(time, xway, dir, seg, toll)."""
    given = [
        {"ts": 0, "vid": 1, "lav": 30, "time": t, "xway": x, "dir": d, "seg": s, "toll": toll}
        for t, x, d, s, toll in rows
    ]
    return pa.Table.from_pylist(given, OUTPUTS["tolls"])


def alerts(*times: int) -> pa.Table:
    given = [{"ts": 0, "vid": 1, "time": time, "xway": 0, "dir": 0, "seg": 47} for time in times]
    return pa.Table.from_pylist(given, OUTPUTS["accidents"])


def drawn(seen: Seen, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(picture.Picture(seen))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def jammed() -> Seen:
    seen = Seen([CRASH])
    seen.report(100, reports((0, 0, 45, 60), (0, 0, 46, 30), (0, 0, 46, 20), (0, 0, 47, 10), (1, 1, 99, 16)))
    seen.answer("tolls", tolls((200, 1, 1, 98, 800), (140, 1, 1, 98, 2), (201, 1, 1, 99, 200)))
    return seen


def test_roads_are_drawn_with_a_character_for_each_segment() -> None:
    ruler = "0         10        20        30        40        50        60        70        80        90"
    assert drawn(jammed(), 120) == [
        f"expressway 0 {ruler}",
        "  east →     " + " " * 45 + "░▒x",
        "    toll",
        "  west ←",
        "    toll",
        f"expressway 1 {ruler}",
        "  east →",
        "    toll",
        "  west ←     " + " " * 99 + "▓",
        "    toll     " + " " * 98 + "█▄",
    ]


def test_on_a_small_screen_the_worse_of_two_segments_is_drawn() -> None:
    seen = jammed()
    seen.report(101, reports((1, 0, 0, 60), (1, 0, 1, 30)))
    seen.answer("accidents", alerts(240))
    ruler = "0    10   20   30   40   50   60   70   80   90"
    assert drawn(seen, 80) == [
        f"expressway 0 {ruler}",
        "  east →     " + " " * 22 + "░X",
        "    toll     " + " " * 21 + "!!!",
        "  west ←",
        "    toll",
        f"expressway 1 {ruler}",
        "  east →     ▒",
        "    toll",
        "  west ←     " + " " * 49 + "▓",
        "    toll     " + " " * 49 + "█",
    ]


def test_an_accident_happens_is_told_of_and_is_over() -> None:
    seen = jammed()
    seen.answer("accidents", alerts(240, 241))
    seen.settle(300)
    seen.answer("accidents", alerts(410))
    seen.answer("tolls", tolls((485, 0, 0, 47, 900), (485, 0, 0, 48, 0), (486, 0, 0, 46, 1300)))
    seen.settle(485)
    assert seen.alerts == {(0, 0, 47): 410}
    seen.settle(486)
    assert [str(event) for event in seen.events] == [
        "0:01:40  collision in segment 47 eastbound on expressway 0, not known yet",
        "0:03:20  tolls up to 800 in segment 98 westbound on expressway 1",
        "0:04:00  accident in segment 47 eastbound on expressway 0: cars are alerted",
        "0:08:06  tolls up to 1,300 in segment 46 eastbound on expressway 0",
        "0:07:00  the accident in segment 47 eastbound on expressway 0 is cleared",
    ]
    assert (seen.counts["accidents"], seen.counts["tolls"], seen.charged) == (3, 6, 5)
    assert not seen.alerted().any()


@pytest.mark.parametrize(
    ("where", "warned"),
    [((0, 0, 47), range(43, 48)), ((1, 1, 30), range(30, 35)), ((0, 0, 2), range(3)), ((0, 1, 98), range(98, 100))],
)
def test_cars_are_alerted_up_to_four_segments_before_an_accident(where: Place, warned: range) -> None:
    found = Seen(alerts={where: 240}).alerted()
    assert found[where[:2]].nonzero()[0].tolist() == list(warned)
    assert found.sum() == len(warned)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_the_screen_fits(width: int, height: int) -> None:
    seen = jammed()
    seen.highest = 1_000_000
    for time in range(20):
        seen.events.append(Event(time, f"the accident in {place((1, 1, 99))} is cleared"))
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    rows = [[("tuples", "1,000,000"), ("  99% within", "10.5 s"), ("  travel times", "100 s of traffic")]] * 4
    console.print(picture.screen(Text("head"), seen, rows))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) < height
    assert "…" not in "".join(lines)
    assert lines[-1].startswith("0:00:19  the accident in segment 99 westbound on expressway 1 is cleared")


def test_speeds_are_those_of_the_last_half_minute() -> None:
    seen = Seen()
    seen.report(0, reports((0, 0, 7, 10)))
    for second in range(1, 30):
        seen.report(second, reports())
    assert seen.speed[0, 0, 7] == 10
    seen.report(30, reports((0, 0, 7, 50), (0, 0, 7, 60)))
    assert seen.speed[0, 0, 7] == 55


def test_an_accident_happens_soon_after_the_beginning(tmp_path: Path) -> None:
    seconds = list[int]()
    made = traffic.make(3, 50, 200, tmp_path / "made", seconds.append)
    assert seconds == list(range(1, 201))
    assert made.begin + 50 in [crash.begins for crash in made.crashes]
    assert made.reports[-1] < made.tuples[-1]
    feed = traffic.Feed(made, tmp_path / "road", 1000)
    feed.offer(5)
    assert len(list(feed.folder.glob("*.arrow"))) == 5
    assert made.cars(made.begin + 4) == made.reports[5]
    feed.start()
    feed.join(PATIENCE)
    assert (feed.error, feed.done, feed.offered) == (None, True, made.tuples[-1])
    assert made.cars(made.end - 1) == made.reports[200] - made.reports[170]
    assert {path.name for path in feed.folder.iterdir()} >= {HISTORY, COMPLETE, f"{made.end - 1:06d}.arrow"}
    assert list(made.folder.iterdir()) == []


def test_there_are_three_hours_of_traffic() -> None:
    with pytest.raises(WorkloadError, match="2000 seconds at speed 10 are 20,000 seconds of traffic"):
        Options(2000, 10, 800, 3, 2, None)


@pytest.mark.spark
def test_the_demo_sees_the_accident_and_every_row_is_right(tmp_path: Path) -> None:
    demo = [sys.executable, "-m", "headrace.cli", "linearroad", "demo", "--seconds", "3", "--speed", "100"]
    demo += ["--density", "100"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    found = subprocess.run(demo, capture_output=True, text=True, timeout=PATIENCE, env=environment)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "collision in segment 30 westbound on expressway 0, not known yet" in found.stdout
    assert "accident in segment 30 westbound on expressway 0: cars are alerted" in found.stdout
    assert "rows are right, and none is missing" in found.stdout
    assert found.stderr == ""
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("headrace-")] == []
