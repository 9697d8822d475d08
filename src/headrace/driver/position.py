"""The position of sources in a manifest, and what it decides about a batch of Spark.

Invariant: a batch at the position of the newest manifest is a replay and the next batch is processed. Any other batch stops
the run, because then one of the two logs (manifests, Spark's checkpoint) is behind the other.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import StateMismatch
from headrace.state.fsync import sync_path
from headrace.state.manifest import Manifest
from headrace.support import validators
from headrace.support.json_toml import read_json

_BATCH = re.compile(r"[0-9]{1,18}")
_KINDS = {  # texts for `Position.kind`, which is stored
    "spark": "Spark, which drives streaming DataFrames",
    "files": "headrace, which drives folders and Kafka topics",
    "bounded": "nothing, because all were static",
}


@dataclass(frozen=True)
class Batch:
    """A batch of Spark's streaming query."""

    query: str | None  # the id of Spark's query, if it is known
    number: int
    offsets: str  # hash of the file with the offsets that the batch covers

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


_POSITION_FORM = validators.record(
    kind=validators.text,
    own=validators.count,
    batch=validators.optional(
        validators.record(
            query=validators.optional(validators.text), number=validators.whole(0, 1 << 62), offsets=validators.text
        )
    ),
)


@dataclass(frozen=True)
class Position:
    """The position of the sources after an epoch: the section `position` of a manifest."""

    kind: str  # the kind of driver: a key of `_KINDS`, or the name of one that a tool or a test runs itself
    batch: Batch | None = None  # the newest batch that was processed; None: none yet, or Spark drives no source
    own: int = 0  # epochs without a batch since then

    @property
    def driven_by(self) -> str:
        """Return the text for messages about what drives the sources."""
        return _KINDS.get(self.kind, repr(self.kind))

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "batch": self.batch.to_json() if self.batch else None, "own": self.own}

    @staticmethod
    def from_json(data: Any) -> Position:
        """Return the position that a manifest holds; raise for JSON that `to_json` never returns."""
        found = _POSITION_FORM(data, "position")
        return Position(found["kind"], Batch(**found["batch"]) if found["batch"] else None, found["own"])


def make_durable(checkpoint: Path, batch: int) -> None:
    """Sync Spark's files of a batch to disk, before a manifest is committed that records the batch as processed."""
    logged = [checkpoint / "offsets" / str(batch), *checkpoint.glob(f"sources/*/{batch}*")]
    for path in [checkpoint / "metadata", *logged, *{path.parent for path in logged}, checkpoint]:
        if path.exists():
            sync_path(path)


def spark_batch(checkpoint: Path, batch: int) -> Batch:
    """Return a batch as Spark's checkpoint describes it."""
    try:
        offsets = (checkpoint / "offsets" / str(batch)).read_bytes()
    except OSError as error:
        msg = f"Spark's note of batch {batch}, 'spark/offsets/{batch}', cannot be read: {error.strerror}; restore the 'spark' folder"
        raise StateMismatch(msg) from None
    return Batch(_query_id(checkpoint), batch, hashlib.sha256(offsets).hexdigest())


def _query_id(checkpoint: Path) -> str | None:
    path = checkpoint / "metadata"
    if not path.exists():
        return None
    hint = "restore the 'spark' folder, or use a new checkpoint"
    found = read_json(path, "Spark's note of its query", hint, StateMismatch).get("id")
    if not isinstance(found, str):
        raise StateMismatch(f"{str(path)!r} names no query: its id is {found!r:.100}; {hint}")
    return found


def admit_batch(last: Manifest | None, batch: Batch) -> str:
    """Return "process" or "replay". Raise an error if Spark's checkpoint does not fit the newest manifest."""
    if last is None:
        if batch.number != 0:
            msg = (
                f"Spark is at batch {batch.number}, but the state folder is empty; restore it, or use a new checkpoint"
            )
            raise StateMismatch(msg)
        return "process"
    known = Position.from_json(last.position).batch
    if known is not None and known.query not in (None, batch.query):
        msg = (
            f"the state was made with Spark query {known.query}, this checkpoint is of query {batch.query};"
            " restore the 'spark' folder it belongs to, or use a new checkpoint"
        )
        raise StateMismatch(msg)
    reached = _number(known)
    if batch.number == reached + 1:
        return "process"
    if known is None or batch.number != reached:
        behind = "the state folder" if batch.number > reached else "Spark's folder"
        msg = f"{behind} is behind: the state is at batch {reached}, Spark at {batch.number}; restore the newer one"
        raise StateMismatch(msg)
    if batch.offsets != known.offsets:
        msg = f"batch {batch.number} covers other input than when it was committed; 'spark/offsets' was changed; restore it"
        raise StateMismatch(msg)
    return "replay"


def check_alignment(last: Manifest | None, checkpoint: Path) -> None:
    """Raise, before Spark starts, if the state or Spark's part is missing or older than the other."""
    query, offsets, commits = _query_id(checkpoint), _newest(checkpoint / "offsets"), _newest(checkpoint / "commits")
    if last is None:
        if commits is not None:
            msg = (
                f"Spark has committed batch {commits}, but there is no state; restore 'state', or use a new checkpoint"
            )
            raise StateMismatch(msg)
        return
    batch = _number(Position.from_json(last.position).batch)
    if query is None and batch >= 0:
        msg = "the state folder has manifests, but Spark's folder is missing; restore 'spark', or use a new checkpoint"
        raise StateMismatch(msg)
    if commits is not None and commits > batch:
        raise StateMismatch(
            f"the state folder is behind: it ends at batch {batch}, Spark at {commits}; restore the newer one"
        )
    if batch >= 0 and (offsets is None or offsets < batch):
        raise StateMismatch(
            f"Spark's folder is behind: it ends at batch {offsets}, the state at {batch}; restore the newer one"
        )
    if batch >= 0:
        admit_batch(last, spark_batch(checkpoint, batch))


def _number(batch: Batch | None) -> int:
    return -1 if batch is None else batch.number


def _newest(folder: Path) -> int | None:
    numbers = [int(name) for name in os.listdir(folder) if _BATCH.fullmatch(name)] if folder.is_dir() else []
    return max(numbers, default=None)
