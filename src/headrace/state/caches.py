"""Caches of state tables: between epochs, the table of a substream stays on its machine, in a mapped file.

Blocks are the state; a cache only saves reading them. Every attempt of a task has a unique stamp. For every table of
every substream, the driver notes the stamp of the last committed attempt that opened it, with or without a cache.

    a cache is used   iff   its header is whole; it belongs to this run, operator, table, substream and shape; it is not
                            marked as being changed; and its stamp is the one that the driver noted

Invariants, from which it follows that a cache in use equals the state of the last manifest:

1. A task locks the name of a table exclusively before it opens the cache. The lock ends with the process, in whatever
   way that ends. Only its owner reads, writes or replaces the file of that name.
2. A cache is marked before its table is handed out, and a new file is marked when it gets its name. The mark is removed,
   and the attempt's stamp written, when the table is whole again and the block with its changes was written. A cache
   without a mark is therefore the complete table as the attempt of its stamp left it.
3. An attempt reports every table that it opened. The driver's note changes only after the commit of the manifest with
   the changes. An attempt that died, was not heard or was one of two therefore leaves stamps that match no note.

A cache that cannot be used is replaced, and the reason is reported. If the disk or the limit has no space, or another
attempt holds the lock, the table is in memory for this epoch; nothing fails. Space is reserved before it is mapped,
because a hole in a mapped file kills the process when the disk is full. Nothing is synced: after a crash of the
machine, its caches belong to an earlier boot.

The space is bounded, and a file that a living process has locked is never deleted:

- Within a run that has reached its limit, caches not used recently are deleted, oldest first: those of substreams that
  moved to another machine or had no tuples. All others stay and a new cache gets no space. Deleting the oldest of the
  caches that every epoch needs would leave none of them when it is needed.
- The driver deletes the folder of its run if its tasks run on the same machine. Otherwise, a process that opens a folder
  in the same place deletes it, when a run starts or at intervals: once its driver is dead or, if that cannot be seen,
  once it has been unused for an hour. Folders not used recently are deleted earlier, oldest first, while all together
  exceed the limit. Folders of an earlier boot, or of another machine that shares the place, are deleted after a day
  without use.

Clocks decide nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import re
import shutil
import struct
import sys
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from headrace.columnar import buffers, scratch
from headrace.columnar.buffers import Area
from headrace.errors import EngineError, QueryError
from headrace.support.limits import parse_bytes

CACHE_VARIABLE, CACHE_BYTES_VARIABLE = "HEADRACE_CACHE", "HEADRACE_CACHE_BYTES"
LIMIT = 4 << 30  # bytes of a run on one machine
UNUSED_SECONDS = 3600.0  # a folder unused for this long has no owner, if its driver is on another machine
FOREIGN = 86400.0  # the same for a folder of an earlier boot or of another machine, whose locks may not be visible here
LATELY = 600.0  # seconds; what was used within this time is not deleted for lack of space
SWEPT = 3600.0  # seconds after which a process looks again for unused folders
MOST_OPEN_CACHES = 4096  # tables that a process keeps open between tasks
CACHE_FORMAT = 2

# reasons why a table was built from blocks
OFF = "off"  # caches are disabled
COLD = "cold"  # there is no cache
STAMP = "stamp"  # the cache has the stamp of another attempt than the one noted
MARKED = "marked"  # a process began to change the cache and died
DAMAGED = "damaged"  # the content is not as written
LOCKED = "locked"  # another attempt has it
NO_SPACE = "no room"  # the disk is full or the limit is reached
NOT_IN_PLACE = (
    OFF,
    COLD,
    STAMP,
    MARKED,
    DAMAGED,
    LOCKED,
    NO_SPACE,
)  # the order in which manifests count them

_HEAD = struct.Struct("<8s16s16sIIQq")  # magic, owner, stamp, being changed, bytes of layout and file, last use
_SUM = struct.Struct("<Q")  # checksum of head and layout; it is stored between them
_MAGIC = b"hr-cache"
_FRONT = _HEAD.size + _SUM.size
_UNFINISHED = ".new"  # suffix of a file that does not have its name yet
_LOCKS, _HERE = "locks", "here"  # files beside the caches: `here` shows that the driver is on this machine


def cache_limit(given: int | str | None) -> int:
    """Return the limit in bytes, from the argument or the environment; 0 disables caches."""
    what, found = (
        ("cache", given) if given is not None else (CACHE_BYTES_VARIABLE, os.environ.get(CACHE_BYTES_VARIABLE) or LIMIT)
    )
    size = parse_bytes(found)
    if size is None:
        msg = f"{what} must be bytes, as a whole number or with a unit, such as '4g'; 0 disables caches"
        raise QueryError(f"{msg}; found {found!r:.50}")
    return size


@dataclass(frozen=True)
class CacheStamps:
    """The facts about caches that the tasks of an epoch need."""

    limit: int  # bytes of one run on one machine
    operators: frozenset[str]  # operators whose tables are cached
    stamps: Mapping[tuple[str, str], Mapping[int, str]]  # by operator and table: the noted stamp of each substream
    driver_makes_folder: bool  # then a late task does not create the folder again after the driver has removed it


# --- a task --------------------------------------------------------------------------------------------------------


class CacheUse:
    """The caches of a run on this machine, as one task uses them. Locks last until `close`."""

    def __init__(self, run_id: str, limit: int, *, driver_makes_folder: bool = False) -> None:
        self.limit, self.run_id = limit, run_id
        self.path, self.reason = Path(), ""  # the reason why there are no caches
        self._folder: int | None = None
        self._locks: int | None = None
        self._size: int | None = None  # bytes of all caches at the last count, and bytes created since
        self._made = 0
        self._names: set[str] = set()  # locked names
        self._thinned = False  # nothing more can be deleted
        _OPEN.add(self)
        if sys.platform != "linux":
            self.reason = "caches need Linux"
            return
        try:
            self.path, self._folder = _opened(run_id, limit, make=not driver_makes_folder)
            self._locks = os.open(
                _LOCKS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=self._folder
            )
            os.utime(self._locks)  # keeps tools that delete old files from removing the locks alone
            _KEPT.tidy(self.path, self._folder)
        except (OSError, EngineError) as error:
            self.reason = str(error)
            self.close()

    def take(self, operator: str, table: str, shape: str, substream: int, stamp: str | None) -> TableCache:
        """Return the cache of a table, locked. stamp: the noted stamp."""
        name = f"{_name(operator, table)}-{substream}"
        who = xxhash.xxh3_128_digest(f"{_whose(self.run_id, operator, table, shape)}-{substream}".encode())
        cache = _KEPT.pop((self.path, name)) or TableCache(name, who)
        cache.begin(self, bytes.fromhex(stamp or ""))
        return cache

    def lock(self, name: str) -> str | None:
        """Lock a name; return None on success, else the reason."""
        if self._locks is None:
            return NO_SPACE
        try:
            self._set(name, fcntl.F_WRLCK)
        except OSError as error:
            return LOCKED if error.errno in (errno.EACCES, errno.EAGAIN) else NO_SPACE
        if not os.fstat(self._locks).st_nlink:
            self.reason = "the lock file was removed"  # ot  # other processes lock a newer file
            return NO_SPACE
        self._names.add(name)
        return None

    def _set(self, name: str, kind: int) -> None:
        assert self._locks is not None
        place = xxhash.xxh3_64_intdigest(name.encode()) >> 2
        fcntl.fcntl(self._locks, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0))

    @property
    def folder(self) -> int:
        assert self._folder is not None
        return self._folder

    @contextlib.contextmanager
    def reserved(self, more: int) -> Iterator[None]:
        """Reserve space while a file is created, with no other process doing so. Other files also grow, so the total is
        counted again at intervals."""
        assert self._locks is not None
        fcntl.fcntl(self._locks, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _COUNTING, 1, 0))
        try:
            self._count(more)
            yield
        finally:
            fcntl.fcntl(self._locks, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, _COUNTING, 1, 0))

    def _count(self, more: int) -> None:
        if self._size is None or max(self._made, more) > self.limit // 64:
            with os.scandir(self.folder) as entries:
                self._size, self._made = sum(map(_size, entries)), 0
        self._size -= self._thin(self._size + self._made + more - self.limit)
        if self._size + self._made + more > self.limit:
            raise OSError(errno.ENOSPC, f"the limit of {self.limit:,} bytes is reached")
        self._made += more

    def _thin(self, excess: int) -> int:
        """Delete caches not used recently, oldest first, until `excess` bytes are freed. Return the bytes freed."""
        gone = 0
        if excess <= 0 or self._thinned:
            return gone
        with os.scandir(self.folder) as entries:
            found = sorted((self._last_use(e.name), e.name, _size(e)) for e in entries if "-" in e.name)
        until = time.time() - LATELY
        for used, file, size in found:
            if gone >= excess or used > until:
                break
            name = file.removesuffix(_UNFINISHED)
            if name not in self._names and self.lock(name) is None:
                with contextlib.suppress(OSError):
                    if self._last_use(file) == used:
                        os.unlink(file, dir_fd=self.folder)
                        gone += size
                self._names.remove(name)
                self._set(name, fcntl.F_UNLCK)
        self._thinned = gone < excess
        return gone

    def _last_use(self, file: str) -> int:
        """Return the time of last use that the cache stores; 0 if it cannot be read."""
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self.folder)
        except OSError:
            return 0
        try:
            head = os.read(descriptor, _HEAD.size)
        finally:
            os.close(descriptor)
        return int(_HEAD.unpack(head)[-1]) if len(head) == _HEAD.size and head.startswith(_MAGIC) else 0

    def close(self) -> None:
        for descriptor in (self._locks, self._folder):
            if descriptor is not None:
                os.close(descriptor)
        self._locks = self._folder = None


class TableCache:
    """The cache of one table, which one task after another uses: the memory that the table is in."""

    why: str | None  # why the present cache cannot be used; None: it can
    found: dict[str, Area] | None  # its areas, if it can be used
    table: Any = None  # the table itself, if this process had it open before
    full = ""  # why the table is in memory

    def __init__(self, name: str, who: bytes) -> None:
        self.name, self._who = name, who
        self._buffer: Area | None = None  # the mapped file
        self._layout, self.inode = b"", 0
        self._there = 0  # bytes of the file with this name, usable or not
        self._left = b""  # the last stamp that this process wrote

    def begin(self, use: CacheUse, stamp: bytes) -> None:
        """Check whether the cache can be used, and mark it."""
        self._use, self.found = use, None
        self._locked = use.lock(self.name)
        self.full = use.reason
        self.why = self._locked or self._look(stamp)
        if self.why is not None:
            self._buffer = self.table = None
            return
        if self.table is None or self._left != stamp:
            assert self._buffer is not None
            self.table, self.found = None, self._areas(json.loads(self._layout))
        self._write(stamp, changing=True)

    def _look(self, stamp: bytes) -> str | None:
        self._there = 0
        try:
            found = os.stat(self.name, dir_fd=self._use.folder, follow_symlinks=False)
            self._there = found.st_size
            if self._buffer is None or (self.inode, len(self._buffer)) != (found.st_ino, found.st_size):
                self._map_file()
        except FileNotFoundError:
            return COLD
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ELOOP):  # too short, or a link
                return DAMAGED
            self.full = error.strerror or str(error)
            return NO_SPACE
        return self._read_head(stamp)

    def _map_file(self) -> None:
        self.table = None
        descriptor = os.open(self.name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._use.folder)
        try:
            found = os.fstat(descriptor)
            if found.st_size < mmap.PAGESIZE:
                raise OSError(errno.EINVAL, "too short")
            self._buffer, self.inode = _map(descriptor, found.st_size), found.st_ino
        finally:
            os.close(descriptor)

    def _read_head(self, stamp: bytes) -> str | None:
        """Return why the mapped file cannot be used; None if it can."""
        assert self._buffer is not None
        data = self._buffer[:_FRONT].tobytes()
        magic, who, found, changing, layout, size, _ = _HEAD.unpack_from(data)
        if magic != _MAGIC or size != len(self._buffer) or _FRONT + layout > size:
            return DAMAGED
        self._layout = self._buffer[_FRONT : _FRONT + layout].tobytes()
        if _SUM.unpack_from(data, _HEAD.size)[0] != _sum(data[: _HEAD.size], self._layout) or who != self._who:
            return DAMAGED
        if changing:
            return MARKED
        return None if found == stamp else STAMP

    def _write(self, stamp: bytes, *, changing: bool) -> None:
        assert self._buffer is not None
        now = int(time.time())
        head = _HEAD.pack(_MAGIC, self._who, stamp, changing, len(self._layout), len(self._buffer), now)
        self._buffer[:_FRONT] = np.frombuffer(head + _SUM.pack(_sum(head, self._layout)), np.uint8)

    # --- as the allocator of a table ---------------------------------------------------------------------------------

    def areas(self, sizes: Mapping[str, int]) -> dict[str, Area]:
        """Return new areas in a new file that replaces the old one; in memory if a file is not possible."""
        if self._locked is None and not self.full:
            try:
                return self._new_file(sizes)
            except OSError as error:
                self.full = error.strerror or str(error)
                self.remove()
        return buffers.zeroed_areas(sizes)

    def _new_file(self, sizes: Mapping[str, int]) -> dict[str, Area]:
        layout = json.dumps(dict(sizes)).encode()
        size = _start(layout) + buffers.total_bytes(sizes)
        size += -size % mmap.PAGESIZE
        folder, new = self._use.folder, f"{self.name}{_UNFINISHED}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            with self._use.reserved(size - self._there):
                os.posix_fallocate(descriptor, 0, size)
            buffer, inode = _map(descriptor, size), os.fstat(descriptor).st_ino
        except OSError:
            os.unlink(new, dir_fd=folder)
            raise
        finally:
            os.close(descriptor)
        self._buffer, self._layout, self.inode = buffer, layout, inode
        buffer[_FRONT : _FRONT + len(layout)] = np.frombuffer(layout, np.uint8)
        self._write(b"", changing=True)
        os.rename(new, self.name, src_dir_fd=folder, dst_dir_fd=folder)
        self._there, self.found = size, None  # the old file takes space while any array uses it
        return self._areas(sizes)

    def _areas(self, sizes: Mapping[str, int]) -> dict[str, Area]:
        assert self._buffer is not None
        return buffers.split_buffer(self._buffer[_start(self._layout) :], sizes)

    # --- when the task has finished ----------------------------------------------------------------------------------

    def finish(self, stamp: str, table: Any) -> None:
        """Keep the cache for the next task. The table is whole, and the block with its changes was written."""
        if self._buffer is not None:
            self._left, self.table = bytes.fromhex(stamp), table
            self._write(self._left, changing=False)
            _KEPT.keep((self._use.path, self.name), self)

    def remove(self) -> None:
        """Delete the file, whose content is of no use."""
        self._buffer = self.found = None
        if self._locked is None:
            with contextlib.suppress(OSError):
                os.unlink(self.name, dir_fd=self._use.folder)


# --- a process -----------------------------------------------------------------------------------------------------


class _OpenCaches:
    """Caches that stay open between tasks: Spark reuses a Python worker, though for any substream."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start without open caches."""
        self._kept: OrderedDict[tuple[Path, str], TableCache] = OrderedDict()

    def pop(self, key: tuple[Path, str]) -> TableCache | None:
        return self._kept.pop(key, None)

    def keep(self, key: tuple[Path, str], kept: TableCache) -> None:
        self._kept[key] = kept
        while len(self._kept) > MOST_OPEN_CACHES:
            self._kept.popitem(last=False)

    def tidy(self, path: Path, folder: int) -> None:
        """Close files of any run that no longer exist, because a mapping keeps them on the disk."""
        with os.scandir(folder) as entries:
            there = {entry.name: entry.inode() for entry in entries}
        living = {other for other in {other for other, _ in self._kept} if other.is_dir()}
        for key, cache in list(self._kept.items()):
            if key[0] not in living or (key[0] == path and there.get(key[1]) != cache.inode):
                del self._kept[key]

    def drop(self, path: Path) -> None:
        """Close all caches of one run."""
        for key in [key for key in self._kept if key[0] == path]:
            del self._kept[key]


