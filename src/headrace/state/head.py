"""The head: a second record of the newest committed epoch, separate from the log of manifests.

A head is an empty file whose name has the number of a committed epoch. The file is created after the manifest of that
epoch is durable and before the epoch's results are delivered:

    head n exists                     =>  manifest n was committed
    newest head < newest manifest     =>  the run was killed between the two; the next run creates the head before it delivers
    newest head > newest manifest     =>  the newest manifests are lost

The number is in the name, so that neither a kill nor a power cut can leave half of it, and a name is written only once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_HEAD_NAME = re.compile(r"blocks/head-([0-9]{9,12})")


def head_name(number: int) -> str:
    """Return the name of the head of an epoch. Its folder is not that of the manifests, so that both are not lost
    together."""
    return f"blocks/head-{number:09d}"


def head_number(name: str) -> int | None:
    """Return the number of the epoch that a file is the head of; None for any other file."""
    match = _HEAD_NAME.fullmatch(name)
    return int(match[1]) if match else None


def newest_head(names: Iterable[str]) -> int:
    """Return the number of the newest head among these files; -1 if there is none."""
    return max((number for name in names if (number := head_number(name)) is not None), default=-1)
