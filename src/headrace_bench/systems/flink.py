"""Flink's own virtual environment, created on first use.

HEADRACE_FLINK_VENV names another folder for it. The Parquet format comes from Maven Central, and the Hadoop classes
that it needs from the jars that pyspark contains.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from headrace.errors import HeadraceError

VERSION = "2.3"
PARQUET = "flink-sql-parquet"
MAVEN = "https://repo1.maven.org/maven2/org/apache/flink"
Say = Callable[[str], object]


def home() -> Path:
    """Return the folder of the virtual environment."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("HEADRACE_FLINK_VENV") or cache / "headrace" / f"flink-{VERSION}")


def python() -> Path:
    return home() / "bin" / "python"


def jar_folder() -> Path:
    return home() / "headrace-jars"


def prepare(say: Say) -> str:
    """Install what is missing. Return the installed version."""
    if not python().exists():
        say(f"Flink {VERSION}: making its virtual environment in {home()} (once)")
        _run([sys.executable, "-m", "venv", str(home())])
    if not _installed():
        say(f"Flink {VERSION}: installing apache-flink=={VERSION}.* from PyPI (some 500 MB, once)")
        _run([str(python()), "-m", "pip", "install", "--quiet", f"apache-flink=={VERSION}.*"])
    version = _installed()
    if not list(jar_folder().glob(f"{PARQUET}-{version}.jar")):
        say(f"Flink {VERSION}: getting {PARQUET} {version} from Maven Central (once)")
        _get_jar(version)
    return version


def _installed() -> str:
    ask = "from importlib.metadata import version; print(version('apache-flink'))"
    found = subprocess.run([str(python()), "-c", ask], capture_output=True, text=True)  # noqa: S603
    return found.stdout.strip()


def _get_jar(version: str) -> None:
    jar_folder().mkdir(exist_ok=True)
    if shutil.which("mvn"):
        artifact = f"-Dartifact=org.apache.flink:{PARQUET}:{version}"
        _run(["mvn", "-q", "-B", "dependency:copy", artifact, f"-DoutputDirectory={jar_folder()}"])
        return
    name = f"{PARQUET}-{version}.jar"
    ask = f"import urllib.request as u; u.urlretrieve({f'{MAVEN}/{PARQUET}/{version}/{name}'!r}, {str(jar_folder() / name)!r})"
    _run([sys.executable, "-c", ask])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-3:]
        msg = (
            f"Flink could not be set up: {' '.join(command[:4])} ...: {' '.join(said)}; use --no-flink to leave it out"
        )
        raise HeadraceError(msg)


def command(task: Path) -> list[str]:
    return [str(python()), str(Path(__file__).with_name("flink_job.py")), str(task)]


def environment(heap: str) -> dict[str, str]:
    import pyspark

    hadoop = Path(pyspark.__file__).parent.glob("jars/hadoop-client-*.jar")
    jars = [*jar_folder().glob("*.jar"), *hadoop]
    others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {
        **others,
        "HADOOP_CLASSPATH": os.pathsep.join(map(str, jars)),
        "JVM_ARGS": f"-Xmx{heap} -XX:+ExitOnOutOfMemoryError",
    }
