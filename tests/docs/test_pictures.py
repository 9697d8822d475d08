"""Pictures of the pages are drawn by commands."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from docs_site import architecture_picture, demo_picture, staging, terminal

SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_of_an_epoch_is_the_one_that_the_command_draws():
    assert (staging.DOCS / "explanation" / "epoch.svg").read_text() == architecture_picture.picture()


def test_the_picture_of_the_demo_ends_with_the_verified_results():
    root = ET.parse(staging.DOCS / "demo.svg").getroot()
    frames = root.findall(f"{SVG}g")
    assert len(frames) > 5
    assert [frame.get("display") for frame in frames] == ["none"] * (len(frames) - 1) + ["inline"]
    assert "equal the sequential reference" in "".join(frames[-1].itertext())


def lines(screen: terminal.Screen) -> list[str]:
    return ["".join(character for character, _ in line).rstrip() for line in screen.cells]


def test_the_terminal_draws_over_what_it_drew():
    screen = terminal.Screen(columns=10, rows=3)
    screen.write("one\r\ntwo\r\n\x1b[2A\x1b[2Kdone\r\n")
    assert lines(screen) == ["done", "two", ""]
    screen.write("\x1b[1B\rabc\r\nmore\r\n")
    assert lines(screen) == ["abc", "more", ""]


def test_the_terminal_keeps_colours():
    screen = terminal.Screen(columns=20, rows=2)
    screen.write("a\x1b[1;32mb\x1b[0mc<")
    [line] = screen.svg_lines()
    assert 'font-weight="bold">b<' in line and "c&lt;" in line


def test_frames_are_shown_one_after_the_other():
    written = [(0.0, "\r\n".join("12345678") + "\r\n"), (5.0, "nine\r\n"), (9.0, "ten\r\n")]
    root = ET.fromstring(demo_picture.picture(written))
    animations = [frame.find(f"{SVG}animate") for frame in root.findall(f"{SVG}g")]
    times = [animation.get("keyTimes").split(";") for animation in animations if animation is not None]
    assert len(times) == 3
    assert times[0][-1] == times[1][1] and times[1][2] == times[2][1]  # each ends when the next begins
