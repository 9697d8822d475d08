"""Another user of the same machine: a real account without rights, in which a test, run by the superuser, tries to do harm."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HOW = "only the superuser can become another user; run the tests as root, for instance in a container"

# modules first: the other user may not be able to read where Python is installed
BECOME = """
import errno, fcntl, hashlib, json, os, pickle, signal, socket, stat, struct, sys, time, encodings.idna
os.setgroups([])
os.setresgid({gid}, {gid}, {gid})
os.setresuid({uid}, {uid}, {uid})
os.umask(0)
"""


class AnotherUser:
    def __init__(self) -> None:
        found = pwd.getpwnam("nobody")
        self.uid, self.gid = found.pw_uid, found.pw_gid

    def start(self, code: str, *arguments: Any) -> subprocess.Popen[str]:
        """A process of this user; what is wrong with the code itself is seen on the test's own output."""
        become = BECOME.format(uid=self.uid, gid=self.gid)
        command = [sys.executable, "-c", become + code, *map(str, arguments)]
        return subprocess.Popen(command, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)

    def run(self, code: str, *arguments: Any) -> str:
        """What the code printed."""
        process = self.start(code, *arguments)
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
        return said


@contextmanager
def reachable_folder() -> Iterator[Path]:
    """A folder that every user can reach and read, as a test's own temporary folder is not."""
    folder = Path(tempfile.mkdtemp(prefix="h", dir="/tmp"))  # short: it will hold sockets
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)


def may_be() -> bool:
    return os.geteuid() == 0
