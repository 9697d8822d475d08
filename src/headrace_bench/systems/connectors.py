"""Spark's own connectors: jars that Maven downloads on first use, because pip does not install them.

HEADRACE_CONNECTORS names another folder for them. The versions are those that work together on Spark 4.3: its connector
is the one of 4.2, with the token provider of 4.0 and the matching client.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from headrace.errors import HeadraceError

JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
    "org.postgresql:postgresql:42.7.7",
)
ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
Say = Callable[[str], object]


def home() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("HEADRACE_CONNECTORS") or cache / "headrace" / "connectors-4.2.0")


def settings() -> dict[str, str]:
    """Return settings for a session that uses the connectors."""
    found = sorted(str(jar) for jar in home().glob("*.jar"))
    return {"spark.jars": ",".join(found), "spark.driver.extraClassPath": ":".join(found)}


def prepare(say: Say) -> None:
    """Download missing jars. The folder gets its name when it is complete."""
    if len(list(home().glob("*.jar"))) == len(JARS):
        return
    if shutil.which("mvn") is None:
        raise HeadraceError(
            "Spark's connectors are downloaded with Maven, but mvn is not installed; on Debian run apt-get install maven"
        )
    say(f"Spark's connectors: getting {len(JARS)} jars from Maven Central into {home()} (once)")
    home().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home().parent) as folder:
        (Path(folder) / "pom.xml").write_text(_pom())
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}/jars"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)  # noqa: S603
        if done.returncode:
            said = " ".join((done.stdout or done.stderr).strip().splitlines()[-3:])
            raise HeadraceError(f"Spark's connectors could not be fetched: {said}")
        shutil.rmtree(home(), ignore_errors=True)
        (Path(folder) / "jars").rename(home())


def _pom() -> str:
    """Return a POM with every jar and no transitive dependencies, which Spark already has."""
    each = [dict(zip(("groupId", "artifactId", "version"), jar.split(":"), strict=True)) for jar in JARS]
    wanted = "".join(
        f"<dependency>{''.join(f'<{tag}>{text}</{tag}>' for tag, text in jar.items())}{ALONE}</dependency>"
        for jar in each
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>headrace</groupId><artifactId>connectors</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{wanted}</dependencies></project>"
    )
