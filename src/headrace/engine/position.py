"""Where a source stands: batches come from Spark, and the newest manifest decides what one of them is.

Invariant: a batch at the manifest's position is a replay, the next is processed, anything else stops the run: two logs of
which one is behind the other never mix.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import StateMismatch
from headrace.reading import read_json
from headrace.state.manifest import Manifest
from headrace.state.storage import sync_path

_BATCH = re.compile(r"[0-9]{1,18}")


def make_durable(checkpoint: Path, batch: int) -> None:
    """What Spark wrote down of a batch, on the disk before our own commit says that the batch is done."""
    logged = [checkpoint / "offsets" / str(batch), *checkpoint.glob(f"sources/*/{batch}*")]
    for path in [checkpoint / "metadata", *logged, *{path.parent for path in logged}, checkpoint]:
        if path.exists():
            sync_path(path)


def spark_position(checkpoint: Path, batch: int) -> dict[str, Any]:
    """Spark's query, the batch, and what the batch covers."""
    try:
        offsets = (checkpoint / "offsets" / str(batch)).read_bytes()
    except OSError as error:
        msg = f"Spark's note of batch {batch}, 'spark/offsets/{batch}', cannot be read: {error.strerror}; restore the 'spark' folder"
        raise StateMismatch(msg) from None
    return {
        "kind": "spark",
        "query": _query_id(checkpoint),
        "batch": batch,
        "offsets": hashlib.sha256(offsets).hexdigest(),
    }


def _query_id(checkpoint: Path) -> str | None:
    path = checkpoint / "metadata"
    if not path.exists():
        return None
    hint = "restore the 'spark' folder, or use a new checkpoint"
    found = read_json(path, "Spark's note of its query", hint, StateMismatch).get("id")
    if not isinstance(found, str):
        raise StateMismatch(f"{str(path)!r} names no query: its id is {found!r:.100}; {hint}")
    return found


def admit(last: Manifest | None, position: Mapping[str, Any]) -> str:
    """ "process" or "replay"; an error when the two logs do not fit together."""
    if last is None:
        if position["batch"] != 0:
            msg = f"Spark is at batch {position['batch']}, but the state folder is empty; restore it, or use a new checkpoint"
            raise StateMismatch(msg)
        return "process"
    known = last.position
    if known["query"] not in (None, position["query"]):
        msg = (
            f"the state was made with Spark query {known.get('query')}, this checkpoint is of query {position['query']};"
            " restore the 'spark' folder it belongs to, or use a new checkpoint"
        )
        raise StateMismatch(msg)
    if position["batch"] == known["batch"] + 1:
        return "process"
    if position["batch"] != known["batch"]:
        behind = "the state folder" if position["batch"] > known["batch"] else "Spark's folder"
        msg = f"{behind} is behind: the state is at batch {known['batch']}, Spark at {position['batch']}; restore the newer one"
        raise StateMismatch(msg)
    if position["offsets"] != known["offsets"]:
        msg = f"batch {position['batch']} covers other input than when it was committed; 'spark/offsets' was changed; restore it"
        raise StateMismatch(msg)
    return "replay"


def check_alignment(last: Manifest | None, checkpoint: Path) -> None:
    """Before Spark starts: refuse a checkpoint of which one half is missing or older than the other."""
    query, offsets, commits = _query_id(checkpoint), _newest(checkpoint / "offsets"), _newest(checkpoint / "commits")
    if last is None:
        if commits is not None:
            msg = (
                f"Spark has committed batch {commits}, but there is no state; restore 'state', or use a new checkpoint"
            )
            raise StateMismatch(msg)
        return
    if query is None and last.position["batch"] >= 0:
        msg = "the state folder has manifests, but Spark's folder is missing; restore 'spark', or use a new checkpoint"
        raise StateMismatch(msg)
    batch = last.position["batch"]
    if commits is not None and commits > batch:
        raise StateMismatch(
            f"the state folder is behind: it ends at batch {batch}, Spark at {commits}; restore the newer one"
        )
    if batch >= 0 and (offsets is None or offsets < batch):
        raise StateMismatch(
            f"Spark's folder is behind: it ends at batch {offsets}, the state at {batch}; restore the newer one"
        )
    if batch >= 0:
        admit(last, spark_position(checkpoint, batch))


def _newest(folder: Path) -> int | None:
    numbers = [int(name) for name in os.listdir(folder) if _BATCH.fullmatch(name)] if folder.is_dir() else []
    return max(numbers, default=None)
