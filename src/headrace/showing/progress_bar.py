"""The progress of a writer in seconds of a stream: a bar on a terminal, otherwise a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

LINES_EVERY = 1.0  # minimum seconds between two plain lines

Tell = Callable[[float, str], None]


@contextmanager
def show_progress(console: Console, seconds: int) -> Iterator[Tell]:
    """Yield a function that displays the number of seconds written and a description."""
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (BarColumn(), TextColumn("{task.completed:g} of {task.total:g} s"), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console, transient=True) as progress:
        task = progress.add_task("", total=seconds)
        yield lambda done, text: progress.update(task, completed=done, description=text)


def _lines(console: Console) -> Tell:
    said = time.monotonic()

    def tell(done: float, text: str) -> None:
        nonlocal said
        if time.monotonic() - said >= LINES_EVERY:
            said = time.monotonic()
            console.print(f"{done:g} s: {text}", markup=False)

    return tell
