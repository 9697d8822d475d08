"""A real PostgreSQL server for tests, of whatever version is installed; `python -m tests.sinks.postgres` installs one.

What a server is, and how it is started, stopped and killed, is in `headrace_demo.postgres`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from headrace_demo.postgres import IN_URL, PASSWORD, Server, programs

HOW = "there is no PostgreSQL server here: make setup installs one where it may (root, with apt-get); Debian: apt-get install postgresql"

__all__ = ["HOW", "IN_URL", "PASSWORD", "Server", "programs"]


def install() -> None:
    """If there is none, and this is root on Debian; without a server that starts by itself."""
    if programs() is not None:
        return
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        print(HOW, file=sys.stderr)
        return
    settings = Path("/etc/postgresql-common/createcluster.conf")
    settings.parent.mkdir(exist_ok=True)
    if not settings.exists():
        settings.write_text("create_main_cluster = false\n")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    quiet = ["apt-get", "-qq", "-o", "Dpkg::Options::=--force-confold"]
    for command in ([*quiet, "update"], [*quiet, "install", "-y", "--no-install-recommends", "postgresql"]):
        done = subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            print(f"{' '.join(command)} failed; {HOW}", file=sys.stderr)
            return


if __name__ == "__main__":
    install()
