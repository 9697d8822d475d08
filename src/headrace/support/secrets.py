"""Secrets: which values no text and no file may show, and values that are read from the environment where they are needed.

One vocabulary serves sinks, sources and the settings of processors. A value counts as secret

- if it is a `Secret`, whatever its name is;
- if a name on the way to it is one for secrets, such as `password`, `sasl.password`, `apiKey` or `Authorization`, however deep
  it is nested in dicts and lists;
- if it is text in the shape of a secret: a URL with a login, `password=...` in a URL or a connection string, a header such as
  `Bearer ...`, a private key, a token of a well-known kind.

Invariant: what is shown is never derived from a secret, not even a digest, because a short secret can be guessed from its
digest. A value that is taken for a secret by mistake is used like any other; only its changes are not noticed.
"""

from __future__ import annotations

import functools
import json
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NoReturn, Self
from urllib.parse import quote, unquote, unquote_plus

from headrace.errors import HeadraceError, MissingSecret, QueryTypeError

HIDDEN = "***"
SERVERS_ARE_SHOWN = (
    "servers takes addresses of brokers as text, host:port; give logins as settings={name: hr.secret(...)}"
)
LONG_SECRET = 9  # characters: a shorter secret is removed from a text only where it is a whole word

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REPR = re.compile(r"secret\('[A-Za-z_][A-Za-z0-9_]*'\)")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NAMES = re.compile(  # in names as words in lower case with _ between them
    r"passw[a-z]*|passphrases?|passcodes?|[a-z]*secret[a-z]*|[a-z]*credentials?"
    r"|(?:token|pwd|authorization|signature|cookie|webhook|assertion)s?(?=_|$)"
    r"|(?:^|_)(?:bearer|creds?|hmac|jaas|jwts?|pem|sas|sig|sasl_config|oauthbearer_config)(?=_|$)"
    r"|(?:^|_)(?:auth|pass|pw|basic_auth_user_info)$|^pat$"
    r"|(?:access|account|api|app|application|auth|customer|(?:de|en)cryption|license|master|private|shared|signing|ssh|storage"
    r"|subscription)_?keys?(?=_|$)"
)
_OPEN = re.compile(  # endings of names for what describes a secret, or says where it is
    r"_(?:column|file|path|name|type|host|port)$|(?<!webhook)_ur[il]$|(?<!secret)(?<!key)_id$"
)
_PAIR = re.compile(r"""([\w.%+-]+)["']?\s*[=:]\s*""")  # a name and what separates it from its value
_SHAPES = (
    re.compile(r"[a-z][a-z0-9+.-]*://(\S*)@", re.IGNORECASE),  # up to the last @: a password may hold any character
    re.compile(r"\b(?:bearer|basic)\s+([\w.~+/=-]{4,})", re.IGNORECASE),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(.*)", re.DOTALL),
    re.compile(r"\b((?:gh[opsru]_|github_pat_|glpat-|xox[a-z]-|[sr]k[-_]|A[KS]IA|eyJ)[\w.-]{12,})"),
)
_SIGNS = re.compile(r"[:=]|bearer|basic|private key|gh[opsru]_|github_|glpat-|xox|[sr]k[-_]|a[ks]ia|eyj", re.IGNORECASE)
_FIRST_LOGIN = re.compile(r"://([^:@/\s]*:[^@\s]*)@")  # up to the first @, where several URLs follow each other
_IN_PLACE = re.compile(  # host:port/ is not user:password
    r"(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)://(?:[^/@]*:[^/@]*|[^:/@\s]+:(?!\d{1,5}/)[^@\s]*)@", re.IGNORECASE
)
_WORD = (  # a word begins where it has a letter or a digit and none precedes, unless that is escaped, as in %3A
    r"(?:(?<![^\W_])|(?![^\W_])|(?<=%[0-9A-Fa-f]{{2}})|(?<=\\[nrt])){}(?:(?<![^\W_])|(?![^\W_]))"
)
_END = re.compile(r"[\s&;,]")  # of a value in a URL or a connection string


