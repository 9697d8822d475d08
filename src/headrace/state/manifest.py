"""The record of one committed epoch.

    bytes = canonical JSON of (fields, format, checksum)      checksum = sha256(canonical JSON of the rest)
    from_bytes(bytes) succeeds  =>  to_bytes(from_bytes(bytes)) == bytes

The text has exactly one spelling, so any flipped bit is seen, even one that leaves the JSON value alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn

from headrace.errors import CorruptState, StateError
from headrace.state.blocks import Block, by_name

FORMAT = 1

_NAME = re.compile(r"manifests/([0-9]{9,12})\.json")
_ID = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CHOICES = (
    "headrace never falls back to an older epoch by itself: results of this one may have been delivered. "
    "Restore the state folder from a backup, or start afresh in a new, empty folder"
)


@dataclass(frozen=True)
class OperatorState:
    """Blocks of one stateful operator, per input in order of arrival, and what else it must remember."""

    inputs: tuple[tuple[Block, ...], ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Output:
    """One part of a result of this epoch, waiting in the outbox."""

    result: str
    part: int
    block: Block


@dataclass(frozen=True)
class Manifest:
    state_id: str
    number: int
    previous: str | None
    run: str
    versions: dict[str, str] = field(default_factory=dict)
    position: dict[str, Any] = field(default_factory=dict)
    query: dict[str, Any] = field(default_factory=dict)
    groups: int = 0
    layouts: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    operators: dict[str, OperatorState] = field(default_factory=dict)
    outbox: tuple[Output, ...] = ()
    totals: dict[str, int] = field(default_factory=dict)
    decisions: list[Any] = field(default_factory=list)
    closed: bool = False

    def live_blocks(self) -> tuple[Block, ...]:
        """Every block this manifest needs, outbox included, each once."""
        state = [b for op in self.operators.values() for blocks in op.inputs for b in blocks]
        return tuple(by_name([*state, *(output.block for output in self.outbox)]).values())

    def to_bytes(self) -> bytes:
        try:
            return _seal(_to_json(self))
        except (TypeError, ValueError, RecursionError) as error:
            raise StateError(f"manifest {self.number} holds something that JSON cannot: {error}") from error

    @staticmethod
    def from_bytes(data: bytes, name: str) -> Manifest:
        """Strict: the manifest as it was written, or an error that names the file."""
        parsed = _parse(data, name)
        _check_format(parsed, name)
        body = {key: value for key, value in parsed.items() if key != "checksum"}
        if not _is_sealed(body, data):
            _corrupt(name, "its checksum does not match its content")
        try:
            return _from_json(body)
        except CorruptState as error:
            _corrupt(name, str(error))


def manifest_name(number: int) -> str:
    return f"manifests/{number:09d}.json"


def number_of(name: str) -> int | None:
    """The number in a manifest's file name, None for any other file."""
    match = _NAME.fullmatch(name)
    if match is None or manifest_name(int(match[1])) != name:
        return None
    return int(match[1])


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _corrupt(name: str, reason: str) -> NoReturn:
    raise CorruptState(f"manifest {name} cannot be trusted: {reason}. {_CHOICES}") from None


