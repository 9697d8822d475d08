"""Text as it is read for a run: every line becomes a tuple or is kept apart, and no line depends on another that is wrong."""

from __future__ import annotations

import gzip
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from headrace.errors import SourceError
from headrace_linearroad import reading
from headrace_linearroad.forms import FIELDS, INPUT
from headrace_linearroad.reading import Spooled
from tests.linearroad.by_tuple import Tuple

GOOD = Tuple(0, 100, 5, 50, 1, 2, 0, 10, 52900)
LATER = GOOD._replace(time=130, seg=11)
ASKED = Tuple(3, 100, 5, xway=1, qid=9, day=3)


def line(given: Tuple) -> str:
    return ",".join(map(str, given))


def spooled(tmp_path: Path, content: bytes, name: str = "in.dat", block: int = 1 << 20) -> tuple[Spooled, pa.Table]:
    """What became of a text, and its tuples in the order of files."""
    path, folder = tmp_path / name, tmp_path / f"{name}-{block}"
    path.write_bytes(content)
    folder.mkdir()
    found = reading.spool(path, folder, tmp_path / f"{name}-{block}.tsv", block=block)
    tables = []
    for file in sorted(folder.iterdir()):
        table = pa.ipc.open_file(str(file)).read_all()
        assert set(table["time"].to_pylist()) == {int(file.stem)}
        assert table["ts"].cast(pa.int64()).to_pylist() == [1_000_000 * time for time in table["time"].to_pylist()]
        tables.append(table)
    assert len(tables) == found.seconds
    return found, pa.concat_tables([INPUT.empty_table(), *tables])


MALFORMED = [
    "",
    "0,1,2",
    line(GOOD) + ",1",
    *(line(GOOD).replace("52900", bad) for bad in ("52900.0", "", "-", "5 2900")),
]
MALFORMED += [line(GOOD).replace("52900", "1" * 19), "time,vid", "\x00\xe9", '"' + line(GOOD) + '"']
OUTSIDE = {"time": (-1, 10_800), "vid": (-1, 2**31), "spd": (-1, 101), "xway": (-1, 2**15), "lane": (-1, 5)}
OUTSIDE |= {"dir": (-1, 2), "seg": (-1, 100), "pos": (-1, 528_000)}
BAD = [("malformed", text) for text in MALFORMED]
BAD += [("no such type", line(GOOD._replace(type=kind))) for kind in (1, 5, -1, 10**17)]
BAD += [
    (f"{name} outside", line(GOOD._replace(**{name: value}))) for name, values in OUTSIDE.items() for value in values
]
BAD += [("qid outside", line(ASKED._replace(qid=value))) for value in (-1, 2**31)]
BAD += [("vid outside", line(ASKED._replace(vid=-1))), ("time goes backwards", line(GOOD._replace(time=99)))]


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_that_cannot_be_meant_is_kept_apart_with_its_number_and_the_reason(tmp_path: Path, packed: bool) -> None:
    lines = [line(GOOD)]
    for _, bad in BAD:
        lines += [bad, line(GOOD)]
    content = "\n".join([*lines, line(LATER)]).encode(errors="surrogateescape")
    found, table = spooled(tmp_path, gzip.compress(content) if packed else content)
    assert (found.lines, found.tuples, found.seconds) == (2 * len(BAD) + 2, len(BAD) + 2, 2)
    assert table.to_pylist()[1:-1] == [table.to_pylist()[0]] * len(BAD), "a line is what it is beside any other"
    kept = (tmp_path / f"in.dat-{1 << 20}.tsv").read_bytes().split(b"\n")
    assert kept.pop() == b""
    for number, ((reason, bad), told) in enumerate(zip(BAD, kept, strict=True)):
        assert told.startswith(f"{2 * number + 2}\t{reason}".encode()), told
        assert told.split(b"\t", 2)[2] == bad.encode()
    assert found.apart.total() == len(BAD)