# --- values that are read where they are needed ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Secret:
    """A value that is read from an environment variable by the process that needs it. It is stored and shown by name
    alone.

    Make one with `headrace.secret`. It has no text, so it cannot become a part of one.

    Attributes:
        name: the environment variable.

    Examples:
        >>> hr.secret("DB_URL").name
        'DB_URL'
    """

    name: str

    @property
    def value(self) -> str:
        """The text that the environment variable has in this process.

        Raises:
            MissingSecret: the variable is not set, or is empty.

        Examples:
            >>> import os
            >>> hr.secret("HOME").value == os.environ["HOME"]
            True
        """
        found = os.environ.get(self.name)
        if found:
            return found
        place = f"process {os.getpid()} on {socket.gethostname()}"
        how = "set it there, such as by export, and start again"
        if _is_worker():
            place = f"a Python worker of Spark, {place}"
            how = (
                "a worker has the environment of its executor, and on one machine that of the driver at the moment when the"
                f" session was made: set {self.name} before that, or on a cluster by spark.executorEnv.{self.name}"
            )
        what = "is not set" if found is None else "is empty"
        raise MissingSecret(f"{self!r} cannot be read: the environment variable {self.name} {what} in {place}; {how}")

    def __repr__(self) -> str:
        return f"secret({self.name!r})"

    def __str__(self) -> str:
        raise QueryTypeError(
            f"{self!r} has no text, so it cannot be a part of one, such as of an f-string: let the variable {self.name} hold the"
            f" whole value, such as the whole URL, and give hr.{self!r} in its place"
        )

    def __format__(self, how: str) -> str:
        return str(self)


def secret(name: str) -> Secret:
    """Return a value that is read from an environment variable where it is needed, and that is neither stored nor
    shown.

    Sinks and sources read it in the driver, when they are made; processors where they run, in the executors, before
    `open`.

    Args:
        name: the environment variable: letters, digits and `_`.

    Returns:
        The secret.

    Raises:
        QueryTypeError: the name is no name of a variable; it is not shown, because it may be the secret itself.

    Examples:
        >>> hr.secret("DB_URL")
        secret('DB_URL')
    """
    if not isinstance(name, str) or not _VARIABLE.fullmatch(name):  # what was given may be the secret itself
        raise QueryTypeError(
            "hr.secret takes the name of an environment variable: letters, digits and _, such as hr.secret('DB_URL');"
            " found something else, which is not shown because it may be the secret"
        )
    return Secret(name)


def _is_worker() -> bool:
    """Whether this process is a Python worker of Spark."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return main is not None and main.name.startswith("pyspark.")


def resolve_secrets(value: Any) -> Any:
    """Return a value with what its secrets stand for; the value itself if it holds none."""
    if isinstance(value, Secret):
        return value.value
    if isinstance(value, dict):
        found: Any = {key: resolve_secrets(each) for key, each in value.items()}
        return found if any(found[key] is not each for key, each in value.items()) else value
    if isinstance(value, list | tuple | set | frozenset):
        each = [resolve_secrets(item) for item in value]
        if all(new is old for new, old in zip(each, value, strict=True)):
            return value
        return type(value)(*each) if hasattr(value, "_fields") else type(value)(each)
    return value


def holds_secret(value: Any) -> bool:
    """Return whether a value is a `Secret`, or holds one in dicts and lists."""
    if isinstance(value, Mapping):
        return any(map(holds_secret, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(holds_secret, value))
    return isinstance(value, Secret)


def refuse_secret(value: Any, instead: str) -> None:
    """Refuse a secret where a value is shown; instead: what is accepted."""
    if holds_secret(value):
        raise QueryTypeError(
            f"{instead}; found {mask_secrets(value)!r}, which no text may show. An address that is not secret can be read from a variable by"
            " os.environ[...]"
        )


# --- which values are secret ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=10_000)
def is_secret_name(name: str, *, of_number: bool = False) -> bool:
    """Return whether values of this name are secret. A number is one only if the name ends so: `token_limit` is none.

    A name such as `password_column` or `token_url` is none; a login in the URL is found by its shape.

    >>> [is_secret_name(name) for name in ("sasl.password", "apiKey", "Authorization", "tokenizer", "key", "primary_key")]
    [True, True, True, False, False, False]
    >>> [is_secret_name(name, of_number=True) for name in ("password", "max_tokens", "token_limit")]
    [True, False, False]
    """
    words = "_".join(_WORDS.findall(name)).lower()
    if _OPEN.search(words):
        return False
    found = list(_NAMES.finditer(words))
    if of_number:
        return any(match.end() == len(words) for match in found) and not words.endswith("tokens")
    return bool(found)


def _is_secret(name: str, value: Any) -> bool:
    if value is None or isinstance(value, bool | Secret):
        return False
    return is_secret_name(name, of_number=isinstance(value, int | float))


def mask_secrets(value: Any, name: str = "") -> Any:
    """Return a value, of settings by name as well, without what is secret in it.

    >>> given = {"user": "ann", "kafka": {"sasl.password": "x"}, "url": "https://ann:x@host/?token=y"}
    >>> mask_secrets({**given, "key": Secret("KEY")})
    {'user': 'ann', 'kafka': {'sasl.password': '***'}, 'url': 'https://***@host/?token=***', 'key': secret('KEY')}
    """
    if isinstance(value, Mapping):
        return {_masked_key(key): mask_secrets(each, _nearer(name, key)) for key, each in value.items()}
    if isinstance(value, list | tuple) and _are_pairs(value):
        return _alike(
            value,
            [_alike(pair, [_masked_key(pair[0]), mask_secrets(pair[1], _nearer(name, pair[0]))]) for pair in value],
        )
    if isinstance(value, list | tuple):
        return _alike(value, [mask_secrets(each, name) for each in value])
    if isinstance(value, set | frozenset):
        return frozenset(mask_secrets(each, name) for each in value)
    if isinstance(value, str) and _REPR.fullmatch(value):
        return value
    if _is_secret(name, value):
        return HIDDEN
    return _masked_text(value) if isinstance(value, str) else value


def _alike(value: Any, parts: list[Any]) -> Any:
    """A tuple for a tuple, which may be an element of a set."""
    return tuple(parts) if isinstance(value, tuple) else parts


def _masked_key(key: Any) -> Any:
    """A name, which may be a URL."""
    return _masked_text(key) if isinstance(key, str) else key


def _nearer(name: str, key: Any) -> str:
    """The name that tells whether a value is secret: all that is nested under a secret's name is."""
    return name if is_secret_name(name) else key if isinstance(key, str) else repr(key)


