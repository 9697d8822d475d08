"""The record of one committed epoch.

    bytes = canonical JSON of (fields, format, checksum)      checksum = sha256(canonical JSON of the rest)
    from_bytes(bytes) succeeds  =>  to_bytes(from_bytes(bytes)) == bytes

The text has exactly one spelling, so any flipped bit is detected, even one that does not change the JSON value.

All sections together have one version, `STATE_FORMAT`. Any change to a section needs a new format number. Other
packages own the meaning of some sections, which are stored here as JSON:

    position             driver.position
    query                driver.fingerprint; its keys `begun` and `functions_since`: telemetry.incomplete; `places`:
                         evolve.table_names
    layouts              routing
    work                 task.work
    control, decisions   control.control_state
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa

from headrace.errors import CorruptState, StateError
from headrace.state.blocks import Block, blocks_by_name
from headrace.state.schemas import schema_from_json, schema_to_json
from headrace.support import validators
from headrace.support.event_time import FOREVER, FURTHEST, NEVER
from headrace.support.json_toml import parse_json

STATE_FORMAT = 8
READABLE_FORMATS = (7, 8)

_MANIFEST_NAME = re.compile(r"manifests/([0-9]{9,12})\.json")
_ID = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CHOICES = (
    "headrace never falls back to an older epoch automatically: results of this one may have been delivered. "
    "Restore the state folder from a backup, or start over in a new, empty folder"
)


@dataclass(frozen=True)
class EpochRange:
    """The rows of a state table that the epochs `first` to `last` wrote."""

    first: int
    last: int
    live: int  # rows that no newer row replaces
    gone: int  # tombstones, whether they still hide a row or not

    def to_json(self) -> list[int]:
        return [self.first, self.last, self.live, self.gone]


@dataclass(frozen=True)
class TableState:
    """A state table of an operator: its columns and its blocks (`headrace.state.state_tables` describes which rows
    count)."""

    key: tuple[str, ...]
    columns: pa.Schema
    blocks: tuple[Block, ...]
    renewed: tuple[int, ...]  # per group: the epoch of its last base; -1: none
    rows: tuple[int, ...]  # per group: number of live rows
    ages: tuple[EpochRange, ...] = ()  # ascending; only epochs with a live row or a tombstone

    def to_json(self) -> dict[str, Any]:
        return {
            "key": list(self.key),
            "columns": schema_to_json(self.columns),
            "blocks": [block.to_json() for block in self.blocks],
            "renewed": list(self.renewed),
            "rows": list(self.rows),
            "ages": [age.to_json() for age in self.ages],
        }


@dataclass(frozen=True)
class OperatorState:
    """The state of one operator: by input its blocks in order of arrival, its state tables, and its notes."""

    inputs: tuple[tuple[Block, ...], ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, TableState] = field(default_factory=dict)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Return all blocks. A block can occur several times, because inputs can share blocks."""
        parts = (*self.inputs, *(table.blocks for table in self.tables.values()))
        return tuple(block for blocks in parts for block in blocks)

    def to_json(self) -> dict[str, Any]:
        return {
            "inputs": [[block.to_json() for block in blocks] for blocks in self.inputs],
            "extra": self.notes,
            "tables": {name: table.to_json() for name, table in self.tables.items()},
        }


class PartitionState(NamedTuple):
    """A partition of a source: the latest time accepted, whether it is idle, and the last epoch in which it had a tuple."""

    largest: int | None = None
    idle: bool = False
    spoke: int | None = None  # the number of the epoch; None: never


@dataclass(frozen=True)
class SourceState:
    """A source after an epoch: its times in microseconds, and counts of its tuples since the state began."""

    largest: int | None = None  # the latest time accepted; None: no tuple yet
    smallest: int | None = None
    watermark: int = NEVER
    idle: bool = False
    delivered: int = 0  # = accepted + late + rejected
    accepted: int = 0
    late: int = 0
    rejected: int = 0
    failed: int = 0  # accepted tuples that failed, once per failing step, and messages that could not be decoded
    place: str | None = None  # what it reads (for a static source: its content), where known
    partitions: dict[str, PartitionState] = field(default_factory=dict)  # empty: the source has no partitions

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "partitions": {name: list(part) for name, part in self.partitions.items()}}


@dataclass(frozen=True)
class FolderState:
    """The files of a folder that were taken, and the files that a run with `once=True` takes, as blocks of names."""

    taken: tuple[Block, ...] = ()
    listed: Block | None = None  # None: any file is taken

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.taken if self.listed is None else (*self.taken, self.listed)

    @property
    def lost(self) -> int:
        return 0  # a missing file stops the run instead

    def to_json(self) -> dict[str, Any]:
        return {
            "taken": [block.to_json() for block in self.taken],
            "listed": self.listed.to_json() if self.listed else None,
        }


