"""Helper processes of a rating, which end with it. Each gets its job as one JSON, and reports in lines of JSON."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from headrace.errors import HeadraceError, WorkloadError

POLL = 0.2  # seconds between two checks for a stop request
PATIENCE = 5.0  # seconds to wait for a process to end before it is killed

Job = dict[str, Any]


class Stopped(Exception):
    """Raised when the user has requested a stop."""


class Helper:
    """A headrace module in a separate process. Ctrl-C on the terminal does not reach it; the parent ends it."""

    def __init__(self, module: str, job: Job, errors: Path) -> None:
        self._errors = errors
        self._file: IO[bytes] = open(errors, "wb")  # noqa: SIM115
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", module, json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._file,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._rest = b""

    def say(self, words: Any) -> None:
        """Send a line to the process."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(words).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed() from None

    def said(self, stop: Callable[[], bool], *, wait: bool = True) -> Iterator[Any]:
        """Yield its lines until it ends. Without `wait`, yield None whenever there is no further line."""
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        while True:
            if stop():
                raise Stopped
            if not select.select([handle], [], [], POLL if wait else 0)[0]:
                if not wait:
                    yield None
                continue
            found = os.read(handle, 1 << 20)
            if not found:
                break
            *lines, self._rest = (self._rest + found).split(b"\n")
            for line in lines:
                yield _understood(json.loads(line))
        if self._process.wait() != 0:
            raise self._failed()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def check(self) -> None:
        """Raise if the process has failed."""
        if self._process.poll() not in (None, 0):
            raise self._failed()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._file):
            if pipe is not None:
                _closed(pipe)

    def _failed(self) -> HeadraceError:
        self._process.wait()
        said = self._errors.read_text(errors="replace").strip().splitlines()[-1:]
        return HeadraceError(f"a process of the rating ended with {self._process.returncode}: {' '.join(said)}")


def _closed(pipe: IO[bytes]) -> None:
    with suppress(BrokenPipeError):  # the process may have ended before it read everything
        pipe.close()


def _understood(line: Any) -> Any:
    if isinstance(line, dict) and "error" in line:
        raise WorkloadError(str(line["error"]))
    return line


@contextmanager
def helper(module: str, job: Job, errors: Path) -> Iterator[Helper]:
    found = Helper(module, job, errors)
    try:
        yield found
    finally:
        found.close()


# --- inside a helper process ------------------------------------------------------------------------------------------


def told(line: Any) -> None:
    """Send a line to the parent process."""
    print(json.dumps(line), flush=True)


def serve(work: Callable[[Job], None]) -> None:
    """Run a helper process: read the job, do the work, report errors."""
    try:
        work(json.loads(sys.argv[1]))
    except BrokenPipeError:  # the parent has ended
        sys.exit(1)
    except (HeadraceError, OSError) as error:
        told({"error": str(error)})


class Seldom:
    """A callable that returns True at most once every `seconds` seconds."""

    def __init__(self, seconds: float = 0.5) -> None:
        self._seconds, self._said = seconds, time.monotonic()

    def __call__(self) -> bool:
        if time.monotonic() - self._said < self._seconds:
            return False
        self._said = time.monotonic()
        return True
