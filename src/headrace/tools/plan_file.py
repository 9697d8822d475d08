"""The plan of a run and the names of its results, written to its checkpoint for users to read. No computation depends on
them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.compile.subqueries import Plan
from headrace.errors import QueryError, StateError
from headrace.query import nodes
from headrace.support.json_toml import read_json

NAME = "plan.json"
RESTORE_HINT = "it is written again when the run is started"
PLAN_NAMES = (NAME, f"_{NAME}")  # the second name is used while the file is written


def write_plan(
    checkpoint: Path, roots: Sequence[nodes.Node], plan: Plan, labels: Mapping[str, str] | None = None
) -> None:
    """Write the plan atomically: a reader sees the old plan or the new one. labels: of results, by `result-N`."""
    content = {"query": nodes.outline(*roots), "results": dict(labels or {}), "plan": plan.to_json()}
    text = json.dumps(content, indent=2)
    whole = checkpoint / f"_{NAME}"
    try:
        whole.unlink(missing_ok=True)  # left over from a kill, or planted; never written through
        with open(os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            file.write(text)
        os.replace(whole, checkpoint / NAME)
    except OSError as error:
        raise StateError(f"cannot write {NAME} in {str(checkpoint)!r}: {error.strerror}; nothing was started") from None


def require_plan(checkpoint: Path) -> None:
    if not (checkpoint / NAME).is_file():  # reading a pipe would block
        msg = f"there is no {NAME} in {str(checkpoint)!r}; give the checkpoint of a run that was started"
        raise StateError(msg)


class WrittenPlan(NamedTuple):
    """The content of the file."""

    queries: list[str]  # as they were written
    plan: Plan
    labels: dict[str, str]  # of results, by `result-N`


def read_plan(checkpoint: Path) -> WrittenPlan:
    """Return the query as it was written, the plan, and the labels of results."""
    require_plan(checkpoint)
    path = checkpoint / NAME
    data = read_json(path, "the plan", RESTORE_HINT, StateError)
    queries, labels = data.get("query"), data.get("results", {})
    if not isinstance(queries, list) or not all(isinstance(text, str) for text in queries):
        raise StateError(f"{str(path)!r}: query must be a list of texts; found {queries!r:.100}; {RESTORE_HINT}")
    if not isinstance(labels, dict) or not all(isinstance(text, str) for text in labels.values()):
        raise StateError(f"{str(path)!r}: results must have texts; found {labels!r:.100}; {RESTORE_HINT}")
    try:
        return WrittenPlan(queries, Plan.from_json(data.get("plan", {})), labels)
    except QueryError as error:
        raise StateError(f"{str(path)!r} contains no valid plan: {error}; {RESTORE_HINT}") from None