def _are_pairs(values: Iterable[Any]) -> bool:
    """Whether these are settings as a list of names and values."""
    return all(isinstance(each, list | tuple) and len(each) == 2 and isinstance(each[0], str) for each in values)


def _spans(text: str) -> list[tuple[int, int]]:
    """Where a text may hold secrets: what follows a secret's name to the end of the text, and whatever has the shape of one."""
    if _SIGNS.search(text) is None:  # most settings are plain, and there may be very many
        return []
    found = [match.span(1) for shape in _SHAPES for match in shape.finditer(text)]
    named = (match.end() for match in _PAIR.finditer(text) if is_secret_name(unquote_plus(match[1])))
    start = next(named, len(text))
    return [(low, high) for low, high in [*found, (start, len(text))] if low < high]


def _masked_text(text: str) -> str:
    shown, at = "", 0
    for low, high in sorted(_spans(text)):
        if high > at:
            shown += text[at:low] + HIDDEN * (low >= at)
            at = high
    return shown + text[at:]


def without_logins(place: str) -> str:
    """Return what a source reads without the logins in it; other parts stay, because they tell sources apart.

    A user without a password stays, and so does all that precedes the @ in a URL of Azure: it is a container.

    >>> without_logins("FileSource[s3a://key:se/cret@bucket/x], hdfs://host:8020/a@b")
    'FileSource[s3a://bucket/x], hdfs://host:8020/a@b'
    """
    return _IN_PLACE.sub("://", place)


def _texts(value: Any, name: str = "") -> Iterator[str]:
    """Return the secrets of a value."""
    if isinstance(value, Secret):
        value, name = os.environ.get(value.name, ""), "secret"
    if isinstance(value, Mapping) or (isinstance(value, list | tuple) and _are_pairs(value)):
        for key, each in value.items() if isinstance(value, Mapping) else value:
            yield from _texts(key)
            yield from _texts(each, _nearer(name, key))
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _texts(each, name)
    else:
        if _is_secret(name, value):
            yield value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        if isinstance(value, str):
            yield from _pieces(value)


def _pieces(text: str) -> Iterator[str]:
    """Return what may be a secret in a text, in each of the ways in which it may be cut out of it."""
    for login in (*_SHAPES[0].finditer(text), *_FIRST_LOGIN.finditer(text)):
        yield login[1].partition(":")[2] or login[1]
    for low, high in _spans(text):
        span = text[low:high]
        yield from (span, _END.split(span)[0])
        if span[0] in "\"'":
            yield span[1:].partition(span[0])[0]


