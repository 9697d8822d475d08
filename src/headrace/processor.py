"""A query of the user's own: what a processor and its tables must say of themselves before anything runs.

    class Counter(Processor):
        schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("user", pa.string()), ("n", pa.int64())])
        tables = {"seen": StateTable(key=["user"], columns=pa.schema([("user", pa.string()), ("n", pa.int64())]))}

        def process(self, tuples, state): ...

Invariant: a `Declaration` is complete and checked when the query is built, so that everything else (reference, engine,
state on disk) reads it and never asks the class again. Attributes set on the instance are settings; state is what the
tables hold, and nothing else. What a declaration holds of settings is without their secrets (`headrace.support.secrets`).
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar.types import RESERVED, TS, TS_TYPE, check_names, describe_schema, plain_type
from headrace.errors import QueryError, QueryTypeError
from headrace.support.argument_errors import argument_kind, describe_argument
from headrace.support.durations import Duration, format_duration, parse_duration
from headrace.support.secrets import Secret, holds_secret, mask_secrets

ONLY = ""  # the name of the output of a processor that has one
DECLARED = ("schema", "outputs", "tables", "every", "version")


class ProcessorTable(Protocol):
    """A state table of one substream, as `process`, `tick` and `end` get it: `state["seen"]`.

    Keys and rows are Arrow tables. A null in a key is a value. In the examples of its methods, `seen` is a table with
    the key `user`, the columns `n` and `until`, and `until` as its `due` column; it has rows for ann and bob.

    Examples:
        >>> class FirstCalls(hr.Processor):
        ...     schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("user", pa.string())])
        ...     tables = {"seen": hr.StateTable(key=["user"], columns=pa.schema([("user", pa.string())]))}
        ...
        ...     def process(self, tuples, state):
        ...         first = tuples.group_by("user").aggregate([("ts", "min")]).rename_columns(["user", "ts"])
        ...         known = state["seen"].has(first.select(["user"])).to_pylist()
        ...         new = first.filter(pa.array([not each for each in known], pa.bool_()))
        ...         state["seen"].put(new.select(["user"]))
        ...         return new.select(["ts", "user"])
        >>> calls = hr.testing.source("calls", {"user": "string"})
        >>> first = calls.split(4, by=["user"]).apply(FirstCalls())
        >>> steps = hr.testing.play(first, [hr.testing.epoch(calls=[(1, "ann"), (2, "ann")]), hr.testing.end()])
        >>> sum(step.results.num_rows for step in steps)
        1
    """

    def get(self, keys: pa.Table) -> pa.Table:
        """Return one row for each key, in the order of the keys. Where the table has no row, the other columns are
        null.

        Args:
            keys: a table with the key columns; other columns are ignored.

        Returns:
            A table with all columns of the state table.

        Raises:
            DataError: a key column is missing or has another type.

        Examples:
            >>> seen.get(pa.table({"user": ["bob", "eve"]}))["n"].to_pylist()
            [1, None]
        """

    def has(self, keys: pa.Table) -> pa.BooleanArray:
        """Return for each key whether the table has a row.

        Args:
            keys: a table with the key columns; other columns are ignored.

        Returns:
            An array of booleans in the order of the keys.

        Raises:
            DataError: a key column is missing or has another type.

        Examples:
            >>> seen.has(pa.table({"user": ["bob", "eve"]})).to_pylist()
            [True, False]
        """

    def put(self, rows: pa.Table) -> None:
        """Insert rows, or replace the rows with the same keys.

        Args:
            rows: a table with all columns of the state table.

        Raises:
            DataError: a key appears twice, or a column is missing or has another type.

        Examples:
            >>> row = seen.get(pa.table({"user": ["eve"]}))
            >>> seen.put(row.set_column(1, "n", pa.array([7])))
            >>> len(seen)
            3
        """

    def delete(self, keys: pa.Table) -> None:
        """Delete rows. A key without a row is no error.

        Args:
            keys: a table with the key columns; other columns are ignored.

        Raises:
            DataError: a key column is missing or has another type.

        Examples:
            >>> seen.delete(pa.table({"user": ["bob", "eve"]}))
            >>> seen.rows()["user"].to_pylist()
            ['ann']
        """

    def rows(self) -> pa.Table:
        """Return all rows in order of the key, nulls last.

        Returns:
            A table with all columns of the state table.

        Examples:
            >>> seen.rows().select(["user", "n"]).to_pylist()
            [{'user': 'ann', 'n': 3}, {'user': 'bob', 'n': 1}]
        """

    def due(self, time: dt.datetime) -> pa.Table:
        """Return the rows whose `due` column is not after a time, in order of that column, then of the key.

        Args:
            time: a datetime with a zone, such as the argument of `tick`.

        Returns:
            A table with all columns of the state table.

        Raises:
            DataError: the table has no `due` column, or the time has no zone.

        Examples:
            >>> import datetime as dt
            >>> seen.due(dt.datetime.fromtimestamp(15, dt.UTC))["user"].to_pylist()
            ['ann']
        """

    def __len__(self) -> int: ...

    def numbers(self, keys: pa.Table | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the row number of each key, for `columns`. A key without a row gets one, with zeros and nulls.

        A row keeps its number until it is deleted, within one epoch.

        Args:
            keys: a table with the key columns, or a NumPy array if the key is one column of whole numbers.

        Returns:
            A NumPy array of whole numbers.

        Raises:
            DataError: a key column is missing or has another type.

        Examples:
            >>> rows = seen.numbers(pa.table({"user": ["ann", "bob"]}))
            >>> seen.columns["n"][rows].tolist()
            [3, 1]
        """

    @property
    def columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """The columns of numbers, booleans and times as NumPy arrays by row number, to be read and written in place.

        A null reads as 0, NaN or NaT. Key columns can only be read. Call `touched` with the rows that were written.
        `numbers` and `put` may move the table: take columns again after them and do not keep earlier ones, because
        `touched` raises an error while one of these exists.

        Examples:
            >>> rows = seen.numbers(pa.table({"user": ["ann"]}))
            >>> seen.columns["n"][rows] += 1
            >>> seen.touched(rows)
            >>> seen.get(pa.table({"user": ["ann"]}))["n"].to_pylist()
            [4]
        """

    def touched(self, rows: npt.NDArray[Any]) -> None:
        """Record that rows were written in place through `columns`. A null that still reads as a null stays null; a NaT
        becomes null.

        Args:
            rows: row numbers, as `numbers` returns them.

        Raises:
            DataError: a number belongs to no row, or columns from before the table moved still exist.

        Examples:
            >>> rows = seen.numbers(pa.table({"user": ["ann"]}))
            >>> seen.columns["n"][rows] = 0
            >>> seen.touched(rows)
        """


