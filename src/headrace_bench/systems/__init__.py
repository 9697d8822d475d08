"""The compared systems, and how the process of each is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace_bench.systems import flink

STORES = "org.apache.spark.sql.execution.streaming.state."
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true"}
SOCKETS = {"spark.python.unix.domain.socket.enabled": "true"}  # as in headrace; faster than Spark's default
NEWEST = {"spark.sql.streaming.join.stateFormatVersion": "4"}  # the newest format that Spark 4.3 supports


@dataclass(frozen=True)
class System:
    """One contender. Contenders of a family are variants of one product, which is ranked by its best variant."""

    name: str
    family: str
    module: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)  # added to the task

    def command(self, task: Path, heap: str) -> tuple[list[str], dict[str, str]]:
        """Return the command to run and its environment."""
        if self.family == "Flink":
            return flink.command(task), flink.environment(heap)
        return [sys.executable, "-m", f"headrace_bench.systems.{self.module}", str(task)], dict(os.environ)

    @property
    def reads_one_file(self) -> bool:
        """Return whether the system needs one file per stream. Flink reads the files of a folder in any order."""
        return self.family == "Flink"


def _spark(name: str, store: str, settings: Mapping[str, str], **options: Any) -> System:
    chosen = {PROVIDER: f"{STORES}{store}StateStoreProvider", **settings}
    return System(name, "Spark", "spark_job", {"spark": chosen, **options})


def strategy(name: str) -> System:
    """Return headrace under a strategy, with counts per epoch. Each is a separate family, because strategies are
    ranked.
    """
    return System(name, name, "headrace_job", {"strategy": name, "count": True})


def under(name: str, policy: Mapping[str, Any]) -> System:
    """Return headrace with another policy. It is a separate family, because it is ranked against the default."""
    return System(name, name, "headrace_job", {"policy": dict(policy)})


HEADRACE = System("headrace", "headrace", "headrace_job")
HEADRACE_ONE_SPLITTER = System("headrace, one splitter", "headrace", "headrace_job", {"splitters": 1})
HEADRACE_CHAIN = System("headrace, chain of two joins", "headrace, chain", "headrace_job", {"chain": True})
HEADRACE_STATE = System("headrace", "headrace", "state_job")
HEADRACE_STATIC = under("headrace, static table", {"elastic": "off", "hot": False})
SPARK = _spark("Spark, default store", "HDFSBacked", {})
SPARK_ROCKSDB = _spark("Spark, RocksDB", "RocksDB", ROCKSDB)
SPARK_NEWEST = _spark("Spark, default store, join format 4", "HDFSBacked", NEWEST)
SPARK_ROCKSDB_NEWEST = _spark("Spark, RocksDB, join format 4", "RocksDB", ROCKSDB | NEWEST)
SPARK_PANDAS = _spark("Spark, transformWithStateInPandas", "RocksDB", ROCKSDB | SOCKETS, rows_as="pandas")
SPARK_ROWS = _spark("Spark, transformWithState (rows)", "RocksDB", ROCKSDB | SOCKETS, rows_as="rows")
# rows per batch for Spark's Python workers; the default is 10,000
BATCHES = {"spark.sql.execution.arrow.maxRecordsPerBatch": "65536"}
SPLITTING = {**SOCKETS, **BATCHES}
SPARK_SPLIT = System("Spark", "Spark", "spark_split", {"spark": SPLITTING, "in_sequence": False})
SPARK_IN_SEQUENCE = System("Spark, sorted", "Spark", "spark_split", {"spark": SPLITTING, "in_sequence": True})
FLINK = System("Flink", "Flink", options={"checkpoint_ms": 30_000, "follow": ""})