def test_a_line_that_is_wrong_moves_no_clock(tmp_path: Path) -> None:
    times = [(100, 2), (50, 2), (60, 2), (9000, 5), (99, 2), (100, 2), (101, 2)]  # there is no lane 5
    lines = "".join(line(GOOD._replace(time=t, vid=n, lane=lane)) + "\n" for n, (t, lane) in enumerate(times))
    for block in (1 << 20, 1, 60):
        found, table = spooled(tmp_path, lines.encode(), block=block)
        assert table["vid"].to_pylist() == [0, 5, 6]
        assert found.apart == {"time goes backwards": 3, "lane outside 0..4": 1}


def test_what_may_stand_around_numbers_and_in_fields_without_use(tmp_path: Path) -> None:
    most = 10**18 - 1
    spaced = line(GOOD).replace(",", " ,\t")
    unused = [GOOD._replace(qid=most, sinit=-most, day=4711), ASKED._replace(spd=most, lane=-most, pos=most, tod=-1)]
    content = f"{line(GOOD)}\r\n {spaced} \r\n{line(unused[0])}\n{line(unused[1])}".encode()
    found, table = spooled(tmp_path, content)
    assert not found.apart
    first, second, third, asked = table.drop_columns(["ts"]).to_pylist()
    assert first == second == third == GOOD._asdict()
    assert asked == {**dict.fromkeys(FIELDS, -1), **{name: getattr(ASKED, name) for name in reading.USED[3]}, "type": 3}


def test_tuples_of_a_second_stay_in_their_order(tmp_path: Path) -> None:
    lines = "".join(line(GOOD._replace(vid=vid)) + "\n" for vid in (5, 3, 9, 3))
    assert spooled(tmp_path, lines.encode(), block=1)[1]["vid"].to_pylist() == [5, 3, 9, 3]


def test_an_empty_text_has_no_tuples(tmp_path: Path) -> None:
    (tmp_path / "in.dat").write_bytes(b"")
    reading.look(tmp_path / "in.dat")
    found, table = spooled(tmp_path, b"")
    assert (found, table.num_rows) == (Spooled(), 0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)) * 300, "no tuple of 15 whole numbers in its first .*"),
        (b"PAR1" + bytes(100), r"no tuple of 15 whole numbers in its first line; the first is 'PAR1\\x00"),
        (b"time,vid\n1,2\n", "no tuple of 15 whole numbers in its first 2 lines; the first is 'time,vid'; give a text"),
        (b"\x1f\x8bnot really", "cannot be read: .*; correct it"),
        (gzip.compress(line(GOOD).encode() * 9000, mtime=0)[:40], "cannot be read: .*ended before"),
    ],
    ids=["picture", "parquet", "other columns", "no gzip", "cut off"],
)
def test_what_is_no_text_is_said_at_the_first_look(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "in.dat"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=words):
        reading.look(path)


def test_a_gzip_that_is_cut_off_far_behind_is_an_error(tmp_path: Path) -> None:
    random = Random(1)
    lines = "".join(line(GOOD._replace(vid=random.randrange(10**9))) + "\n" for _ in range(20_000))
    packed = gzip.compress(lines.encode())
    (tmp_path / "look").write_bytes(packed[:-9])
    reading.look(tmp_path / "look")
    with pytest.raises(SourceError, match=r"cannot be read: .*ended before"):
        spooled(tmp_path, packed[:-9], block=1 << 16)


def test_a_line_without_an_end_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="more than 1,048,576 bytes"):
        spooled(tmp_path, line(GOOD).encode() + b"\n" + b"1," * (1 << 20))


def test_how_far_it_is_is_told(tmp_path: Path) -> None:
    for packed in (False, True):
        content = "".join(line(GOOD._replace(time=t)) + "\n" for t in range(100, 1100)).encode()
        path = tmp_path / "in.dat"
        path.write_bytes(gzip.compress(content) if packed else content)
        (tmp_path / f"{packed}").mkdir()
        told: list[str] = []
        reading.spool(path, tmp_path / f"{packed}", tmp_path / "apart", told.append, block=10_000)
        assert len(told) > 3 and told[-1] == f"reading {path}: 1,000 lines, 100%"