State = Mapping[str, ProcessorTable]
Put: TypeAlias = pa.Table | Mapping[str, pa.Table] | None


class Processor:
    """Python code that runs on every substream of a split, with separate state in each.

    Derive a class and pass an instance of it to `Substreams.apply`.

    Attributes of an instance are its settings. State is what the tables hold, and nothing else.

    Attributes:
        schema: the columns of the results, a `pyarrow.Schema` with `ts`. Give `schema` or `outputs`.
        outputs: schemas by name, for several results: `apply` then returns a dict of streams.
        tables: the state, {name: StateTable(...)}. Empty by default.
        every: a duration: `tick` is called for each multiple of it. None: `tick` is not called.
        version: raise it when the code means something else. 1 by default.

    Examples:
        >>> class LongCalls(hr.Processor):
        ...     schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("caller", pa.string())])
        ...
        ...     def __init__(self, limit):
        ...         self.limit = limit
        ...
        ...     def process(self, tuples, state):
        ...         long = pa.array([each > self.limit for each in tuples["seconds"].to_pylist()], pa.bool_())
        ...         return tuples.filter(long).select(["ts", "caller"])
        >>> calls = hr.testing.source("calls", {"caller": "string", "seconds": "int64"})
        >>> long = calls.split(4, by=["caller"]).apply(LongCalls(limit=60))
        >>> steps = hr.testing.play(long, [hr.testing.epoch(calls=[(1, "ann", 90), (2, "bob", 5)]), hr.testing.end()])
        >>> [name for step in steps for name in step.results["caller"].to_pylist()]
        ['ann']
    """

    schema: pa.Schema | None = None
    if not TYPE_CHECKING:  # a type checker must see which classes have several outputs: `SeveralOutputs`
        outputs: Mapping[str, pa.Schema] | None = None
    tables: Mapping[str, StateTable] = {}
    every: Duration | None = None
    version: int = 1

    def open(self, substream: int, substreams: int) -> None:
        """Prepare a copy of the processor. It is called once per copy and process, before any other method.

        What it derives may be kept on `self`.

        Args:
            substream: the number of the substream, from 0.
            substreams: how many substreams there are.

        Examples:
            >>> class Scaled(hr.Processor):
            ...     schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("x", pa.int64())])
            ...
            ...     def open(self, substream, substreams):
            ...         self.factor = 10 * (substream + 1)
            ...
            ...     def process(self, tuples, state):
            ...         return pa.table({"ts": tuples["ts"], "x": [self.factor * x for x in tuples["x"].to_pylist()]})
            >>> table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "x": [1, 2]})
            >>> hr.reference(hr.testing.table_stream(table).split(1, by=["x"]).apply(Scaled()))["x"].to_pylist()
            [10, 20]
        """

    def process(self, tuples: pa.Table, state: State) -> Put:
        """Return the results of the next tuples. Every processor must have this method.

        Args:
            tuples: a `pyarrow.Table`. Calls follow each other in sequence, and tuples with the same `ts` come in the
                same call.
            state: the tables of this substream by name, each a `ProcessorTable`.

        Returns:
            A `pyarrow.Table` with the columns of `schema`, or a dict of tables by the names in `outputs`; None: no
                results. The `ts` of a
            result is not before that of the tuples.

        Examples:
            >>> class Totals(hr.Processor):
            ...     schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("total", pa.int64())])
            ...
            ...     def process(self, tuples, state):
            ...         return pa.table({"ts": tuples["ts"], "total": tuples["x"]})
            >>> table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "x": [5, 6]})
            >>> hr.reference(hr.testing.table_stream(table).split(1, by=["x"]).apply(Totals()))["total"].to_pylist()
            [5, 6]
        """
        raise NotImplementedError

    def tick(self, time: dt.datetime, state: State) -> Put:
        """Return the results of a moment: a multiple of `every`. It is called after all tuples before that time and
        before all others.

        Args:
            time: the multiple of `every`, a datetime in UTC.
            state: the tables of this substream by name.

        Returns:
            As for `process`.

        Examples:
            >>> class Clock(hr.Processor):
            ...     schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("second", pa.int64())])
            ...     every = "10 seconds"
            ...
            ...     def process(self, tuples, state):
            ...         return None
            ...
            ...     def tick(self, time, state):
            ...         return pa.table({"ts": pa.array([time], self.schema.field("ts").type), "second": [time.second]})
            >>> calls = hr.testing.source("calls", {"caller": "string"})
            >>> clock = calls.split(1, by=["caller"]).apply(Clock())
            >>> [step] = hr.testing.play(clock, [hr.testing.epoch(calls=[(1, "ann"), (25, "ann")])])
            >>> step.results["second"].to_pylist()
            [10, 20]
        """

    def end(self, time: dt.datetime, state: State) -> Put:
        """Return the last results. It is called once, at the end of the input.

        Args:
            time: the last `ts` of the whole stream that was split, a datetime in UTC.
            state: the tables of this substream by name.

        Returns:
            As for `process`.

        Examples:
            >>> class Farewell(hr.Processor):
            ...     schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("said", pa.string())])
            ...
            ...     def process(self, tuples, state):
            ...         return None
            ...
            ...     def end(self, time, state):
            ...         return pa.table({"ts": pa.array([time], self.schema.field("ts").type), "said": ["goodbye"]})
            >>> calls = hr.testing.source("calls", {"caller": "string"})
            >>> ended = calls.split(1, by=["caller"]).apply(Farewell())
            >>> steps = hr.testing.play(ended, [hr.testing.epoch(calls=[(1, "ann")]), hr.testing.end()])
            >>> steps[1].results["said"].to_pylist()
            ['goodbye']
        """


