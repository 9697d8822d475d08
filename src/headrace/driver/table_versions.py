"""Versions of the tables that streams are joined with: when a table is read, and which version an epoch uses.

Invariant: an epoch uses one version of each table, a block that its manifest names. A second attempt of the epoch
therefore uses the same rows. Two contents are one version iff they have the same rows as multisets: rows are sorted
before their checksums are compared. A table is read at every start, when its `refresh` is due, and when the user calls
`refresh`. The next epoch uses the content that was read. If a table cannot be read, its version stays and a warning is
logged; before the first version that is an error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.columnar import arrow
from headrace.errors import QueryError, SourceError
from headrace.kernels.stateless.steps import row_order
from headrace.query import nodes
from headrace.sources.tables import table_rows
from headrace.state.blocks import Block, block_name, content_checksum, write_block
from headrace.state.manifest import Manifest, TableVersion
from headrace.state.storage import Storage
from headrace.support.terminal_text import printable
from headrace.support.user_code import comes_from_signal
from headrace.telemetry.progress import VersionFigures

_log = logging.getLogger(__name__)

UNREADABLE = "table %s cannot be read, and stays at version %s: %s"
CHANGED = "table %s is version %s now, with %s rows, from epoch %s on"


@dataclass
class _UnpublishedVersion:
    """The rows of a table version that no manifest names yet."""

    rows: pa.Table
    checksum: str
    block: Block | None = None  # written when an epoch needs it


@dataclass
class _VersionedTable:
    """One table: its version in the newest manifest, the version of the current epoch, and the content read since."""

    name: str
    source: nodes.TableDefinition
    known: TableVersion | None
    used: TableVersion | None = None  # by the epoch in progress
    read: _UnpublishedVersion | None = (
        None  # the newest content; None if it equals the known one and no epoch is in progress
    )
    trouble: str | None = None
    looked: float = 0.0  # when it was last read
    under_way: threading.Thread | None = None
    reading: threading.Lock = field(default_factory=threading.Lock)  # held while the table is read

    @property
    def number(self) -> int:
        """Return the number of the version that the next epoch uses, if the current epoch is committed."""
        before = self.used or self.known
        if before is None:
            return 1
        return before.number + (self.read is not None and self.read.checksum != before.block.checksum)

    def settle(self, known: TableVersion | None) -> None:
        """Set the version of the newest manifest, when no epoch is running. Forget what was read if it is the same."""
        self.known, self.used = known, None
        if known is not None and self.read is not None and self.read.checksum == known.block.checksum:
            self.read = None


class TableVersions:
    """The versions of all tables that the streams of a run are joined with.

    `look` reads tables whose `refresh` is due, `renew` reads one now, and `of_epoch` returns the versions that an epoch uses.
    """

    def __init__(self, tables: Mapping[str, nodes.TableDefinition], storage: Storage, last: Manifest | None) -> None:
        known = last.tables if last else {}
        self._storage, self._lock = storage, threading.Lock()
        self._tables = {name: _VersionedTable(name, table, known.get(name)) for name, table in tables.items()}
        self._ended, self._first = False, True  # no epoch was committed yet
        for table in self._tables.values():
            self._look(table)

    @property
    def figures(self) -> dict[str, VersionFigures]:
        with self._lock:
            return {name: _figures(table) for name, table in self._tables.items()}

    def renew(self, name: str) -> int:
        """Read a table now, and return the number of the version that later epochs use."""
        if name not in self._tables:
            there = ", ".join(self._tables) or "none"
            raise QueryError(f"there is no table {name!r} in this run; there is {there}")
        table = self._tables[name]
        if not table.source.origin.renewable:
            raise QueryError(
                f"table {name!r} is a DataFrame, which keeps the list of files that it was made with;"
                " to read it again, give hr.table the folder, or a function that returns the DataFrame"
            )
        self._look(table)
        with self._lock:
            return table.number

    def look(self) -> None:
        """Start to read the tables that are due, in threads."""
        for table in self._tables.values():
            every, idle = table.source.refresh, table.under_way is None or not table.under_way.is_alive()
            if every is not None and idle and (time.monotonic() - table.looked) * 1e6 >= every:
                table.under_way = threading.Thread(
                    target=self._look, args=(table,), name=f"headrace-table-{table.name}", daemon=True
                )
                table.under_way.start()

    def end(self) -> None:
        """Ignore failures of reads from now on, because the run has ended."""
        self._ended = True

    def of_epoch(self, number: int) -> dict[str, TableVersion]:
        """Return the versions that an epoch uses. Write a block for each new content."""
        with self._lock:
            for table in self._tables.values():
                table.settle(table.known)  # an epoch that failed has used nothing
                table.used = self._version(table, number)
            return {table.name: table.used for table in self._tables.values() if table.used is not None}

    def committed(self, manifest: Manifest) -> None:
        """Note the versions that a committed manifest names."""
        with self._lock:
            for name, table in self._tables.items():
                now, before = manifest.tables[name], table.known
                table.settle(now)
                if before is not None and before.number != now.number:
                    level = logging.WARNING if self._first else logging.INFO  # a restart may surprise
                    _log.log(level, CHANGED, printable(name), now.number, f"{now.block.rows:,}", manifest.number)
            self._first = False

    # --- reading ---------------------------------------------------------------------------------------------------

    def _look(self, table: _VersionedTable) -> None:
        with table.reading:
            try:
                found = _in_order(table_rows(table.source.origin, table.source.schema, table.name))
                checksum = content_checksum(found)
            except BaseException as error:  # a user's function may raise anything
                if comes_from_signal(error):
                    raise
                self._say_unreadable(table, error)
            else:
                self._take(table, _UnpublishedVersion(found, checksum))
            table.looked = time.monotonic()

    def _take(self, table: _VersionedTable, found: _UnpublishedVersion) -> None:
        with self._lock:
            table.trouble = None
            if table.read is None or table.read.checksum != found.checksum:
                table.read = found
            if table.used is None:
                table.settle(table.known)

    def _say_unreadable(self, table: _VersionedTable, error: BaseException) -> None:
        words = f"{type(error).__name__}: {error}" if not isinstance(error, SourceError) else str(error)
        if table.known is None and table.read is None:
            raise SourceError(f"table {table.name!r} cannot be read: {words}") from error
        with self._lock:
            table.trouble = words
        if not self._ended:
            _log.warning(UNREADABLE, printable(table.name), table.number, printable(words))

    def _version(self, table: _VersionedTable, number: int) -> TableVersion:
        if table.read is None:
            assert table.known is not None
            return table.known
        if table.read.block is None:
            name = block_name(number, 0, 0, 0)
            table.read.block = write_block(self._storage, name, table.read.rows, None, None, None)
        return TableVersion(table.number, table.read.block)


def _in_order(found: pa.Table) -> pa.Table:
    """Return the rows in the order of their values."""
    return arrow.take_rows(found, row_order(found, found.column_names)) if found.num_rows else found


def _figures(table: _VersionedTable) -> VersionFigures:
    if table.read is not None:
        return VersionFigures(table.number, table.read.rows.num_rows, table.read.rows.nbytes, table.trouble)
    assert table.known is not None
    return VersionFigures(table.number, table.known.block.rows, table.known.block.bytes, table.trouble)
