"""What the steps of a play did, and how a test states what it expects of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from headrace.difference import difference, differing_rows
from headrace.errors import QueryError, QueryTypeError
from headrace.support.argument_errors import describe_argument
from headrace.testing.typed_rows import Rows, typed_table

PlayedWatermark = float | Literal["end"] | None  # seconds; None: no tuple yet


class Results(dict[str, pa.Table]):
    """The results of a step if the query is a list of streams: tables by position or by name (that of `named`, or
    "result-0", ...).

    Examples:
        >>> calls = hr.testing.source("calls", {"seconds": "int64"})
        >>> long, short = calls.case("seconds > 60")
        >>> [step] = hr.testing.play([long, short], [hr.testing.epoch(calls=[(1, 90), (2, 5)])])
        >>> step.results[0].num_rows, step.results["result-1"].num_rows
        (1, 1)
    """

    def __getitem__(self, which: str | int) -> pa.Table:
        if isinstance(which, int) and -len(self) <= which < len(self):
            return list(self.values())[which]
        if which in self:
            return super().__getitem__(str(which))
        raise QueryError(f"there is no result {which!r}; the play has {', '.join(self)}, numbered from 0")


@dataclass(frozen=True, repr=False)
class PlayedStep:
    """The outcome of one step of a play.

    Attributes:
        label: the step, for messages, such as "step 2, epoch(calls: 1 tuple)".
        results: what the step emitted, a `pyarrow.Table` in sequence; `Results` if the query is a list of streams.
        late: how many tuples of the step were late, of all sources.
        rejected: how many tuples of the step were rejected, of all sources.
        watermark: by source after the step, in seconds since 1970; None before the first tuple, "end" after `end()`.

    Examples:
        >>> calls = hr.testing.source("calls", {"caller": "string"}, lateness="2 seconds")
        >>> steps = hr.testing.play(calls, [hr.testing.epoch(calls=[(9, "ann")]), hr.testing.epoch(calls=[(6, "bob")])])
        >>> steps[1].late, steps[1].watermark
        (1, {'calls': 7})
    """

    label: str
    results: Any
    late: int
    rejected: int
    watermark: dict[str, PlayedWatermark]
    _played: Sequence[PlayedStep] = field(default=(), compare=False)  # all steps of the play

    def expect(self, rows: Rows, result: str | int | None = None) -> None:
        """Check that the results of this step are these rows, in any order.

        Args:
            rows: dicts by column, which name the columns to compare, such as `[{"k": "a", "n": 2}]`. Times are seconds
                or datetimes. An empty list expects no results. Doubles are equal within 1e-9 of their size.
            result: which result, where the query is a list of streams: its name or position. None: the only one.

        Raises:
            AssertionError: the results are others; the message lists the missing and the extra rows, and names other
                steps that emitted the missing ones.
            QueryError: there is no such column or result.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string"})
            >>> [step] = hr.testing.play(calls, [hr.testing.epoch(calls=[(1, "ann")])])
            >>> step.expect([{"ts": 1, "caller": "ann"}])
            >>> step.expect([{"caller": "bob"}])
            Traceback (most recent call last):
                ...
            AssertionError: step 0, epoch(calls: 1 tuple): the results are not the expected ones
            ...
        """
        __tracebackhide__ = True
        found = self._result(result)
        names = _named_columns(rows)
        if unknown := [name for name in names if name not in found.column_names]:
            raise QueryError(
                f"{self.label}: the results have no column {unknown[0]!r}; there are {', '.join(found.column_names)}"
            )
        found = found.select(names or found.column_names)
        expected = typed_table(rows, found.schema, "the expected rows", sparse=False)
        told = difference(expected, found)
        if told is not None:
            lines = [f"{self.label}: the results are not the expected ones", told, *self._elsewhere(expected, result)]
            raise AssertionError("\n".join(lines))

    def _elsewhere(self, expected: pa.Table, result: str | int | None) -> Iterator[str]:
        """Describe which other steps emitted the missing rows."""
        missing, _ = differing_rows(expected, self._result(result).select(expected.column_names))
        for step in self._played:
            if step is self or (rows := step._rows_like(expected, result)) is None:
                continue
            if count := missing.num_rows - differing_rows(missing, rows)[0].num_rows:
                yield f"{count} of the missing rows {'was' if count == 1 else 'were'} emitted by {step.label}"

    def _rows_like(self, expected: pa.Table, which: str | int | None) -> pa.Table | None:
        """Return the columns of `expected` of a result; None if a changed query has no such result or columns."""
        try:
            found = self._result(which).select(expected.column_names)
        except (QueryError, KeyError):
            return None
        return found if found.schema.equals(expected.schema) else None

    def _result(self, which: str | int | None) -> pa.Table:
        if not isinstance(self.results, Results):
            if which is not None:
                raise QueryError(f"the play has one result; leave out result={which!r}")
            return self.results
        if which is None:
            raise QueryError(f"the play has several results; add result=, one of {', '.join(self.results)}")
        return self.results[which]

    def __repr__(self) -> str:
        tables = self.results.values() if isinstance(self.results, Results) else [self.results]
        rows = " and ".join(f"{table.num_rows:,}" for table in tables)
        return f"<{self.label}: results {rows}, late {self.late}, rejected {self.rejected}, watermark {self.watermark}>"


def _named_columns(rows: Rows) -> list[str]:
    """The columns that the first row names; none if there are no rows."""
    if isinstance(rows, pa.Table):
        return rows.column_names if rows.num_rows else []
    if isinstance(rows, str | Mapping) or not hasattr(rows, "__len__"):
        raise QueryTypeError(f"expect takes a list of dicts by column; found {describe_argument(rows)}")
    if not len(rows):
        return []
    if rows[0] == {}:
        raise QueryTypeError(
            "expect got [{}], and a dict without columns checks nothing; name the columns to compare, such as"
            " {'k': 'a', 'n': 2}; an empty list, expect([]), expects no results"
        )
    if not isinstance(rows[0], Mapping):
        raise QueryTypeError(
            f"expect takes dicts by column, such as {{'k': 'a', 'n': 2}}; found {describe_argument(rows[0])}"
        )
    return list(rows[0])
