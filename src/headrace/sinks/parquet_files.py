"""One Parquet file per epoch, written by the driver: it appears whole, by a rename, and once."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.sinks.base import Delivery
from headrace.sinks.naming import demand_columns, epoch_name, other_results, sync, write_file


class ParquetFiles:
    def __init__(self, path: Path, ordered: bool) -> None:
        self.path, self.ordered = path, ordered

    def deliver(self, delivery: Delivery) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        name = epoch_name(delivery.query, delivery.epoch, delivery.result)
        final = self.path / f"{name}.parquet"
        if final.exists():
            _demand_the_same(final, delivery.table)
            return
        if (self.path / name).exists():  # as parts, by the sink that this checkpoint was started with in between
            _demand_as_many(self.path / name, delivery.table.num_rows)
            return
        temporary = self.path / f"_{final.name}-{uuid.uuid4().hex}"
        try:
            write_file(delivery.table, temporary)
            os.replace(temporary, final)  # one writer: the run that owns the checkpoint
            sync(self.path)
        finally:
            temporary.unlink(missing_ok=True)

    def demand_columns(self, columns: list[list[str]]) -> None:
        """Of a result that changed while its state goes on."""
        demand_columns(self.path, columns)

    def __repr__(self) -> str:
        return f"parquet({str(self.path)!r})"


def _demand_the_same(path: Path, table: pa.Table) -> None:
    """A delivery comes again with the same rows; other ones are of a state that was put back to an earlier time."""
    known = pq.ParquetFile(path).read()
    same = known.num_rows == table.num_rows and known.column_names == table.column_names
    if not same or not all(map(_same, known.columns, table.columns)):
        raise other_results(path)


def _demand_as_many(folder: Path, rows: int) -> None:
    if sum(pq.read_metadata(path).num_rows for path in folder.iterdir()) != rows:
        raise other_results(folder)


def _same(known: pa.ChunkedArray, given: pa.ChunkedArray) -> bool:
    if pa.types.is_nested(given.type):  # a NaN inside is not equal to itself
        return len(known) == len(given)
    if pa.types.is_floating(given.type):
        bits = {32: pa.int32(), 64: pa.int64()}[given.type.bit_width]
        return bool(known.combine_chunks().view(bits).equals(given.combine_chunks().view(bits)))
    return bool(known.equals(given))
