"""Text on its way to a screen or into a picture: what could act there is shown instead.

Names, data and errors may hold anything. A terminal obeys escape sequences, a bidirectional override turns a line round,
and XML has no way at all to write most control characters. `printable` gives text in which every character is one that
can be seen: whatever is not stands as Python would write it, such as \\x1b.
"""

from __future__ import annotations

import unicodedata

JOINERS = "\u200c\u200d"  # invisible, and part of how Persian, Hindi and emoji are written


def printable(text: str, *, lines: bool = False) -> str:
    """The text with everything that is not to be seen as an escape; `lines`: it may have several.

    >>> printable("a\\x1b[2Jb\\u202ec\\n")
    'a\\\\x1b[2Jb\\\\u202ec\\\\n'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if is_visible(c) or (lines and c == "\n") else _escaped(c) for c in text)


def is_visible(character: str) -> bool:
    """Whether a character only stands where it is put."""
    return character.isprintable() or character in JOINERS or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
