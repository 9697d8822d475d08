"""Tables beside streams on Spark: as the manual says it, read again while a run goes on, and after a kill."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.difference import difference
from headrace.errors import QueryError, QueryTypeError
from headrace.reference import reference
from tests.helpers import wait_until, write_whole

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
FILES, ROWS = 10, 60
PATIENCE = 300.0  # seconds


def zones(version: int, rows: int = 12) -> pa.Table:
    r = np.random.default_rng(version)
    x, y = r.random(rows) * 10, r.random(rows) * 10
    return pa.table(
        {
            "x0": x,
            "x1": x + 3,
            "y0": y,
            "y1": y + 3,
            "zone": pa.array(range(rows), pa.int64()),
            "version": pa.array([version] * rows, pa.int64()),
        }
    )


def points(number: int) -> pa.Table:
    r = np.random.default_rng(1000 + number)
    ts = np.sort(r.integers(number * 1_000_000, (number + 1) * 1_000_000, ROWS))
    columns = {"x": r.random(ROWS) * 10, "y": r.random(ROWS) * 10, "zone": r.integers(0, 12, ROWS)}
    return pa.table({"ts": pa.array(ts, pa.timestamp("us", "UTC")), **columns})


def queries(spark: Any, folder: Path, **given: Any) -> dict[str, hr.Stream]:
    """A box around a point, and the zones that a window has; both keep what meets none."""
    seen = hr.files(spark, folder / "in", time="ts", files_per_epoch=1, name="points")
    table = hr.table(folder / "zones", name="zones", **given)
    inside = seen.join(table, on="l.x between r.x0 and r.x1 and l.y between r.y0 and r.y1", how="left")
    counted = seen.aggregate(by=["zone"], window="1 second", n="count(*)").join(table, on="l.zone = r.zone", how="left")
    return {"inside": inside, "counted": counted}


def start(spark: Any, folder: Path, **given: Any) -> Any:
    found = queries(spark, folder, **given)
    results = [(query, hr.sinks.parquet(folder / name)) for name, query in found.items()]
    return hr.start(results, checkpoint=folder / "checkpoint", epoch="0 seconds", show=False)


def until(run: Any, files: int) -> None:
    wait_until(run, lambda progress: progress.tuples_in >= files * ROWS)


def versions_of(folder: Path) -> list[int]:
    """The version that the results of each epoch have; one alone."""
    found = []
    for path in sorted((folder / "inside").glob("*.parquet")):
        seen = set(pq.read_table(path)["version"].drop_null().to_pylist())
        assert len(seen) == 1, path
        found.append(seen.pop())
    return found


def check(spark: Any, folder: Path, used: list[int]) -> None:
    """All results of all epochs, by the reference with the versions that they used."""
    arrived = [points(number) for number in range(len(used))]
    for name, query in queries(spark, folder).items():
        found = pq.read_table(folder / name)
        expected = reference(query, epochs=arrived, versions=[zones(number) for number in used], end=False)
        assert expected.num_rows > 20
        assert difference(expected, found.cast(expected.schema)) is None


@pytest.mark.smoke
def test_a_table_that_is_read_again(spark: Any, tmp_path: Path) -> None:
    write_whole(tmp_path / "in" / "000.parquet", points(0))
    write_whole(tmp_path / "zones" / "all.parquet", zones(0))
    with start(spark, tmp_path) as run:
        until(run, 1)
        write_whole(tmp_path / "zones" / "all.parquet", zones(1))
        assert run.refresh("zones") == 2
        write_whole(tmp_path / "in" / "001.parquet", points(1))
        until(run, 2)
        (tmp_path / "zones").rename(tmp_path / "elsewhere")
        assert run.refresh("zones") == 2
        assert "cannot be listed" in str(run.progress.versions["zones"].trouble)
        write_whole(tmp_path / "in" / "002.parquet", points(2))
        until(run, 3)
        with pytest.raises(QueryError, match="there is no table 'zone' in this run; there is zones"):
            run.refresh("zone")
    (tmp_path / "elsewhere").rename(tmp_path / "zones")
    write_whole(tmp_path / "zones" / "all.parquet", zones(2))
    with start(spark, tmp_path, refresh="0.2 seconds") as run:
        write_whole(tmp_path / "in" / "003.parquet", points(3))
        until(run, 4)
        assert run.progress.versions["zones"].version == 3
        write_whole(tmp_path / "zones" / "all.parquet", zones(3))
        wait_until(run, lambda progress: progress.versions["zones"].version != 3)
        write_whole(tmp_path / "in" / "004.parquet", points(4))
        until(run, 5)
    assert versions_of(tmp_path) == [0, 1, 1, 2, 3]
    check(spark, tmp_path, [0, 1, 1, 2, 3])
    with pytest.raises(QueryError, match="this run has ended"):
        run.refresh("zones")


@pytest.mark.smoke
def test_killed_and_started_with_another_table(spark: Any, tmp_path: Path) -> None:
    for number in range(FILES // 2):
        write_whole(tmp_path / "in" / f"{number:03d}.parquet", points(number))
    write_whole(tmp_path / "zones" / "all.parquet", zones(0))
    log = (tmp_path / "log.txt").open("w")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-c", f"from tests.spark import test_tables as t; t.program({str(tmp_path)!r})"],
        stderr=log,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while len(list((tmp_path / "inside").glob("*.parquet"))) < 3:
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log.txt").read_text()[-2000:]
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)
        log.close()
    write_whole(tmp_path / "zones" / "all.parquet", zones(1))
    for number in range(FILES // 2, FILES):
        write_whole(tmp_path / "in" / f"{number:03d}.parquet", points(number))
    with start(spark, tmp_path) as run:
        until(run, FILES)
    used = versions_of(tmp_path)
    assert len(used) == FILES and used == sorted(used) and 3 <= used.count(0) <= FILES // 2
    assert run.progress.versions["zones"].version == 2
    check(spark, tmp_path, used)


def program(folder: str) -> None:
    """What is killed."""
    run = start(hr.session(slots=2), Path(folder))
    until(run, FILES)
    time.sleep(PATIENCE)


@pytest.mark.smoke
def test_any_source_of_a_table(spark: Any, tmp_path: Path) -> None:
    write_whole(tmp_path / "in" / "000.parquet", points(0))
    seen = hr.files(spark, tmp_path / "in", time="ts", name="points")
    df = spark.createDataFrame(zones(0))
    for source in (df, lambda: df.filter("zone < 5")):
        query = seen.join(hr.table(source, name="zones"), on="l.zone = r.zone and l.x < r.x1")
        assert difference(reference(query), query.collect()) is None
    assert "table zones (x0 double, " in query.explain() and "of the function <lambda>" in query.explain()
    with pytest.raises(QueryError, match="a DataFrame keeps the list of files that it was made with"):
        hr.table(df, refresh="1 minute")
    with pytest.raises(QueryTypeError, match=r"found a streaming DataFrame; use headrace\.stream"):
        hr.table(spark.readStream.format("rate").load())


def test_the_example_in_the_manual(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    section = (ROOT / "docs" / "USING.md").read_text().partition("\n## Tables")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(block, "USING.md", "exec"), names)
    found = sorted((row["car"], row["zone"] or "") for row in names["found"].collect().to_pylist())
    assert found == [("a", "harbour"), ("b", "harbour"), ("b", "park"), ("c", "")]
    assert "harbour" in capsys.readouterr().out
