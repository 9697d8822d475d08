"""A run in the foreground: its Spark session, start notice, progress and final message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console

from headrace.query.labels import result_labels
from headrace.showing import terminal
from headrace.stream import label_of

if TYPE_CHECKING:
    from headrace.run.run import Run
    from headrace.showing.signals import StopRequest


@contextmanager
def spark_session(
    slots: int,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    patience: float | None = None,
    *,
    quiet: bool = False,
) -> Iterator[Any]:
    """Yield a Spark session and stop it at the end of the block."""
    from headrace.cli.quiet_session import EXECUTOR_SECONDS, quiet_session

    console = Console()  # not stderr, which is redirected for Spark while it starts
    waiting = console.status("starting Spark ...") if console.is_terminal and not quiet else nullcontext()
    with ExitStack() as stack:
        with waiting:
            spark = stack.enter_context(quiet_session(slots, master, config, patience or EXECUTOR_SECONDS))
        yield spark


def follow_run(
    found: Sequence[tuple[Any, Any]],
    options: Mapping[str, Any],
    enough: Callable[[Run], bool],
    title: str,
    json: TextIO | None,
) -> Run:
    """Start a run, show its progress, stop it and print a final message. `json` receives progress as JSON lines."""
    import headrace
    from headrace.cli.start_notice import start_notice
    from headrace.showing import live
    from headrace.showing.signals import stop_at_end, stop_on_first_signal

    console = Console(highlight=False)
    labels = result_labels([label_of(stream) for stream, _ in found])
    names = {label: f"{label} to {sink!r}" for label, (_, sink) in zip(labels.values(), found, strict=True)}
    with stop_on_first_signal() as stop, stop_at_end(headrace.start(found, show=False, **options)) as started:
        _say(console, start_notice(started, found, title, options["checkpoint"]), json)
        display: live.Display = live.for_console(console, title, names) if json is None else live.JsonLines(json)
        if isinstance(display, live.JsonLines):
            started.listen(display.tell)
        live.watch_run(started, lambda run: stop.asked or enough(run), display=display)
        started.stop()
        display.show(started.progress)  # the last epoch may have ended after the last display
    _say(console, _farewell(started, stop), json)
    return started


def _say(console: Console, text: str, json: TextIO | None) -> None:
    """Print a message: on standard error if programs read progress from standard output."""
    terminal.say_on_stderr(text) if json else terminal.say(console, text)


def _farewell(ended: Run, stop: StopRequest) -> str:
    progress = ended.progress
    if stop.asked and not progress.closed:
        where = f"stopped after epoch {progress.epoch}" if progress.epoch >= 0 else "stopped before the first epoch"
        return f"{where}; start again with the same checkpoint to continue"
    done = f"{progress.tuples_in:,} tuples in, {progress.results_out:,} results out"
    return f"ended after epoch {progress.epoch}: {done}{'; the checkpoint is closed' if progress.closed else ''}"
