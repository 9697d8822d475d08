"""What differs between Spark 4.0 and 4.3: the only module that asks which Spark this is.

Whatever else the engine uses of Spark, all of them have: `make test SPARK=4.0` and its like try it.
"""

from __future__ import annotations

import re
import socket

import pyarrow as pa
import pyspark
from pyspark.sql.types import StructType

from headrace.errors import EngineError

Version = tuple[int, int]

OLDEST: Version = (4, 0)
WITH_SOCKETS: Version = (4, 1)  # the first that can speak to its Python workers through Unix domain sockets
SOCKETS = "spark.python.unix.domain.socket.enabled"
SOCKET_FOLDER = "spark.python.unix.domain.socket.dir"
ZONES: Version = (4, 2)  # the first that is told the time zone of a schema; before it, that is UTC


def version_of(text: str) -> Version:
    """
    >>> version_of("4.0.1"), version_of("4.10.0.dev3")
    ((4, 0), (4, 10))
    """
    found = re.match(r"(\d+)\.(\d+)", text)
    if found is None:
        raise EngineError(
            f"this pyspark calls its version {text!r}, which headrace cannot read; install pyspark 4.0 to 4.3"
        )
    return int(found[1]), int(found[2])


def supported_version(text: str) -> Version:
    """Which Spark this is; one that is too old is refused before something that it lacks is missed."""
    version = version_of(text)
    if version < OLDEST:
        raise EngineError(
            f"headrace runs on Spark 4.0 to 4.3; found pyspark {text}; install a newer one: pip install 'pyspark>=4.0,<4.4'"
        )
    return version


VERSION = supported_version(pyspark.__version__)


def has_sockets(version: Version = VERSION) -> bool:
    """Whether Spark can speak to its Python workers through Unix domain sockets; before 4.1 there is only TCP."""
    return version >= WITH_SOCKETS and hasattr(socket, "AF_UNIX")


def arrow_schema(schema: StructType) -> pa.Schema:
    """A schema of Spark as Arrow's, its times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    zone = {} if VERSION < ZONES else {"timezone": "UTC"}
    return to_arrow_schema(schema, **zone)
