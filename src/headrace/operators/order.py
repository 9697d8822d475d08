"""The operator that emits results in sequence, once the watermark passes them."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.operators.base import Results, SequentialOperator, Slot


@dataclass(frozen=True)
class OrderOperator(SequentialOperator):
    """Holds tuples back until no earlier one can arrive, and emits them in sequence: the slots one after the other."""

    def run(self, slot: Slot) -> Results:
        if not slot.groups(0):
            return
        (released,), notes = self.release(slot)
        slot.note(**notes)
        yield 0, released

    @property
    def looks_back(self) -> int:
        return 0  # waiting does not change a result

    @property
    def summary(self) -> str:
        return "results in sequence"
