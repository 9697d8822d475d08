"""Routing by the rule of a split: the tuples of a substream are in one group, and a group belongs to one slot.

Invariant: the group of a substream depends only on the number of the substream, the number of substreams and the number
of groups. If there are more substreams than groups, neighbouring substreams share a group. A tuple for every substream
is in the group `EVERYWHERE`: the tuple is written once and every slot reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.routing.base import EVERYWHERE, GROUPS, NOWHERE, Adaptation, Grouping, Groups
from headrace.routing.by_hash import EvenRouter
from headrace.support import validators

SEPARATE = 1024  # most substreams with a separate group each; the limit exists because a manifest names every group


@dataclass(frozen=True)
class SubstreamGrouping(Grouping):
    """Grouping by one column, which holds the number of a substream, `EVERYWHERE` or `NOWHERE`."""

    substreams: int
    drop_null: ClassVar[bool] = False
    keeps_hash: ClassVar[bool] = False
    numbered: ClassVar[bool] = False

    def groups(self, table: pa.Table, total: int) -> Groups:
        every = self._group(np.arange(self.substreams), total)
        by_number = np.append(every, (EVERYWHERE, NOWHERE)).astype(np.int32)  # both are negative: indexes from the end
        found: Groups = by_number[np.asarray(table.column(self.columns[0]))]
        return found

    def _group(self, numbers: npt.NDArray[np.int64], total: int) -> npt.NDArray[np.int64]:
        return numbers * total // self.substreams

    def members(self, groups: list[int], total: int) -> list[int]:
        """Return the substreams in these groups."""
        every = np.arange(self.substreams, dtype=np.int64)
        found: list[int] = every[np.isin(self._group(every, total), groups)].tolist()
        return found


@dataclass(frozen=True)
class SubstreamRouter(EvenRouter):
    """Routing to the slot that owns the substream. Tuples for all substreams go to every slot."""

    substreams: int
    rule: str  # the rule of the split, as text

    kind: ClassVar[str] = "substreams"
    FORM: ClassVar[dict[str, validators.Form]] = {"substreams": GROUPS, "rule": validators.text}
    adapts: ClassVar[Adaptation] = Adaptation.PLACE

    @property
    def way(self) -> tuple[Any, ...]:
        return self.kind, self.substreams

    @property
    def groups(self) -> int:
        return min(self.substreams, SEPARATE)

    def __str__(self) -> str:
        return f"substream, one of {self.substreams} by {self.rule}"
