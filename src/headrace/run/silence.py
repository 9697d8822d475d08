"""Detection of sources and partitions that have delivered nothing for longer than their `idle`, in wall-clock time.

Invariant: silence is judged by the component that polls for tuples: Spark for streaming DataFrames, the ledger for
folders and topics. A source with waiting input is not silent. The tasks of the epoch decide finally: a source that
delivers tuples in an epoch is not idle in it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping

from headrace.query import nodes
from headrace.run.intake import Waiting
from headrace.sources.protocol import Ledger
from headrace.state.manifest import Manifest, PartitionState, SourceState
from headrace.support.terminal_text import printable

_log = logging.getLogger(__name__)

NO_TUPLES_YET = (
    "source %s: no tuple has arrived yet from %s (%s in all); until one arrives, no window closes; give the source idle=..., so that"
    " silent partitions do not hold back the others"
)


class Silence:
    """The last delivery time of each source and partition."""

    def __init__(
        self,
        sources: Mapping[str, nodes.Source],
        ledgers: Mapping[str, Ledger],
        *,
        static: Collection[str],
        streaming: Collection[str],
        ends: bool = False,
    ) -> None:
        """`static`: sources without an idle time; `streaming`: sources that Spark reads; `ends`: the run processes
        existing input only.
        """
        self._sources, self._ledgers = sources, ledgers
        self._static, self._streaming, self._ends = static, streaming, ends
        self._heard = dict.fromkeys(sources, time.monotonic())
        # time of the last delivery, or of the partition's discovery
        self._partitions_heard: dict[tuple[str, str], float] = {}
        self._warned: set[str] = set()

    def silent_sources(self, looked: float, waits: Mapping[str, Waiting]) -> list[str]:
        """Return the silent sources. `looked`: the time up to which Spark's streams have delivered all tuples.

        A source with partitions is silent if all of its partitions are (`silent_partitions`).
        """
        now = time.monotonic()
        known = {name: looked if name in self._streaming else now for name in self._sources}
        return [
            name
            for name, source in self._sources.items()
            if source.idle is not None
            and (known[name] - self._heard[name]) * 1e6 > source.idle
            and name not in self._static
            and not any(waits.get(name, {}).values())
            and not (name in self._ledgers and self._ledgers[name].partitions)
        ]

    def silent_partitions(self, waits: Mapping[str, Waiting]) -> dict[str, list[str]]:
        """Return the silent partitions of each source."""
        now, found = time.monotonic(), dict[str, list[str]]()
        for name, ledger in self._ledgers.items():
            idle, waiting = self._sources[name].idle, waits.get(name, {})
            heard = {each: self._partitions_heard.setdefault((name, each), now) for each in ledger.partitions}
            if idle is not None:
                since = {each: max(when, ledger.silent_since) for each, when in heard.items() if not waiting.get(each)}
                found[name] = [each for each, when in since.items() if (now - when) * 1e6 > idle]
        return found

    def is_news(self, last: Manifest | None, looked: float, waits: Mapping[str, Waiting]) -> bool:
        """Return whether a source or partition is silent that `last` does not mark as idle."""
        if last is None:
            return False
        partitions = {name: source.partitions for name, source in last.sources.items()}
        silent = self.silent_partitions(waits).items()
        newly = (partitions[name].get(each, PartitionState()) for name, quiet in silent for each in quiet)
        return any(not last.sources[name].idle for name in self.silent_sources(looked, waits)) or any(
            not state.idle for state in newly
        )

    def note_epoch(self, before: Manifest | None, last: Manifest | None) -> None:
        """Record the sources and partitions that delivered tuples between two manifests. Rejected tuples do not count,
        as they have no usable time.
        """
        now, were = time.monotonic(), _deliveries(before)
        self._heard |= {name: now for name, count in _deliveries(last).items() if count > were.get(name, 0)}
        for name, source in last.sources.items() if last is not None else ():
            self._partitions_heard |= {
                (name, each): now
                for each, state in source.partitions.items()
                if last is not None and state.spoke == last.number
            }
            self._warn_of_empty_partitions(name, source)

    def _warn_of_empty_partitions(self, name: str, source: SourceState) -> None:
        """Warn once if partitions without any tuple hold back all windows, which they do forever without `idle`."""
        empty = [each for each, state in source.partitions.items() if state.largest is None]
        if name in self._warned or not empty or source.largest is None or self._sources[name].idle is not None:
            return
        self._warned.add(name)
        if not self._ends:
            _log.warning(NO_TUPLES_YET, printable(name), printable(", ".join(empty[:10])), len(empty))


def _deliveries(manifest: Manifest | None) -> dict[str, int]:
    return {name: s.accepted + s.late for name, s in manifest.sources.items()} if manifest else {}
