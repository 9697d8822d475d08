"""Record `headrace demo` and draw it as a moving picture: `python -m docs_site.demo_picture` writes docs/demo.svg."""

from __future__ import annotations

import argparse
import codecs
import fcntl
import os
import pty
import struct
import sys
import termios
import time
from pathlib import Path

from docs_site import staging, terminal

COLUMNS, ROWS = 106, 34
FRAMES = 26
FIRST_LINES = 8  # of the first frame
SECONDS = 20.0  # of the picture; the demo takes longer
REST = 5.0  # how long the end stays


def main() -> None:
    """Record the demo and write the picture."""
    parser = argparse.ArgumentParser(description="Record headrace demo as a moving picture.")
    parser.add_argument("--out", type=Path, default=staging.DOCS / "demo.svg")
    given = parser.parse_args()
    given.out.write_text(picture(record([str(Path(sys.executable).parent / "headrace"), "demo"])))
    print(f"wrote {given.out}, {given.out.stat().st_size:,} bytes")


def record(command: list[str]) -> list[tuple[float, str]]:
    """Run a command on a terminal and return what it wrote, with seconds since its start."""
    child, master = pty.fork()
    if child == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        os.execvp(command[0], command)  # noqa: S606
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    begin, written = time.monotonic(), []
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while chunk := _read(master):
        written.append((time.monotonic() - begin, decoder.decode(chunk)))
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {status}; the picture was not changed")
    return written


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # the other side is closed
        return b""


def picture(written: list[tuple[float, str]]) -> str:
    """Return the picture of a recording: frames at equal distances in which something has changed."""
    screen = terminal.Screen(COLUMNS, ROWS)
    begin, end = _shown_from(written), written[-1][0]
    frames: list[tuple[float, list[str]]] = []
    waiting = list(written)
    for number in range(1, FRAMES + 1):
        until = begin + (end - begin) * number / FRAMES
        while waiting and waiting[0][0] <= until:
            screen.write(waiting.pop(0)[1])
        lines = screen.svg_lines()
        if not frames or frames[-1][1] != lines:
            frames.append(((SECONDS - REST) * (number - 1) / FRAMES, lines))
    return terminal.animation(frames, SECONDS, COLUMNS, ROWS)


def _shown_from(written: list[tuple[float, str]]) -> float:
    """Return when the screen has something to look at: until then Spark starts."""
    screen = terminal.Screen(COLUMNS, ROWS)
    for at, text in written:
        screen.write(text)
        if len(screen.svg_lines()) >= FIRST_LINES:
            return at
    return 0.0


if __name__ == "__main__":
    main()