_KEPT = _OpenCaches()
_OPEN: weakref.WeakSet[CacheUse | CacheFolder] = weakref.WeakSet()


def _after_fork() -> None:
    """Close everything in a forked child: its copies of the descriptors would hold locks longer than the task."""
    _KEPT.forget()
    for each in list(_OPEN):
        each.close()


os.register_at_fork(after_in_child=_after_fork)


# --- folders -------------------------------------------------------------------------------------------------------


class CacheFolder:
    """The cache folder of a run whose driver is on this machine; it exists as long as the driver."""

    def __init__(self, run: str, limit: int) -> None:
        self._descriptor: int | None = None
        _OPEN.add(self)
        with contextlib.suppress(OSError, EngineError):
            self.path, self._descriptor = _opened(run, limit, make=True)
            os.close(os.open(_HERE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=self._descriptor))

    @property
    def is_there(self) -> bool:
        return self._descriptor is not None and self.path.is_dir()

    def remove(self) -> None:
        if self._descriptor is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            self.close()
            _KEPT.drop(self.path)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _opened(run: str, limit: int, *, make: bool) -> tuple[Path, int]:
    """Open the cache folder of a run on this machine. While it is open, no other process removes it."""
    place = Path(given).absolute() if (given := os.environ.get(CACHE_VARIABLE)) else scratch.scratch_place()
    path, is_new = place / f"{_prefix()}{run}", False
    if make:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            is_new = True
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "belongs to another user or is open to others", str(path))
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.utime(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    if is_new or time.monotonic() - _swept.get(place, -SWEPT) >= SWEPT:
        _sweep(place, limit)
    return path, descriptor


def _prefix() -> str:
    return f"headrace-cache-{scratch.machine_id()}-"


_swept: dict[Path, float] = {}  # by place: when this process last swept it (monotonic)


def _sweep(place: Path, most: int) -> None:
    """Delete the folders of dead runs; of the folders that no process has open, delete the oldest above `most` bytes."""
    _swept[place] = time.monotonic()
    pattern = re.compile("headrace-cache-[0-9a-f]{16}-[0-9a-f]{32}")
    try:
        with os.scandir(place) as entries:
            found = [Path(entry.path) for entry in entries if pattern.fullmatch(entry.name)]
    except OSError:
        return
    left = []
    for path in found:
        with _alone(path) as known:
            if known is None:
                continue
            idle, is_local = time.time() - known.st_mtime, path.name.startswith(_prefix())
            if (is_local and (path / _HERE).exists()) or idle > (UNUSED_SECONDS if is_local else FOREIGN):
                shutil.rmtree(path, ignore_errors=True)
            elif is_local:
                left.append((known.st_mtime, path))
    _keep_to(most, left)


def _keep_to(most: int, folders: Sequence[tuple[float, Path]]) -> None:
    """Delete the folders used longest ago until all have at most `most` bytes. folders: (time of last use, path)."""
    sizes = {path: _bytes(path) for _, path in folders}
    excess = sum(sizes.values()) - most
    for used, path in sorted(folders):
        if excess <= 0 or time.time() - used < LATELY:
            return
        with _alone(path) as known:
            if known is not None and known.st_mtime == used:
                shutil.rmtree(path, ignore_errors=True)
                excess -= sizes[path]


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[os.stat_result | None]:
    """Lock a folder exclusively and yield its status; None if another process uses it or another user owns it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        known: os.stat_result | None = None
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            known = os.fstat(descriptor)
        yield known if known is not None and known.st_uid == os.geteuid() else None
    finally:
        os.close(descriptor)


def _bytes(folder: Path) -> int:
    try:
        with os.scandir(folder) as entries:
            return sum(map(_size, entries))
    except OSError:
        return 0


# --- bytes ---------------------------------------------------------------------------------------------------------

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of Linux
_COUNTING = 1 << 62  # the lock position for counting; positions of names are below


@lru_cache(maxsize=256)
def _name(operator: str, table: str) -> str:
    return xxhash.xxh3_64_hexdigest(f"{operator}\0{table}".encode())


@lru_cache(maxsize=256)
def _whose(*parts: str) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps([CACHE_FORMAT, *parts]).encode())


def _sum(head: bytes, layout: bytes) -> int:
    return xxhash.xxh3_64_intdigest(head + layout)


def _start(layout: bytes) -> int:
    """Return where the areas start."""
    return buffers.round_up(_FRONT + len(layout))


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:  # another task renamed or removed the file
        return 0


def _map(descriptor: int, size: int) -> Area:
    """Map a file as a shared array; the mapping ends with the array. Python's mmap would keep a descriptor for each."""
    address = _libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    memory = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(memory, _libc().munmap, address, size).atexit = False
    return np.ctypeslib.as_array(memory)


@lru_cache(maxsize=1)
def _libc() -> Any:
    found = ctypes.CDLL(None, use_errno=True)
    found.mmap.restype = ctypes.c_void_p
    found.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    found.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return found
