"""Connection URLs of PostgreSQL: they are taken apart exactly as libpq does it, and no text shows a password."""

from __future__ import annotations

import ctypes
import os
import random
import re
from collections.abc import Callable
from ctypes.util import find_library
from typing import Any
from urllib.parse import quote, unquote

import pytest

from headrace import sinks
from headrace.errors import QueryError
from headrace.sinks.databases.postgres_url import PostgresURL, parse_url
from headrace.support.secrets import remove_secrets, secret_spellings

RESERVED = "@:/?#[]&=,;+$!*'()%\" \\^`{|}<>~-._\u00e9"
TOKENS = [
    *"@@::://??##[]&&==,,;+",
    "%2F",
    "%40",
    "%25",
    "%3d",
    "a",
    "7",
    "42",
    "host",
    "user",
    "password",
    "sslmode",
    "db",
]
MORE = {"connect_timeout": "10", "keepalives_idle": "15"}


class Option(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_char_p) for name in ("keyword", "envvar", "compiled", "val", "label", "dispchar")),
        ("dispsize", ctypes.c_int),
    ]


Parse = Callable[[str], dict[str, str] | str]


@pytest.fixture(scope="module")
def libpq() -> Parse:
    """By URL what libpq reads, or its error."""
    found = find_library("pq")
    if found is None:
        if os.environ.get("HEADRACE_LEAVE_NOTHING_OUT"):
            pytest.fail("there is no libpq here; Debian: apt-get install libpq5")
        pytest.skip("there is no libpq here; Debian: apt-get install libpq5")
    library = ctypes.CDLL(found)
    library.PQconninfoParse.restype = ctypes.POINTER(Option)
    library.PQconninfoParse.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p)]
    library.PQconninfoFree.argtypes = [ctypes.POINTER(Option)]

    def parse(url: str) -> dict[str, str] | str:
        error, options, number = ctypes.c_char_p(), {}, 0
        found = library.PQconninfoParse(url.encode(), ctypes.byref(error))
        if not found:
            return (error.value or b"").decode(errors="replace")
        while found[number].keyword:
            if found[number].val is not None:
                options[found[number].keyword.decode()] = found[number].val.decode(errors="replace")
            number += 1
        library.PQconninfoFree(found)
        return options

    return parse


def values(found: PostgresURL) -> dict[str, str]:
    """In libpq's words."""
    parts = {name: unquote(part) for name, part in found.parts.items()}
    return {"sslmode": "require", **parts} if parts.pop("ssl", None) == "true" else parts


def check(url: str, libpq: Parse) -> bool:
    """Whether the URL is read: as libpq does, and by libpq with more parameters too."""
    theirs = libpq(url)
    try:
        found = parse_url(url)
    except QueryError as error:
        assert isinstance(theirs, str) or refused_on_purpose(theirs, str(error)), (url, theirs, error)
        return False
    if isinstance(theirs, str):
        assert theirs.startswith("invalid URI query parameter"), url  # its names are left to the driver's own libpq
        return False
    assert values(found) == theirs, url
    assert libpq(found.with_parameters(MORE)) == {**MORE, **theirs}, url
    return True


def refused_on_purpose(theirs: dict[str, str], error: str) -> bool:
    """An @ after the login, which libpq takes as part of another name; a port that libpq refuses when it connects; and spaces,
    which libpq takes as they are up to version 16."""
    ports = theirs.get("port", "").split(",")
    return (
        ("an @ follows the login" in error and "@" in "".join(theirs.values()))
        or ("a port is not a number" in error and not all(re.fullmatch(r"\d{0,5}", port) for port in ports))
        or ("it contains spaces" in error and any(re.search(r"\s", value) for value in theirs.values()))
    )


PLAIN = [
    "postgresql://", "postgres://h", "postgresql://h/", "postgresql://u@h", "postgresql://@h", "postgresql://u:@h",
    "postgresql://:p@h", "postgresql://u:p@", "postgresql://u:p:q@h", "postgresql://u:2024#hunter2@h/d",
    "postgresql://u:p?q&r=s@h/d", "postgresql:///d?host=127.0.0.1&port=5", "postgresql:///?service=x",
    "postgresql://a,b:5,[::1]:6,/d", "postgresql://,", "postgresql://h:/d", "postgresql://h?", "postgresql://h/?user=x&",
    "postgresql://%2Fvar%2Frun/d", "postgresql://h[x]/d", "postgresql://h/d/e#f", "postgresql://h//d",
    "postgresql://h/d?user=a?b", "postgresql://h/d?user=", "postgresql://h/d?user=a&user=b", "postgresql://h/d?ssl=true",
    "postgresql://u%40v:p%2F%C3%A9%3A@h/d%3F?application_name=%20x%26", "postgresql://h?options=-cx%3Dy", "postgresql://h/d?sslmod%65=x",
    "postgresql://h/d?host=", "postgresql://h/d?connect_timeout=3&keepalives_idl%65=4", "postgresql://[a?b]/d",
]  # fmt: skip
BROKEN = [
    "postgresql://h/d?x", "postgresql://h/d?x=1=2", "postgresql://h/d?&user=x", "postgresql://h/d?user=x&&", "postgresql://[::1",
    "postgresql://[]/d", "postgresql://[::1]x/d", "postgresql://h/%zz", "postgresql://h/d%00", "postgresql://h/%4", "postgresql://u:%@h",
]  # fmt: skip


