"""One Parquet file per epoch, written by the driver: it appears whole, by a rename, and once."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from headrace.sinks.base import Delivery
from headrace.sinks.result_folders import (
    demand_columns,
    demand_the_same,
    epoch_name,
    rows_in,
    sync,
    write_file,
    written_to,
)


class ParquetFiles:
    def __init__(self, path: Path, ordered: bool) -> None:
        self.path, self.ordered = path, ordered

    def deliver(self, delivery: Delivery) -> None:
        with written_to(self.path):
            self._deliver(delivery)

    def _deliver(self, delivery: Delivery) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        name = epoch_name(delivery.query, delivery.epoch, delivery.result)
        final = self.path / f"{name}.parquet"
        if final.exists():
            demand_the_same(final, rows_in([final]), delivery.table)
            return
        if (parts := self.path / name).exists():  # a part sink that the checkpoint had in between has delivered them
            demand_the_same(parts, rows_in(sorted(parts.glob("part-*"))), delivery.table)
            return
        temporary = self.path / f"_{final.name}-{uuid.uuid4().hex}"
        try:
            write_file(delivery.table, temporary)
            os.replace(temporary, final)  # one writer: the run that owns the checkpoint
            sync(self.path)
        finally:
            temporary.unlink(missing_ok=True)

    def demand_columns(self, columns: list[list[str]]) -> None:
        """Raise if existing files have other columns than the changed result."""
        demand_columns(self.path, columns)

    def __repr__(self) -> str:
        return f"parquet({str(self.path)!r})"
