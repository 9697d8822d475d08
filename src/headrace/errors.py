"""The exceptions that headrace raises.

All have the root `HeadraceError`. An error in what the user wrote is also a `ValueError` or `TypeError`. A message says
what is wrong, what was found, what was expected and what to do.
"""

from __future__ import annotations

from headrace.support.terminal_text import printable


class HeadraceError(Exception):
    """The root of all errors of headrace. Its text can be shown: names and data in it cannot act on a terminal.

    Examples:
        >>> calls = hr.testing.source("calls", {"caller": "string"})
        >>> try:
        ...     calls.filter("number = 1")
        ... except hr.HeadraceError as error:
        ...     print(error)
        filter = 'number = 1' names an unknown column 'number'; there are ts, caller
    """

    def __str__(self) -> str:
        return printable(super().__str__(), lines=True)


class QueryError(HeadraceError, ValueError):
    """A query that has no meaning, or an option that is invalid. It is raised when the query is built. Also a
    `ValueError`.

    Examples:
        >>> hr.testing.source("calls", {"caller": "string"}).limit(0)
        Traceback (most recent call last):
            ...
        headrace.errors.QueryError: n must be at least 1; found 0
    """


class QueryTypeError(QueryError, TypeError):
    """A value of the wrong type was given to a function, or two types do not fit together. Also a `TypeError`.

    Examples:
        >>> hr.testing.source("calls", {"caller": "string"}).limit("10")
        Traceback (most recent call last):
            ...
        headrace.errors.QueryTypeError: n must be a whole number of tuples; found '10'
    """


class NoSuchVerb(QueryError, AttributeError):
    """A call on a split stream that only an ordinary stream supports. The message says what to write instead."""


class ExpressionError(QueryError):
    """An expression that is not valid, or that does not fit the stream that it is written for.

    Examples:
        >>> hr.testing.source("calls", {"caller": "string"}).filter("number = 1")
        Traceback (most recent call last):
            ...
        headrace.errors.ExpressionError: filter = 'number = 1' names an unknown column 'number'; there are ...
    """


class DataError(HeadraceError, ValueError):
    """An expression failed on a tuple (a cast, an overflow), or the user's own code failed. The message names the
    expression and the tuple, or the processor and the times of its tuples. Also a `ValueError`.

    Examples:
        >>> table = pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC")), "x": ["one"]})
        >>> hr.reference(hr.testing.table_stream(table).map(n="CAST(x AS INT)"))
        Traceback (most recent call last):
            ...
        headrace.errors.DataError: 'CAST(x AS INT)' failed on (ts=1970-01-01 00:00:00.000001+00, x=one): ...
    """


class ProcessorError(HeadraceError, AssertionError):
    """A processor whose answer depends on more than its tuples and its tables. The message shows the smallest case that
    was found. `headrace.testing.check_processor` raises it. Also an `AssertionError`.

    Examples:
        >>> class Counter(hr.Processor):
        ...     schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
        ...     n = 0
        ...
        ...     def process(self, tuples, state):
        ...         self.n += tuples.num_rows  # lost at a restart
        ...         return pa.table({"ts": tuples["ts"][-1:], "n": [self.n]})
        >>> table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC"))})
        >>> hr.testing.check_processor(Counter(), table)
        Traceback (most recent call last):
            ...
        headrace.errors.ProcessorError: Counter: process writes to self.n; what is kept there between calls ...
    """


class SourceError(HeadraceError):
    """A source delivered something that the query cannot use, such as other columns or an unreadable file.

    Examples:
        >>> calls = hr.testing.source("calls", {"caller": "string"})
        >>> hr.reference(calls, epochs=[pa.table({"x": [1]})])
        Traceback (most recent call last):
            ...
        headrace.errors.SourceError: the schema of calls changed: it has x, the query was built for ts, caller
    """


class SourceAway(SourceError):
    """A source that is unreachable, or whose content changed since it was listed. Reading it again may succeed."""


class SinkError(HeadraceError):
    """A sink refused the results of an epoch, or a part of them. The state is safe; the message says what was committed.

    Examples:
        >>> from pathlib import Path
        >>> def refuse(table, epoch):
        ...     raise OSError("disk full")
        >>> table = pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC"))})
        >>> hr.testing.run_locally(hr.testing.table_stream(table), Path("state"), sink=hr.sinks.foreach(refuse))
        Traceback (most recent call last):
            ...
        headrace.errors.SinkError: the sink of result-0 failed in epoch 0: OSError: disk full; the state is ...
    """