class SeveralOutputs(Protocol):
    """For type checkers: a processor whose class has `outputs`, so that `apply` gives a dict of streams."""

    @property
    def outputs(self) -> Mapping[str, pa.Schema]: ...

    def process(self, tuples: pa.Table, state: State) -> Put: ...


@dataclass(frozen=True, init=False)
class StateTable:
    """The declaration of a state table of a processor: its columns, which of them are the key, and a column of times to
    find rows by.

    Attributes:
        key: the names of the key columns, at least one.
        columns: the names and types of all columns, key columns included: a `pyarrow.Schema`.
        due: the name of a column of times with a zone, for `ProcessorTable.due`. None: no such column.

    Raises:
        QueryError: a key column or the due column is not among the columns.
        QueryTypeError: a type is not supported.

    Examples:
        >>> columns = pa.schema([("user", pa.string()), ("n", pa.int64()), ("until", pa.timestamp("us", "UTC"))])
        >>> hr.StateTable(key=["user"], columns=columns, due="until").key
        ('user',)
    """

    key: tuple[str, ...]
    columns: pa.Schema
    due: str | None

    def __init__(self, key: Iterable[str], columns: pa.Schema, due: str | None = None) -> None:
        names = list(key) if isinstance(key, Iterable) and not isinstance(key, str) else [None]
        if not all(isinstance(name, str) for name in names):
            raise QueryTypeError(
                f"the key of a StateTable must be a list of columns; found {describe_argument(key)}; such as key=['user']"
            )
        object.__setattr__(self, "key", tuple(names))
        object.__setattr__(self, "columns", _columns(columns, "the columns of a StateTable"))
        object.__setattr__(self, "due", due)
        if not self.key or len(set(self.key)) != len(self.key):
            raise QueryError(f"a StateTable needs key columns, each once; found key={list(self.key)!r}")
        for name in (*self.key, *([due] if due is not None else [])):
            if name not in self.columns.names:
                known = ", ".join(self.columns.names)
                raise QueryError(f"a StateTable has no column {name!r}; its columns are {known}, key columns included")
        for name in self.key:
            if pa.types.is_nested(self.columns.field(name).type):
                raise QueryTypeError(
                    f"the key column {name!r} of a StateTable is {self.columns.field(name).type}; a key is of plain columns:"
                    " numbers, text, times; take one for each part of it"
                )
        if due is not None and self.columns.field(due).type != TS_TYPE:
            kind = self.columns.field(due).type
            raise QueryTypeError(
                f"the due column {due!r} of a StateTable must be a time with a zone; found {kind}; such as"
                " pa.timestamp('us', 'UTC')"
            )

    @property
    def values(self) -> tuple[str, ...]:
        """The names of the columns that are not in the key.

        Examples:
            >>> hr.StateTable(key=["user"], columns=pa.schema([("user", pa.string()), ("n", pa.int64())])).values
            ('n',)
        """
        return tuple(name for name in self.columns.names if name not in self.key)

    def describe(self) -> dict[str, Any]:
        """Return the declaration as plain values, as the state stores it.

        Returns:
            A dict with the key, the columns and the due column.

        Examples:
            >>> hr.StateTable(key=["user"], columns=pa.schema([("user", pa.string())])).describe()["key"]
            ['user']
        """
        return {"key": list(self.key), "columns": describe_schema(self.columns), "due": self.due}


