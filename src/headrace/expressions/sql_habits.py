"""Hints for words of other SQL dialects: what DuckDB's SQL, or a joined stream, has instead.

Invariant: a hint only makes an error longer. It never changes what an expression means.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

SAME_MEANING = {  # functions of other dialects: how DuckDB writes them
    **dict.fromkeys(["nvl", "zeroifnull"], "coalesce(a, b)"),
    "isnull": "a IS NULL",
    "isnotnull": "a IS NOT NULL",
    **dict.fromkeys(["iff", "if_else"], "CASE WHEN a > 1 THEN b ELSE c END"),
    "collect_list": "list(a)",
    "collect_set": "list(DISTINCT a)",
    **dict.fromkeys(["count_distinct", "countdistinct"], "count(DISTINCT a)"),
    **dict.fromkeys(["percentile", "percentile_approx", "approx_percentile"], "quantile_cont(a, 0.5)"),
    "unix_timestamp": "epoch(ts)",
    "unix_millis": "epoch_ms(ts)",
    "unix_micros": "epoch_us(ts)",
    "from_unixtime": "to_timestamp(a)",
    "to_date": "CAST(a AS DATE)",
    "date_format": "strftime(ts, '%Y-%m-%d')",
    **dict.fromkeys(["rlike", "regexp", "regexp_like"], "regexp_matches(a, 'pattern')"),
    **dict.fromkeys(["size", "array_size"], "len(a)"),
    "locate": "instr(a, 'part')",
    "get_json_object": "json_extract_string(a, '$.b')",
}
UNNESTING = frozenset(["unnest", "explode", "explode_outer", "posexplode", "posexplode_outer"])
_PREFIXES = re.compile(r"^(?:[lr]_)+(?=.)")
_INFIX = re.compile(r"\b(rlike|regexp)\b", re.IGNORECASE)


def function_hint(name: str) -> str:
    """Return what to write instead of a function that DuckDB does not have, or an empty text."""
    return f"; write {SAME_MEANING[name]}" if name in SAME_MEANING else ""


def syntax_hint(text: str) -> str:
    """Return what to write instead of an operator that DuckDB does not have, or an empty text."""
    found = _INFIX.search(text)
    return f"; instead of {found[1]}, write {SAME_MEANING['rlike']}" if found else ""


def column_hint(path: Sequence[str], schema: pa.Schema, text: str) -> str:
    """Return what may have been meant by an unknown column, or an empty text."""
    name = path[0]
    if name.lower() in ("l", "r", *_aliases(schema.names)) and len(path) > 1:
        columns = {column.lower(): column for column in schema.names}
        found = columns.get("_".join(path[:2]).lower()) or columns.get(path[1].lower())
        return f"; after a join it is {found}" if found else ""
    if hint := prefix_hint(name, schema.names):
        return hint
    return f"; text has single quotes, such as '{name}'" if f'"{name}"' in text else ""


def prefix_hint(name: str, columns: Sequence[str]) -> str:
    """Return the columns that differ from an unknown name only in case or in prefixes of joins, or an empty text."""
    if twin := next((column for column in columns if column.lower() == name.lower()), None):
        return f"; did you mean {twin}?"
    found = [column for column in columns if _without_prefixes(column) == _without_prefixes(name)]
    if not found:
        prefixed = {f"{alias}_{name}".lower() for alias in _aliases(columns)}
        found = [column for column in columns if column.lower() in prefixed]
        return (
            f"; did you mean {' or '.join(found)}? A join adds the alias to names of several streams" if found else ""
        )
    return f"; did you mean {' or '.join(found)}? A join adds l_ or r_ to names of both sides, except those in using"


def _aliases(columns: Sequence[str]) -> list[str]:
    """Return the aliases of a join of several streams, each of which has its own time in the result."""
    return [column[: -len("_ts")].lower() for column in columns if column.lower().endswith("_ts")]


def _without_prefixes(name: str) -> str:
    return _PREFIXES.sub("", name.lower())
