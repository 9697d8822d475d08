"""The differences between Spark 4.0 and 4.3. This is the only module that checks Spark's version.

All other features of Spark that the engine uses exist in every supported version; `make test SPARK=4.0` and similar
targets test them.
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
WITH_SOCKETS: Version = (4, 1)  # first version that can connect to Python workers through Unix domain sockets
SOCKETS = "spark.python.unix.domain.socket.enabled"
SOCKET_FOLDER = "spark.python.unix.domain.socket.dir"
ZONES: Version = (4, 2)  # first version that takes the time zone of a schema as an argument; older versions use UTC


def version_of(text: str) -> Version:
    """
    >>> version_of("4.0.1"), version_of("4.10.0.dev3")
    ((4, 0), (4, 10))
    """
    found = re.match(r"(\d+)\.(\d+)", text)
    if found is None:
        raise EngineError(f"pyspark has the version {text!r}, which headrace cannot parse; install pyspark 4.0 to 4.3")
    return int(found[1]), int(found[2])


def supported_version(text: str) -> Version:
    """Return the version of Spark. Raise if it is too old."""
    version = version_of(text)
    if version < OLDEST:
        raise EngineError(
            f"headrace runs on Spark 4.0 to 4.3; found pyspark {text}; install a newer one: pip install 'pyspark>=4.0,<4.4'"
        )
    return version


VERSION = supported_version(pyspark.__version__)


def has_sockets(version: Version = VERSION) -> bool:
    """Return whether Spark can connect to Python workers through Unix domain sockets. Before 4.1 there is only TCP."""
    return version >= WITH_SOCKETS and hasattr(socket, "AF_UNIX")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a Spark schema as an Arrow schema, with times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    zone = {} if VERSION < ZONES else {"timezone": "UTC"}
    return to_arrow_schema(schema, **zone)
