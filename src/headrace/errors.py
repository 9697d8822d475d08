"""Every error headrace raises on purpose.

One root, so that `except HeadraceError` is enough; an error about what the user wrote is a `ValueError` (or
`TypeError`) as well. A message says what is wrong, what was found, what was expected and what to do.
"""

from __future__ import annotations

from headrace.support.terminal_text import printable


class HeadraceError(Exception):
    """Root of all errors of headrace. Its text can be shown: names and data in it cannot act on a terminal."""

    def __str__(self) -> str:
        return printable(super().__str__(), lines=True)


class QueryError(HeadraceError, ValueError):
    """A query that cannot mean anything; found when it is built."""


class QueryTypeError(QueryError, TypeError):
    """A value of the wrong kind was handed to the API, or two types do not fit together."""


class NoSuchVerb(QueryError, AttributeError):
    """Something was asked of a stream that was split which only a stream can do; the message says what to write."""


class ExpressionError(QueryError):
    """An expression that is refused, or that does not fit the stream it is written for."""


class DataError(HeadraceError, ValueError):
    """An expression failed on a tuple (a cast, an overflow), or the user's own code did; names it and the tuple or times."""


class ProcessorError(HeadraceError, AssertionError):
    """A processor whose answer depends on more than its tuples and its tables; names the smallest case that was found."""


class SourceError(HeadraceError):
    """A source delivered something that the query cannot take: another schema, an unreadable file."""


class SourceAway(SourceError):
    """What a source holds cannot be had now, or is no longer what it was when it was looked at; a new look will tell."""


class SinkError(HeadraceError):
    """A sink refused the results of an epoch, or a part of them. The state is safe; the message says what was committed."""


class MissingLibrary(HeadraceError, ImportError):
    """A source or a sink needs a library that is not installed; the message says how to install it."""


class MissingSecret(HeadraceError, LookupError):
    """A secret is to be read from an environment variable that is not set; names the variable and the process that looked."""


class DeploymentError(HeadraceError, ValueError):
    """A deployment descriptor that cannot be meant: an unknown key, a wrong value, a file that is not there."""


class WorkloadError(HeadraceError, ValueError):
    """A made-up stream that cannot be made as described, or cannot be written where it should be."""


class EngineError(HeadraceError):
    """Spark, or a task on it, cannot do what the run needs."""


class DamagedCache(EngineError):
    """What a machine kept of a table is not what was written there. It is removed, and its epoch is run again."""


class StateError(HeadraceError):
    """The state folder cannot be used as it is."""


class CorruptState(StateError):
    """A stored file is not what its manifest says it is. Nothing is computed from it."""


class WriterConflict(StateError):
    """Another run owns this state folder, or took it over."""


class StateMismatch(StateError):
    """State folder and Spark checkpoint (or query) do not belong together, or one is behind the other."""


class QueryChanged(StateMismatch):
    """The state was written by another query; the message lists what changed."""
