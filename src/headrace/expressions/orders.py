"""Orders of tuples as text, such as "distance asc, id": scalar expressions, each with a direction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import sqlglot
from sqlglot import Token, TokenType

from headrace.errors import ExpressionError, QueryTypeError
from headrace.expressions.gates import Expression, parse_scalar
from headrace.support.argument_errors import describe_argument

_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE)
_SPELLED_OUT = {"ascending": "asc", "descending": "desc"}
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)


@dataclass(frozen=True)
class OrderTerm:
    """One term of an order. Nulls are last in both directions, and NaN is above all numbers."""

    text: str  # as the user wrote it
    expression: Expression
    descending: bool

    @property
    def sql(self) -> str:
        return f"{self.expression.sql} {'DESC' if self.descending else 'ASC'} NULLS LAST"


def parse_order(text: str, schema: pa.Schema, what: str = "order") -> tuple[OrderTerm, ...]:
    """Parse and check an order over one stream.

    >>> schema = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    >>> [(term.expression.text, term.descending) for term in parse_order("round(x, 1) desc, id", schema)]
    [('round(x, 1)', True), ('id', False)]
    """
    if not isinstance(text, str):
        raise QueryTypeError(f"{what} must be text; found {describe_argument(text)}; such as {what}='distance asc, id'")
    return tuple(_term(text, tokens, schema, what) for tokens in _terms(text, what))


def _terms(text: str, what: str) -> Iterator[list[Token]]:
    """Yield the tokens of each term. Commas inside brackets do not separate terms."""
    try:
        tokens = sqlglot.tokenize(text, dialect="duckdb")
    except sqlglot.errors.SqlglotError as error:
        raise ExpressionError(f"{what} = {text!r} is not an order: {str(error).splitlines()[0]}") from None
    depth, term = 0, list[Token]()
    for token in tokens:
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if token.token_type == TokenType.COMMA and depth == 0:
            yield term
            term = []
        else:
            term.append(token)
    yield term


def _term(text: str, tokens: list[Token], schema: pa.Schema, what: str) -> OrderTerm:
    whole, words = _text(text, tokens), [token.text.lower() for token in tokens[-2:]]
    if len(tokens) > 2 and words == ["nulls", "first"]:
        raise ExpressionError(
            f"{what} = {text!r} requests NULLS FIRST, but nulls are last in both directions; remove it"
        )
    if len(tokens) > 2 and words == ["nulls", "last"]:
        tokens = tokens[:-2]
    direction = tokens[-1].token_type if len(tokens) > 1 else None
    if direction in (TokenType.ASC, TokenType.DESC):
        tokens = tokens[:-1]
    if not tokens:
        raise ExpressionError(f"{what} = {text!r} has an empty term; expected expressions, such as 'distance asc, id'")
    try:
        found = parse_scalar(_text(text, tokens), schema, what)
    except ExpressionError:
        short = _SPELLED_OUT.get(tokens[-1].text.lower()) if len(tokens) > 1 else None
        if short is None:
            raise
        instead = f"{_text(text, tokens[:-1])} {short}"
        raise ExpressionError(
            f"{what} = {text!r} is not an order: a direction is asc or desc, not {tokens[-1].text}; write {instead!r}"
        ) from None
    if not found.columns:
        raise ExpressionError(
            f"{what} = {text!r} orders by {found.text!r}, which uses no column, so all tuples are equal; write columns or"
            " expressions of them, such as 'distance asc, id'"
        )
    if pa.types.is_nested(found.type):
        msg = (
            f"{what} = {text!r} orders by {found.text!r}, which is a {found.type}; order by a field or an element of it"
        )
        raise QueryTypeError(msg)
    return OrderTerm(whole, found, direction == TokenType.DESC)


def _text(text: str, tokens: list[Token]) -> str:
    return text[tokens[0].start : tokens[-1].end + 1] if tokens else ""
