"""Listeners: whoever wants to know what every epoch did.

Invariant: every listener is told each epoch of this run once, in order, in a thread of its own: one that fails, or is slow,
harms neither the run nor another listener, and is said in the log. Who comes later is told the newest epochs of this run
first. The newest epoch of before comes again, marked as repeated, unless the run before ended in order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from headrace.errors import QueryTypeError
from headrace.support.terminal_text import printable
from headrace.telemetry.epoch_record import EpochRecord

_log = logging.getLogger(__name__)

Listener = Callable[[EpochRecord], object]
REPLAYED_EPOCHS = 300  # epochs that are told to who comes later
MOST_EPOCHS_BEHIND = 10_000  # epochs that a listener may be behind
MOST_ERRORS = 100  # different ones of a listener that are said
FAREWELL = 5.0  # seconds that the end of a run waits for those that are


class Listeners:
    """The listeners of one run: each receives the record of every epoch, in order and in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of all below: nobody misses an epoch, or hears one twice
        self._told: deque[EpochRecord] = deque(maxlen=REPLAYED_EPOCHS)
        self._all: list[_ListenerThread] = []
        self._closed = False
        self.newest: int | None = None  # the last epoch that was told

    def add(self, function: Listener) -> Callable[[], None]:
        """Tell it every epoch from the beginning of this run on; gives what ends that."""
        if not callable(function):
            raise QueryTypeError(f"listen takes a function of an epoch's record; found {function!r:.100}")
        ear = _ListenerThread(function)
        with self._lock:
            for record in self._told:
                ear.tell(record)
            self._all.append(ear)
            if self._closed:
                ear.end()
        return lambda: self._remove(ear)

    def _remove(self, ear: _ListenerThread) -> None:
        with self._lock:
            self._all = [each for each in self._all if each is not ear]
        ear.end(at_once=True)

    def tell(self, record: EpochRecord) -> None:
        with self._lock:
            self._told.append(record)
            if record.error is None or record.sources:  # else it was not committed
                self.newest = record.epoch
            for ear in self._all:
                ear.tell(record)

    def is_calling(self) -> bool:
        """Whether this is asked from within a listener."""
        return any(ear.is_calling() for ear in self._all)

    def close(self) -> bool:
        """The run has ended: whether all have heard everything, of which they get a moment."""
        with self._lock:
            self._closed, ears = True, list(self._all)
            for ear in ears:
                ear.end()
        deadline = time.monotonic() + FAREWELL
        late = [ear for ear in ears if not ear.heard_all(deadline - time.monotonic())]
        for ear in late:
            _log.warning("the run has ended, and the listener %s has not heard all of it", ear.name)
        return not late


class _ListenerThread:
    """One listener, its thread and what it has still to hear."""

    def __init__(self, function: Listener) -> None:
        self.name = getattr(function, "__qualname__", None) or repr(function)[:100]
        self._function = function
        self._waiting: deque[EpochRecord] = deque()
        self._changed = threading.Condition()
        self._ends = False  # nothing more will come
        self._missed = 0
        self._errors: set[str] = set()
        self._thread = threading.Thread(target=self._listen, name=f"headrace-listener {self.name}", daemon=True)
        self._thread.start()

    def tell(self, record: EpochRecord) -> None:
        with self._changed:
            if len(self._waiting) >= MOST_EPOCHS_BEHIND:
                if not self._missed:
                    said = "the listener %s is %d epochs behind: it misses those from %d on"
                    _log.warning(said, self.name, MOST_EPOCHS_BEHIND, record.epoch)
                self._missed += 1
                return
            if self._missed:
                said = "the listener %s missed %d epochs; it hears epoch %d again"
                _log.warning(said, self.name, self._missed, record.epoch)
                self._missed = 0
            self._waiting.append(record)
            self._changed.notify()

    def end(self, *, at_once: bool = False) -> None:
        with self._changed:
            self._ends = True
            if at_once:
                self._waiting.clear()
            self._changed.notify()

    def is_calling(self) -> bool:
        return threading.current_thread() is self._thread

    def heard_all(self, seconds: float) -> bool:
        """Whether it has, or has within so many seconds."""
        if not self.is_calling():  # else the run ends because it said so
            self._thread.join(max(seconds, 0.0))
        return not self._thread.is_alive() and not self._missed and not self._waiting

    def _next(self) -> EpochRecord | None:
        with self._changed:
            while not self._waiting and not self._ends:
                self._changed.wait()
            return self._waiting.popleft() if self._waiting else None

    def _listen(self) -> None:
        while (record := self._next()) is not None:
            try:
                self._function(record)
            except BaseException as error:  # a SystemExit too ends nothing here
                self._say(error, record.epoch)

    def _say(self, error: BaseException, epoch: int) -> None:
        """Each error once: a listener that fails in every epoch would fill the log."""
        text = printable(f"{type(error).__name__}: {error}")
        if text in self._errors or len(self._errors) > MOST_ERRORS:
            return
        self._errors.add(text)
        if len(self._errors) > MOST_ERRORS:
            _log.warning("the listener %s fails in ever new ways; no more of them are said", self.name)
            return
        said = "the listener %s failed in epoch %d: %s; the run goes on"
        _log.warning(said, self.name, epoch, text, exc_info=error)
