"""Marks of epochs that sinks store with their rows, to recognise a repeated delivery. Their text never changes."""

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
    """A sink that stores the newest epoch of every result with its rows.

    Each delivery is compared with that mark. A state that was restored from a backup may run epochs without rows, or
    with other results, before it reaches the stored epoch. So `resume` compares the mark with the state at the start.
    """

    kind = "table"
    place: str  # description for messages
    patience: WaitLimit

    def resume(self, query: str, result: str, epoch: int) -> None:
        """Raise if the newest epoch of the state is older than the stored mark."""
        noted = self.patience.wait_for(partial(self._noted, query, result))
        if noted is not None and noted > epoch:
            raise QueryError(
                f"{self.place} contains results of this query up to epoch {noted}, but the checkpoint ends with epoch {epoch}, as"
                f" after it was restored from a backup; use another {self.kind} for the results, or start over with a new"
                f" checkpoint and an empty {self.kind}"
            )

    @abstractmethod
    def _noted(self, query: str, result: str) -> int | None:
        """Return the newest stored epoch of a result, or None. Raise `Unreachable` while the server is unreachable."""


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
        f"{place} contains other results of this query, up to epoch {epoch}, and epoch {delivery.epoch} is delivered now, as after a"
        f" checkpoint was restored from a backup; use another {kind} for the results, or start over with a new checkpoint and an"
        f" empty {kind}"
    )
