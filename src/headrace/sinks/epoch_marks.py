"""Marks of epochs that sinks store beside their rows, to recognise a repeated delivery. Their text never changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar.types import TS
from headrace.errors import QueryError
from headrace.sinks.base import Delivery
from headrace.sinks.patience import WaitLimit


class MarkingSink(ABC):
    """A sink that notes the newest epoch of every result beside its rows.

    A delivery is compared with the note. A state that was restored from a backup may have epochs without rows before it reaches
    the noted epoch, and other results by then. So `resume` compares the note with the state at the start.
    """

    kind = "table"
    place: str  # in words
    patience: WaitLimit

    def resume(self, query: str, result: str, epoch: int) -> None:
        """Refuse a state whose newest epoch is older than what is noted."""
        noted = self.patience.wait_for(partial(self._noted, query, result))
        if noted is not None and noted > epoch:
            raise QueryError(
                f"{self.place} holds results of this query up to epoch {noted}, and the checkpoint ends with epoch {epoch}, as"
                f" after it was restored from a backup; give the results another {self.kind}, or start afresh with a new"
                f" checkpoint and an empty {self.kind}"
            )

    @abstractmethod
    def _noted(self, query: str, result: str) -> int | None:
        """Return the newest epoch of a result, None if there is none. Raises `Unreachable` while the other side is unreachable."""


def mark_of(delivery: Delivery) -> str:
    return f"epoch {delivery.epoch}: {delivery.table.num_rows} rows {time_range(delivery.table)}".rstrip()


def epoch_in(mark: str) -> int:
    return int(mark.removeprefix("epoch ").partition(":")[0])


def time_range(table: pa.Table) -> str:
    """Return the first and the last time in microseconds, as text."""
    if TS not in table.column_names or not table.num_rows:
        return ""
    found = pc.min_max(table.column(TS).cast(pa.int64())).as_py()
    return f"{found['min']}..{found['max']}"


def other_results_error(place: str, delivery: Delivery, epoch: int, kind: str = "table") -> QueryError:
    """Return the error for a repeated delivery with other rows: the state was restored from a backup."""
    return QueryError(
        f"{place} holds other results of this query, up to epoch {epoch}, and epoch {delivery.epoch} comes now, as after a"
        f" checkpoint was restored from a backup; give the results another {kind}, or start afresh with a new checkpoint and an"
        f" empty {kind}"
    )
