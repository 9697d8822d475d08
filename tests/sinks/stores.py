"""Every store that a sink writes to, and what a reader finds in it who knows nothing of headrace."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from headrace import sinks

FILES = ("sqlite", "duckdb")
DATABASES = (*FILES, "postgres")
KINDS = DATABASES


class Store:
    """place: a folder, or the URL of a server; name: of the table."""

    def __init__(self, kind: str, place: str, name: str = "results") -> None:
        self.kind, self.place, self.name = kind, place, name

    @property
    def url(self) -> str:
        return self.place if self.kind == "postgres" else f"{self.kind}:///{self.place}/file.{self.kind}"

    @property
    def file(self) -> Path:
        return Path(self.place, f"file.{self.kind}")

    def sink(self, **options: Any) -> Any:
        return sinks.database(self.url, self.name, **options)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """By a driver's own connection, committed."""
        with self._connection() as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            found = cursor.fetchall() if self.kind != "sqlite" or cursor.description else []
            connection.commit()
            if hasattr(cursor, "adbc_ingest"):
                cursor.close()
            return list(found)

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        if self.kind == "sqlite":
            opened: Any = sqlite3.connect(self.file)
        elif self.kind == "duckdb":
            opened = duckdb.connect(self.file)
            opened.begin()
        else:
            from adbc_driver_postgresql import dbapi

            opened = dbapi.connect(self.place)
        with closing(opened) as connection:
            yield connection

    def table(self, columns: str = "*") -> list[tuple[Any, ...]]:
        return self.execute(f'SELECT {columns} FROM "{self.name}"')

    def values(self) -> list[int]:
        """Of the column v, in order; none before there is a table."""
        return sorted(v for (v,) in self.table("v"))


def rows(*values: int) -> pa.Table:
    times = pa.array([v * 1_000_000 for v in values], pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.table(
        {"ts": times, "k": pa.array([v % 3 for v in values], pa.int32()), "v": pa.array(values, pa.int64())}
    )
