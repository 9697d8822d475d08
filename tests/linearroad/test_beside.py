"""The competitor is right too, or its speed would say nothing."""

from __future__ import annotations

import pickle
from collections import defaultdict
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from headrace_linearroad.beside.spark_job import CARS, OUTPUTS
from headrace_linearroad.beside.spark_processors import ASKED, COLUMNS, Accounts, OneValue, Roads, event
from headrace_linearroad.forms import FIELDS
from headrace_linearroad.generating import Settings
from headrace_linearroad.generating.writing import Job, write
from tests.linearroad import plain


@pytest.mark.parametrize("epoch", [7, 60])
@pytest.mark.thorough
def test_its_processors_give_the_plain_answer(tmp_path: Path, epoch: int) -> None:
    write(Settings(1.5, density=60, seed=3), tmp_path / "road", Job(0, 200))
    files = sorted((tmp_path / "road").glob("*.arrow"))
    tuples = pa.concat_tables([pa.ipc.open_file(file).read_all() for file in files]).select(list(FIELDS)).to_pandas()
    expected = plain.answers(tuples.to_dict("records"), "official")
    got = answers_of_spark(tuples, epoch)
    for name in OUTPUTS:
        assert expected[name], name
        assert sorted(got[name]) == sorted(expected[name]), name


def answers_of_spark(tuples: pd.DataFrame, epoch: int) -> dict[str, list[tuple[int, ...]]]:
    """As Spark would call them: key by key, what is kept pickled in between."""
    roads, accounts, kept = Roads(), Accounts(), dict[tuple[type, int], bytes]()
    got = defaultdict(list)
    for _, some in tuples.groupby(tuples.time // epoch):
        reports = some[some.type == 0]
        told = [
            each
            for key, rows in reports.groupby(reports.xway * 2 + reports.dir)
            for each in call(roads, kept, key, rows)
        ]
        asked = some[some.type == 2]
        told += [event(ASKED, *each[:2], qid=each[2]) for each in asked[["vid", "time", "qid"]].to_numpy().tolist()]
        events = pd.DataFrame(told, columns=COLUMNS)
        for key, rows in events.groupby(events.vid % CARS):
            for each in call(accounts, kept, key, rows):
                for name, (what, columns) in OUTPUTS.items():
                    if each[0] == what:
                        got[name].append(tuple(each[COLUMNS.index(column)] for column in columns))
    return got


def call(
    processor: OneValue, kept: dict[tuple[type, int], bytes], key: int, rows: pd.DataFrame
) -> list[tuple[int, ...]]:
    mine = (type(processor), key)
    state = pickle.loads(kept[mine]) if mine in kept else processor.begin(key)
    told = processor.told(state, rows)
    kept[mine] = pickle.dumps(state)
    return told