@pytest.mark.parametrize("url", PLAIN)
def test_a_url_is_taken_apart_as_libpq_does_it(url: str, libpq: Parse):
    assert check(url, libpq)


@pytest.mark.parametrize("url", BROKEN)
def test_a_url_that_libpq_refuses_is_refused(url: str, libpq: Parse):
    assert isinstance(libpq(url), str) and not check(url, libpq)
    with pytest.raises(QueryError, match="the URL of the database cannot be read: "):
        parse_url(url)


def test_random_urls_are_taken_apart_as_libpq_does_it(libpq: Parse):
    rng = random.Random(1)
    taken = sum(
        check(f"postgresql://{''.join(rng.choices(TOKENS, k=rng.randrange(14)))}", libpq) for _ in range(20_000)
    )
    assert taken > 2_000


@pytest.mark.parametrize("place", ["user", "password", "host", "dbname", "application_name", "sslpassword"])
def test_every_reserved_character_in_every_part(place: str, libpq: Parse):
    for character in RESERVED:
        for text in (f"x{character}y", f"x{quote(character, safe='')}y"):
            given = {
                "user": "u",
                "password": "p",
                "host": "h",
                "dbname": "d",
                "application_name": "a",
                "sslpassword": "s",
            }
            given[place] = text
            url = "postgresql://{user}:{password}@{host}/{dbname}?application_name={application_name}&sslpassword={sslpassword}"
            assert check(url.format(**given), libpq) or text == f"x{character}y"


# --- what is shown -----------------------------------------------------------------------------------------------------


def texts(url: str, libpq: Parse) -> str:
    """All that a user may see of a URL: a refusal; or how it is shown, and what libpq or a server may quote of it."""
    try:
        sink: Any = sinks.database(url, "t")
    except QueryError as error:
        return f"{error}{error.__cause__}"
    found, said = parse_url(url), libpq(url)
    assert not isinstance(said, str) or "invalid URI query parameter" in said
    values = [] if isinstance(said, str) else [part for value in said.values() for part in (value, *value.split(","))]
    named = [said] if isinstance(said, str) else [f'"{value}"' for value in values]
    return repr(sink) + repr(sink.database) + remove_secrets(secret_spellings(found.secrets), " ".join(named))


def test_a_password_with_reserved_characters_is_never_shown(libpq: Parse):
    """But for one that spells out another parameter, such as `&host=...`, which no reader can tell from that parameter."""
    rng, shown = random.Random(2), 0
    tokens = [token for token in TOKENS if len(token) == 1 or token.startswith("%")]
    for _ in range(5_000):
        before, after = ("".join(rng.choices(tokens, k=rng.randrange(5))) for _ in range(2))
        password = f"{before}hunter2{after}"
        for url in (
            f"postgresql://ann:{password}@h:1/shop",
            f"postgresql://ann@h:1/shop?sslmode=disable&password={password}",
            f"postgresql://ann@h:1/shop?password={password}&sslmode=disable",
            f"postgresql:///shop?host=h&passw%6Frd={password}",
        ):
            text = texts(url, libpq)
            assert "hunter2" not in text, (url, text)
            shown += "ann@h:1/shop" in text
    assert shown > 2_000, "what holds no secret is shown"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:pw@h:5/shop?sslmode=disable", "postgresql://ann@h:5/shop"),
        ("postgres://h", "postgresql://h"),
        ("postgresql:///shop?host=/tmp&user=bob", "postgresql://bob@/tmp/shop"),
        ("postgresql://a:1,[::1]:2/shop", "postgresql://a:1,[::1]:2/shop"),
        ("postgresql:///shop?host=a,b&port=7", "postgresql://a:7,b:7/shop"),
        ("postgresql://ann%40corp@h/shop", "postgresql://ann%40corp@h/shop"),
        ("postgresql://h/shop?user=bob:hunter2", "postgresql://***@h/shop"),
        ("postgresql://h/shop#password=hunter2", "postgresql://h/***"),
    ],
)
def test_what_is_shown(url: str, shown: str):
    assert parse_url(url).shown == shown


def test_parameters_that_are_not_known_are_taken_for_secrets():
    found = parse_url("postgresql://ann@h/shop?password=hun&ter2=x&sslmode=disable")
    assert remove_secrets(secret_spellings(found.secrets), 'invalid URI query parameter: "ter2" hun') == (
        'invalid URI query parameter: "***" ***'
    )


def test_a_line_break_is_named():
    """A variable that was read from a file often ends with one."""
    with pytest.raises(QueryError, match="it contains spaces, line breaks"):
        parse_url("postgresql://ann@h/shop\n")


@pytest.mark.parametrize("url", ["sqlite:///x.db?password=hunter2", "duckdb:///x?hunter2"])
def test_a_file_takes_no_parameters(url: str):
    with pytest.raises(QueryError, match="the URL of a file takes no parameters") as caught:
        sinks.database(url, "t")
    assert "hunter2" not in str(caught.value)
