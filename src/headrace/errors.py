"""The exceptions that headrace raises.

All have the root `HeadraceError`. An error in what the user wrote is also a `ValueError` or `TypeError`. A message says
what is wrong, what was found, what was expected and what to do.
"""

from __future__ import annotations

from headrace.support.terminal_text import printable


class HeadraceError(Exception):
    """Root of all errors of headrace. Control characters in its text are made visible, so it is safe to print."""

    def __str__(self) -> str:
        return printable(super().__str__(), lines=True)


class QueryError(HeadraceError, ValueError):
    """An invalid query or argument. It is raised when the query is built."""


class QueryTypeError(QueryError, TypeError):
    """A value of the wrong type, or two types that do not fit together."""


class NoSuchVerb(QueryError, AttributeError):
    """A call on a split stream that only an ordinary stream supports. The message says what to write instead."""


class ExpressionError(QueryError):
    """An expression that is not allowed, or that does not fit the columns of its stream."""


class DataError(HeadraceError, ValueError):
    """An expression (a cast, an overflow) or user code that failed on a tuple. The message names it and the tuple or
    times.
    """


class ProcessorError(HeadraceError, AssertionError):
    """A processor whose results depend on more than its tuples and tables. The message has the smallest case found."""


class SourceError(HeadraceError):
    """A source that delivers something the query cannot read, such as another schema or an unreadable file."""


class SourceAway(SourceError):
    """A source that is unreachable, or whose content changed since it was listed. Reading it again may succeed."""


class SinkError(HeadraceError):
    """A sink that failed to write results. The state is safe; the message says what was committed."""


class MissingLibrary(HeadraceError, ImportError):
    """A source or sink that needs a library which is not installed. The message says how to install it."""


class MissingSecret(HeadraceError, LookupError):
    """A secret whose environment variable is not set. The message names the variable and the process that read it."""


class DeploymentError(HeadraceError, ValueError):
    """An invalid deployment descriptor: an unknown key, a wrong value, or a missing file."""


class WorkloadError(HeadraceError, ValueError):
    """A synthetic stream whose description is invalid, or whose destination cannot be written."""


class EngineError(HeadraceError):
    """A failure of Spark, or of a task on it."""


class DamagedCache(EngineError):
    """A damaged local cache of a state table. The cache is deleted and its epoch runs again."""


class StateError(HeadraceError):
    """A state folder that cannot be used in its present condition."""


class CorruptState(StateError):
    """A stored file whose content differs from what its manifest records. The run stops before it uses the file."""


class WriterConflict(StateError):
    """A state folder that another run owns or has taken over."""


class StateMismatch(StateError):
    """A state folder that does not belong to the Spark checkpoint or the query, or that is behind or ahead of the
    checkpoint.
    """


class QueryChanged(StateMismatch):
    """State that was written by another query. The message lists the differences."""
