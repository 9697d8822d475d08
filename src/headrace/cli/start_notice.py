"""The message that a command prints after it starts a run: sources, results, slots and checkpoint.

The first epoch of a run starts Python workers and compiles loops, so without this message the terminal would stay empty
meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.query import nodes
from headrace.query.labels import result_labels
from headrace.showing.live import size_text
from headrace.sources.files import FilesOrigin
from headrace.stream import Stream, label_of, node_of

if TYPE_CHECKING:
    from headrace.run.run import Run

FIRST_EPOCH = "the first epoch is slower than later ones: it starts Spark's workers and compiles loops"


def start_notice(
    run: Run, results: Sequence[tuple[Stream, Any]], title: str, checkpoint: str | os.PathLike[str]
) -> str:
    """Return one line for each source, table and result of a started run, and for its slots and checkpoint."""
    roots = [node_of(stream) for stream, _ in results]
    lines = [("source", f"{name}: {_source_text(each.origin)}") for name, each in nodes.named_sources(*roots).items()]
    lines += [("table", f"{name}: {each.origin.place}") for name, each in nodes.named_tables(*roots).items()]
    labels = result_labels([label_of(stream) for stream, _ in results]).values()
    lines += [("result", f"{label} to {sink!r}") for label, (_, sink) in zip(labels, results, strict=True)]
    lines += [("slots", f"{run.slots:,}"), ("checkpoint", f"{os.fspath(checkpoint)}, {_position(run)}")]
    wide = max(len(subject) for subject, _ in lines)
    rest = [] if run.progress.closed else [FIRST_EPOCH]
    return "\n".join([f"running {title}", *(f"  {subject:<{wide}}  {text}" for subject, text in lines), *rest])


def _source_text(origin: Any) -> str:
    if isinstance(origin, FilesOrigin):
        sizes = [stat.st_size for _, stat in origin.entries()]
        return f"{len(sizes):,} file{'' if len(sizes) == 1 else 's'}, {size_text(sum(sizes))}, in {origin.folder}"
    kind = "a static DataFrame" if origin.bounded else "a stream"
    return f"{kind}: {origin.place}" if origin.place else kind


def _position(run: Run) -> str:
    progress = run.progress
    if progress.last is not None:
        return f"at epoch {progress.epoch}"
    if progress.epoch < 0:
        return "new"
    done = f"epoch {progress.epoch}: {progress.tuples_in:,} tuples in so far"
    return f"closed after {done}" if progress.closed else f"continues after {done}"