@dataclass(frozen=True)
class Declaration:
    """What a processor says of itself, checked."""

    name: str  # of its class, for people
    path: str  # qualified: what the state belongs to
    version: int
    settings: str  # JSON, without secrets
    outputs: tuple[tuple[str, pa.Schema], ...]  # one called ONLY, or several
    tables: tuple[tuple[str, StateTable], ...]
    every: int | None  # microseconds

    @property
    def several(self) -> bool:
        return self.outputs[0][0] != ONLY

    @property
    def summary(self) -> str:
        """When it is called beside the tuples, and what it keeps; for people."""
        ticks = "" if self.every is None else f", tick every {format_duration(self.every)}"
        tables = [f"{name} by {', '.join(table.key)}" for name, table in self.tables]
        return ticks + (f", state: {'; '.join(tables)}" if tables else "")

    def describe(self) -> dict[str, Any]:
        """What state belongs to; version, settings and `every` may change and go on with it."""
        return {
            "processor": self.path,
            "outputs": [[name, describe_schema(schema)] for name, schema in self.outputs],
            "tables": {name: table.describe() for name, table in self.tables},
        }


def declared(processor: Any) -> Declaration:
    """The declaration of an instance; says what is wrong with it."""
    if isinstance(processor, type) and issubclass(processor, Processor):
        raise QueryTypeError(
            f"apply takes an instance; found the class {processor.__name__}; write {processor.__name__}()"
        )
    if not isinstance(processor, Processor):
        raise QueryTypeError(
            f"apply takes a headrace.Processor; found {describe_argument(processor)}; derive a class from it"
        )
    kind = type(processor)
    if kind.process is Processor.process:
        raise QueryError(
            f"{kind.__name__} has no process(self, tuples, state), the method that is handed the tuples; write one"
        )
    _check_methods(kind)
    _check_class(processor)
    check_version(processor.version, f"{kind.__name__}.version")
    if processor.every is None and kind.tick is not Processor.tick:
        raise QueryError(f"{kind.__name__} has a tick, but does not say how often; such as every = '60 seconds'")
    return Declaration(
        kind.__name__,
        f"{kind.__module__}.{kind.__qualname__}",
        processor.version,
        _settings(processor),
        _outputs(processor),
        _tables(processor),
        None if processor.every is None else parse_duration(processor.every, f"{kind.__name__}.every"),
    )


