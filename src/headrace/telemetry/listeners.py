"""Listeners: callbacks that receive the record of each epoch.

Invariant: each listener receives each epoch of this run once, in order, in a separate thread. A listener that fails or
is slow affects neither the run nor other listeners; a warning is logged. A listener that is added later first receives
the newest epochs of this run. The newest epoch of the previous run is repeated, marked as such, unless that run ended
normally.
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
REPLAYED_EPOCHS = 300  # epochs that a listener receives when it is added later
MOST_EPOCHS_BEHIND = 10_000  # epochs that a listener may be behind before it misses some
MOST_ERRORS = 100  # different errors of a listener that are logged
FAREWELL = 5.0  # seconds that the end of a run waits for listeners


class Listeners:
    """The listeners of one run: each receives the record of every epoch, in order and in a separate thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects all fields, so that no listener misses an epoch or receives one twice
        self._told: deque[EpochRecord] = deque(maxlen=REPLAYED_EPOCHS)
        self._all: list[_ListenerThread] = []
        self._closed = False
        self.newest: int | None = None  # the last committed epoch that listeners received

    def add(self, function: Listener) -> Callable[[], None]:
        """Call `function` with the record of every epoch from the start of this run. Return a function that removes it."""
        if not callable(function):
            raise QueryTypeError(f"listen takes a function that accepts an epoch's record; found {function!r:.100}")
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
            if record.error is None or record.sources:  # otherwise the epoch was not committed
                self.newest = record.epoch
            for ear in self._all:
                ear.tell(record)

    def is_calling(self) -> bool:
        """Return whether the caller is a listener."""
        return any(ear.is_calling() for ear in self._all)

    def close(self) -> bool:
        """End the listeners after the run. Return whether all of them received all epochs within `FAREWELL` seconds."""
        with self._lock:
            self._closed, ears = True, list(self._all)
            for ear in ears:
                ear.end()
        deadline = time.monotonic() + FAREWELL
        late = [ear for ear in ears if not ear.heard_all(deadline - time.monotonic())]
        for ear in late:
            _log.warning("the run has ended before the listener %s received all epochs", ear.name)
        return not late


class _ListenerThread:
    """A listener, its thread, and the records that it has not received yet."""

    def __init__(self, function: Listener) -> None:
        self.name = getattr(function, "__qualname__", None) or repr(function)[:100]
        self._function = function
        self._waiting: deque[EpochRecord] = deque()
        self._changed = threading.Condition()
        self._ends = False  # no more records will be added
        self._missed = 0
        self._errors: set[str] = set()
        self._thread = threading.Thread(target=self._listen, name=f"headrace-listener {self.name}", daemon=True)
        self._thread.start()

    def tell(self, record: EpochRecord) -> None:
        with self._changed:
            if len(self._waiting) >= MOST_EPOCHS_BEHIND:
                if not self._missed:
                    said = "the listener %s is %d epochs behind; it misses the epochs from %d on"
                    _log.warning(said, self.name, MOST_EPOCHS_BEHIND, record.epoch)
                self._missed += 1
                return
            if self._missed:
                said = "the listener %s missed %d epochs; it continues with epoch %d"
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
        """Return whether the listener has received all epochs, waiting up to `seconds`."""
        if not self.is_calling():  # otherwise the listener itself ended the run
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
            except BaseException as error:  # includes SystemExit, which must not end anything here
                self._say(error, record.epoch)

    def _say(self, error: BaseException, epoch: int) -> None:
        """Log each error once, because a listener that fails in every epoch would fill the log."""
        text = printable(f"{type(error).__name__}: {error}")
        if text in self._errors or len(self._errors) > MOST_ERRORS:
            return
        self._errors.add(text)
        if len(self._errors) > MOST_ERRORS:
            _log.warning("the listener %s keeps raising new errors; further errors are not logged", self.name)
            return
        said = "the listener %s failed in epoch %d: %s; the run continues"
        _log.warning(said, self.name, epoch, text, exc_info=error)
