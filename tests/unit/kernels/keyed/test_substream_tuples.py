"""What substreams are handed, held against plain lists."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from headrace.columnar.types import SUBSTREAM, TS_TYPE
from headrace.kernels.keyed.substream_tuples import SubstreamTuples
from headrace.routing import EVERYWHERE

COLUMNS = {
    "n": (pa.int32(), [None, -3, 0, 7]),
    "text": (pa.string(), [None, "", "a", "é"]),
    "list": (pa.list_(pa.int64()), [None, [0], [1], [1, 2]]),
}


def tuples(r: random.Random, rows: int, substreams: int, names: list[str]) -> pa.Table:
    times = pa.array([r.randint(0, 9) for _ in range(rows)], pa.int64()).cast(TS_TYPE)
    columns = {name: pa.array(r.choices(COLUMNS[name][1], k=rows), COLUMNS[name][0]) for name in names}
    numbers = [EVERYWHERE if r.random() < 0.2 else r.randrange(substreams) for _ in range(rows)]
    return pa.table({"ts": times, **columns, SUBSTREAM: pa.array(numbers, pa.int32())})


def plain(row: dict[str, Any]) -> list[Any]:
    """Values that Python orders as headrace does: nulls last, text by its bytes."""
    return [(value is None, value.encode() if isinstance(value, str) else value or 0) for value in row.values()]


@pytest.mark.parametrize("seed", range(40))
def test_each_its_own_and_those_for_all_in_sequence(seed: int) -> None:
    r = random.Random(seed)
    substreams, names = r.choice([1, 3, 30]), r.sample(list(COLUMNS), r.randint(0, 3))
    tables = [tuples(r, r.choice([0, 1, 30]), substreams, names) for _ in range(r.randint(0, 3))]
    schema = tuples(r, 0, substreams, names).schema
    before, after = r.choice([(0, 10), (2, 7), (5, 5)])
    found = SubstreamTuples(tables, schema, before, after, range(substreams))
    rows = [row for table in tables for row in table.set_column(0, "ts", table["ts"].cast(pa.int64())).to_pylist()]
    for number in range(substreams):
        mine = [row for row in rows if row[SUBSTREAM] in (number, EVERYWHERE) and before <= row["ts"] < after]
        mine = [{name: row[name] for name in ("ts", *names)} for row in mine]
        handed = found.tuples(number)
        assert handed.schema == schema.remove(schema.get_field_index(SUBSTREAM))
        seen = handed.set_column(0, "ts", handed["ts"].cast(pa.int64())).to_pylist()
        assert [plain(row) for row in seen] == sorted(map(plain, mine))
        assert found.first(number) == (seen[0]["ts"] if seen else None)
