"""Listeners: whoever wants to know what every epoch did.

Invariant: every listener is told each epoch of this run once, in order, in a thread of its own: one that fails, or is slow,
harms neither the run nor another listener, and is said in the log. Who comes later is told the newest epochs of this run
first. The newest epoch of before comes again, marked as repeated, unless the run before ended in order.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from headrace.engine.figures import EpochRecord
from headrace.errors import QueryTypeError

_log = logging.getLogger(__name__)

Listener = Callable[[EpochRecord], object]
KEPT = 1_000  # epochs that are told to who comes later
MOST = 10_000  # epochs that a listener may be behind
FAREWELL = 5.0  # seconds that the end of a run waits for those that are


class Listeners:
    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the two below: nobody misses an epoch, or hears one twice
        self._told: deque[EpochRecord] = deque(maxlen=KEPT)
        self._all: list[_Ear] = []

    def add(self, function: Listener) -> Callable[[], None]:
        """Tell it every epoch from the beginning of this run on; gives what ends that."""
        if not callable(function):
            raise QueryTypeError(f"listen takes a function of an epoch's record; found {function!r:.100}")
        ear = _Ear(function)
        with self._lock:
            for record in self._told:
                ear.tell(record)
            self._all.append(ear)
        return lambda: self._remove(ear)

    def _remove(self, ear: _Ear) -> None:
        with self._lock:
            self._all = [each for each in self._all if each is not ear]
        ear.end()

    def tell(self, record: EpochRecord) -> None:
        with self._lock:
            self._told.append(record)
            for ear in self._all:
                ear.tell(record)

    def is_calling(self) -> bool:
        """Whether this is asked from within a listener."""
        return any(ear.is_calling() for ear in self._all)

    def close(self) -> bool:
        """The run has ended: whether all have heard everything, of which they get a moment."""
        with self._lock:
            ears = list(self._all)
        deadline = time.monotonic() + FAREWELL
        for ear in ears:
            ear.end()
        late = [ear for ear in ears if not ear.ended(deadline - time.monotonic())]
        for ear in late:
            _log.warning("the run has ended, the listener %s has %d epochs still to hear", ear.name, ear.behind)
        return not late


class _Ear:
    """One listener, its thread and what it has still to hear."""

    def __init__(self, function: Listener) -> None:
        self.name = getattr(function, "__qualname__", None) or repr(function)[:100]
        self._function = function
        self._waiting: queue.Queue[EpochRecord | None] = queue.Queue(MOST)
        self._missed = 0
        self._errors: set[str] = set()
        self._thread = threading.Thread(target=self._listen, name=f"headrace-listener {self.name}", daemon=True)
        self._thread.start()

    @property
    def behind(self) -> int:
        return self._waiting.qsize()

    def tell(self, record: EpochRecord) -> None:
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            if not self._missed:
                _log.warning(
                    "the listener %s is %d epochs behind: it misses those from %d on", self.name, MOST, record.epoch
                )
            self._missed += 1
            return
        if self._missed:
            _log.warning(
                "the listener %s missed %d epochs; it hears epoch %d again", self.name, self._missed, record.epoch
            )
            self._missed = 0

    def end(self) -> None:
        with suppress(queue.Full):  # then its thread ends with the process
            self._waiting.put_nowait(None)

    def is_calling(self) -> bool:
        return threading.current_thread() is self._thread

    def ended(self, seconds: float) -> bool:
        self._thread.join(max(seconds, 0.0))
        return not self._thread.is_alive()

    def _listen(self) -> None:
        while (record := self._waiting.get()) is not None:
            try:
                self._function(record)
            except Exception as error:
                self._say(error, record.epoch)

    def _say(self, error: Exception, epoch: int) -> None:
        """Each error once: a listener that fails in every epoch would fill the log."""
        text = f"{type(error).__name__}: {error}"
        if text not in self._errors and len(self._errors) < 100:
            self._errors.add(text)
            _log.warning(
                "the listener %s failed in epoch %d: %s; the run goes on", self.name, epoch, text, exc_info=error
            )
