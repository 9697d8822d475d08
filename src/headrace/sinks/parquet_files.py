"""The Parquet sink of the driver: one file per epoch, which appears as a whole, by a rename, and only once."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from headrace.sinks.base import Delivery
from headrace.sinks.result_folders import (
    check_columns,
    check_same_rows,
    epoch_name,
    naming_folder,
    rows_in,
    sync_folder,
    write_file,
)


class ParquetFiles:
    """A sink that writes one Parquet file for each epoch, in the driver."""

    def __init__(self, path: Path, ordered: bool) -> None:
        self.path, self.ordered = path, ordered

    def deliver(self, delivery: Delivery) -> None:
        with naming_folder(self.path):
            self._deliver(delivery)

    def _deliver(self, delivery: Delivery) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        name = epoch_name(delivery.query, delivery.epoch, delivery.result)
        final = self.path / f"{name}.parquet"
        if final.exists():
            check_same_rows(final, rows_in([final]), delivery.table)
            return
        if (parts := self.path / name).exists():  # delivered by a part sink under the same checkpoint
            check_same_rows(parts, rows_in(sorted(parts.glob("part-*"))), delivery.table)
            return
        temporary = self.path / f"_{final.name}-{uuid.uuid4().hex}"
        try:
            write_file(delivery.table, temporary)
            os.replace(temporary, final)  # only the run that owns the checkpoint writes here
            sync_folder(self.path)
        finally:
            temporary.unlink(missing_ok=True)

    def demand_columns(self, columns: list[list[str]]) -> None:
        """Raise if existing files have other columns than the changed result."""
        check_columns(self.path, columns)

    def __repr__(self) -> str:
        return f"parquet({str(self.path)!r})"
