"""headrace with many keys in state, stopped and restarted: `python -m headrace_bench.systems.state_job task.json`.

The bytes written by an epoch are those of the new files in the checkpoint, of any kind. Files stay for some epochs, so
none is missed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import headrace as hr
from headrace.telemetry.epoch_record import EpochRecord
from headrace_bench.systems import jobs
from headrace_bench.systems.headrace_processors import CountInPlace

POLL = 0.005


class Written:
    """Counts the bytes of new files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: set[str] = set()

    def more(self) -> int:
        total = 0
        for folder, _, names in os.walk(self.folder):
            for path in (f"{folder}/{name}" for name in names):
                if path not in self.known:
                    with contextlib.suppress(FileNotFoundError):
                        total += os.stat(path).st_size  # noqa: PTH116
                        self.known.add(path)
        return total


def told(record: EpochRecord, written: int) -> dict[str, float]:
    """Return the figures of an epoch. found, built, read: tables in memory, tables from blocks and the seconds for
    these, if reported.
    """
    uses = list(getattr(record, "table_use", {}).values())
    return {
        "epoch": record.epoch,
        "tuples": sum(source.delivered for source in record.sources.values()),
        "milliseconds": 1000 * (record.seconds or 0.0),
        "written": written,
        "found": sum(use.found for use in uses),
        "built": sum(sum(use.built.values()) for use in uses),
        "read": sum(use.seconds for use in uses),
    }


def through(spark: SparkSession, task: dict[str, Any], written: Written, until: int) -> list[dict[str, float]]:
    """Run until `until` tuples are in. Return its epochs."""
    stream = hr.files(spark, Path(task["source"]) / task["side"], time="ts", files_per_epoch=1, name=task["side"])
    query = stream.split(task["substreams"], by=["key"]).apply(CountInPlace())
    work, epochs = Path(task["work"]), list[dict[str, float]]()
    sink, checkpoint = hr.sinks.parquet(work / "out"), work / "checkpoint"
    with query.start(sink, checkpoint=checkpoint, epoch="0 seconds", slots=task["cores"], show=False) as run:
        run.listen(lambda record: None if record.repeated else epochs.append(told(record, written.more())))
        while run.progress.tuples_in < until:
            if not run.active:
                run.wait(0)
            time.sleep(POLL)
    return epochs


def main(path: str) -> None:
    task = jobs.load(path)
    with jobs.errors(task):
        spark = hr.session(slots=task["cores"])
        jobs.about(task, {"headrace": hr.__version__, "spark": spark.version}, {"slots": task["cores"]})
        written = Written(Path(task["work"]) / "checkpoint")
        first = through(spark, task, written, task["first"])
        for later in sorted(Path(task["later"]).iterdir()):
            later.rename(Path(task["source"]) / task["side"] / later.name)
        again = through(spark, task, written, task["tuples"])
        (Path(task["work"]) / "epochs.json").write_text(json.dumps({"first": first, "again": again}))
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
