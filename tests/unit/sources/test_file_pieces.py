"""Physical windows: files cut into pieces, dealt to splitters, read by column; each row once, whatever the cut."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.control.splitter_count import Splitters
from headrace.difference import difference
from headrace.driver.position import Position
from headrace.errors import SourceError
from headrace.sources import file_formats, file_pieces
from headrace.sources.file_pieces import FilePiece, FileToRead, cut_file, read_pieces
from headrace.sources.files import read_head
from headrace.stream import Stream
from headrace.task.in_process import execute_locally
from headrace.task.splitters import assign_pieces, balance_sizes, read_windows
from headrace.testing import LocalRun, table_stream

SECOND = 1_000_000
TS = pa.timestamp("us", "UTC")
ENDINGS = (".parquet", ".arrow", ".feather")


def rows(count: int, r: np.random.Generator) -> pa.Table:
    """Numbers, text, lists and nulls; `n` numbers the rows."""
    words = np.array(["", "a", "äöü", "longer than the others"])
    table = {
        "ts": pa.array(r.integers(0, 100, count) * SECOND, TS),
        "n": pa.array(np.arange(count)),
        "half": pa.array(r.random(count), mask=r.random(count) < 0.3),
        "word": pa.array(words[r.integers(0, 4, count)], mask=r.random(count) < 0.2),
        "long": pa.array(words[r.integers(0, 4, count)], pa.large_string()),
        "yes": pa.array(r.random(count) < 0.5, mask=r.random(count) < 0.2),
        "list": pa.array([list(range(int(length))) for length in r.integers(0, 4, count)], pa.list_(pa.int32())),
    }
    return pa.table(table)


def write(path: Path, table: pa.Table, r: np.random.Generator | None = None, **options: Any) -> Path:
    """A file with groups of random lengths, empty ones too; or one group, if nobody throws dice."""
    bounds = [0, *(sorted(r.integers(0, table.num_rows + 1, r.integers(0, 8)).tolist()) if r else ()), table.num_rows]
    parts = [table.slice(a, b - a) for a, b in pairwise(bounds)]
    if path.suffix == ".parquet":
        with pq.ParquetWriter(path, table.schema, **options) as writer:
            for part in parts:
                writer.write_table(part, row_group_size=max(part.num_rows, 1))
        return path
    given = pa.ipc.IpcWriteOptions(**options)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, options=given) as writer:
        for part in parts:
            for batch in part.combine_chunks().to_batches():
                writer.write_batch(batch)
    return path


def taken(path: Path, source: str = "s") -> FileToRead:
    stat = path.stat()
    return FileToRead(source, path, stat.st_size, stat.st_mtime_ns)


def pieces(path: Path, most: int) -> list[FilePiece]:
    return cut_file(path, path.stat().st_size, path.stat().st_mtime_ns, most)


def read(path: Path, most: int, columns: Sequence[str] | None = None) -> list[pa.Table]:
    return list(read_pieces(path, pieces(path, most), lambda found: columns or found.names))


# --- cutting -----------------------------------------------------------------------------------------------------------


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    (".parquet", {"compression": "snappy"}),
    (".arrow", {}),
    (".feather", {"compression": "lz4"}),
    (".arrow", {"compression": "zstd"}),
]


@pytest.mark.parametrize(("ending", "options"), OPTIONS, ids=str)
def test_each_row_once_for_any_size_of_windows(tmp_path: Path, ending: str, options: dict[str, Any]):
    for seed in range(3):
        r = np.random.default_rng(seed)
        table = rows(int(r.integers(1, 400)), r)
        path = write(tmp_path / f"{seed}{ending}", table, r, **options)
        for most in (1, 100, 1_000, 10_000, 1 << 30):
            found = read(path, most)
            assert pa.concat_tables(found).equals(table), (seed, most)
            columns = r.permutation(table.column_names)[: int(r.integers(1, 7))].tolist()
            some = pa.concat_tables([part.select(columns) for part in read(path, most, columns)])
            assert some.equals(table.select(columns)), (seed, most, columns)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_small_file_is_one_piece_and_is_not_opened(tmp_path: Path, ending: str):
    path = tmp_path / f"a{ending}"
    path.write_bytes(b"no columns in here")
    assert pieces(path, 18) == [FilePiece(str(path), 18, path.stat().st_mtime_ns, 18)]
    with pytest.raises(SourceError, match=rf"cannot read .*a{ending}'.*replace the file"):
        pieces(path, 17)


def test_feather_of_version_1_is_refused_by_its_name(tmp_path: Path):
    path = tmp_path / "a.feather"
    path.write_bytes(b"FEA1" + bytes(100) + b"FEA1")
    with pytest.raises(SourceError, match=r"a\.feather'.*version 1.*only version 2, .*replace the file"):
        pieces(path, 1)


@pytest.mark.parametrize("ending", ENDINGS)
def test_pieces_are_about_as_large_as_windows(tmp_path: Path, ending: str):
    table = rows(20_000, np.random.default_rng(1))
    path = tmp_path / f"a{ending}"
    if ending == ".parquet":
        pq.write_table(table, path, row_group_size=500)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=500)
    size = path.stat().st_size
    found = pieces(path, size // 8)
    assert 8 <= len(found) <= 12
    assert all(piece.size <= size // 8 for piece in found)
    assert sum(piece.size for piece in found) == pytest.approx(size, rel=0.1)


class Sized:
    """A file of which a footer says what it likes."""

    def __init__(self, sizes: list[int]) -> None:
        self.given = sizes

    def sizes(self) -> list[int]:
        return self.given


def test_whatever_sizes_a_footer_gives_each_group_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    r = np.random.default_rng(17)
    for _ in range(300):
        sizes = r.choice([-(1 << 62), -1_000, -1, 0, 1, 50, 1_000, 1 << 62], int(r.integers(1, 9))).tolist()
        monkeypatch.setattr(file_pieces, "open_columnar", lambda _, sizes=sizes: contextlib.nullcontext(Sized(sizes)))
        found = cut_file(tmp_path / "a.parquet", 1_000, 0, int(r.integers(1, 1_000)))
        assert [0, *(piece.stop for piece in found)] == [*(piece.first for piece in found), len(sizes)], sizes
        assert all(piece.size >= 0 for piece in found), sizes


def test_the_first_rows_of_a_batch_where_two_columns_have_one_name(tmp_path: Path):
    table = pa.Table.from_arrays([pa.array(range(100)), pa.array(map(str, range(100)))], names=["a", "a"])
    assert read_head(write(tmp_path / "a.arrow", table), 9).equals(table.slice(0, 9))


@pytest.mark.parametrize("options", [{}, {"compression": "lz4"}], ids=str)
def test_a_record_batch_that_is_too_large_is_refused_with_what_to_do(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """Compressed, the file itself is smaller than the limit."""
    numbers = pa.table({f"c{place}": pa.array([place] * 1_000) for place in range(10)})
    path = write(tmp_path / "a.arrow", numbers, **options)
    monkeypatch.setattr(file_formats, "MOST_BATCH", 3 * 8_000 - 1)
    assert read(path, 1, ["c1", "c2"])[0].num_rows == 1_000
    words = r"a\.arrow': its record batch 0 takes at least 24,000 bytes .* at most 23,999 at once; .*chunksize=100_000"
    with pytest.raises(SourceError, match=words):
        read(path, 1, ["c1", "c2", "c3"])
    with pytest.raises(SourceError, match="its record batch 0 takes at least"):
        read_head(path, 100)


@pytest.mark.parametrize("ending", [".arrow", ".feather"])
def test_a_large_file_is_read_column_by_column(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch):
    r = np.random.default_rng(2)
    table = rows(2_000, r)
    path = write(tmp_path / f"a{ending}", table, r)
    monkeypatch.setattr(file_formats, "MOST_BATCH", path.stat().st_size - 1)
    assert pa.concat_tables(read(path, 1)).equals(table)
    assert pa.concat_tables(read(path, 1, ["word", "n"])).equals(table.select(["word", "n"]))
    assert read_head(path, 9).equals(table.slice(0, 9))


def test_one_giant_record_batch_is_one_piece(tmp_path: Path):
    table = rows(2_000, np.random.default_rng(2))
    words = table.set_column(3, "word", table["word"].combine_chunks().dictionary_encode())
    for name, expected in (("plain", table), ("encoded", words)):
        path = write(tmp_path / f"{name}.arrow", expected)
        assert len(pieces(path, 1_000)) == 1
        assert read(path, 1_000)[0].equals(expected)


def test_a_file_for_which_there_is_no_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "a.arrow", rows(50, np.random.default_rng(2)))

    def none_left(*_: Any) -> None:
        raise MemoryError("Unable to allocate 9 GiB")

    monkeypatch.setattr(file_formats.ArrowColumns, "read", none_left)
    with pytest.raises(SourceError, match=r"a\.arrow'.*too much memory: Unable to allocate 9 GiB; .*smaller"):
        read(path, 500)


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
def test_damage_anywhere_is_an_error_or_nothing(tmp_path: Path, ending: str):
    """Bytes changed at random: a table or a named error, and the process lives."""
    r = np.random.default_rng(16)
    good = np.frombuffer(write(tmp_path / f"a{ending}", rows(60, r)).read_bytes(), np.uint8)
    path, refused = tmp_path / f"b{ending}", 0
    for _ in range(60):
        bad = good.copy()
        bad[r.integers(0, len(bad), 3)] = r.integers(0, 256, 3)
        bad[len(bad) - r.integers(1, 300)] ^= 1 << int(r.integers(0, 8))  # footers are what is cut by
        path.write_bytes(bad.tobytes())
        try:
            read(path, 800, ["ts", "word", "list"] if ending == ".arrow" else None)
        except SourceError as error:
            assert str(path) in str(error)
            refused += 1
        except KeyError as error:  # a name was changed: the schema is checked before
            assert str(error)
    assert refused > 10


def test_one_giant_row_group_is_one_piece(tmp_path: Path):
    table = rows(5_000, np.random.default_rng(2))
    path = write(tmp_path / "a.parquet", table)
    assert len(pieces(path, 1_000)) == 1
    assert read(path, 1_000)[0].equals(table)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_without_groups_is_one_piece(tmp_path: Path, ending: str):
    schema = rows(1, np.random.default_rng(0)).schema
    path = tmp_path / f"a{ending}"
    if ending == ".parquet":
        pq.ParquetWriter(path, schema).close()
    else:
        with pa.OSFile(str(path), "wb") as sink:
            pa.ipc.new_file(sink, schema).close()
    assert len(pieces(path, 1)) == 1
    assert read(path, 1)[0].equals(schema.empty_table())


@pytest.mark.parametrize("columns", [["ts", "word"], ["ts", "n"], None])
def test_dictionaries_that_grow(tmp_path: Path, columns: list[str] | None):
    """Delta dictionaries: a later batch refers to words that came with it and to those before."""
    table = rows(300, np.random.default_rng(3)).drop_columns(["list"])
    words = pa.array([None if n % 7 == 0 else f"w{n // 20}" for n in range(300)])
    path = tmp_path / "a.arrow"
    known: list[str] = []
    parts = []
    for start in range(0, 300, 50):
        part = words.slice(start, 50)
        known += [w for w in part.unique().to_pylist() if w is not None and w not in known]
        places = pa.array([None if w is None else known.index(w) for w in part.to_pylist()], pa.int32())
        encoded = pa.DictionaryArray.from_arrays(places, pa.array(known))
        at = table.column_names.index("word")
        parts.append(table.slice(start, 50).combine_chunks().set_column(at, "word", encoded).to_batches()[0])
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, parts[0].schema, options=options) as writer:
        for batch in parts:
            writer.write_batch(batch)
    expected = table.set_column(table.column_names.index("word"), "word", words)
    names = columns or table.column_names
    for most in (1, 2_000, 1 << 30):
        plain = [
            t.set_column(t.column_names.index("word"), "word", t["word"].cast(pa.string())) if "word" in names else t
            for t in (part.select(names) for part in read(path, most, columns))
        ]
        assert pa.concat_tables(plain).equals(expected.select(names))
    assert len(pieces(path, 2_000)) > 1


def test_names_with_dots_are_columns_of_their_own(tmp_path: Path):
    structs = pa.array([{"b": 1, "c": 2}, {"b": 3, "c": 4}])
    table = pa.table({"a": structs, "a.b": [5, 6], "a.c.d": ["x", "y"], "ts": pa.array([1, 2], TS)})
    for ending in ENDINGS:
        path = write(tmp_path / f"a{ending}", table)
        for names in (["a"], ["a.b"], ["a.c.d", "ts"], ["ts", "a", "a.b"]):
            assert pa.concat_tables(read(path, 1, names)).select(names).equals(table.select(names))


def test_a_file_that_changes_after_it_was_cut(tmp_path: Path):
    for ending in ENDINGS:
        path = write(tmp_path / f"a{ending}", rows(500, np.random.default_rng(4)), np.random.default_rng(4))
        found = pieces(path, 1_000)
        write(path, rows(20, np.random.default_rng(5)))
        with pytest.raises(SourceError, match=rf"a{ending}' was changed while it was being read"):
            list(read_pieces(path, found, lambda schema: schema.names))
        size, time = path.stat().st_size, path.stat().st_mtime_ns  # as if nobody could see it
        unseen = [FilePiece(**{**asdict(piece), "bytes": size, "modified": time}) for piece in found]
        with pytest.raises(SourceError, match=rf"cannot read .*a{ending}'.*groups of rows"):
            list(read_pieces(path, unseen, lambda schema: schema.names))


def test_a_file_that_changes_while_it_is_read(tmp_path: Path):
    path = write(tmp_path / "a.parquet", rows(500, np.random.default_rng(4)), np.random.default_rng(4))

    def changing(schema: pa.Schema) -> list[str]:
        os.utime(path, ns=(1, 1))
        return list(schema.names)

    with pytest.raises(SourceError, match=r"a\.parquet' was changed"):
        next(read_pieces(path, pieces(path, 1), changing))


# --- dealing -----------------------------------------------------------------------------------------------------------


def test_everything_is_dealt_once_and_evenly():
    r = np.random.default_rng(6)
    for _ in range(200):
        sizes = r.integers(1, 1_000, r.integers(0, 40)).tolist()
        hands = int(r.integers(1, 9))
        found = balance_sizes(sizes, hands)
        assert sorted(place for hand in found for place in hand) == list(range(len(sizes)))
        assert len(found) == min(hands, len(sizes)) and all(found)
        loads = [sum(sizes[place] for place in hand) for hand in found]
        if loads:
            assert max(loads) <= max(max(sizes), sum(sizes) / hands * 4 / 3)
        assert found == balance_sizes(sizes, hands)


def test_one_large_file_is_for_all_splitters(tmp_path: Path):
    path = tmp_path / "a.parquet"
    pq.write_table(rows(8_000, np.random.default_rng(7)), path, row_group_size=500)
    hands = assign_pieces([taken(path)], Splitters(4, path.stat().st_size // 16))
    loads = [sum(portion.piece.size for portion in hand) for hand in hands]
    assert len(hands) == 4 and max(loads) < 1.5 * min(loads)
    for hand in hands:  # read forwards
        assert hand == sorted(hand, key=lambda portion: portion.piece.first)


def test_pieces_travel_as_text(tmp_path: Path):
    path = write(tmp_path / "ä 'b'.arrow", rows(50, np.random.default_rng(8)), np.random.default_rng(8))
    for piece in pieces(path, 100):
        assert FilePiece(**json.loads(json.dumps(asdict(piece)))) == piece


# --- the answer does not depend on the cut ---------------------------------------------------------------------------------


QUERIES = {
    "rows": lambda s: s.filter("n >= 0"),
    "few": lambda s: s.map("word", twice="n * 2"),
    "sums": lambda s: s.aggregate(by=["word"], window="10 seconds", n="count(*)", total="sum(n)"),
    "pairs": lambda s: s.join(s, on="l.n = r.n + 1", within="50 seconds").map(n="l_n"),
}


def answer(query: Stream, folder: Path, files: Sequence[FileToRead], splitters: Splitters, **options: Any) -> Any:
    """(results, delivered, accepted, late, rejected) of one epoch over files and the end."""
    run = LocalRun(query, folder, slots=2, **options)
    try:

        def execute(epoch: Any) -> Any:
            windows = [list(read_windows(epoch, hand)) for hand in assign_pieces(files, splitters)]
            return execute_locally(epoch, windows, run.store.storage)

        run.driver.run_epoch(Position("local"), execute)
        assert run.driver.last is not None
        counts = run.driver.last.sources["s"]
        run.end()
        found = run.results()
        return found, (counts.delivered, counts.accepted, counts.late, counts.rejected, counts.largest)
    finally:
        run.close()


@pytest.mark.parametrize("name", QUERIES)
def test_the_answer_is_the_same_for_any_windows_and_splitters(tmp_path: Path, name: str):
    r = np.random.default_rng(9)
    files, tables = [], []
    for number, ending in enumerate((".parquet", ".arrow", ".feather", ".parquet")):
        table = rows(int(r.integers(0, 150)), r)
        table = table.set_column(0, "ts", pa.array(table["ts"].to_pylist(), TS, mask=r.random(table.num_rows) < 0.1))
        tables.append(table)
        files.append(taken(write(tmp_path / f"{number}{ending}", table, r)))
    whole = pa.concat_tables(tables)
    query = QUERIES[name](table_stream(whole, lateness="10 seconds", name="s"))
    expected = hr.reference(query)
    known = None
    for number, (p, most) in enumerate([(1, 1 << 30), (2, 1), (5, 900)]):
        found, counts = answer(query, tmp_path / f"state-{number}", files, Splitters(p, most))
        assert difference(expected, found) is None, (p, most)
        assert known in (None, counts)
        known = counts
    assert known is not None and known[0] == whole.num_rows


# --- only the columns that somebody reads ----------------------------------------------------------------------------------


WIDE = 15


def wide(count: int, r: np.random.Generator) -> pa.Table:
    """Fifteen columns of which two will be read."""
    numbers = {f"c{place}": pa.array(r.integers(0, 1 << 40, count)) for place in range(WIDE - 2)}
    return pa.table(
        {"start": pa.array(r.integers(0, 100, count) * SECOND, TS), "k": r.integers(0, 9, count), **numbers}
    )


def noted(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The columns of every table that is read from now on."""
    columns, checked = list[list[str]](), file_pieces.checked_rows

    def checking(table: pa.Table) -> pa.Table:
        columns.append(table.column_names)
        return checked(table)

    monkeypatch.setattr(file_pieces, "checked_rows", checking)
    return columns


