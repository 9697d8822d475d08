"""A private PostgreSQL server on this machine, of whatever version is installed, for tests and benchmarks.

PostgreSQL refuses to run as root, so root runs it as another user. It can be stopped, killed and started again with the
same port and data.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

PASSWORD = "p@ss:w/rd-7913"  # noqa: S105  # noqa: S105  contains characters that must be escaped in a URL
IN_URL = "p%40ss%3Aw%2Frd-7913"
USER = "anna"


def programs() -> Path | None:
    """Return the folder that contains initdb."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).resolve().parent if on_path else None


class Server:
    def __init__(self) -> None:
        found = programs()
        assert found is not None
        self.programs = found
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
        self.data, self.port = self.folder / "data", _free_port()
        (self.folder / "password").write_text(PASSWORD)
        if os.getuid() == 0:
            owner = pwd.getpwnam(next(name for name in ("postgres", "nobody") if _is_user(name)))
            for path in (self.folder, self.folder / "password"):
                os.chown(path, owner.pw_uid, owner.pw_gid)
            self.prefix = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
        else:
            self.prefix = []
        how = ["-U", USER, "-A", "scram-sha-256", f"--pwfile={self.folder / 'password'}", "--no-sync", "-E", "UTF8"]
        self._run("initdb", "-D", str(self.data), *how)
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://{USER}:{IN_URL}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": self.folder, "port": self.port}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self._run(
            "pg_ctl", "-D", str(self.data), "-w", "-t", "300", "-l", str(self.folder / "log"), "-o", options, "start"
        )

    def stop(self, how: str = "fast") -> None:
        """Stop the server. `how`: fast, or immediate, which is equivalent to a kill."""
        self._run("pg_ctl", "-D", str(self.data), "-w", "-t", "300", "-m", how, "stop")

    def remove(self) -> None:
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self.prefix, str(self.programs / program), *arguments]
        with open(self.folder / "output", "a") as output:
            done = subprocess.run(  # noqa: S603
                command, cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
            )
        assert done.returncode == 0, f"{program}: {(self.folder / 'output').read_text()[-2000:]}"


def _is_user(name: str) -> bool:
    try:
        return bool(pwd.getpwnam(name))
    except KeyError:
        return False


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