METHODS = {
    "open": ("substream", "substreams"),
    "process": ("tuples", "state"),
    "tick": ("time", "state"),
    "end": ("time", "state"),
}


def _check_methods(kind: type[Processor]) -> None:
    """They can be called as they will be; what cannot be looked into is left to the call."""
    for name, given in METHODS.items():
        try:
            found = inspect.signature(getattr(kind, name))
        except (TypeError, ValueError):
            continue
        bound = (None,) if inspect.isfunction(inspect.getattr_static(kind, name)) else ()  # self
        try:
            found.bind(*bound, *given)
        except TypeError:
            expected = ", ".join(("self", *given))
            raise QueryTypeError(f"{kind.__name__}.{name} must take ({expected}); found {found}") from None


def _check_class(processor: Processor) -> None:
    """Raise if a secret is set on the class: secrets are read only from attributes of the instance."""
    kind = type(processor)
    for name in dir(kind):
        if name not in vars(processor) and holds_secret(inspect.getattr_static(kind, name, None)):
            raise QueryTypeError(
                f"{kind.__name__}.{name} is a secret that is set on the class, where it is not read; set it on the instance:"
                f" self.{name} = hr.secret(...) in __init__"
            )


def _outputs(processor: Processor) -> tuple[tuple[str, pa.Schema], ...]:
    name = type(processor).__name__
    outputs = getattr(processor, "outputs", None)
    if (processor.schema is None) == (outputs is None):
        found = "neither" if processor.schema is None else "both"
        raise QueryError(f"{name} needs schema = pa.schema([...]) or outputs = {{name: schema}}; it has {found}")
    if processor.schema is not None:
        return ((ONLY, _output(processor.schema, name)),)
    if not isinstance(outputs, Mapping) or not outputs:
        raise QueryTypeError(f"{name}.outputs must be {{name: schema}}; found {describe_argument(outputs)}")
    for key in outputs:
        _check_name(key, f"an output of {name}")
    return tuple((key, _output(schema, f"{name}.outputs[{key!r}]")) for key, schema in outputs.items())


def _check_name(name: Any, what: str) -> None:
    if not isinstance(name, str) or not name.isidentifier() or name.startswith(RESERVED):
        raise QueryError(
            f"{what} must be called by a plain name: letters, digits and _, without {RESERVED} at the beginning;"
            f" found {name!r}"
        )


