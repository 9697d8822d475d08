"""Histories as a run takes them: text and columns, of both kinds, in any order and number, looked up as if they were one."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import SourceError
from headrace_linearroad import history, ordering
from headrace_linearroad.forms import SEGMENT_HISTORY, SEGMENTS, TOLL_HISTORY, TOLLS
from headrace_linearroad.history import Histories
from headrace_linearroad.lookups import mapped
from headrace_linearroad.ordering import Ordering
from tests.linearroad import driving

Row = tuple[int, ...]


def prepared(tmp_path: Path, *given: Path) -> Histories:
    return history.prepared(history.files_of(given), tmp_path / "prepared")


def rows(path: Path | None) -> list[Row]:
    assert path is not None
    return list(zip(*(column.tolist() for column in mapped(str(path)).values()), strict=True))


def arrow(path: Path, given: Sequence[Row], schema: pa.Schema, batches: int = 1) -> Path:
    table = pa.table([[row[n] for row in given] for n in range(len(schema))], schema=schema)
    with pa.ipc.new_file(str(path), schema) as file:
        for batch in table.to_batches(max_chunksize=-(-max(len(given), 1) // batches)):
            file.write_batch(batch)
    return path


def small(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """No more than so many rows in memory."""
    monkeypatch.setattr(ordering, "PIECE", piece)
    monkeypatch.setattr(ordering, "STEP", 5)


def by_tolls(row: Row) -> Row:
    return row[:3]


def by_segments(row: Row) -> Row:
    day, minute, xway, dir, seg, *_ = row
    return xway, dir, seg, minute, day


TOLL_ROWS = [row for row in driving.toll_history(1, 60, 2) if 1 <= row[1] <= 69]
SEGMENT_ROWS = [row for row in driving.segment_history(1, 1)[:700] if 1 <= row[0] <= 69]


@pytest.mark.parametrize("piece", [ordering.PIECE, 30, 100])
@pytest.mark.parametrize("seed", range(3))
def test_rows_are_put_in_order_however_many_fit_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, seed: int
) -> None:
    small(monkeypatch, piece)
    random = Random(seed)
    tolls, segments = random.sample(TOLL_ROWS, len(TOLL_ROWS)), random.sample(SEGMENT_ROWS, len(SEGMENT_ROWS))
    if seed == 1:  # in order but for a few
        tolls = [*sorted(TOLL_ROWS, key=by_tolls), *TOLL_ROWS[:9]]
    cut = random.randrange(len(segments))
    found = prepared(
        tmp_path,
        driving.write_csv(tmp_path / "a", tolls[::2]),
        driving.write_csv(tmp_path / "b", segments[:cut], packed=True),
        driving.write_csv(tmp_path / "c", [*tolls[1::2], *tolls[:50]], packed=True),  # some of them twice
        driving.write_csv(tmp_path / "d", segments[cut:]),
    )
    assert rows(found.tolls) == sorted(set(TOLL_ROWS), key=by_tolls)
    assert rows(found.segments) == sorted(segments, key=by_segments)
    assert sorted(path.name for path in (tmp_path / "prepared").iterdir()) == [SEGMENTS, TOLLS]


def test_alike_rows_stay_as_they_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [(1, 1, 0, 0, seg, lav, 0, 0) for lav in range(50) for seg in (1, 0)]
    schema, by = SEGMENT_HISTORY, lambda rows: rows["seg"].astype(np.int64)
    for piece in (1000, 9):
        small(monkeypatch, piece)
        put = Ordering(tmp_path, schema, by, None)
        put.add(pa.table([[row[n] for row in given] for n in range(8)], schema=schema))
        put.write(tmp_path / f"{piece}.arrow")
        assert rows(tmp_path / f"{piece}.arrow") == sorted(given, key=lambda row: row[4])


def test_what_is_in_order_is_used_where_it_lies(tmp_path: Path) -> None:
    path = arrow(tmp_path / TOLLS, sorted(set(TOLL_ROWS), key=by_tolls), TOLL_HISTORY)
    assert prepared(tmp_path, path).tolls == path
    assert not (tmp_path / "prepared").exists()


@pytest.mark.parametrize("batches", [1, 3])
def test_columns_that_are_not_in_order_are_written_anew(tmp_path: Path, batches: int) -> None:
    """Or are wider than they need be, in several batches, or with rows that no history has."""
    wide = pa.schema([(name, pa.int64()) for name in TOLL_HISTORY.names])
    more = [(1, 0, 0, 5), (1, 70, 0, 5), (-1, 3, 0, 5), (1, 3, 2**15, 5)]
    path = arrow(tmp_path / TOLLS, [*reversed(TOLL_ROWS), *more], wide, batches)
    assert rows(prepared(tmp_path, path).tolls) == sorted(set(TOLL_ROWS), key=by_tolls)
    columns = arrow(tmp_path / "as_text", sorted(SEGMENT_ROWS, key=by_segments), SEGMENT_HISTORY, 3)
    assert rows(prepared(tmp_path, columns).segments) == sorted(SEGMENT_ROWS, key=by_segments)


def test_a_file_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    """A file of segments too, whose rows may well be alike; by any name, or within a folder."""
    path = driving.write_csv(tmp_path / "segments.csv", SEGMENT_ROWS)
    (tmp_path / "link").symlink_to(path)
    found = prepared(tmp_path, path, tmp_path / "link", tmp_path, path.parent / "." / path.name)
    assert rows(found.segments) == sorted(SEGMENT_ROWS, key=by_segments)
    assert found.tolls is None


def test_both_kinds_lie_in_one_folder(tmp_path: Path) -> None:
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "tolls.csv").write_text("7,1,0,42\n")
    (tmp_path / "history" / "segments.csv.gz").write_bytes(gzip.compress(b"1,1,0,0,0,50,60,200\n"))
    for folder in (tmp_path, tmp_path / "history"):
        found = prepared(tmp_path, folder)
        assert (rows(found.tolls), rows(found.segments)) == ([(7, 1, 0, 42)], [(1, 1, 0, 0, 0, 50, 60, 200)])


def test_two_tolls_of_one_day_are_an_error_however_far_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, 10)
    clash = (*TOLL_ROWS[0][:3], TOLL_ROWS[0][3] + 1)
    for given in ([*TOLL_ROWS, clash], [clash, *TOLL_ROWS]):
        path = driving.write_csv(tmp_path / "tolls.csv", given)
        with pytest.raises(
            SourceError, match=r"tolls.csv' has two tolls for vid 0, day 1, xway \d: \d+ and \d+; remove"
        ):
            prepared(tmp_path, path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty; leave it out"),
        (gzip.compress(b"", mtime=0), "is empty; leave it out"),
        (b"\n", "has 1 column; expected 4"),
        (b"1,2,3\n", "has 3 columns; expected 4 .tolls. or 8 .segments."),
        (b"1,2,3,4,5\n", "has 5 columns; expected 4"),
        (b"vid,day,xway,toll\n1,2,3,4\n", "has 'vid,day,xway,toll' in line 1; expected 4 whole numbers"),
        (b"1,2,3,4\n1,2,3\n", "has '1,2,3' in line 2; expected 4 whole numbers, as it is a history of tolls"),
        (b"1,2,3,4\n1,2,3,4,5\n", "has '1,2,3,4,5' in line 2"),
        (b"1,2,3,4\n1,2,3,4.5\n", "has '1,2,3,4.5' in line 2"),
        (b"1,2,3,4\n\n1,2,3,4", "has '' in line 2"),
        (gzip.compress(b"1,2,3,4\n" * 9999, mtime=0)[:-9], "cannot be read: .*ended before"),
        (b"\x1f\x8bno gzip", "cannot be read"),
        (b"ARROW1\0\0 and no more", "is damaged, or not an Arrow file"),
        (b"1,2,3," + b"9" * 17, "has a value that does not fit its column"),
    ],
)
def test_a_history_that_is_wrong_is_said_at_the_first_look_or_when_it_is_read(
    tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "tolls.csv").write_bytes(content)
    with pytest.raises(SourceError, match=words):
        prepared(tmp_path, tmp_path / "tolls.csv")


def test_files_and_folders_that_are_no_histories(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        prepared(tmp_path, tmp_path / "none.csv")
    with pytest.raises(SourceError, match=r"there is no tolls.arrow or segments.arrow in"):
        prepared(tmp_path, tmp_path)
    arrow(tmp_path / TOLLS, [(1, 2, 3, 4)], pa.schema([(name, pa.int32()) for name in ("vid", "day", "road", "toll")]))
    with pytest.raises(SourceError, match="has the columns vid, day, road, toll; expected vid, day, xway, toll"):
        prepared(tmp_path, tmp_path)


def test_a_history_without_rows_that_count_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "tolls.csv").write_text("1,0,0,5\n")
    arrow(tmp_path / SEGMENTS, [], SEGMENT_HISTORY)
    found = prepared(tmp_path, tmp_path)
    assert (rows(found.tolls), rows(found.segments)) == ([], [])
