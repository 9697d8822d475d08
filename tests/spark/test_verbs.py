"""The verbs for columns and nested values on Spark, as the manual shows them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.difference import difference
from tests.helpers import SECOND, add_file

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.spark


def test_the_example_of_the_manual(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    section = (ROOT / "docs" / "USING.md").read_text().partition("\n### Lists, maps and structs")[2]
    (block,) = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "USING.md", "exec"), {"__name__": "__main__"})
    shown = capsys.readouterr().out
    assert "'item': 'milk'" in shown and re.search(r"'item': 'tea'.*Decimal\('7'\)", shown)


def test_a_run_with_names_and_unnest(spark: Any, tmp_path: Path) -> None:
    times = pa.array([second * SECOND for second in range(6)], pa.timestamp("us", "UTC"))
    rows = pa.table({"ts": times, "k": [1, 2] * 3, "v": [[1, 2], [], None, [None], [3], [4, 5, 6]]})
    folder = tmp_path / "in"
    add_file(folder, 1, rows)
    s = hr.files(spark, folder, time="ts", name="s")
    each = s.unnest("v", outer=True, index="i").with_columns(w="v * 2").rename({"k": "key"})
    joined = s.drop("v").join(s.drop("v"), using="k", within="2 seconds")
    sinks = [hr.sinks.memory(), hr.sinks.memory()]
    queries = [each.named("elements"), joined.named("pairs")]
    run = hr.start(list(zip(queries, sinks, strict=True)), checkpoint=tmp_path / "ckpt", once=True, epoch="0 seconds")
    run.wait()
    for query, sink in zip(queries, sinks, strict=True):
        assert difference(hr.reference(query), sink.table()) is None
        assert difference(hr.reference(query), query.collect(slots=2)) is None
    assert run.progress.results == {"elements": 9, "pairs": sinks[1].table().num_rows}
