"""`headrace split profile` as a program of its own, on Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.types import TS_TYPE
from tests.patience import PATIENCE

pytestmark = pytest.mark.spark

QUERY = """
import headrace as hr

def odd(table):  # a function of the file itself, which workers cannot import
    return table["x"].to_numpy() % 4

def query(spark):
    stream = hr.files(spark, "in", time="ts", name="numbers")
    return {returned}
"""


def profile(folder: Path, returned: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "in").mkdir()
    ts = pa.array(np.arange(2_000) * 1_000, TS_TYPE)
    pq.write_table(pa.table({"ts": ts, "x": np.arange(2_000)}), folder / "in" / "0.parquet")
    (folder / "odd.py").write_text(QUERY.format(returned=returned))
    arguments = [sys.executable, "-m", "headrace", "split", "profile", "odd.py", "--rate", "1e6", *options]
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.long
def test_splitters_run_side_by_side_beside_the_model(tmp_path: Path) -> None:
    query = "stream.split(4, route=odd, broadcast='x < 20').each(lambda s: s.filter('x > 5'))"
    done = profile(tmp_path, query, "--window", "8000", "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [each["p"] for each in found["ran"]] == [1, 2]
    assert found["split"]["q"] == 4 and found["split"]["b"] == pytest.approx(0.01)
    assert found["sample"]["tuples"] == 2_000 and found["W"] == 8_000
