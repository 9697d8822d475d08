"""Java that starts fast, for tests: they start a hundred virtual machines that live for seconds.

Half of the processor time of such a machine goes into compiling what it will not run often, and half of the rest into
loading the same classes of Spark again. So it compiles only once, and takes classes from an archive where there is one:

    python -m tests.jvm        makes the archive; make test does so before the tests, once for an environment

Nothing depends on it: a machine that finds no archive, or one that does not fit, loads its classes itself, without a word.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
ARCHIVE = ROOT / "build" / "spark.jsa"
SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"

# what every run touches in Spark
WORK = """
import headrace as hr
from pyspark import SparkContext

spark = hr.session(slots=2)
spark.range(9).selectExpr("timestamp_seconds(id) ts", "id").write.parquet("in")
counted = hr.files(spark, "in", time="ts").aggregate(by=["id"], window="2 seconds", n="count(*)")
counted.start(hr.sinks.memory(), checkpoint="ck", once=True, show=False).wait(600)
machine = SparkContext._gateway.proc
spark.stop()
machine.stdin.close()  # it ends, and writes the archive
machine.wait(600)
"""


def options() -> str:
    """For a machine that lives for seconds."""
    return f'{SHORT} {SILENT} -XX:SharedArchiveFile="{ARCHIVE}"' if ARCHIVE.exists() else SHORT


def use() -> None:
    """From now on, for sessions of this process and of those that it starts; what the user has set stays."""
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", _arguments(options()))


def _arguments(given: str) -> str:
    return f"--conf 'spark.driver.defaultJavaOptions={given}' pyspark-shell"


def make() -> None:
    ARCHIVE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        made = Path(folder) / ARCHIVE.name
        given = f'{SHORT} {SILENT} -XX:ArchiveClassesAtExit="{made}"'
        env = {**os.environ, "PYSPARK_SUBMIT_ARGS": _arguments(given)}
        subprocess.run([sys.executable, "-c", WORK], cwd=folder, env=env, check=True, timeout=900)
        made.rename(ARCHIVE)


if __name__ == "__main__":
    make()
