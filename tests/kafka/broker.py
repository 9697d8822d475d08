"""The jars of a real Kafka broker, fetched by Maven: `python -m tests.kafka.broker` puts them into build/kafka/libs.

    build/kafka/libs            what pom.xml names, and all that it needs
    build/kafka/broker.jsa      classes that a broker loads, for a fast start

What a broker is, and how it is started, stopped and killed, is in `headrace_demo.broker`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from headrace_demo.broker import ARCHIVE, Broker, jars, make_archive

ROOT = Path(__file__).parents[2]
POM = Path(__file__).parent / "pom.xml"
LIBS = ROOT / "build" / "kafka" / "libs"
HOW = "there are no jars of a Kafka broker here: make setup fetches them with Maven, and installs that where it may (root, with apt-get); Debian: apt-get install maven"

__all__ = ["HOW", "Broker", "found"]


def found() -> Path | None:
    """The folder with the jars."""
    return jars(LIBS)


def install() -> None:
    """If there are none, and there is Maven, or this is root on Debian."""
    if found() is None and _has_maven():
        _fetch()
    there = found()
    if there is None:
        print(HOW, file=sys.stderr)
    elif there == LIBS and not (LIBS.parent / ARCHIVE).exists():
        make_archive(LIBS)


def _has_maven() -> bool:
    if shutil.which("mvn") is None and os.getuid() == 0 and shutil.which("apt-get") is not None:
        quiet = ["apt-get", "-qq", "-o", "Dpkg::Options::=--force-confold"]
        _run([*quiet, "update"])
        _run([*quiet, "install", "-y", "--no-install-recommends", "maven"])
    return shutil.which("mvn") is not None


def _fetch() -> None:
    """All or nothing: the folder gets its name when all jars are in it."""
    LIBS.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=LIBS.parent) as folder:
        shutil.copy(POM, folder)
        libs = Path(folder) / "libs"
        if _run(["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={libs}"], folder):
            shutil.rmtree(LIBS, ignore_errors=True)
            libs.rename(LIBS)


def _run(command: list[str], folder: str = "/") -> bool:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        print(f"{' '.join(command)} failed", file=sys.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    install()