def source_of(table: pa.Table) -> Stream:
    return table_stream(table, time="start", name="s")


READS = {
    "two": (lambda s: s.aggregate(by=["k"], window="10 seconds", n="count(*)"), ["k", "start"]),
    "time": (lambda s: s.aggregate(by=[], window="10 seconds", n="count(*)"), ["start"]),
    "filter": (lambda s: s.filter("c3 > 5").map("k"), ["c3", "k", "start"]),
    "sample": (lambda s: s.sample(0.5, by=["c3"]).map("k"), ["c3", "k", "start"]),
    "sample of whole tuples": (lambda s: s.sample(0.5).map("k"), None),
    "equality": (lambda s: s.join(s, on="l.k = r.c1", within="5 seconds").map(a="l_c2"), ["c1", "c2", "k", "start"]),
    "whole": (lambda s: s.filter("k > 3"), None),
    "sequence": (lambda s: s.aggregate(by=["k"], last=3, every=1, n="count(*)"), None),
    "hashed": (lambda s: s.join(s, on="l.k < r.k", within="1 second").map(k="l_k"), None),
}


@pytest.mark.parametrize(("name", "ending"), [*((name, ".parquet") for name in READS), ("two", ".arrow")])
def test_only_what_is_needed_is_read(tmp_path: Path, name: str, ending: str, monkeypatch: pytest.MonkeyPatch):
    make, expected = READS[name]
    table = wide(200, np.random.default_rng(10))
    path = write(tmp_path / f"a{ending}", table, np.random.default_rng(11))
    query = make(source_of(table))
    wanted = hr.reference(query)
    for keep_late in (False, True) if name == "two" else (False,):
        asked = noted(monkeypatch)
        files = [taken(path)]
        found, _ = answer(query, tmp_path / f"state-{keep_late}", files, Splitters(2, 3_000), keep_late=keep_late)
        monkeypatch.undo()
        assert difference(wanted, found) is None
        assert asked
        for columns in asked:
            assert sorted(columns) == sorted(table.column_names if keep_late or expected is None else expected)


