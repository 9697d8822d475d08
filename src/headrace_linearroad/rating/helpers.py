"""Processes beside the run that end with it: each is told what to do in one JSON, and says how it goes in lines of JSON."""

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

POLL = 0.2  # seconds between two looks whether somebody wants to end
PATIENCE = 5.0  # seconds that a process has to end

Job = dict[str, Any]


class Stopped(Exception):
    """Somebody wants to end."""


class Helper:
    """A module of ours in a process of its own. A Ctrl-C on the terminal does not reach it: who started it ends it."""

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
        """To it: a line."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(words).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed() from None

    def said(self, stop: Callable[[], bool], *, wait: bool = True) -> Iterator[Any]:
        """What it says, line by line, until it ends; without waiting, None whenever it has said nothing more."""
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
        """Raise what ended it, if something has."""
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
    with suppress(BrokenPipeError):  # it may have ended before it read all
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


# --- within one -------------------------------------------------------------------------------------------------------


def told(line: Any) -> None:
    """To whoever started this process."""
    print(json.dumps(line), flush=True)


def serve(work: Callable[[Job], None]) -> None:
    """The whole of such a process."""
    try:
        work(json.loads(sys.argv[1]))
    except BrokenPipeError:  # whoever started it is gone
        sys.exit(1)
    except (HeadraceError, OSError) as error:
        told({"error": str(error)})


class Seldom:
    """Whether it is time to say something again."""

    def __init__(self, seconds: float = 0.5) -> None:
        self._seconds, self._said = seconds, time.monotonic()

    def __call__(self) -> bool:
        if time.monotonic() - self._said < self._seconds:
            return False
        self._said = time.monotonic()
        return True