class MissingLibrary(HeadraceError, ImportError):
    """A source or a sink needs a library that is not installed. The message says how to install it. Also an `ImportError`.

    Examples:
        >>> try:
        ...     sink = hr.sinks.delta("spent/")
        ... except hr.MissingLibrary as error:
        ...     print(error)
    """


class MissingSecret(HeadraceError, LookupError):
    """A secret is to be read from an environment variable that is not set. The message names the variable and the process
    that looked for it. Also a `LookupError`.

    Examples:
        >>> hr.secret("NO_SUCH_VARIABLE").value
        Traceback (most recent call last):
            ...
        headrace.errors.MissingSecret: secret('NO_SUCH_VARIABLE') cannot be read: the environment variable ...
    """


class DeploymentError(HeadraceError, ValueError):
    """A deployment descriptor that has no meaning: an unknown key, a wrong value, or a file that does not exist. Also a
    `ValueError`.

    Examples:
        >>> from headrace.deployment import read_descriptor
        >>> read_descriptor("cluster.toml")
        Traceback (most recent call last):
            ...
        headrace.errors.DeploymentError: the deployment descriptor 'cluster.toml' cannot be read: No such ...
    """


class WorkloadError(HeadraceError, ValueError):
    """A synthetic stream that cannot be made as described, or cannot be written to the given place. Also a `ValueError`.

    Examples:
        >>> from headrace_demo.workloads.writing import check_name
        >>> check_name("-calls")
        Traceback (most recent call last):
            ...
        headrace.errors.WorkloadError: the name of a stream must begin with a letter or digit, followed by letters, ...
    """


class EngineError(HeadraceError):
    """Spark, or a task on it, cannot do what the run needs.

    Examples:
        >>> try:
        ...     ended = run.wait(timeout=0.1)
        ... except hr.EngineError as error:
        ...     print(error)
    """


class DamagedCache(EngineError):
    """A damaged local cache of a state table. The cache is deleted and its epoch runs again."""


class StateError(HeadraceError):
    """The state folder cannot be used as it is. The root of the errors about stored state.

    Examples:
        >>> hr.read_state("no-such-folder/", "apply-1", "seen")
        Traceback (most recent call last):
            ...
        headrace.errors.StateError: there is no plan.json in 'no-such-folder'; give the checkpoint of a run ...
    """


class CorruptState(StateError):
    """A stored file does not have the content that its manifest names. Nothing is computed from it.

    Examples:
        >>> from pathlib import Path
        >>> calls = hr.testing.source("calls", {"caller": "string"})
        >>> run = hr.testing.LocalRun(calls, Path("state"))
        >>> run.end()
        >>> run.close()
        >>> for file in Path("state").rglob("*.json"):
        ...     written = file.write_text("{}")
        >>> hr.testing.LocalRun(calls, Path("state"))
        Traceback (most recent call last):
            ...
        headrace.errors.CorruptState: manifest manifests/000000000.json cannot be trusted: its format is ...
    """


class WriterConflict(StateError):
    """Another run owns this state folder, or has taken it over.

    Examples:
        >>> from pathlib import Path
        >>> calls = hr.testing.source("calls", {"caller": "string"})
        >>> first = hr.testing.LocalRun(calls, Path("state"))
        >>> hr.testing.LocalRun(calls, Path("state"))
        Traceback (most recent call last):
            ...
        headrace.errors.WriterConflict: ... is in use by process ...
        >>> first.close()
    """


class StateMismatch(StateError):
    """The state folder does not belong to Spark's checkpoint or to the query, or one of them is behind the other.

    Examples:
        >>> from pathlib import Path
        >>> table = pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC"))})
        >>> calls = hr.testing.table_stream(table)
        >>> hr.testing.run_locally(calls, Path("state")).num_rows
        1
        >>> hr.testing.run_locally(calls, Path("state"))  # the input of this state has ended
        Traceback (most recent call last):
            ...
        headrace.errors.StateMismatch: the checkpoint is closed because its bounded input has been processed; use ...
    """


class QueryChanged(StateMismatch):
    """The state was written by another query. The message lists what changed.

    Examples:
        >>> calls = hr.testing.source("calls", {"caller": "string"})
        >>> first = calls.distinct(by=["caller"], within="10 seconds")
        >>> longer = calls.distinct(by=["caller"], within="20 seconds")
        >>> hr.testing.play(first, [hr.testing.epoch(calls=[(1, "ann")]), hr.testing.restart(query=longer)])
        Traceback (most recent call last):
            ...
        headrace.errors.QueryChanged: the state belongs to another query:
          lost: distinct-1: within was 10000000, is 20000000
        ...
    """
