"""The warning of a run about its first late tuples.

Invariant: a source is mentioned at most once per start, because a source with some late tuples usually has more of them.
`run.progress.late` has the total.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from headrace import plan as p
from headrace.support.durations import MICROSECONDS, format_duration
from headrace.support.terminal_text import printable
from headrace.task.reports import Report

_log = logging.getLogger(__name__)

LATE = (
    "source %s: %s in epoch %d, up to %s before the watermark; late tuples are left out of all results; %s; give"
    " late=<sink> (--late) to keep them; run.progress.late counts them, and no further warning follows for this source"
)


class LateWarning:
    """Warns of the first late tuples of each source."""

    def __init__(self, sources: Iterable[p.SourceInput]) -> None:
        self._silent = {source.name: source for source in sources}  # sources without a warning so far

    def note_epoch(self, number: int, reports: Sequence[Report]) -> None:
        for name, source in list(self._silent.items()):
            counted = [report.sources[name] for report in reports if name in report.sources]
            if late := sum(each.late for each in counted):
                del self._silent[name]
                behind = _round_up(max(each.behind for each in counted))
                tuples = "1 tuple was late" if late == 1 else f"{late:,} tuples were late"
                _log.warning(LATE, printable(name), tuples, number, format_duration(behind), _cure(source, behind))


def _round_up(micros: int) -> int:
    """Return whole seconds, or whole milliseconds below one second, so that the duration is easy to read and enough.

    >>> _round_up(1_000_001), _round_up(1)
    (2000000, 1000)
    """
    unit = MICROSECONDS["second" if micros >= MICROSECONDS["second"] else "millisecond"]
    return -(-micros // unit) * unit


def _cure(source: p.SourceInput, behind: int) -> str:
    """Return what would have accepted the tuples."""
    if source.idle is None:
        return (
            f"to accept such tuples, start again with a lateness of {format_duration(source.lateness + behind)} or more"
        )
    return (
        f"to accept such tuples, start again with an idle longer than the pauses of the source (now"
        f" {format_duration(source.idle)}), or with a larger lateness of all sources"
    )