class OffsetReached(NamedTuple):
    """The position reached in one partition of a topic."""

    next: int  # the first offset that was not taken
    until: int | None = None  # in a bounded run: the first offset that it does not take
    lost: int = 0  # offsets that were deleted before they were taken, and were skipped


@dataclass(frozen=True)
class TopicsState:
    """The offsets reached in the topics of a source."""

    topics: dict[str, str] = field(
        default_factory=dict
    )  # topic: the broker's identifier; a topic with another identifier is another topic
    partitions: dict[str, OffsetReached] = field(default_factory=dict)  # by "topic/number"
    listed: bool = False  # the run takes only what was there at its start

    @property
    def blocks(self) -> tuple[Block, ...]:
        return ()

    @property
    def lost(self) -> int:
        """Return how many offsets were skipped."""
        return sum(reached.lost for reached in self.partitions.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "topics": self.topics,
            "partitions": {name: list(reached) for name, reached in self.partitions.items()},
            "listed": self.listed,
        }


TakenState = FolderState | TopicsState
NOTHING_TAKEN: dict[str, TakenState] = {"files": FolderState(), "kafka": TopicsState()}  # by the kind of source


@dataclass(frozen=True)
class TableVersion:
    """The content of a table that one epoch uses: its number, counted since the state began, and its rows."""

    number: int
    block: Block  # its checksum is that of the content

    def to_json(self) -> dict[str, Any]:
        return {"number": self.number, "block": self.block.to_json()}


@dataclass(frozen=True)
class Totals:
    """Counts of the tuples of all sources, and of results by name, since the state began."""

    delivered: int = 0
    accepted: int = 0
    late: int = 0
    rejected: int = 0
    results: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)  # by step: "source: text of the step"

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


@dataclass(frozen=True)
class Receipt:
    """The receipt of a part sink for rows that a task wrote to it. Only the sink understands its value."""

    rows: int
    value: Any  # JSON

    def to_json(self) -> dict[str, Any]:
        return {"rows": self.rows, "said": self.value}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Receipt:
        return Receipt(data["rows"], data["said"])


@dataclass(frozen=True)
class OutboxEntry:
    """One part of a result of this epoch, waiting in the outbox: a block, or the receipt of its sink."""

    result: str
    part: int
    content: Block | Receipt

    def to_json(self) -> dict[str, Any]:
        kind = "block" if isinstance(self.content, Block) else "receipt"
        return {"result": self.result, "part": self.part, kind: self.content.to_json()}


@dataclass(frozen=True)
class Manifest:
    """The record of one committed epoch: the whole state after it, and the results that it delivers.

    The state is what the newest manifest names, and nothing else. A file is deleted only when no kept manifest names it. The
    names of the fields are the keys of the stored JSON. `state_id` names the state in sinks, and `run` the run that committed
    the epoch.
    """

    state_id: str
    number: int
    previous: str | None
    run: str
    versions: dict[str, str] = field(default_factory=dict)
    position: dict[str, Any] = field(default_factory=dict)
    query: dict[str, Any] = field(default_factory=dict)
    groups: int = 0
    layouts: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, SourceState] = field(default_factory=dict)
    ledgers: dict[str, TakenState] = field(default_factory=dict)  # by source that headrace reads itself
    tables: dict[str, TableVersion] = field(default_factory=dict)  # by name: what this epoch used
    splits: dict[str, int] = field(default_factory=dict)  # by name: the largest `ts` received, microseconds
    operators: dict[str, OperatorState] = field(default_factory=dict)
    outbox: tuple[OutboxEntry, ...] = ()
    totals: Totals = field(default_factory=Totals)
    work: dict[str, Any] = field(default_factory=dict)  # work counts of tasks; empty: none
    control: dict[str, Any] = field(default_factory=dict)  # memory of the controller; empty: none
    decisions: list[Any] = field(default_factory=list)
    closed: bool = False

    def state_blocks(self) -> tuple[Block, ...]:
        """Return the blocks that the next epoch starts with, each once: state of operators, ledgers and tables."""
        state = [block for operator in self.operators.values() for block in operator.blocks]
        tables = [version.block for version in self.tables.values()]
        ledgers = [block for ledger in self.ledgers.values() for block in ledger.blocks]
        return tuple(blocks_by_name([*state, *ledgers, *tables]).values())

    def live_blocks(self) -> tuple[Block, ...]:
        """Return every block that this manifest needs, outbox included, each once."""
        waiting = [output.content for output in self.outbox if isinstance(output.content, Block)]
        return tuple(blocks_by_name([*self.state_blocks(), *waiting]).values())

    def to_bytes(self) -> bytes:
        try:
            return _seal(_to_json(self))
        except (TypeError, ValueError, RecursionError) as error:
            raise StateError(f"manifest {self.number} has a value that JSON cannot represent: {error}") from error

    @staticmethod
    def from_bytes(data: bytes, name: str) -> Manifest:
        """Return the manifest as it was written. Any other content is an error that names the file."""
        parsed = _parse(data, name)
        _check_format(parsed, name)
        body = {key: value for key, value in parsed.items() if key != "checksum"}
        if not _is_sealed(body, data):
            raise_corrupt(name, "its checksum does not match its content")
        try:
            return _from_json(_present_format(body))
        except CorruptState as error:
            raise_corrupt(name, str(error))


