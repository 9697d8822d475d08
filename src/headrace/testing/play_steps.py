"""The steps of a play: epochs, restarts and the end of the input.

Invariant: a step is a record. It knows nothing of the query, so one list of steps can play several queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import QueryError, QueryTypeError
from headrace.stream import Stream
from headrace.support.argument_errors import describe_argument
from headrace.support.limits import check_slots
from headrace.testing.typed_rows import Rows

OWN_ARGUMENTS = ("idle", "tables")  # of `epoch`, which takes sources by name
Query = Stream | Sequence[Stream]


@dataclass(frozen=True)
class EpochStep:
    """An epoch with these tuples."""

    sources: Mapping[str, Rows]
    idle: Sequence[str]
    tables: Mapping[str, Rows]

    @property
    def text(self) -> str:
        given = [f"{name}: {_count(rows)}" for name, rows in self.sources.items()]
        given += [f"idle {', '.join(self.idle)}"] if self.idle else []
        given += [f"table {name}" for name in self.tables]
        return f"epoch({'; '.join(given)})"


@dataclass(frozen=True)
class RestartStep:
    """The run is closed, and opened again on its state."""

    slots: int | None
    query: Query | None

    @property
    def text(self) -> str:
        given = [] if self.slots is None else [f"slots={self.slots}"]
        given += [] if self.query is None else ["a changed query"]
        return f"restart({', '.join(given)})"


@dataclass(frozen=True)
class EndStep:
    """The end of the input."""

    text = "end()"


PlayStep = EpochStep | RestartStep | EndStep


def _count(rows: Rows) -> str:
    try:
        number = len(rows)
    except TypeError:  # no rows: the player says so
        return "?"
    return "1 tuple" if number == 1 else f"{number} tuples"


def epoch(*, idle: Sequence[str] = (), tables: Mapping[str, Rows] | None = None, **sources: Rows) -> EpochStep:
    """Return a step of a play: one epoch with tuples by source.

    Args:
        idle: names of sources that have been silent for too long by this epoch.
        tables: by name, the rows that a table has from this epoch on: a new version. None: no table changes.
        **sources: tuples by the name of their source. A tuple is its time, in seconds since 1970-01-01T00:00Z or as a
            datetime, then its columns; or a dict by column with `ts` in it, where a column left out is null. A
            `pyarrow.Table` works too. A source left out has no tuples in this epoch.

    Returns:
        The step.

    Raises:
        QueryTypeError: `idle` is no list, or `tables` no dict.

    Examples:
        >>> hr.testing.epoch(calls=[(1, "a"), (9, "a")], idle=["orders"]).text
        'epoch(calls: 2 tuples; idle orders)'
    """
    if isinstance(idle, str) or not isinstance(idle, Sequence) or not all(isinstance(name, str) for name in idle):
        raise QueryTypeError(f"idle must be a list of names of sources, such as ['a']; found {describe_argument(idle)}")
    if not isinstance(tables or {}, Mapping):
        raise QueryTypeError(
            f"tables must be a dict of rows by name, such as {{'t': [(1,)]}}; found {describe_argument(tables)}"
        )
    return EpochStep(sources, idle, tables or {})


def restart(slots: int | None = None, query: Query | None = None) -> RestartStep:
    """Return a step of a play: the run is closed, and opened again on its state.

    Args:
        slots: the number of slots from now on. None: as before.
        query: a changed query. It follows the rules of every restart: `QueryChanged` where it cannot continue with the
            state. None: the same query.

    Returns:
        The step.

    Raises:
        QueryError: the number of slots is out of range.

    Examples:
        >>> hr.testing.restart(slots=3).text
        'restart(slots=3)'
    """
    return RestartStep(None if slots is None else check_slots(slots), query)


def end() -> EndStep:
    """Return the last step of a play: the input ends, so all windows close and all waiting results are released.

    Returns:
        The step.

    Examples:
        >>> hr.testing.end().text
        'end()'
    """
    return EndStep()


def check_steps(steps: Sequence[PlayStep]) -> list[PlayStep]:
    """Return the steps of a play; raise if one is no step, or comes after the end."""
    if isinstance(steps, PlayStep):
        raise QueryTypeError(
            f"steps must be a list of epoch(...), restart(...) and end(); found one step, {steps.text}; put it into a list:"
            " play(query, [...])"
        )
    if not isinstance(steps, Sequence):
        raise QueryTypeError(
            f"steps must be a list of epoch(...), restart(...) and end(); found {describe_argument(steps)}"
        )
    for number, step in enumerate(steps):
        if not isinstance(step, PlayStep):
            raise QueryTypeError(
                f"step {number} must be epoch(...), restart(...) or end(); found {describe_argument(step)}"
            )
        if number and isinstance(steps[number - 1], EndStep):
            raise QueryError(
                f"step {number}, {step.text}, comes after end(); the input has ended, so remove one of them"
            )
    return list(steps)
