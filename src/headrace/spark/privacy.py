"""Protection of Spark's temporary files, ports and sockets from other users of the machine.

    headrace creates the session, with a local master  =>  files and sockets are in a folder that only this user can open, and ports
                                                         listen on this machine only and require a secret
    another user could connect to the sockets        =>  no task runs: Spark unpickles what it receives from a socket, and does
                                                         not check who is connected

On a cluster, the files and ports are the responsibility of the cluster, and sockets are used only if the user names a
folder that is private on every machine. Without such a folder Spark uses TCP, with a secret.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from headrace.columnar import scratch
from headrace.errors import EngineError, HeadraceError
from headrace.spark import compat
from headrace.spark.compat import SOCKET_FOLDER, SOCKETS
from headrace.support.ownership import exposed_path, is_private

_log = logging.getLogger(__name__)

FILES, FILES_VARIABLE = "spark.local.dir", "SPARK_LOCAL_DIRS"
JAVA_VARIABLE = "SPARK_SUBMIT_OPTS"  # the user's Java settings for Spark are appended to it
ADDRESSES = ("spark.driver.host", "spark.driver.bindAddress")
ADDRESS_VARIABLES = ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME")
HERE = "127.0.0.1"

SHORT_FOLDER = Path("/tmp")  # noqa: S108  # noqa: S108  headrace creates a private folder in it
MOST_PATH_BYTES = 60  # bytes of the folder's path: the path of a socket must fit into 108 bytes
CLOSING = 0o022  # permission to write is needed to connect to a socket
INSTEAD = (
    f"create the session with headrace.session(), or set {SOCKET_FOLDER} to a folder of mode 0700"
    f" (on every machine; at most {MOST_PATH_BYTES} bytes), or {SOCKETS} to false, which is slower"
)


def private_settings(master: str, asked: Mapping[str, str]) -> dict[str, str]:
    """Return settings that protect the session, in addition to or instead of the requested ones."""
    if not master.startswith("local"):
        return _sockets(asked, None)
    # a cluster must be given its secret by the user
    of_driver = {} if master.startswith("local-cluster") else _ports(asked)
    return {**_files(asked), **of_driver, **_sockets(asked, _socket_folder())}


@contextlib.contextmanager
def private_temporary_folder() -> Iterator[None]:
    """Let a JVM that is started in this block put its libraries and temporary files into a private folder."""
    before = os.environ.get(JAVA_VARIABLE)
    os.environ[JAVA_VARIABLE] = f'"-Djava.io.tmpdir={_file_folder()}" {before or ""}'.rstrip()
    try:
        yield
    finally:
        if before is None:
            del os.environ[JAVA_VARIABLE]
        else:
            os.environ[JAVA_VARIABLE] = before


def check_driver(enabled: str, folder: str) -> None:
    """Raise if another user can connect to the sockets of this session, which a user may have created."""
    if enabled.lower() == "true":
        _check(Path(folder))


@functools.cache
def check_worker() -> None:
    """Check the sockets of this machine, in a Python worker."""
    check_driver(os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", ""), os.environ.get("PYTHON_WORKER_FACTORY_SOCK_DIR", ""))


def _check(folder: Path) -> None:
    try:
        guarded = is_private(folder) or (exposed_path(folder, shared=True) is None and _umask() & CLOSING == CLOSING)
    except OSError as error:
        msg = f"{str(folder)!r} cannot contain Spark's sockets for Python workers: {error.strerror}; {INSTEAD}"
        raise EngineError(msg) from None
    if not guarded:
        msg = (
            f"Spark's sockets for Python workers are in {str(folder)!r}, where other users of this machine can connect to them"
            f" (the umask is {_umask():03o}), and Spark does not check who connects; {INSTEAD}"
        )
        raise EngineError(msg)


def _files(asked: Mapping[str, str]) -> dict[str, str]:
    """Return the setting for the folder of exchanged tuples and shipped code. Warn if a given folder is readable by
    others.
    """
    named = os.environ.get(FILES_VARIABLE) or asked.get(FILES)
    if named is None:
        return {FILES: str(_file_folder())}
    for place in map(Path, named.split(",")):
        if place.is_dir() and not is_private(place):
            _log.warning("other users can read what Spark writes to %r; run chmod 700 %s", str(place), place)
    return {}


def _file_folder() -> Path:
    folder = scratch.own_folder() / "spark"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _ports(asked: Mapping[str, str]) -> dict[str, str]:
    """Return settings of the driver's ports. A user who could connect without a secret could run code as this user."""
    secret = {"spark.authenticate": asked.get("spark.authenticate", "true")}
    is_chosen = any(name in asked for name in ADDRESSES) or any(name in os.environ for name in ADDRESS_VARIABLES)
    return secret if is_chosen else {**secret, **dict.fromkeys(ADDRESSES, HERE)}


def _sockets(asked: Mapping[str, str], folder: Path | None) -> dict[str, str]:
    """Return settings of the sockets. folder: a private folder for them, if there is one."""
    if not compat.has_sockets() or asked.get(SOCKETS, "true").lower() != "true":
        return {}
    if SOCKET_FOLDER in asked:
        _check(Path(asked[SOCKET_FOLDER]))
        return {SOCKETS: "true"}
    if folder is not None:
        return {SOCKETS: "true", SOCKET_FOLDER: str(folder)}
    if SOCKETS in asked:
        raise EngineError(f"there is no private folder for Spark's sockets for Python workers; {INSTEAD}")
    return {SOCKETS: "false"}


def _socket_folder() -> Path | None:
    for place in (None, SHORT_FOLDER):
        with contextlib.suppress(OSError, HeadraceError):  # no folder can be created there
            folder = scratch.own_folder(place)
            if len(os.fsencode(folder)) <= MOST_PATH_BYTES and is_private(folder):
                return folder
    _log.warning(
        "Spark connects to its Python workers over TCP, which is slower, because there is no private folder for sockets"
    )
    return None


def _umask() -> int:
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("\nUmask:")[2].split(maxsplit=1)[0], 8)
    except (OSError, ValueError, IndexError):  # not Linux
        os.umask(found := os.umask(0o077))
        return found
