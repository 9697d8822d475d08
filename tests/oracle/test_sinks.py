"""Whatever the sink, the answer is the sequential one: results written in parts by tasks, and published."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import sinks
from headrace.columnar.types import TS_TYPE
from headrace.sinks import Part, Publication
from headrace.task import outlet
from headrace.testing import LocalRun, table_stream

from .strategies import make_case
from .test_local import check, seeds


class Parts:
    """The folder of a part sink, read back; now and then what a publication began is done twice, or begun and left."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.r = folder / "out", random.Random(seed)
        self.sink: Any = sinks.parquet(self.folder, parts=True)

    def write(self, part: Part) -> Any:
        if self.r.random() < 0.3:  # an attempt that came to nothing
            self.sink.write(Part(part.query, part.epoch, part.result, f"lost-{part.name}", part.table))
        return self.sink.write(part)

    def publish(self, publication: Publication) -> None:
        for _ in range(self.r.choice([1, 1, 2])):
            self.sink.publish(publication)

    def table(self) -> pa.Table | None:
        files = sorted(self.folder.glob("[!_]*/[!_]*.parquet"))
        return pa.concat_tables(pq.ParquetFile(path).read() for path in files) if files else None


@seeds(40)
def test_any_query_into_parts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr(outlet, "MOST_TUPLES_TOGETHER", 7)  # several parts per task
    check(make_case(f"parts-{seed}"), seed, reopen=0.5, change_slots=0.3, results=lambda folder: Parts(folder, seed))


@seeds(10)
def test_ordered_parts_are_in_the_order_of_their_names(
    seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if seed % 2:
        monkeypatch.setattr(outlet, "MOST_TUPLES_TOGETHER", 7)
    r = random.Random(seed)
    times = sorted(r.randrange(60) * 10**6 for _ in range(300))
    table = pa.table({"ts": pa.array(times, TS_TYPE), "n": range(300)})
    query = table_stream(table.slice(0, 0), lateness="1 second", name="s").filter("n % 7 <> 0")
    sink = sinks.parquet(tmp_path / "out", parts=True, ordered=True)
    run = LocalRun(query, tmp_path / "state", slots=r.choice([2, 5, 12]), sink=sink, ordered=True)
    for start in range(0, 300, 100):
        run.epoch({"s": table.slice(start, 100)}, splitters=3, final=start == 200)
    run.close()
    files = sorted((tmp_path / "out").glob("[!_]*/[!_]*.parquet"))
    found = pa.concat_tables(pq.ParquetFile(path).read() for path in files)
    assert len(files) > 3 and found["ts"].to_pylist() == sorted(found["ts"].to_pylist())
    assert sorted(found["n"].to_pylist()) == [n for n in range(300) if n % 7]


def publishes_all_that_is_there(patch: pytest.MonkeyPatch) -> None:
    """Parts of attempts that came to nothing too."""
    published = sinks.ParquetParts.publish

    def all_of_it(self: Any, publication: Publication) -> None:
        for path in sorted(self.path.glob("_staging*/*.part")):
            path.rename(self.path / f"epoch-{path.name}.parquet")
        published(self, Publication(publication.query, publication.epoch, publication.result, ()))

    patch.setattr(sinks.ParquetParts, "publish", all_of_it)
    patch.setattr(Parts, "table", lambda self: pq.read_table(self.folder) if any(self.folder.glob("e*")) else None)


def forgets_the_last_receipt(patch: pytest.MonkeyPatch) -> None:
    published = sinks.ParquetParts.publish

    def fewer(self: Any, publication: Publication) -> None:
        published(
            self, Publication(publication.query, publication.epoch, publication.result, publication.receipts[:-1])
        )

    patch.setattr(sinks.ParquetParts, "publish", fewer)


@pytest.mark.parametrize("canary", [publishes_all_that_is_there, forgets_the_last_receipt])
def test_a_broken_one_is_seen(canary: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    canary(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        for seed in range(10):
            check(make_case(f"parts-{seed}"), seed, results=lambda folder, seed=seed: Parts(folder, seed))
