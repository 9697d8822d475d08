"""A storage that misbehaves on request, over one in memory.

Faults fire once, on the n-th call of their operation. The model of a power cut: a file that was written but
not synced may be lost, cut short or kept; a deletion not followed by a sync of its folder may be undone.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from headrace.state.fsync import SyncFailed
from headrace.state.storage import Data
from tests.memory import MemoryStorage

KINDS = ("before", "after", "short", "flip", "ghost")


class DiskError(OSError):
    def __init__(self, what: str) -> None:
        super().__init__(errno.EIO, f"injected: {what}")


@dataclass
class Fault:
    operation: str
    kind: str
    skip: int = 0
    data: bytes = b""


def flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


class FaultyStorage:
    def __init__(self, inner: MemoryStorage | None = None, *faults: Fault) -> None:
        self.inner = inner or MemoryStorage()
        self.faults = list(faults)
        self.unsynced: set[str] = set()
        self.undeleted: dict[str, bytes] = {}

    @property
    def uri(self) -> str:
        return self.inner.uri

    @property
    def files(self) -> dict[str, bytes]:
        return self.inner.files

    def inject(self, operation: str, kind: str, *, skip: int = 0, data: bytes = b"") -> None:
        assert kind in KINDS
        self.faults.append(Fault(operation, kind, skip, data))

    def write(self, name: str, *data: Data) -> None:
        fault = self._due("write")
        self.inner.write(name, _damaged(b"".join(map(memoryview, data)), fault))
        self.unsynced.add(name)
        _fail_after(fault)

    def sync(self, names: Iterable[str]) -> None:
        names = list(names)
        fault = self._due("sync", SyncFailed(errno.EIO, "injected"))
        self.inner.sync(names)
        self._harden(names)
        _fail_after(fault)

    def publish(self, name: str, data: Data) -> bool:
        fault = self._due("publish")
        if fault and fault.kind == "ghost":
            self.inner.publish(name, fault.data)
        won = self.inner.publish(name, _damaged(bytes(memoryview(data)), fault))
        self._harden([name])
        _fail_after(fault)
        return won

    def read(self, name: str) -> bytes:
        return _damaged(self.inner.read(name), self._due("read"))

    def map(self, name: str) -> pa.Buffer:
        return pa.py_buffer(_damaged(self.inner.read(name), self._due("map")))

    def size(self, name: str) -> int | None:
        return self.inner.size(name)

    def list(self, folder: str) -> list[str]:
        return self.inner.list(folder)

    def delete(self, name: str) -> None:
        fault = self._due("delete")
        if name in self.files and name not in self.unsynced:
            self.undeleted[name] = self.files[name]
        self.unsynced.discard(name)
        self.inner.delete(name)
        _fail_after(fault)

    def power_cut(self, rng: random.Random) -> None:
        for name in sorted(self.unsynced):
            self._lose(name, rng)
        for name, data in sorted(self.undeleted.items()):
            if rng.random() < 0.5:
                self.files.setdefault(name, data)
        self._settle()

    def power_cut_at_worst(self) -> None:
        for name in self.unsynced:
            self.files.pop(name, None)
        self._settle()

    def _settle(self) -> None:
        self.unsynced.clear()
        self.undeleted.clear()
        self.faults.clear()

    def _lose(self, name: str, rng: random.Random) -> None:
        fate = rng.choice(["lost", "short", "kept"])
        if fate == "lost":
            self.files.pop(name, None)
        elif fate == "short":
            self.files[name] = self.files[name][: rng.randrange(len(self.files[name]) + 1)]

    def _harden(self, names: Iterable[str]) -> None:
        folders = {name.partition("/")[0] for name in names}
        self.unsynced.difference_update(names)
        self.undeleted = {k: v for k, v in self.undeleted.items() if k.partition("/")[0] not in folders}

    def _due(self, operation: str, error: OSError | None = None) -> Fault | None:
        fault = next((f for f in self.faults if f.operation == operation), None)
        if fault is None:
            return None
        if fault.skip:
            fault.skip -= 1
            return None
        self.faults.remove(fault)
        if fault.kind == "before":
            raise error or DiskError(f"{operation} did nothing")
        return fault


def _damaged(data: bytes, fault: Fault | None) -> bytes:
    if fault and fault.kind == "short":
        return data[: len(data) // 2]
    if fault and fault.kind == "flip":
        return flip(data, len(data) * 4)
    return data


def _fail_after(fault: Fault | None) -> None:
    if fault and fault.kind == "after":
        raise DiskError(f"{fault.operation} reported failure, but happened")
