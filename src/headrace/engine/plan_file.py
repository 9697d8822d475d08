"""The plan that a run uses, written beside its state for people to look at: nothing that is computed depends on it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from headrace.compile.subqueries import Plan
from headrace.errors import StateError
from headrace.query import nodes

NAME = "plan.json"
NAMES = (NAME, f"_{NAME}")  # the second while it is written


def write(checkpoint: Path, roots: Sequence[nodes.Node], plan: Plan) -> None:
    """Whole or not at all: who looks at a run while it starts sees the old plan or the new."""
    text = json.dumps({"query": nodes.show(*roots), "plan": plan.to_json()}, indent=2)
    whole = checkpoint / f"_{NAME}"
    try:
        whole.unlink(missing_ok=True)  # left by a kill, or planted: never written through
        with open(os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            file.write(text)
        os.replace(whole, checkpoint / NAME)
    except OSError as error:
        raise StateError(f"cannot write {NAME} in {str(checkpoint)!r}: {error.strerror}; nothing was started") from None


def read(checkpoint: Path) -> tuple[list[str], Plan]:
    """The query as it was written, and the plan."""
    path = checkpoint / NAME
    try:
        if not path.is_file():  # a pipe would be waited for
            raise FileNotFoundError
        data = json.loads(path.read_text())
        return list(data["query"]), Plan.from_json(data["plan"])
    except FileNotFoundError:
        msg = f"there is no {NAME} in {str(checkpoint)!r}; is it the checkpoint of a run that was started?"
        raise StateError(msg) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{str(path)!r} cannot be read: {error}; it is written anew when the run is started") from None