def bytes_read() -> int:
    """By this process so far, as the operating system counts them."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"])


counted = pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="nobody counts what is read")


@counted
@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
def test_bytes_of_other_columns_are_not_read(tmp_path: Path, ending: str):
    table = wide(50_000, np.random.default_rng(12))
    path = write(tmp_path / f"a{ending}", table, compression=None)
    marks = [bytes_read()]
    for columns in (["start", "k"], None):
        read(path, 1 << 30, columns)
        marks.append(bytes_read())
    some, everything = np.diff(marks)
    assert everything > table.nbytes
    assert some < everything * 2 / WIDE * 1.3


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
def test_damage_in_a_column_that_nobody_reads_is_not_seen(tmp_path: Path, ending: str):
    texts = pa.table({"ts": pa.array([1, 2], TS), "k": [1, 2], "text": pa.array([b"\xff", b"\xfe"]).view(pa.string())})
    path = write(tmp_path / f"a{ending}", texts)
    query = table_stream(texts.schema.empty_table(), name="s")
    narrow, whole = query.map("k"), query.map("k", "text")
    found, counts = answer(narrow, tmp_path / "narrow", [taken(path)], Splitters(1), keep_late=False)
    assert found["k"].to_pylist() == [1, 2] and counts[0] == 2
    for asked, keep_late in ((whole, False), (narrow, True)):
        with pytest.raises(SourceError, match=rf"a{ending}'.*UTF8"):
            answer(asked, tmp_path / f"{keep_late}", [taken(path)], Splitters(1), keep_late=keep_late)


CHANGES = {  # of a column: what is done to it, and what is said if it is read
    "missing": (lambda t, c: t.drop_columns([c]), r"missing \['{}'\], which the query reads"),
    "type": (
        lambda t, c: t.set_column(t.column_names.index(c), c, t[c].cast(pa.string())),
        "column '{}' of s changed its type from int64 to string",
    ),
    "type that no stream carries": (
        lambda t, c: t.set_column(t.column_names.index(c), c, pa.nulls(t.num_rows)),
        "column '{}' of s changed its type from int64 to null",
    ),
    "twice": (lambda t, c: t.append_column(c, t[c]), r"columns of the same name: \['{}'\]"),
    "new": (lambda t, c: t.append_column(f"{c}-2", t[c]), ""),
}
UNREAD = {
    "panes": (lambda s: s.aggregate(by=["k"], window="10 seconds", n="count(*)"), "c7"),
    "tuples": (lambda s: s.aggregate(by=["k"], window="10 seconds", n="median(c1)"), "c7"),
    "equality": (lambda s: s.join(s, on="l.k = r.k", within="5 seconds").map(a="l_c2"), "c7"),
    "hashed": (lambda s: s.join(s, on="l.k < r.k", within="1 second").map(k="l_k"), "c7"),
    "steps": (lambda s: s.filter("c1 > 7").map("k"), "c7"),
    "sequence": (lambda s: s.aggregate(by=["k"], last=3, every=1, n="count(*)"), None),
}


@pytest.mark.parametrize(("change", "ending"), [*((name, ".arrow") for name in CHANGES), ("type", ".parquet")])
def test_columns_that_nobody_reads_come_go_and_change(tmp_path: Path, change: str, ending: str):
    """From the second file on; late tuples show what there is."""
    tables = [wide(40, np.random.default_rng(seed)) for seed in (13, 14)]
    make, message = CHANGES[change]
    for name, (query, free) in UNREAD.items():
        expected = hr.reference(query(source_of(pa.concat_tables(tables))))
        files = [taken(write(tmp_path / f"{name}-0{ending}", tables[0]))]
        if free or change == "new":
            files.append(taken(write(tmp_path / f"{name}-1{ending}", make(tables[1], free or "c7"))))
            for late in (False, True):
                folder = tmp_path / f"{name}-{late}"
                found, _ = answer(query(source_of(tables[0])), folder, files, Splitters(2), keep_late=late)
                assert difference(expected, found) is None, (name, late)
        if change != "new":
            bad = taken(write(tmp_path / f"{name}-2{ending}", make(tables[1], "c7" if free is None else "k")))
            words = message.format("c7" if free is None else "k")
            with pytest.raises(SourceError, match=rf"{words}.*found in '.*{name}-2{ending}'"):
                answer(query(source_of(tables[0])), tmp_path / name, [files[0], bad], Splitters(1), keep_late=False)


def test_columns_in_another_order_and_encoding(tmp_path: Path):
    table = wide(50, np.random.default_rng(14)).append_column("w", pa.array(["a", "b"] * 25))
    query = source_of(table).aggregate(by=["w"], window="10 seconds", n="sum(k)")
    other = table.select(table.column_names[::-1])
    other = other.set_column(0, "w", other["w"].combine_chunks().dictionary_encode())
    expected = hr.reference(query)
    for ending in ENDINGS:
        path = write(tmp_path / f"a{ending}", other, np.random.default_rng(15) if ending == ".parquet" else None)
        found, _ = answer(query, tmp_path / f"state{ending}", [taken(path)], Splitters(2, 500), keep_late=False)
        assert difference(expected, found) is None


# --- times from statistics ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [253_402_300_800 * SECOND, -62_135_596_801 * SECOND, 2**61, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_beyond_the_years_of_python_have_no_sample(far: int, zone: str | None, tmp_path: Path) -> None:
    """A sample balances the first epoch. The tasks decide what happens to the tuples."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"ts": pa.array([0, far], pa.timestamp("us", zone))}), path)
    assert file_formats.parquet_times(path, "ts") == []


def test_files_without_statistics_have_no_sample(tmp_path: Path) -> None:
    times = pa.table({"ts": pa.array([1, 2], pa.timestamp("us"))})
    options: list[dict[str, Any]] = [{"write_statistics": False}, {"use_deprecated_int96_timestamps": True}]
    for number, each in enumerate(options):
        pq.write_table(times, tmp_path / f"{number}.parquet", **each)
        assert file_formats.parquet_times(tmp_path / f"{number}.parquet", "ts") == []
    (tmp_path / "no.parquet").write_bytes(b"")
    assert file_formats.parquet_times(tmp_path / "no.parquet", "ts") == []
