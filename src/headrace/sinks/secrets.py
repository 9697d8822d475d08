"""Settings that nobody may see: in no log, no error and no text of a sink."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

_NAMES = re.compile(r"password|passwd|secret|token|credential|key|signature", re.IGNORECASE)
_LOGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/@\s:]*:([^/\s]*)@", re.IGNORECASE)


def hidden_in(settings: Mapping[str, object]) -> list[str]:
    """Values whose names say that they are secret, and passwords in URLs; the longest first."""
    found = {str(value) for name, value in settings.items() if _NAMES.search(name)}
    found |= {match[1] for value in settings.values() if (match := _LOGIN.match(str(value)))}
    return longest_first(found)


def longest_first(secrets: Iterable[str]) -> list[str]:
    """As they are written in a URL, and as they are."""
    return sorted({text for each in secrets if each for text in (each, unquote(each))}, key=len, reverse=True)


def without(secrets: Iterable[str], text: str) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
