"""An external sort of rows by a number of each row. It holds a few million rows in memory, and the others in files.

Each piece of rows is sorted separately. If it begins after the last row of the newest run, it is appended to that run,
otherwise it begins a new run. Runs are merged one range of numbers at a time; samples of each run give the rows of a
range. Input that is already sorted is one run, and is never merged.

Invariant: the rows of a run are sorted, equal numbers in order of arrival; if numbers must be unique, they are within a
run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar.sorting import sort_order

Rows = npt.NDArray[Any]  # of columns side by side
Numbers = npt.NDArray[np.int64]

PIECE = 1 << 22  # rows that are sorted together
STEP = 1 << 12  # rows from one sample to the next


@dataclass
class _Run:
    """A file of sorted rows."""

    path: Path
    rows: int = 0
    last: int = -1
    samples: list[Numbers] = field(default_factory=list)  # the numbers of the first row and every STEP-th after it

    def mapped(self, dtype: np.dtype[Any]) -> Rows:
        return np.asarray(np.memmap(self.path, dtype, mode="r")) if self.rows else np.empty(0, dtype)


class Ordering:
    """The sort of one set of rows.

    numbers: returns the number of each row, which is the sort key. one: reduces rows with equal numbers to one row, or
    raises; None keeps all rows.
    """

    def __init__(
        self,
        folder: Path,
        schema: pa.Schema,
        numbers: Callable[[Rows], Numbers],
        one: Callable[[Rows, Numbers], Rows] | None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._folder, self._schema, self._numbers, self._one, self._tell = folder, schema, numbers, one, tell
        self._piece, self._step = PIECE, STEP
        self._dtype = np.dtype([(each.name, each.type.to_pandas_dtype()) for each in schema])
        self._waiting: list[Rows] = []
        self._runs: list[_Run] = []

    def add(self, table: pa.Table) -> None:
        """Add any number of rows with the schema."""
        for start in range(0, table.num_rows, self._piece):
            part = table.slice(start, self._piece)
            rows = np.empty(len(part), self._dtype)
            for name in self._schema.names:
                rows[name] = part[name].to_numpy()
            self._waiting.append(rows)
            if sum(map(len, self._waiting)) >= self._piece:
                self._put()

    def write(self, path: Path) -> None:
        """Write all rows as an Arrow file of one record batch. The file gets its name when it is complete."""
        self._put()
        columns = [self._folder / f"_{path.name}-{name}" for name in self._schema.names]
        count = self._write_columns(columns)
        arrays = [
            pa.array(np.memmap(column, each.type.to_pandas_dtype(), mode="r") if count else [], each.type)
            for column, each in zip(columns, self._schema, strict=True)
        ]
        hidden = path.with_name(f"_{path.name}")
        with pa.OSFile(str(hidden), "wb") as sink, pa.ipc.new_file(sink, self._schema) as writer:
            writer.write_batch(pa.record_batch(arrays, schema=self._schema))
        for column in columns:
            column.unlink()
        hidden.rename(path)

    # --- runs ---

    def _put(self) -> None:
        """Append the waiting rows to the newest run, or begin a new run with them."""
        if not (rows := _joined(self._waiting, self._dtype)).size:
            return
        self._waiting = []
        rows, numbers = self._in_order(rows)
        run = self._runs[-1] if self._runs else None
        if run is None or numbers[0] < run.last or (self._one and numbers[0] == run.last):
            self._runs.append(run := _Run(self._folder / f"_rows-{len(self._runs)}"))
        run.samples.append(numbers[-run.rows % self._step :: self._step])
        with open(run.path, "ab") as file:
            rows.tofile(file)
        run.rows, run.last = run.rows + len(rows), int(numbers[-1])

    def _in_order(self, rows: Rows) -> tuple[Rows, Numbers]:
        numbers = self._numbers(rows)
        if (numbers[1:] < numbers[:-1]).any():
            by = sort_order([pa.array(numbers)])
            rows, numbers = rows[by], numbers[by]
        if self._one and (numbers[1:] == numbers[:-1]).any():
            rows = self._one(rows, numbers)
            numbers = self._numbers(rows)
        return rows, numbers

    # --- the whole ---

    def _write_columns(self, paths: Sequence[Path]) -> int:
        count, total = 0, sum(run.rows for run in self._runs)
        with contextlib.ExitStack() as stack:
            files: list[BinaryIO] = [stack.enter_context(open(path, "wb")) for path in paths]
            for rows in self._merged():
                for file, name in zip(files, self._schema.names, strict=True):
                    np.ascontiguousarray(rows[name]).tofile(file)
                count += len(rows)
                self._tell(f"{count:,} of {total:,} rows in order")
        for run in self._runs:
            run.path.unlink()
        return count

    def _merged(self) -> Iterator[Rows]:
        if len(self._runs) == 1:
            rows = self._runs[0].mapped(self._dtype)
            yield from (rows[start : start + self._piece] for start in range(0, len(rows), self._piece))
            return
        mapped = [run.mapped(self._dtype) for run in self._runs]
        samples = [np.concatenate(run.samples) for run in self._runs]
        starts = [0] * len(self._runs)
        for border in (*self._borders(samples), None):
            stops = [self._place(rows, known, border) for rows, known in zip(mapped, samples, strict=True)]
            parts = [rows[start:stop] for rows, start, stop in zip(mapped, starts, stops, strict=True)]
            if (rows := _joined(parts, self._dtype)).size:
                yield self._in_order(rows)[0]
            starts = stops

    def _borders(self, samples: Sequence[Numbers]) -> list[int]:
        """Return the numbers that divide the rows into ranges of about one piece each."""
        if not samples:
            return []
        every = max(self._piece // self._step, 1)
        found: list[int] = np.unique(np.sort(np.concatenate(samples))[every::every]).tolist()
        return found

    def _place(self, rows: Rows, samples: Numbers, border: int | None) -> int:
        """Return the first row of a run whose number is at least `border`."""
        if border is None:
            return len(rows)
        last = (
            int(np.searchsorted(samples, border)) * self._step
        )  # the first sample not below `border`, if there is one
        first = max(last - self._step, 0)
        return first + int(np.searchsorted(self._numbers(rows[first:last]), border))


def _joined(parts: Sequence[Rows], dtype: np.dtype[Any]) -> Rows:
    return np.concatenate([np.empty(0, dtype), *parts]) if len(parts) != 1 else parts[0]
