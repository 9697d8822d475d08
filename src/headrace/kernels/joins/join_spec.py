"""The protocols of joins that the join kernels read. The operators of `headrace.operators` implement them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar.arrow import Numbers
from headrace.columnar.types import JoinColumn
from headrace.expressions import JoinPredicate, KeyEquality


@dataclass(frozen=True)
class Strip:
    """A window as an interval that moves with the tuples of one side, over the tuples of the other, fixed side.

    A tuple of the moving side pairs with the tuples whose `fixed_column` is in
    [moving_column - back, moving_column + ahead].
    """

    moving: int  # 0: L moves over R, 1: R moves over L
    moving_column: str  # column of the moving side
    fixed_column: str  # column of the fixed side
    back: int
    ahead: int

    @property
    def sql(self) -> str:
        a, b = ("l", "r") if self.moving == 0 else ("r", "l")
        low, high = f"{a}.{self.moving_column} - {self.back}", f"{a}.{self.moving_column} + {self.ahead}"
        return f"({b}.{self.fixed_column} >= {low} AND {b}.{self.fixed_column} <= {high})"


class PairColumns(Protocol):
    """The columns of results that are made of both sides of a pair."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def columns(self) -> tuple[JoinColumn, ...]:
        """Return (name in the result, side, name on that side) for every column."""


class JoinSpec(PairColumns, Protocol):
    """A join of two streams: its predicate, its window, and the columns of its results."""

    @property
    def on(self) -> JoinPredicate: ...

    @property
    def keys(self) -> tuple[KeyEquality, ...]: ...

    @property
    def plain_keys(self) -> bool: ...

    @property
    def sql(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def strips(self) -> tuple[Strip, ...]:
        """Return the window as strips: every pair that the window admits is in exactly one strip."""

    @property
    def time_window(self) -> tuple[int, int] | None:
        """Return W1 and W2 of a window over `ts`; None for count windows."""

    @property
    def compares_in_loops(self) -> bool:
        """Return whether a compiled loop compares the pairs of a hot key."""

    def used(self, side: str) -> list[str]:
        """Return the columns of one side that the predicate reads; at least one."""

    def admits(self, left: pa.Table, right: pa.Table, l: Numbers, r: Numbers) -> npt.NDArray[np.bool_]:
        """Return which pairs of rows the window admits."""

    def result_ts(self, l: Numbers, r: Numbers) -> Numbers:
        """Return the event times of results from those of pairs."""

    def ts_sql(self, strip: Strip) -> str:
        """Return the event time of a result in SQL, for pairs of one strip."""
