"""The output of a run: a folder of Parquet files for each output, or tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import duckdb
import pyarrow as pa

from headrace.errors import SourceError
from headrace_linearroad.validating.duck import Connection, connection
from headrace_linearroad.validating.shapes import OUTPUTS

Given = Path | Mapping[str, pa.Table]
INTEGER, TIMES = "BIGINT", ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP_MS", "TIMESTAMP_NS")


def demand(given: Given) -> None:
    """Raise if an output is missing or cannot be read."""
    with connection() as con:
        for name in OUTPUTS:
            register(con, given, name)


def register(con: Connection, given: Given, name: str) -> None:
    """Create the view `got` of the rows of an output: its columns, and `instant`, which is `ts` in microseconds."""
    con.execute("DROP VIEW IF EXISTS got")
    columns = ", ".join(OUTPUTS[name].columns)
    source = _of_folder(con, given, name) if isinstance(given, Path) else _of_table(con, given, name)
    con.execute(f"CREATE TEMP VIEW got AS SELECT {columns}, epoch_us(ts) AS instant FROM {source}")


def _of_table(con: Connection, given: Mapping[str, pa.Table], name: str) -> str:
    con.register("put_out", given[name])
    _demand(con, "put_out", name, name)
    return "put_out"


def _of_folder(con: Connection, out: Path, name: str) -> str:
    folder = out / name
    if not folder.is_dir():
        there = "" if out.is_dir() else f"; {str(out)!r} does not exist either"
        raise SourceError(f"there is no folder {str(folder)!r}{there}; expected one for each of {', '.join(OUTPUTS)}")
    files = sorted(str(file) for file in folder.rglob("*.parquet") if _is_published(file.relative_to(folder)))
    if not files:
        nothing = ", ".join(f"0::BIGINT AS {column}" for column in OUTPUTS[name].columns)
        return f"(SELECT {nothing}, TIMESTAMP '1970-01-01' AS ts WHERE false)"
    try:
        for sample in _samples(con, files):
            _demand(con, f"read_parquet({_quoted(sample)})", name, sample)
    except duckdb.Error as error:
        raise SourceError(f"{str(folder)!r} cannot be read: {str(error).splitlines()[0]}") from None
    return f"read_parquet([{', '.join(map(_quoted, files))}], union_by_name = true)"


def _is_published(file: Path) -> bool:
    return not any(part.startswith(("_", ".")) for part in file.parts)


def _samples(con: Connection, files: list[str]) -> list[str]:
    """Return one file for each distinct schema."""
    rows = con.execute(
        """SELECT min(file_name) FROM
             (SELECT file_name, list((name, type, logical_type::VARCHAR) ORDER BY name) AS columns
              FROM parquet_schema(?) GROUP BY file_name)
           GROUP BY columns ORDER BY ALL""",
        [files],
    ).fetchall()
    return [name for (name,) in rows]


def _quoted(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"


def _demand(con: Connection, source: str, name: str, where: str) -> None:
    """Raise if the columns are not the expected 64-bit integers and the timestamp `ts`."""
    found = {row[0]: str(row[1]) for row in con.sql(f"DESCRIBE SELECT * FROM {source}").fetchall()}
    fits = set(found) == {"ts", *OUTPUTS[name].columns}
    if not fits or found["ts"] not in TIMES or any(found[column] != INTEGER for column in OUTPUTS[name].columns):
        listed = ", ".join(f"{column} {kind}" for column, kind in found.items())
        wanted = ", ".join(f"{column} {INTEGER}" for column in OUTPUTS[name].columns)
        raise SourceError(f"{where!r} has columns {listed}; expected ts TIMESTAMP, {wanted}")
