"""Migration of a state to another query, into a new checkpoint folder.

Invariant: the old checkpoint is only read, under its lock. The new one is built, whole and durable, beside its final
place under a temporary name, and moved there by one rename. A migration that is killed at any step leaves the old
checkpoint unchanged and no new one. The next attempt first deletes what was left.

Operators whose meaning did not change continue with their blocks, which are linked instead of copied if the file system
supports it. Added operators start empty. The time from which on their results are complete follows from the times of
the sources and from how far operators look back.
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace import plan as p
from headrace.compile import CompiledQuery
from headrace.driver import identity, stored_checks
from headrace.driver.fingerprint import Json, QueryMeanings, operator_kind
from headrace.driver.position import Position
from headrace.errors import QueryChanged, QueryError, StateError, StateMismatch
from headrace.evolve import compare
from headrace.evolve.added_functions import kept_functions_since
from headrace.evolve.compare import Comparison
from headrace.evolve.pin_columns import pin_columns
from headrace.evolve.table_names import rename_tables
from headrace.query import nodes
from headrace.query.labels import labelled
from headrace.sources.protocol import driven_sources
from headrace.state.checkpoint_folder import WriterLock
from headrace.state.fsync import sync_path
from headrace.state.manifest import NOTHING_TAKEN, Manifest, SourceState, manifest_name
from headrace.state.storage import open_storage
from headrace.state.store import StateStore
from headrace.support.event_time import FOREVER, NEVER, moment_text
from headrace.support.terminal_text import printable
from headrace.telemetry import incomplete
from headrace.telemetry.incomplete import Begun, incomplete_operators, warning_text

_log = logging.getLogger(__name__)

SPARK_FOLDER = "spark"  # the folder of Spark's own log


@dataclass(frozen=True)
class Migration:
    """The result of a migration, for users."""

    epoch: int  # after which the new checkpoint continues
    lines: tuple[str, ...]  # kept, lost, added, and other changes
    complete: Mapping[
        str, int | None
    ]  # results that are incomplete at first: from which time on they are complete, if known


def migrate(
    checkpoint: Path,
    to: Path,
    roots: Sequence[nodes.Node],
    ordered: Sequence[bool],
    order: str = "transparent",
    labels: Mapping[str, str] | None = None,
) -> Migration:
    """Create a checkpoint at `to` with which a query continues from the state of another query.

    labels: of results, by `result-N`, for the report. The new checkpoint does not contain them.
    """
    if os.path.lexists(to):
        raise QueryError(f"{str(to)!r} already exists; give a new checkpoint folder as --to")
    old, new = checkpoint.resolve(), to.resolve()
    if new.is_relative_to(old) or old.is_relative_to(new):
        raise QueryError(
            f"{str(to)!r} and {str(checkpoint)!r} are nested; give a folder outside the checkpoint as --to"
        )
    storage = open_storage(checkpoint / "state")
    storage.require()
    with StateStore(storage, read_only=True, lease=WriterLock(checkpoint / "state")) as store:
        found, manifest = _carried_over(store, roots, ordered, order)
        _make(checkpoint, to, manifest)
        return replace(found, lines=tuple(labelled(line, labels or {}) for line in found.lines))


def _carried_over(
    store: StateStore, roots: Sequence[nodes.Node], ordered: Sequence[bool], order: str
) -> tuple[Migration, Manifest]:
    last = store.last
    if last is None:
        raise StateError("this checkpoint has no committed epoch; start the new query with a new checkpoint folder")
    stored_checks.check_manifest(last)
    if last.closed:
        raise StateMismatch(
            "the checkpoint is closed because its bounded input has been processed; use a new checkpoint folder"
        )
    if last.outbox and not store.all_delivered:
        raise StateMismatch(
            f"the results of epoch {last.number} may not have reached their sinks, since the run did not end normally; start it"
            " once more with the former query, which delivers them, and stop it; then migrate"
        )
    last = rename_tables(last, roots)
    over, said = pin_columns(roots, last.query["operators"])
    query = CompiledQuery(over, ordered)
    new = compare.describe_query(query, order)
    found = compare.compare_with_state(store, last, query, new)
    if impossible := [*found.impossible, *_foreign(last, found, new)]:
        refused = "".join(f"\n  impossible: {printable(line)}" for line in impossible)
        raise QueryChanged(f"this state cannot be carried over:{refused}\nuse a new checkpoint folder")
    _check_places(last, over)
    held = compare.columns_held(found.kept, last.query)
    plan, new = query.physical(held=held), compare.describe_query(query, order, held)
    begun = _begun(last, found, plan, QueryMeanings(new))
    _say_withheld(found, plan, begun)
    complete = {name: time for name, time in begun.items() if name in plan.results}
    words = [warning_text(result, time) for result, time in complete.items()]
    lines = [*found.listed(), *found.shorter, *said, *found.said, *words]
    manifest = compare.rename_in_manifest(last, found, plan, new)
    manifest = _with_sources(manifest, plan, new)
    changes = [*manifest.query["changes"], {"epoch": last.number + 1, "said": ["migrated", *lines]}]
    section = {**manifest.query, "changes": changes[-compare.MOST_CHANGES :]}
    if begun := {**incomplete_operators(section), **begun}:  # with what was incomplete before and still is
        section["begun"] = begun
    manifest = replace(manifest, query=section, outbox=(), decisions=[], run=uuid.uuid4().hex)
    stored_checks.check_manifest(manifest)
    return Migration(last.number, tuple(lines), complete), manifest


def _check_places(last: Manifest, roots: Sequence[nodes.Node]) -> None:
    """Raise, as a run would, if a kept source now reads something else."""
    origins = {name: s.origin for name, s in nodes.named_sources(*roots).items() if name in last.sources}
    found = {name: getattr(origin, "place", None) for name, origin in origins.items()}
    static = [name for name, origin in origins.items() if origin.bounded]
    places = {name: place for name, place in found.items() if place is not None}
    identity.check_source_places(last, places, driven_sources(origins), static)


def _foreign(last: Manifest, found: Comparison, new: Json) -> list[str]:
    """Describe added or lost sources that are DataFrames: Spark's log covers all of them, and static ones are read only
    once."""
    if Position.from_json(last.position).kind == "local":
        return []
    driven = {
        node["name"]: node["driven"] for node in (*last.query["operators"], *new["operators"]) if "driven" in node
    }
    names = [name for name in (*found.lost, *found.added) if driven.get(name, "files") not in NOTHING_TAKEN]
    return [f"source {name}: only folders and topics can be added or left out; it is a DataFrame" for name in names]


def _with_sources(manifest: Manifest, plan: p.PhysicalPlan, new: Json) -> Manifest:
    """Return the manifest with the sources of the query. New sources have delivered nothing; removed sources are not
    counted."""
    sources = {s.name: manifest.sources.get(s.name, SourceState()) for s in plan.sources}
    driven = {n["name"]: NOTHING_TAKEN[n["driven"]] for n in new["operators"] if n.get("driven") in NOTHING_TAKEN}
    counts = {c: sum(getattr(s, c) for s in sources.values()) for c in stored_checks.COUNTS}
    return replace(
        manifest,
        sources=sources,
        ledgers={name: manifest.ledgers.get(name, nothing) for name, nothing in driven.items()},
        totals=replace(manifest.totals, **counts),
    )


# --- completeness of results ------------------------------------------------------------------------------------------


def _begun(last: Manifest, found: Comparison, plan: p.PhysicalPlan, new: QueryMeanings) -> Begun:
    """Return the times from which on added operators, and new or affected results, are complete. Results of new sources
    alone are complete."""
    known = {source.name: last.sources.get(source.name, SourceState()).largest for source in plan.sources}
    arrived = {name: NEVER if largest is None else largest + 1 for name, largest in known.items()}
    before, added = incomplete_operators(last.query), {o.name for o in plan.operators if o.name not in found.kept}
    begun = {name: before[old] for name, old in found.kept.items() if old in before}
    notes = {name: last.operators[old].notes for name, old in found.kept.items() if old in last.operators}
    since = incomplete.latest_addition(kept_functions_since(last.query, found.kept))
    both = incomplete.later_of(begun, since)
    complete = incomplete.complete_since(plan, arrived, both, added, notes)
    begun |= {name: both[name] for name in added if name in both}
    making = {name for name in added if operator_kind(name) != compare.ORDER}
    for result in plan.results:
        if found.results[result] is None or making & new.above(result):
            begun[result] = incomplete.input_complete_since(plan, result, complete)
    return {name: time for name, time in begun.items() if time != NEVER}


def _say_withheld(found: Comparison, plan: p.PhysicalPlan, begun: Begun) -> None:
    """Add to the added aggregates which windows they do not emit."""
    for operator in incomplete.withhold_incomplete(plan, begun).operators:
        if operator.name in found.added and operator.withholds_before is not None:
            found.added[operator.name] += f"; {_withheld(operator.withholds_before, operator.first_whole_window)}"


def _withheld(time: int, first: int | None) -> str:
    if time < FOREVER:
        begins = "" if first is None else f"; the first window that is emitted begins at {moment_text(first)}"
        return f"windows that began before {moment_text(time)} are not emitted{begins}"
    return "no window is emitted, because the time from which on its input is complete is unknown"


# --- the new folder ---------------------------------------------------------------------------------------------------------


def _make(checkpoint: Path, to: Path, manifest: Manifest) -> None:
    making = to.parent / f"_{to.name}-{manifest.state_id[:8]}"
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        if making.exists():
            shutil.rmtree(making)
        making.mkdir(mode=0o700)
        _fill(checkpoint, making, manifest)
        making.rename(to)  # the run still holds the lock of the old folder
        sync_path(to.parent)
    except OSError as error:
        msg = f"cannot create the new checkpoint {str(to)!r}: {error}; {str(checkpoint)!r} is unchanged"
        raise StateError(msg) from error


def _fill(checkpoint: Path, making: Path, manifest: Manifest) -> None:
    """Write everything that the checkpoint needs, durably."""
    storage = open_storage(making / "state")
    lease = storage.lease()
    try:
        names = [block.name for block in manifest.live_blocks()]
        for name in names:
            _link(checkpoint / "state" / name, making / "state" / name)
        storage.sync(names)
        if (checkpoint / SPARK_FOLDER).is_dir():
            shutil.copytree(checkpoint / SPARK_FOLDER, making / SPARK_FOLDER)
            for path in [making / SPARK_FOLDER, *(making / SPARK_FOLDER).rglob("*")]:
                sync_path(path)
        storage.publish(manifest_name(manifest.number), manifest.to_bytes())
        StateStore(storage).complete()  # as a run will find it
    finally:
        lease.release()
    for path in (making / "state", making):
        sync_path(path)


def _link(block: Path, new: Path) -> None:
    """Link or copy a block. Blocks never change, so two folders may share one; readers verify the checksum of a copy."""
    try:
        os.link(block, new)
    except OSError:  # another disk, or a file system without links
        shutil.copyfile(block, new)
        new.chmod(0o600)
