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
    """A keyed table of one substream, as a processor sees it."""

    def get(self, keys: pa.Table) -> pa.Table:
        """One row per key asked for, in that order: key columns as asked, the others null where there is no row."""

    def has(self, keys: pa.Table) -> pa.BooleanArray: ...

    def put(self, rows: pa.Table) -> None:
        """Insert or replace; a key twice in one call is an error. A null in a key is a value."""

    def delete(self, keys: pa.Table) -> None:
        """Keys that are not there are no error."""

    def rows(self) -> pa.Table:
        """All rows in order of the key, nulls last."""

    def due(self, time: dt.datetime) -> pa.Table:
        """The rows whose `due` is not after a time, in order of (due, key)."""

    def __len__(self) -> int: ...

    def numbers(self, keys: pa.Table | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """The row number of each key, which holds until it is deleted; where there is no row one is made: zeros and nulls."""

    @property
    def columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """Columns of numbers, booleans and times by row number, to be read and written in place.

        `numbers` and `put` may move the table: take columns again after them, and let go of the earlier ones. `touched`
        raises an error while one from before is held, used or not.
        """

    def touched(self, rows: npt.NDArray[Any]) -> None:
        """These rows were written through `columns`."""


State = Mapping[str, ProcessorTable]
Put: TypeAlias = pa.Table | Mapping[str, pa.Table] | None


class Processor:
    """Runs on every substream of a split, with state of its own in each. Derive from it.

    schema    of what it puts out, `ts` in it; or outputs = {name: schema}: `apply` then gives a dict of streams
    tables    its state: {name: StateTable(...)}; may be left out
    every     a duration: `tick` is called for each multiple of it; may be left out
    version   raise it when the code means something else
    """

    schema: pa.Schema | None = None
    if not TYPE_CHECKING:  # a type checker must see which classes have several outputs: `SeveralOutputs`
        outputs: Mapping[str, pa.Schema] | None = None
    tables: Mapping[str, StateTable] = {}
    every: Duration | None = None
    version: int = 1

    def open(self, substream: int, substreams: int) -> None:
        """Once per copy and process, before its first call; what it derives may be kept on `self`."""

    def process(self, tuples: pa.Table, state: State) -> Put:
        """What these tuples give: they follow each other in sequence, and tuples of one `ts` come together."""
        raise NotImplementedError

    def tick(self, time: dt.datetime, state: State) -> Put:
        """After all tuples before a multiple of `every`, before any other."""

    def end(self, time: dt.datetime, state: State) -> Put:
        """Once, at the end of the input; `time` is the last `ts` of the whole stream that was split."""


class SeveralOutputs(Protocol):
    """For type checkers: a processor whose class has `outputs`, so that `apply` gives a dict of streams."""

    @property
    def outputs(self) -> Mapping[str, pa.Schema]: ...

    def process(self, tuples: pa.Table, state: State) -> Put: ...


@dataclass(frozen=True, init=False)
class StateTable:
    """A keyed table: its columns, which of them are the key, and a column of times to look rows up by."""

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
        """The columns behind the key."""
        return tuple(name for name in self.columns.names if name not in self.key)

    def describe(self) -> dict[str, Any]:
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
    """Secrets are read from attributes of the instance alone."""
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