def _output(schema: pa.Schema, what: str) -> pa.Schema:
    checked = _columns(schema, f"the schema of {what}")
    if TS not in checked.names:
        raise QueryError(
            f"the schema of {what} has no 'ts', the event time; it has {', '.join(checked.names)}; add"
            " ('ts', pa.timestamp('us', 'UTC'))"
        )
    if not pa.types.is_timestamp(checked.field(TS).type):
        raise QueryTypeError(f"'ts' in the schema of {what} must be a timestamp; found {checked.field(TS).type}")
    return pa.schema([pa.field(TS, TS_TYPE) if f.name == TS else f for f in checked])


def _columns(schema: Any, what: str) -> pa.Schema:
    if not isinstance(schema, pa.Schema):
        raise QueryTypeError(f"{what} must be a pyarrow schema, pa.schema([...]); found {describe_argument(schema)}")
    try:
        check_names(schema.names)
        return pa.schema([pa.field(f.name, plain_type(f.type, f.name)) for f in schema])
    except QueryError as error:
        raise type(error)(f"{what}: {error}") from None


def _tables(processor: Processor) -> tuple[tuple[str, StateTable], ...]:
    name = type(processor).__name__
    if not isinstance(processor.tables, Mapping):
        raise QueryTypeError(
            f"{name}.tables must be {{name: headrace.StateTable(...)}}; found {describe_argument(processor.tables)}"
        )
    for key, table in processor.tables.items():
        _check_name(key, f"a table of {name}")
        if not isinstance(table, StateTable):
            raise QueryTypeError(
                f"{name}.tables[{key!r}] must be a headrace.StateTable; found {describe_argument(table)}"
            )
    return tuple(processor.tables.items())


def _settings(processor: Processor) -> str:
    name = type(processor).__name__
    given = {key: value for key, value in vars(processor).items() if key not in DECLARED}
    return json.dumps(mask_secrets({key: _setting(name, key, value) for key, value in given.items()}), sort_keys=True)


def _setting(name: str, key: str, value: Any) -> Any:
    """A setting as JSON has it, without secrets: they need not be of a kind that JSON has."""
    try:
        return json.loads(json.dumps(mask_secrets(value, key), sort_keys=True, default=_plain))
    except (TypeError, ValueError, RecursionError) as error:
        msg = (
            f"the attributes of {name} are its settings and must be plain values (numbers, text, lists, durations, paths);"
            f" {key}: {error}; what is derived from them belongs into open(self, substream, substreams)"
        )
        raise QueryTypeError(msg) from None


def _plain(value: Any) -> Any:
    """Values that are plain though JSON has no word for them."""
    match value:
        case dt.timedelta() | pa.Schema() | pa.DataType() | PurePath() | decimal.Decimal() | enum.Enum():
            return str(value)
        case Secret():
            return repr(value)
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case set() | frozenset():
            return sorted(value)
        case np.generic() | np.ndarray():
            return value.tolist()
    raise TypeError(f"found {_kind(value)}")


def _kind(value: Any) -> str:
    """Describe a value. A value of an unknown kind is described by its type alone, because its text may show a secret."""
    return describe_argument(value) if argument_kind(value) else f"a value of type {type(value).__name__}"


# --- which substream --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Function:
    """A vectorised function of the user's: a table of tuples to one value for each."""

    call: Callable[[pa.Table], Any] = field(compare=False, repr=False)
    name: str  # qualified
    version: int

    @property
    def summary(self) -> str:
        return self.name.rpartition(".")[2]


def check_version(version: Any, what: str = "version") -> None:
    if type(version) is not int or version < 0:
        raise QueryTypeError(f"{what} must be a whole number; found {describe_argument(version)}")


def function(call: Callable[[pa.Table], Any], version: Any) -> Function:
    check_version(version)
    module, name = getattr(call, "__module__", "?"), getattr(call, "__qualname__", type(call).__qualname__)
    return Function(call, f"{module}.{name}", version)
