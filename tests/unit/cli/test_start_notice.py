"""What a command says before the first epoch of a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr
from headrace import testing
from headrace.cli.start_notice import start_notice
from headrace.telemetry.progress import EpochSummary, Progress

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.string())])


def notice(folder: Path, **progress: Any) -> list[str]:
    (folder / "in").mkdir(exist_ok=True)
    for number in range(2):
        pq.write_table(SCHEMA.empty_table(), folder / "in" / f"{number}.parquet")
    orders = hr.files(None, folder / "in", time="ts", name="orders")  # type: ignore[arg-type]
    zones = testing.table("zones", {"k": "string"})
    joined = orders.union(testing.source("held", {"k": "string"})).join(zones, on="l.k = r.k")
    run: Any = SimpleNamespace(slots=4, progress=Progress(**progress))
    return start_notice(run, [(joined, hr.sinks.memory())], "q.py", folder / "q.checkpoint").splitlines()


def test_a_new_run_names_its_sources_results_slots_and_checkpoint(tmp_path: Path) -> None:
    found = notice(tmp_path)
    size = sum(path.stat().st_size for path in (tmp_path / "in").iterdir())
    assert found == [
        "running q.py",
        f"  source      orders: 2 files, {size} B, in {tmp_path / 'in'}",
        "  source      held: a static DataFrame",
        "  table       zones: an Arrow table",
        "  result      result-0 to memory()",
        "  slots       4",
        f"  checkpoint  {tmp_path / 'q.checkpoint'}, new",
        "the first epoch is slower than later ones: it starts Spark's workers and compiles loops",
    ]


def test_a_result_has_the_name_that_the_query_gives_it(tmp_path: Path) -> None:
    orders = testing.source("orders", {"k": "string"})
    results = [(orders, hr.sinks.memory()), (orders.filter("k = 'a'").named("alarms"), hr.sinks.memory())]
    run: Any = SimpleNamespace(slots=4, progress=Progress())
    found = start_notice(run, results, "q.py", tmp_path / "q.checkpoint").splitlines()
    assert found[2:4] == ["  result      result-0 to memory()", "  result      alarms to memory()"]


def test_a_run_that_continues_says_after_which_epoch(tmp_path: Path) -> None:
    assert notice(tmp_path, epoch=6, tuples_in=12_000)[-2].endswith(
        "q.checkpoint, continues after epoch 6: 12,000 tuples in so far"
    )


def test_a_closed_checkpoint_has_no_first_epoch(tmp_path: Path) -> None:
    *_, last = notice(tmp_path, epoch=6, tuples_in=12_000, closed=True)
    assert last.endswith("q.checkpoint, closed after epoch 6: 12,000 tuples in so far")


def test_an_epoch_that_was_quicker_than_the_notice_is_named(tmp_path: Path) -> None:
    last = EpochSummary(0, 0.1, 5, 0, 0, 0, {}, {}, 0.0)
    assert notice(tmp_path, epoch=0, tuples_in=5, last=last)[-2].endswith("q.checkpoint, at epoch 0")
