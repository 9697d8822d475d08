"""The operator that emits results in sequence, once the watermark passes them."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.kernels.windows import order
from headrace.operators.base import Results, SequentialOperator, Slot


@dataclass(frozen=True)
class OrderOperator(SequentialOperator):
    """Holds tuples back until no earlier one can arrive, and emits them in sequence."""

    def run(self, slot: Slot) -> Results:
        if not slot.groups(0):  # one slot runs everything
            return
        released, waiting = order.release_in_sequence(slot.waiting_rows(0, self.schemas[0], None), slot.complete_below)
        slot.replace_rows(0, waiting, grouped=False)
        yield 0, released

    @property
    def looks_back(self) -> int:
        return 0  # waiting does not change a result

    @property
    def summary(self) -> str:
        return "results in sequence"
