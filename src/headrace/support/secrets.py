"""Secrets: detection and masking of secret values, and values that are read from the environment where they are needed.

The same rules apply to sinks, sources and the settings of processors. A value counts as secret

- if it is a `Secret`, whatever its name is;
- if a name on the path to it is one for secrets, such as `password`, `sasl.password`, `apiKey` or `Authorization`, at
  any depth of nested dicts and lists;
- if its text has the form of a secret: a URL with a login, `password=...` in a URL or a connection string, a header
  such as `Bearer ...`, a private key, a token of a well-known kind.

Invariant: no shown text is derived from a secret, not even a digest, because a short secret can be guessed from its
digest. A value that is wrongly classified as secret is used normally; only its changes are not noticed.
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
LONG_SECRET = 9  # characters; shorter secrets are removed from a text only as whole words

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REPR = re.compile(r"secret\('[A-Za-z_][A-Za-z0-9_]*'\)")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NAMES = re.compile(  # matched against names as lower-case words joined by _
    r"passw[a-z]*|passphrases?|passcodes?|[a-z]*secret[a-z]*|[a-z]*credentials?"
    r"|(?:token|pwd|authorization|signature|cookie|webhook|assertion)s?(?=_|$)"
    r"|(?:^|_)(?:bearer|creds?|hmac|jaas|jwts?|pem|sas|sig|sasl_config|oauthbearer_config)(?=_|$)"
    r"|(?:^|_)(?:auth|pass|pw|basic_auth_user_info)$|^pat$"
    r"|(?:access|account|api|app|application|auth|customer|(?:de|en)cryption|license|master|private|shared|signing|ssh|storage"
    r"|subscription)_?keys?(?=_|$)"
)
_OPEN = re.compile(  # suffixes of names that describe or locate a secret but do not contain it
    r"_(?:column|file|path|name|type|host|port)$|(?<!webhook)_ur[il]$|(?<!secret)(?<!key)_id$"
)
_PAIR = re.compile(r"""([\w.%+-]+)["']?\s*[=:]\s*""")  # a name and the separator before its value
_SHAPES = (
    # up to the last @, because a password may contain any character
    re.compile(r"[a-z][a-z0-9+.-]*://(\S*)@", re.IGNORECASE),
    re.compile(r"\b(?:bearer|basic)\s+([\w.~+/=-]{4,})", re.IGNORECASE),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(.*)", re.DOTALL),
    re.compile(r"\b((?:gh[opsru]_|github_pat_|glpat-|xox[a-z]-|[sr]k[-_]|A[KS]IA|eyJ)[\w.-]{12,})"),
)
_SIGNS = re.compile(r"[:=]|bearer|basic|private key|gh[opsru]_|github_|glpat-|xox|[sr]k[-_]|a[ks]ia|eyj", re.IGNORECASE)
_FIRST_LOGIN = re.compile(r"://([^:@/\s]*:[^@\s]*)@")  # up to the first @, for texts with several URLs
_IN_PLACE = re.compile(  # host:port/ is not user:password
    r"(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)://(?:[^/@]*:[^/@]*|[^:/@\s]+:(?!\d{1,5}/)[^@\s]*)@", re.IGNORECASE
)
_WORD = (  # a word boundary, also after an escape such as %3A
    r"(?:(?<![^\W_])|(?![^\W_])|(?<=%[0-9A-Fa-f]{{2}})|(?<=\\[nrt])){}(?:(?<![^\W_])|(?![^\W_]))"
)
_END = re.compile(r"[\s&;,]")  # ends a value in a URL or a connection string


