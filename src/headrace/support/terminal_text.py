"""Text for terminals and pictures: control characters are made visible.

Names, data and errors may contain any characters. A terminal executes escape sequences, a bidirectional override
reverses a line, and XML cannot represent most control characters. `printable` returns text of visible characters only:
any other character is written as Python would, such as \\x1b.
"""

from __future__ import annotations

import unicodedata

JOINERS = "\u200c\u200d"  # invisible, but part of the spelling of Persian, Hindi and emoji


def printable(text: str, *, lines: bool = False) -> str:
    """Return the text with invisible characters as escapes. `lines`: keep line breaks.

    >>> printable("a\\x1b[2Jb\\u202ec\\n")
    'a\\\\x1b[2Jb\\\\u202ec\\\\n'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if is_visible(c) or (lines and c == "\n") else _escaped(c) for c in text)


def is_visible(character: str) -> bool:
    """Return whether a character is visible and does not affect other characters."""
    return character.isprintable() or character in JOINERS or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