def manifest_name(number: int) -> str:
    return f"manifests/{number:09d}.json"


def number_of(name: str) -> int | None:
    """Return the number in a manifest's file name; None for any other file."""
    match = _MANIFEST_NAME.fullmatch(name)
    if match is None or manifest_name(int(match[1])) != name:
        return None
    return int(match[1])


def manifest_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def raise_corrupt(name: str, reason: str) -> NoReturn:
    raise CorruptState(f"manifest {name} cannot be trusted: {reason}. {_CHOICES}") from None


def _encode(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _seal(body: dict[str, Any]) -> bytes:
    return _encode({**body, "checksum": manifest_digest(_encode(body))})


def _is_sealed(body: dict[str, Any], data: bytes) -> bool:
    try:
        return _seal(body) == data
    except (ValueError, RecursionError):  # such as 1e999, which is valid JSON but never written here
        return False


def _parse(data: bytes, name: str) -> dict[str, Any]:
    try:
        parsed = parse_json(data.decode("ascii"))
    except ValueError as error:
        raise_corrupt(name, f"not readable as JSON ({error})")
    if not isinstance(parsed, dict):
        raise_corrupt(name, "not a JSON object")
    return parsed


def _check_format(parsed: dict[str, Any], name: str) -> None:
    found = parsed.get("format")
    if type(found) is not int or found < 1:
        raise_corrupt(name, f"its format is {found!r:.50}, expected {STATE_FORMAT}")
    if found not in READABLE_FORMATS:
        age = "a newer" if found > STATE_FORMAT else "an older"
        raise StateError(
            f"manifest {name} was written by {age} version of headrace: it has format {found}, this version reads formats "
            f"{' and '.join(map(str, READABLE_FORMATS))}. Nothing was changed: continue with a version that reads format {found}, or start over in a new, "
            "empty folder"
        )


def _present_format(body: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a manifest of a readable format in the present one.

    Format 7 had ranges as groups that never changed: their router was part of the query, and layouts named groups.
    """
    if body["format"] == STATE_FORMAT:
        return body
    found = dict(body)
    query, control = body.get("query"), body.get("control")
    if isinstance(query, dict):
        found["query"] = {key: value for key, value in query.items() if key != "routers"}
    if isinstance(control, dict):
        found["control"] = {**control, "layouts": _without_ranges(control.get("layouts"))} if control else control
    found["layouts"] = _without_ranges(body.get("layouts"))
    return found


def _without_ranges(layouts: Any) -> Any:
    if not isinstance(layouts, dict):
        return layouts
    return {n: each for n, each in layouts.items() if not (isinstance(each, dict) and each.get("kind") == "ranges")}


def _to_json(manifest: Manifest) -> dict[str, Any]:
    plain = {f.name: getattr(manifest, f.name) for f in fields(manifest)}
    return {
        **plain,
        "sources": {name: source.to_json() for name, source in manifest.sources.items()},
        "ledgers": {name: ledger.to_json() for name, ledger in manifest.ledgers.items()},
        "tables": {name: version.to_json() for name, version in manifest.tables.items()},
        "operators": {name: state.to_json() for name, state in manifest.operators.items()},
        "outbox": [output.to_json() for output in manifest.outbox],
        "totals": manifest.totals.to_json(),
        "format": STATE_FORMAT,
    }


def _from_json(body: dict[str, Any]) -> Manifest:
    values = validators.record(**_FIELDS, format=validators.of_type(int))(body, "manifest")
    manifest = Manifest(**{key: value for key, value in values.items() if key != "format"})
    if (manifest.number == 0) != (manifest.previous is None):
        raise CorruptState("only manifest 0 has no predecessor")
    manifest.live_blocks()
    return manifest


def _operators(value: Any, key: str) -> dict[str, OperatorState]:
    states = validators.mapping_of(_OPERATOR)(value, key)
    return {n: OperatorState(tuple(map(tuple, s["inputs"])), s["extra"], s["tables"]) for n, s in states.items()}


def _table(value: Any, key: str) -> TableState:
    found = _TABLE(value, key)
    names = found["columns"].names
    if any(name not in names for name in found["key"]) or len(set(found["key"])) != len(found["key"]):
        raise validators.refuse(f"{key}.key", f"some of the columns {names}", found["key"])
    if len(found["renewed"]) != len(found["rows"]):
        raise validators.refuse(f"{key}.renewed", f"a list of {len(found['rows'])}, as rows is", len(found["renewed"]))
    lists = {name: tuple(found[name]) for name in ("key", "blocks", "renewed", "rows")}
    return TableState(columns=found["columns"], ages=tuple(EpochRange(*age) for age in found["ages"]), **lists)


def _ledger(value: Any, key: str) -> TakenState:
    if isinstance(value, dict) and "topics" in value:
        found = _OFFSETS(value, key)
        for name in found["partitions"]:
            _PARTITION(name, f"{key}.partitions")
        return TopicsState(
            found["topics"], {n: OffsetReached(*each) for n, each in found["partitions"].items()}, found["listed"]
        )
    found = _FILES(value, key)
    return FolderState(tuple(found["taken"]), found["listed"])


def _tables(value: Any, key: str) -> dict[str, TableVersion]:
    return {name: TableVersion(**version) for name, version in validators.mapping_of(_VERSION)(value, key).items()}


def _sources(value: Any, key: str) -> dict[str, SourceState]:
    found = validators.mapping_of(_SOURCE)(value, key)
    return {n: SourceState(**{**s, "partitions": _parts(s["partitions"])}) for n, s in found.items()}


def _parts(found: dict[str, Any]) -> dict[str, PartitionState]:
    return {name: PartitionState(*part) for name, part in found.items()}


def _totals(value: Any, key: str) -> Totals:
    return Totals(**_TOTALS(value, key))


def _outbox(value: Any, key: str) -> tuple[OutboxEntry, ...]:
    return tuple(validators.list_of(_output)(value, key))


def _output(value: Any, key: str) -> OutboxEntry:
    if isinstance(value, dict) and "receipt" in value:
        found = validators.record(result=validators.text, part=validators.count, receipt=_RECEIPT)(value, key)
        return OutboxEntry(found["result"], found["part"], Receipt.from_json(found["receipt"]))
    found = validators.record(result=validators.text, part=validators.count, block=_block)(value, key)
    return OutboxEntry(found["result"], found["part"], found["block"])


def _block(value: Any, key: str) -> Block:
    return Block.from_json(value)


_VERSION = validators.record(number=validators.count, block=_block)
_TABLE = validators.record(
    key=validators.list_of(validators.text),
    columns=schema_from_json,
    blocks=validators.list_of(_block),
    renewed=validators.list_of(validators.whole(-1, 1 << 62)),
    rows=validators.list_of(validators.count),
    ages=validators.list_of(validators.exact_list(*[validators.count] * 4)),
)
_OPERATOR = validators.record(
    inputs=validators.list_of(validators.list_of(_block)), extra=validators.table, tables=validators.mapping_of(_table)
)
_MOMENT = validators.optional(validators.whole(-FURTHEST, FURTHEST))
_COUNTED = dict.fromkeys(("delivered", "accepted", "late", "rejected"), validators.count)
_SOURCE = validators.record(
    failed=validators.count,
    largest=_MOMENT,
    smallest=_MOMENT,
    watermark=validators.whole(NEVER, FOREVER),
    idle=validators.flag,
    place=validators.optional(validators.text),
    partitions=validators.mapping_of(
        validators.exact_list(_MOMENT, validators.flag, validators.optional(validators.count))
    ),
    **_COUNTED,
)
_FILES = validators.record(taken=validators.list_of(_block), listed=validators.optional(_block))
_OFFSETS = validators.record(
    topics=validators.mapping_of(validators.text),
    partitions=validators.mapping_of(
        validators.exact_list(validators.count, validators.optional(validators.count), validators.count)
    ),
    listed=validators.flag,
)
_PARTITION = validators.matching(re.compile(r".+/[0-9]{1,10}"), "topic/number")
_RECEIPT = validators.record(rows=validators.count, said=lambda value, key: value)
_TOTALS = validators.record(
    **_COUNTED, failed=validators.mapping_of(validators.count), results=validators.mapping_of(validators.count)
)
_FIELDS: dict[str, validators.Form] = {
    "state_id": validators.matching(_ID, "32 hexadecimal digits"),
    "number": validators.count,
    "previous": validators.optional(validators.matching(_DIGEST, "a SHA-256 digest")),
    "run": validators.text,
    "versions": validators.mapping_of(validators.text),
    "position": validators.table,
    "query": validators.table,
    "groups": validators.count,
    "layouts": validators.table,
    "sources": _sources,
    "ledgers": validators.mapping_of(_ledger),
    "tables": _tables,
    "splits": validators.mapping_of(validators.whole(-FURTHEST, FURTHEST)),
    "operators": _operators,
    "outbox": _outbox,
    "totals": _totals,
    "work": validators.table,
    "control": validators.table,
    "decisions": validators.of_type(list),
    "closed": validators.flag,
}
