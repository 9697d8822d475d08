"""The number p of splitters and the size W of their physical windows, adapted to the load during a run.

    seconds(p) = S / p + x p

S is what an epoch's splitters take together, in processor time: equation 3 times its tuples. x is what one splitter more
costs an epoch: its start, and what slots do for each that they listen to, p (cp + cm) in equation 4. The fewest seconds
are at p = sqrt(S / x): one splitter for a small load, one for each slot for a large one. Both numbers are rough estimates,
so p changes only for a gain that can be measured (`gain`): a tenth of the time, and more than the time of an epoch varies
without any change. W follows p: a splitter gets a few windows of an epoch, so that no splitter waits long for another.

Neither number can change an answer: every row of an epoch's files is in one window, and every window with one splitter.
So nothing has to be remembered: a run that is started again begins as is usual, and measures.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.control import gain

MORE = 0.010  # x, in seconds, assumed: Spark starts a task, every slot opens one block more
EACH = 4  # windows of an epoch that a splitter gets
USUAL = 16 << 20  # bytes of a window: to read and split them takes a hundred times as long as to open a file
SMALLEST_WINDOW, LARGEST_WINDOW = (
    1 << 20,
    64 << 20,
)  # bytes of a window: opening it costs little; several have room in memory
APART = 4  # times that W must be off before it is changed


@dataclass(frozen=True)
class Splitters:
    """The splitters of an epoch, which are dealt equal shares of its input. Usually there is one for each slot."""

    count: int  # p
    window_bytes: int = USUAL  # W: the size of physical windows, about

    @property
    def summary(self) -> str:
        return f"{self.count} with windows of {self.window_bytes >> 20} MiB"


@dataclass(frozen=True)
class FixedSplitters:
    """The number of splitters and the size of windows that a start gives for the whole run."""

    count: int | None = None  # None: one for each slot
    window_bytes: int | None = None  # None: the usual size

    @property
    def is_fixed(self) -> bool:
        return self.count is not None or self.window_bytes is not None

    def splitters(self, slots: int) -> Splitters:
        """Return the given numbers, and the usual ones for `slots` slots where none is given."""
        return Splitters(self.count or slots, self.window_bytes or USUAL)


@dataclass(frozen=True)
class SplitLoad:
    """The work of the splitters of an epoch."""

    tasks: int  # how many there were
    tuples: float
    bytes: float  # of files
    cpu: float  # seconds of a processor, all of them together: S
    longest: float  # of the one that took longest

    @property
    def seconds(self) -> float:
        """How long they took, side by side."""
        return self.longest + MORE * self.tasks

    def reading(self, bytes: float) -> SplitLoad:
        """Return the load of an epoch that reads `bytes` instead."""
        times = bytes / self.bytes
        return SplitLoad(self.tasks, self.tuples * times, bytes, self.cpu * times, self.longest * times)

    def smoothed(self, before: SplitLoad | None, weight: float) -> SplitLoad:
        """Return the weighted mean of this load and `before`; the number of tasks stays that of this load."""
        if before is None:
            return self
        old, new = vars(before), vars(self)
        mixed = {name: old[name] * (1 - weight) + new[name] * weight for name in new}
        return SplitLoad(**{**mixed, "tasks": self.tasks})


def splitter_seconds(load: SplitLoad, p: int) -> float:
    """Return how long p splitters would take, side by side."""
    return load.cpu / p + MORE * p


def choose_splitters(load: SplitLoad, now: Splitters, most: int, worth: float) -> Splitters:
    """Return p and W for a load, with at most `most` splitters: those of now, unless others save time that can be measured."""
    best = min(range(1, most + 1), key=lambda p: splitter_seconds(load, p))
    if now.count <= most and not gain.is_measurable(
        splitter_seconds(load, now.count), splitter_seconds(load, best), worth, gain.SECONDS
    ):
        best = now.count
        if not gain.is_measurable(load.seconds, splitter_seconds(load, best), worth, gain.SECONDS):
            return now  # and windows are dealt evenly enough
    window_bytes = window_size(load.bytes / (EACH * best))
    return Splitters(
        best,
        now.window_bytes
        if window_bytes < APART * now.window_bytes and now.window_bytes < APART * window_bytes
        else window_bytes,
    )


def window_size(bytes: float) -> int:
    """Return the largest power of two that is at most `bytes`, within the bounds of a window."""
    return min(max(1 << max(int(bytes), 1).bit_length() - 1, SMALLEST_WINDOW), LARGEST_WINDOW)