# --- values that are read from the environment -----------------------------------------------------------------------


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
        how = "set it there, for example with export, and start again"
        if _is_worker():
            place = f"a Python worker of Spark, {place}"
            how = (
                "a worker has the environment of its executor, and on one machine that of the driver at the time when the"
                f" session was created; set {self.name} before that, or on a cluster with spark.executorEnv.{self.name}"
            )
        what = "is not set" if found is None else "is empty"
        raise MissingSecret(f"{self!r} cannot be read: the environment variable {self.name} {what} in {place}; {how}")

    def __repr__(self) -> str:
        return f"secret({self.name!r})"

    def __str__(self) -> str:
        raise QueryTypeError(
            f"{self!r} has no text, so it cannot be part of a text such as an f-string; put the whole value into the variable {self.name},"
            f" such as the whole URL, and use hr.{self!r} as the value"
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
    if not isinstance(name, str) or not _VARIABLE.fullmatch(name):  # the argument may be the secret itself
        raise QueryTypeError(
            "hr.secret takes the name of an environment variable: letters, digits and _, such as hr.secret('DB_URL');"
            " found something else, which is not shown because it may be the secret"
        )
    return Secret(name)


def _is_worker() -> bool:
    """Return whether this process is a Python worker of Spark."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return main is not None and main.name.startswith(("pyspark.", "headrace.spark.worker_daemon"))


def resolve_secrets(value: Any) -> Any:
    """Return a value with each `Secret` replaced by its value, or the same object if it contains none."""
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
    """Return whether a value is a `Secret`, or contains one in dicts and lists."""
    if isinstance(value, Mapping):
        return any(map(holds_secret, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(holds_secret, value))
    return isinstance(value, Secret)


def refuse_secret(value: Any, instead: str) -> None:
    """Raise if a value that is shown contains a secret. `instead` says what is accepted."""
    if holds_secret(value):
        raise QueryTypeError(
            f"{instead}; found {mask_secrets(value)!r}, which must not be shown; read an address that is not secret from a variable with"
            " os.environ[...]"
        )


# --- which values are secret ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=10_000)
def is_secret_name(name: str, *, of_number: bool = False) -> bool:
    """Return whether values of this name are secret. A number is secret only if the name ends with the secret word,
    unlike `token_limit`.

    Names such as `password_column` or `token_url` are not secret; a login in a URL is detected by its form.

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
    """Return a value with its secrets masked, by name within settings and by form within texts.

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
    """Return a tuple for a tuple, because it may be an element of a set."""
    return tuple(parts) if isinstance(value, tuple) else parts


def _masked_key(key: Any) -> Any:
    """Return a key with its secrets masked, because it may be a URL."""
    return _masked_text(key) if isinstance(key, str) else key


def _nearer(name: str, key: Any) -> str:
    """Return the name that decides whether a nested value is secret: everything below a secret name is."""
    return name if is_secret_name(name) else key if isinstance(key, str) else repr(key)


def _are_pairs(values: Iterable[Any]) -> bool:
    """Return whether the values are settings as a list of (name, value) pairs."""
    return all(isinstance(each, list | tuple) and len(each) == 2 and isinstance(each[0], str) for each in values)


def _spans(text: str) -> list[tuple[int, int]]:
    """Return the ranges of a text that may be secret: from a secret name's value to the end, and texts with the form of
    a secret.
    """
    if _SIGNS.search(text) is None:  # most settings are plain, and there may be many
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
    """Return the place of a source without logins. Other parts stay, because they distinguish sources.

    A user without a password stays, and so does the part before the @ in an Azure URL, which is a container.

    >>> without_logins("FileSource[s3a://key:se/cret@bucket/x], hdfs://host:8020/a@b")
    'FileSource[s3a://bucket/x], hdfs://host:8020/a@b'
    """
    return _IN_PLACE.sub("://", place)


def _texts(value: Any, name: str = "") -> Iterator[str]:
    """Yield the secrets in a value."""
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
    """Yield the parts of a text that may be secret, in each of the forms in which other code may extract them."""
    for login in (*_SHAPES[0].finditer(text), *_FIRST_LOGIN.finditer(text)):
        yield login[1].partition(":")[2] or login[1]
    for low, high in _spans(text):
        span = text[low:high]
        yield from (span, _END.split(span)[0])
        if span[0] in "\"'":
            yield span[1:].partition(span[0])[0]


def secret_spellings(secrets: Iterable[str]) -> list[str]:
    """Return secrets in every spelling in which a text may contain them, the longest first."""
    found = set()
    for each in secrets:
        lines = [line for line in each.splitlines() if len(line) >= LONG_SECRET] if "\n" in each else []
        for text in (each, unquote(each), each.strip("\"'"), " ".join(each.split()), *lines):
            found |= {text, quote(text), quote(text, safe=""), repr(text)[1:-1], json.dumps(text)[1:-1]}
    return sorted(found - {"", HIDDEN}, key=len, reverse=True)


def remove_secrets(secrets: Iterable[str], text: str) -> str:
    """Return a text with all given spellings of secrets removed."""
    for each in secrets:
        where = re.escape(each) if len(each) >= LONG_SECRET else _WORD.format(re.escape(each))
        text = re.sub(where, HIDDEN, text)
    return text


def remove_secrets_from_rest(secrets: Sequence[str], text: str, kept: str) -> str:
    """Remove secrets from a text, except from the part `kept`, which may share words with secrets."""
    if not kept:
        return remove_secrets(secrets, text)
    longer = [each for each in secrets if len(each) >= len(kept)]
    shorter = [each for each in secrets if len(each) < len(kept)]
    return kept.join(remove_secrets(shorter, part) for part in remove_secrets(longer, text).split(kept))


# --- settings that contain secrets -----------------------------------------------------------------------------------


class SealedSettings:
    """Settings of a sink, source or processor: with their secrets for use, and without them for texts.

    more: further secrets, in addition to those found in the settings; kept: a text without secrets, such as an address,
    that is never masked.
    """

    def __init__(self, given: Any, more: Iterable[str] = (), kept: str = "") -> None:
        self._given, self._more, self._kept = given, list(more), kept

    @cached_property
    def opened(self) -> Any:
        """Return the settings with the values of their secrets. The values are remembered, in case the environment
        changes.
        """
        self._more += _texts(self._given)
        return resolve_secrets(self._given)

    def open(self) -> Self:
        """Read the secrets now, so that a missing one raises now."""
        self.opened  # noqa: B018
        return self

    @property
    def shown(self) -> Any:
        """Return the settings with their secrets masked."""
        return mask_secrets(self._given)

    def without_secrets(self, text: str) -> str:
        return remove_secrets_from_rest(self._secrets, text, self._kept)

    @property
    def _secrets(self) -> list[str]:
        return secret_spellings([*_texts(self._given), *self._more])

    @contextmanager
    def hiding(self) -> Iterator[None]:
        """Remove secrets from errors that leave the block, and from the errors that caused them."""
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
    """Yield the causes and contexts of an error, transitively."""
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
    """Return the message of an error and the text of everything else that it contains, such as the name of a file."""
    given = (each for each in error.args if not isinstance(each, str))
    return [_text(error), *map(repr, (*given, *vars(error).values()))]


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an object in it has no text, such as a `Secret`
        return repr(error)


def _raise_alone(error: HeadraceError) -> NoReturn:
    """Raise an error without the error that is being handled as its context."""
    try:
        raise error
    except HeadraceError:
        error.__context__ = None
        raise
