"""Common code of the processes of all systems: they read a task, and write points, versions and errors."""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def load(path: str) -> dict[str, Any]:
    task: dict[str, Any] = json.loads(Path(path).read_text())
    return task


JARS = ("spark.jars", "spark.driver.extraClassPath")


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def about(task: Mapping[str, Any], versions: Mapping[str, str], settings: Mapping[str, Any]) -> None:
    """Write versions and settings. Only the names of files in settings are written, without their folders."""
    shown = {
        name: ",".join(map(_name, re.split("[,:]", value))) if name in JARS else value
        for name, value in settings.items()
    }
    found = {"versions": {**versions, "python": platform.python_version()}, "settings": shown}
    (Path(task["work"]) / "about.json").write_text(json.dumps(found))


def epochs(task: Mapping[str, Any], found: Sequence[Mapping[str, float]]) -> None:
    """Write the figures of every epoch."""
    (Path(task["work"]) / "epochs.json").write_text(json.dumps(found))


@contextmanager
def points(task: Mapping[str, Any]) -> Iterator[Callable[..., None]]:
    """Yield a function that writes a line `time tuples` whenever the number of tuples has changed."""
    with (Path(task["work"]) / "points").open("a") as file:
        last = -1

        def record(tuples: int, at: float | None = None) -> None:
            nonlocal last
            if tuples != last:
                file.write(f"{time.time() if at is None else at} {tuples}\n")
                file.flush()
                last = tuples

        yield record


@contextmanager
def errors(task: Mapping[str, Any]) -> Iterator[None]:
    """Write the error that ended the process as one line."""
    try:
        yield
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        (Path(task["work"]) / "error").write_text(lines[0])
        raise


def told_to_stop(task: Mapping[str, Any]) -> bool:
    return (Path(task["work"]) / "stop").exists()