def secret_spellings(secrets: Iterable[str]) -> list[str]:
    """Return secrets in every spelling in which a text may hold them, the longest first."""
    found = set()
    for each in secrets:
        lines = [line for line in each.splitlines() if len(line) >= LONG_SECRET] if "\n" in each else []
        for text in (each, unquote(each), each.strip("\"'"), " ".join(each.split()), *lines):
            found |= {text, quote(text), quote(text, safe=""), repr(text)[1:-1], json.dumps(text)[1:-1]}
    return sorted(found - {"", HIDDEN}, key=len, reverse=True)


def remove_secrets(secrets: Iterable[str], text: str) -> str:
    """Return a text without secrets, which come in all their spellings."""
    for each in secrets:
        where = re.escape(each) if len(each) >= LONG_SECRET else _WORD.format(re.escape(each))
        text = re.sub(where, HIDDEN, text)
    return text


def remove_secrets_from_rest(secrets: Sequence[str], text: str, kept: str) -> str:
    """The same, but for a part of the text that can be shown although it may have words in common with secrets."""
    if not kept:
        return remove_secrets(secrets, text)
    longer = [each for each in secrets if len(each) >= len(kept)]
    shorter = [each for each in secrets if len(each) < len(kept)]
    return kept.join(remove_secrets(shorter, part) for part in remove_secrets(longer, text).split(kept))


# --- settings with secrets in them --------------------------------------------------------------------------------------------


class SealedSettings:
    """Settings of a sink, a source or a processor: for use, and for texts without their secrets.

    more: secrets beside those that the settings are known to hold; kept: a text without secrets, such as an address, which
    stays as it is in texts.
    """

    def __init__(self, given: Any, more: Iterable[str] = (), kept: str = "") -> None:
        self._given, self._more, self._kept = given, list(more), kept

    @cached_property
    def opened(self) -> Any:
        """The settings with the values of their secrets, which are also known where the environment is another."""
        self._more += _texts(self._given)
        return resolve_secrets(self._given)

    def open(self) -> Self:
        """Read the secrets now, so that one that is missing is an error now."""
        self.opened  # noqa: B018
        return self

    @property
    def shown(self) -> Any:
        """The settings without secrets."""
        return mask_secrets(self._given)

    def without_secrets(self, text: str) -> str:
        return remove_secrets_from_rest(self._secrets, text, self._kept)

    @property
    def _secrets(self) -> list[str]:
        return secret_spellings([*_texts(self._given), *self._more])

    @contextmanager
    def hiding(self) -> Iterator[None]:
        """Errors that leave this hold no secret, nor does any error that led to them."""
        try:
            yield
        except Exception as error:
            clean = functools.partial(remove_secrets_from_rest, self._secrets, kept=self._kept)
            error.args = tuple(clean(each) if isinstance(each, str) else each for each in error.args)
            was_raised_from_none = error.__suppress_context__ and error.__cause__ is None
            if was_raised_from_none or any(clean(text) != text for text in map(_told, _chain(error))):
                error.__cause__ = error.__context__ = None
            if any(clean(text) != text for text in _parts(error)):
                _raise_alone(HeadraceError(f"{type(error).__name__}: {clean(_text(error))}"))
            raise

    def __repr__(self) -> str:
        return f"Sealed({self.shown!r})"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The errors that led to an error, and those that led to them."""
    waiting, seen = [error.__cause__, error.__context__], {id(error)}
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [each.__cause__, each.__context__]


def _told(error: BaseException) -> str:
    return f"{_text(error)} {error!r} {error.__dict__}"


def _parts(error: BaseException) -> list[str]:
    """Return the message of an error, and everything that it holds beside texts, such as the name of a file."""
    given = (each for each in error.args if not isinstance(each, str))
    return [_text(error), *map(repr, (*given, *vars(error).values()))]


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # of what it holds, such as of a `Secret`
        return repr(error)


def _raise_alone(error: HeadraceError) -> NoReturn:
    """Raise an error that does not lead to the one that is being handled."""
    try:
        raise error
    except HeadraceError:
        error.__context__ = None
        raise
