"""A storage without a disk."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pyarrow as pa

from headrace.errors import WriterConflict
from headrace.state.storage import Data, Lease, check_folder, check_name


class MemoryStorage:
    """The contract of `Storage` in a dict."""

    uri = "memory:"  # of one process: tasks elsewhere cannot open it

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._leased = threading.Lock()
        self.left = ""

    def lease(self) -> Lease:
        if not self._leased.acquire(blocking=False):
            raise WriterConflict("this storage in memory is in use by another run of this process. Stop that run")
        return self

    def release(self, left: str = "") -> None:
        if self._leased.locked():
            self.left = left
            self._leased.release()

    def require(self) -> None:
        pass

    def write(self, name: str, *data: Data) -> None:
        if not self._add(name, *data):
            raise FileExistsError(f"{name} exists")

    def sync(self, names: Iterable[str]) -> None:
        for name in names:
            self.read(name)

    def publish(self, name: str, data: Data) -> bool:
        return self._add(name, data)

    def read(self, name: str) -> bytes:
        try:
            return self.files[check_name(name)]
        except KeyError:
            raise FileNotFoundError(name) from None

    def map(self, name: str) -> pa.Buffer:
        return pa.py_buffer(self.read(name))

    def size(self, name: str) -> int | None:
        data = self.files.get(check_name(name))
        return None if data is None else len(data)

    def list(self, folder: str) -> list[str]:
        prefix = check_folder(folder) + "/"
        return sorted(name for name in list(self.files) if name.startswith(prefix))

    def delete(self, name: str) -> None:
        self.files.pop(check_name(name), None)

    def _add(self, name: str, *data: Data) -> bool:
        copy = b"".join(map(memoryview, data))
        with self._lock:
            return self.files.setdefault(check_name(name), copy) is copy
