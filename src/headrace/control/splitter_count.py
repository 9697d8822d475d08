"""The number p of splitters and the size W of their physical windows, adapted to the load during a run.

    seconds(p) = S / p + x p

S is the CPU time of all splitters of an epoch: equation 3 times the number of tuples. x is the cost of one more
splitter per epoch: its start, and the work of slots per splitter, p (cp + cm) in equation 4. The minimum is at p =
sqrt(S / x): one splitter for a small load, one per slot for a large one. Both numbers are rough estimates, so p changes
only for a measurable gain (`gain`): a tenth of the time, and more than epochs vary by chance. W follows p: each
splitter gets a few windows per epoch, so that no splitter waits long for another.

Neither number can change a result: every row of an epoch's files is in one window, and every window goes to one
splitter. So neither is stored: a restarted run begins with the defaults and measures again.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.control import gain

MORE = 0.010  # x in seconds, an assumption: Spark starts a task, and every slot opens one more block
EACH = 4  # windows per splitter and epoch
USUAL = 16 << 20  # bytes of a window; reading and splitting them takes a hundred times as long as opening a file
SMALLEST_WINDOW, LARGEST_WINDOW = (
    1 << 20,
    64 << 20,
)  # bytes; opening such windows costs little, and several fit in memory
APART = 4  # factor by which W must be off before it is changed


@dataclass(frozen=True)
class Splitters:
    """The splitters of an epoch, which receive equal shares of its input. The default is one per slot."""

    count: int  # p
    window_bytes: int = USUAL  # W: approximate size of physical windows

    @property
    def summary(self) -> str:
        return f"{self.count} with windows of {self.window_bytes >> 20} MiB"


@dataclass(frozen=True)
class FixedSplitters:
    """The number of splitters and the window size that the user fixed for the whole run."""

    count: int | None = None  # None: one per slot
    window_bytes: int | None = None  # None: the default size

    @property
    def is_fixed(self) -> bool:
        return self.count is not None or self.window_bytes is not None

    def splitters(self, slots: int) -> Splitters:
        """Return the fixed numbers, and the defaults for `slots` slots where none is fixed."""
        return Splitters(self.count or slots, self.window_bytes or USUAL)


@dataclass(frozen=True)
class SplitLoad:
    """The work of the splitters of an epoch."""

    tasks: int  # number of splitters
    tuples: float
    bytes: float  # of files
    cpu: float  # S: CPU seconds of all splitters together
    longest: float  # CPU seconds of the slowest splitter

    @property
    def seconds(self) -> float:
        """Return the estimated time of the splitters, which run in parallel."""
        return self.longest + MORE * self.tasks

    def reading(self, bytes: float) -> SplitLoad:
        """Return the load scaled to an epoch that reads `bytes`."""
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
    """Return the estimated time of p splitters, which run in parallel."""
    return load.cpu / p + MORE * p


def choose_splitters(load: SplitLoad, now: Splitters, most: int, worth: float) -> Splitters:
    """Return p and W for a load, with at most `most` splitters. The current ones are kept unless others save measurable
    time.
    """
    best = min(range(1, most + 1), key=lambda p: splitter_seconds(load, p))
    if now.count <= most and not gain.is_measurable(
        splitter_seconds(load, now.count), splitter_seconds(load, best), worth, gain.SECONDS
    ):
        best = now.count
        if not gain.is_measurable(load.seconds, splitter_seconds(load, best), worth, gain.SECONDS):
            return now  # windows are distributed evenly enough
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
