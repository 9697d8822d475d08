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
from tests.kafka import reading

FILES = ("sqlite", "duckdb")
DATABASES = (*FILES, "postgres")
LAKES = ("delta", "iceberg")
KINDS = (*DATABASES, *LAKES)


class Store:
    """place: a folder, the URL of a server, or the address of a broker; name: of the table or the topic."""

    def __init__(self, kind: str, place: str, name: str = "results") -> None:
        self.kind, self.place, self.name = kind, place, name
        self.parameters = ""  # of the URL of a server, for the sink

    @property
    def url(self) -> str:
        return (
            f"{self.place}{self.parameters}"
            if self.kind == "postgres"
            else f"{self.kind}:///{self.place}/file.{self.kind}"
        )

    @property
    def file(self) -> Path:
        return Path(self.place, f"file.{self.kind}")

    def sink(self, **options: Any) -> Any:
        if self.kind == "delta":
            return sinks.delta(f"{self.place}/{self.name}", **options)
        if self.kind == "kafka":
            return sinks.kafka(self.place, self.name, **options)
        if self.kind == "iceberg":
            return sinks.iceberg(f"tests.{self.name}", catalog=self.catalog, **options)
        return sinks.database(self.url, self.name, **options)

    @property
    def catalog(self) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.place}/catalog.db",
            "warehouse": f"file://{self.place}/warehouse",
        }

    def arrow(self) -> pa.Table:
        """Of a lake, by its own reader."""
        if self.kind == "delta":
            from deltalake import DeltaTable

            return DeltaTable(f"{self.place}/{self.name}").to_pyarrow_table()
        from pyiceberg.catalog import load_catalog

        with closing(load_catalog("default", **self.catalog)) as catalog:
            return catalog.load_table(f"tests.{self.name}").scan().to_arrow()

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """By a driver's own connection, committed; what the last one finds."""
        with self._connection() as connection:
            cursor = connection.cursor()
            for statement in statements:
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
        if self.kind == "kafka":
            return reading.values(self.place, self.name)
        if self.kind in LAKES:
            return sorted(self.arrow()["v"].to_pylist())
        return sorted(v for (v,) in self.table("v"))


def rows(*values: int) -> pa.Table:
    times = pa.array([v * 1_000_000 for v in values], pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.table(
        {"ts": times, "k": pa.array([v % 3 for v in values], pa.int32()), "v": pa.array(values, pa.int64())}
    )
