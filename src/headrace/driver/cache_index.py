"""The index of caches of state tables: the attempt that opened each table last (`headrace.state.caches` explains why).

Invariant: the stamp of an attempt enters the index when the manifest with the changes of that attempt is committed, and
not before. The index exists as long as a run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from headrace import plan as p
from headrace.state.caches import COLD, DAMAGED, LOCKED, MARKED, NO_SPACE, OFF, STAMP, CacheFolder, CacheStamps
from headrace.task.reports import Report, TableUse
from headrace.telemetry.table_sizes import substream_counts

MOST_SUBSTREAMS = 4096  # an operator with more substreams has no caches

WORDS = {
    COLD: "there was no cache",
    STAMP: "the cache did not match the last committed attempt",
    MARKED: "the cache was being changed by an attempt that did not finish",
    DAMAGED: "the cache was damaged",
    LOCKED: "the cache was in use by another attempt",
    NO_SPACE: "there was no space for a cache",
}
_log = logging.getLogger(__name__)


class CacheIndex:
    """The stamps of the caches that hold the committed state, and the folder of caches if the driver makes it."""

    def __init__(self, plan: p.PhysicalPlan, run_id: str, limit: int, *, beside: bool) -> None:
        many = substream_counts(plan)
        self._limit = limit
        self._operators = frozenset(
            o.name for o in plan.operators if o.state_tables and many.get(o.name, 0) <= MOST_SUBSTREAMS
        )
        self._stamps: dict[tuple[str, str], dict[int, str]] = {}
        self._said: set[tuple[str, str]] = set()
        self._run_id, self._beside = run_id, beside
        self._folder: CacheFolder | None = None

    @property
    def on(self) -> bool:
        return self._limit > 0 and bool(self._operators)

    def stamps(self) -> CacheStamps | None:
        """Return the facts about caches that the tasks of the next epoch need; None if caches are disabled."""
        if not self.on:
            return None
        if self._beside and (self._folder is None or not self._folder.is_there):
            self.remove()
            self._folder = CacheFolder(self._run_id, self._limit)
        stamps = {table: dict(stamps) for table, stamps in self._stamps.items()}
        return CacheStamps(self._limit, self._operators, stamps, driver_makes_folder=self._beside)

    def accept(self, reports: Sequence[Report]) -> dict[str, TableUse]:
        """Note the stamps of a committed epoch, and return by operator how the epoch opened its state tables."""
        used: dict[str, TableUse] = {}
        for report in reports:
            for change in report.changed:
                if change.operator in self._operators:
                    noted = self._stamps.setdefault((change.operator, change.table), {})
                    noted.update(dict.fromkeys(change.opened, report.stamp))
            for name, use in report.used.items():
                used.setdefault(name, TableUse()).add(use)
        self._say(used)
        return used

    def _say(self, used: Mapping[str, TableUse]) -> None:
        """Log which tables were built from blocks. While the reason stays the same, log it once."""
        now = {
            (name, why) for name, use in used.items() for why in use.built if why != OFF and (use.rows or why != COLD)
        }
        for name, why in sorted(now - self._said):
            use = used[name]
            say = _log.info if why == COLD else _log.warning
            words = f": {use.reason}" if why == NO_SPACE and use.reason else ""
            text = f"{use.built[why]:,} tables of {name} were built from blocks because {WORDS[why]}{words}"
            say("%s (%s rows in %.2f seconds)", text, f"{use.rows:,}", use.seconds)
        self._said = now

    def remove(self) -> None:
        """Remove the folder of caches, because the run ends or another process has removed its content."""
        if self._folder is not None:
            self._folder.remove()
            self._folder = None
