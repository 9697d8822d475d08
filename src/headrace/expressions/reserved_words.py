"""Quoting of columns whose names are SQL keywords, such as `at`, `end` or `window`.

Invariant: only a text that is not a valid expression is changed, so quoting never changes the meaning of an expression.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from itertools import zip_longest

import pyarrow as pa
import sqlglot
from sqlglot import Token, TokenType

from headrace.columnar import duck


def quote_columns(text: str, scopes: Mapping[str, pa.Schema]) -> tuple[str, list[str]]:
    """Return the text with columns that are SQL keywords in double quotes, and the names of these columns.

    >>> quote_columns("end - at > 1", {"": pa.schema([("at", pa.int64()), ("end", pa.int64())])})
    ('"end" - "at" > 1', ['end', 'at'])
    """
    columns = {name.lower() for schema in scopes.values() for name in schema.names}
    try:
        tokens = sqlglot.tokenize(text, dialect="duckdb")
    except sqlglot.errors.SqlglotError:
        return text, []
    found = [
        token
        for token, after in zip_longest(tokens, tokens[1:])
        if token.text.lower() in columns and _is_word_of_sql(token, text) and not _opens_call(after)
    ]
    quoted = text
    for token in reversed(found):
        quoted = quoted[: token.start] + duck.quote(token.text) + quoted[token.end + 1 :]
    return quoted, list(dict.fromkeys(token.text for token in found))


def quoting_hint(names: Iterable[str]) -> str:
    """Return a hint to quote columns that are SQL keywords, or an empty text."""
    return "".join(f"; {name!r} is an SQL keyword; quote the column: {duck.quote(name)}" for name in names)


def _is_word_of_sql(token: Token, text: str) -> bool:
    """Return whether a token is an unquoted SQL keyword. sqlglot and DuckDB have different keywords."""
    bare = text[token.start : token.end + 1] == token.text
    return bare and (token.token_type != TokenType.VAR or token.text.lower() in _keywords())


def _opens_call(token: Token | None) -> bool:
    return token is not None and token.token_type == TokenType.L_PAREN


@functools.cache
def _keywords() -> frozenset[str]:
    return frozenset(name for (name,) in duck.fetch_rows("SELECT keyword_name FROM duckdb_keywords()"))
