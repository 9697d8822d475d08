"""`headrace split profile` as a program of its own; the options that it prints are those of `headrace run`."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.columnar.types import TS_TYPE
from tests.patience import PATIENCE

pytestmark = pytest.mark.spark

QUERY = """
import headrace as hr

def odd(table):  # a function of the file itself, which workers cannot import
    return table["x"].to_numpy() % 4

def query(spark):
    stream = hr.files(spark, "in", time="ts", name="numbers")
    return stream.split(4, route=odd, broadcast="x < 20").each(lambda s: s.filter("x > 5"))
"""


def headrace(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.long
def test_the_options_that_are_printed_can_be_passed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    ts = pa.array(np.arange(2_000) * 1_000, TS_TYPE)
    pq.write_table(pa.table({"ts": ts, "x": np.arange(2_000)}), tmp_path / "in" / "0.parquet")
    (tmp_path / "odd.py").write_text(QUERY)
    found = headrace(tmp_path, "split", "profile", "odd.py", "--rate", "100")
    assert found.returncode == 0, found.stderr
    assert "2,000 tuples" in found.stdout and "99.00% to one substream, 1.00% to all of 4" in found.stdout
    program, *arguments = shlex.split(found.stdout.splitlines()[-2])
    assert program == "headrace" and arguments[:2] == ["run", "odd.py"]
    assert arguments[2:] == ["--splitters", "1", "--physical-window", "1MiB"]
    done = headrace(tmp_path, *arguments, "--out", "out", "--once", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["tuples_in"] == 2_000