def _encode(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _seal(body: dict[str, Any]) -> bytes:
    return _encode({**body, "checksum": digest(_encode(body))})


def _is_sealed(body: dict[str, Any], data: bytes) -> bool:
    try:
        return _seal(body) == data
    except (ValueError, RecursionError):  # such as 1e999, which JSON can spell and we never write
        return False


def _parse(data: bytes, name: str) -> dict[str, Any]:
    try:
        parsed = json.loads(data.decode("ascii"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        _corrupt(name, f"not readable as JSON ({error})")
    if not isinstance(parsed, dict):
        _corrupt(name, "not a JSON object")
    return parsed


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _check_format(parsed: dict[str, Any], name: str) -> None:
    found = parsed.get("format")
    if type(found) is int and found > FORMAT:
        raise StateError(
            f"manifest {name} was written by a newer version of headrace (format {found}; this version reads "
            f"{FORMAT}). Nothing was changed: use that version, or a new, empty folder"
        )
    if type(found) is not int or found != FORMAT:
        _corrupt(name, f"its format is {found!r:.50}, expected {FORMAT}")


def _to_json(manifest: Manifest) -> dict[str, Any]:
    plain = {f.name: getattr(manifest, f.name) for f in fields(manifest)}
    operators = {key: _operator_to_json(op) for key, op in manifest.operators.items()}
    outbox = [{"result": o.result, "part": o.part, "block": o.block.to_json()} for o in manifest.outbox]
    return {**plain, "operators": operators, "outbox": outbox, "format": FORMAT}


def _operator_to_json(state: OperatorState) -> dict[str, Any]:
    inputs = [[block.to_json() for block in blocks] for blocks in state.inputs]
    return {"inputs": inputs, "extra": state.extra}


def _from_json(body: dict[str, Any]) -> Manifest:
    _keys(body, {"format", *Manifest.__dataclass_fields__}, "manifest")
    values = {key: check(body[key], key) for key, check in _FIELDS.items()}
    manifest = Manifest(**values)
    if (manifest.number == 0) != (manifest.previous is None):
        raise CorruptState("only manifest 0 has no predecessor")
    manifest.live_blocks()
    return manifest


def _keys(data: object, expected: set[str], what: str) -> None:
    if not isinstance(data, dict) or set(data) != expected:
        raise CorruptState(f"{what} should have the fields {sorted(expected)}, found {data!r:.200}")


def _matching(pattern: re.Pattern[str]) -> Callable[[Any, str], str]:
    def check(value: Any, key: str) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise CorruptState(f"{key} is {value!r:.100}")
        return value

    return check


def _of(kind: type) -> Callable[[Any, str], Any]:
    def check(value: Any, key: str) -> Any:
        if type(value) is not kind:
            raise CorruptState(f"{key} should be a {kind.__name__}, found {value!r:.100}")
        return value

    return check


def _dict_of(kind: type) -> Callable[[Any, str], dict[str, Any]]:
    def check(value: Any, key: str) -> dict[str, Any]:
        return {name: _of(kind)(item, f"{key}.{name}") for name, item in _of(dict)(value, key).items()}

    return check


def _count(value: Any, key: str) -> int:
    if type(value) is not int or value < 0:
        raise CorruptState(f"{key} should be a number from 0 on, found {value!r:.100}")
    return value


def _previous(value: Any, key: str) -> str | None:
    return None if value is None else _matching(_DIGEST)(value, key)


def _operators(value: Any, key: str) -> dict[str, OperatorState]:
    return {name: _operator(state, f"{key}.{name}") for name, state in _of(dict)(value, key).items()}


def _operator(value: Any, key: str) -> OperatorState:
    _keys(value, {"inputs", "extra"}, key)
    inputs = [_of(list)(blocks, f"{key}.inputs") for blocks in _of(list)(value["inputs"], f"{key}.inputs")]
    return OperatorState(
        tuple(tuple(Block.from_json(block) for block in blocks) for blocks in inputs),
        _of(dict)(value["extra"], f"{key}.extra"),
    )


def _outbox(value: Any, key: str) -> tuple[Output, ...]:
    return tuple(_output(item, key) for item in _of(list)(value, key))


def _output(value: Any, key: str) -> Output:
    _keys(value, {"result", "part", "block"}, key)
    return Output(_of(str)(value["result"], key), _count(value["part"], key), Block.from_json(value["block"]))


_FIELDS: dict[str, Callable[[Any, str], Any]] = {
    "state_id": _matching(_ID),
    "number": _count,
    "previous": _previous,
    "run": _of(str),
    "versions": _dict_of(str),
    "position": _of(dict),
    "query": _of(dict),
    "groups": _count,
    "layouts": _of(dict),
    "sources": _dict_of(dict),
    "operators": _operators,
    "outbox": _outbox,
    "totals": _dict_of(int),
    "decisions": _of(list),
    "closed": _of(bool),
}
