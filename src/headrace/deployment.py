"""A deployment descriptor: the cluster that runs a query, how much of it, and where the state lies.

A `DeploymentDescriptor` that `read_descriptor` returns can be meant: every key is known and of its kind, every file that it names is there,
and the master is of a form that Spark understands. Whether somebody answers at the master is `check_master`'s question,
asked before a JVM starts: Spark itself would try for a minute and then talk about something else.

The driver runs where the descriptor is read. To the executors go the settings and, with `ship`, the headrace sources, so
that they need only what headrace depends on.
"""

from __future__ import annotations

import difflib
import os
import queue
import re
import socket
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import DeploymentError, EngineError, QueryError
from headrace.support.durations import parse_duration
from headrace.support.json_toml import read_toml
from headrace.support.limits import MOST_SLOTS, check_physical_window, check_slots, check_splitters
from headrace.support.paths import given_path, mounted_path
from headrace.support.version import __version__

KINDS: dict[str, tuple[type, str]] = {
    "master": (str, "text, such as 'spark://host:7077'"),
    "state": (str, "text, such as '/shared/checkpoints/fraud'"),
    "executors": (int, "a whole number, at least 1"),
    "cores": (int, "a whole number, at least 1"),
    "memory": (str, "text, such as '1g' or '800m'"),
    "slots": (int, "a whole number, at least 1"),
    "splitters": (int, "a whole number, at least 1"),
    "physical_window": (str, "text, such as '16 MiB'"),
    "epoch": (str, "a duration as text, such as '1 second'"),
    "plan": (str, "text, the path of a plan file"),
    "ship": (bool, "true or false"),
    "packages": (list, "a list of paths, such as ['helpers.py']"),
    "python": (str, "text, the path of a Python"),
    "patience": (str, "a duration as text, such as '60 seconds'"),
    "spark": (dict, "a table of Spark settings"),
}
SIZE_KEYS = ("executors", "cores", "memory")
PLAIN = ("slots", "splitters", "physical_window", "epoch", "ship", "python", "patience")  # as they are in the file
DESCRIPTOR_KEYS = {  # settings of Spark that a key of the descriptor stands for
    "spark.master": "master",
    "spark.executor.instances": "executors",
    "spark.executor.cores": "cores",
    "spark.cores.max": "executors and cores",
    "spark.executor.memory": "memory",
    "spark.submit.pyFiles": "packages",
    "spark.pyspark.python": "python",
}
MASTERS = "spark://HOST:PORT, local[N], local-cluster[N,CORES,MEGABYTES], yarn or k8s://..."
LEAST_MEMORY = 450 << 20  # bytes; Spark's own limit: one and a half times what it reserves for itself
UNITS = {"k": 10, "m": 20, "g": 30, "t": 40}

_PLACE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:,/\[\]]+):(\d{1,5})")
_LOCAL = re.compile(r"local(?:\[([1-9][0-9]{0,8}|\*)(?:,\s*[1-9][0-9]{0,8})?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*([1-9][0-9]{0,8})\s*,\s*([1-9][0-9]{0,8})\s*,\s*([1-9][0-9]{0,8})\s*\]")
_ELSEWHERE = re.compile(r"yarn|k8s://\S+")


@dataclass(frozen=True)
class DeploymentDescriptor:
    """Where and how a query is deployed; made by `read`. Sizes are per executor."""

    master: str
    state: Path
    executors: int = 1
    cores: int = 1
    memory: str = "1g"
    slots: int | None = None  # one per core, unless a plan says otherwise
    splitters: int | None = None  # None, and no physical window: as the load needs
    physical_window: str | None = None
    epoch: str = "1 second"
    plan: Path | None = None
    ship: bool = True
    packages: tuple[Path, ...] = ()
    python: str | None = None
    patience: str = "60 seconds"
    spark: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """No executors: the driver's own process works."""
        return _LOCAL.fullmatch(self.master) is not None

    @property
    def size(self) -> str:
        """What is asked for, in words."""
        if self.is_local:
            return _count(self.cores, "core") + " of this machine"
        return f"{_count(self.executors, 'executor')} with {_count(self.cores, 'core')} and {self.memory} each"

    def settings(self) -> dict[str, str]:
        """The Spark configuration, but for the master."""
        found: dict[str, str] = {}
        if not self.is_local:
            found = {
                "spark.executor.instances": str(self.executors),
                "spark.executor.cores": str(self.cores),
                "spark.executor.memory": self.memory,
                "spark.cores.max": str(self.executors * self.cores),  # how a standalone master counts executors
            }
        if self.ship:
            found["spark.executorEnv.PYTHONPATH"] = ""  # not the driver's: what executors import is what was shipped
        if self.python is not None:
            found["spark.pyspark.python"] = self.python
        return {**found, **self.spark}

    def shipped(self) -> list[str]:
        """What is sent to the executors, by name."""
        return [*([f"headrace {__version__}"] if self.ship else []), *(p.name for p in self.packages)]

    def pack(self, folder: Path) -> list[Path]:
        """The files to send to the executors; those that have to be made are made in `folder`."""
        own = [zipped(Path(__file__).parent, folder / f"headrace-{__version__}.zip")] if self.ship else []
        return own + [zipped(p, folder / f"{p.name}.zip") if p.is_dir() else p for p in self.packages]


# --- reading -------------------------------------------------------------------------------------------------------


def read_descriptor(path: str | os.PathLike[str]) -> DeploymentDescriptor:
    """The descriptor in a TOML file. Paths in it are relative to the file."""
    file = given_path(path, "the deployment descriptor")
    data = read_toml(file, "the deployment descriptor", error=DeploymentError)
    try:
        return _checked(data, file.resolve().parent)
    except (DeploymentError, QueryError) as error:  # the latter about a duration
        raise DeploymentError(f"{file}: {error}") from None
    except OSError as error:  # a path that cannot be one
        raise DeploymentError(f"{file}: {error.strerror}: {error.filename!r:.100}") from None


def _checked(data: dict[str, Any], folder: Path) -> DeploymentDescriptor:
    for key, value in data.items():
        _check_key(key)
        _check_kind(key, value)
    for key in ("master", "state"):
        if key not in data:
            raise DeploymentError(f"{key!r} is missing; add a line such as {key} = {_example(key)}")
    check_master_form(data["master"])
    for key in ("epoch", "patience"):
        if key in data:
            parse_duration(data[key], key, zero=key == "epoch")
    if "splitters" in data:
        check_splitters(data["splitters"])
    if "physical_window" in data:
        check_physical_window(data["physical_window"])
    plain = {key: data[key] for key in PLAIN if key in data}
    sizes = _sizes(data)
    _check_slots(data, sizes.get("executors", 1) * sizes.get("cores", 1))
    return DeploymentDescriptor(
        master=data["master"],
        state=_state(data["state"], folder),
        **sizes,
        **plain,
        plan=_plan(data["plan"], folder) if "plan" in data else None,
        packages=_packages(data.get("packages", []), folder),
        spark=dict(_flat(data.get("spark", {}))),
    )


def _check_key(key: str) -> None:
    if key in KINDS:
        return
    near = difflib.get_close_matches(key, KINDS, 1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    hint = f"; settings of Spark stand in the table [spark], as {key!r} = ..." if key.startswith("spark.") else ""
    raise DeploymentError(f"unknown key {key!r}; {meant}There are {', '.join(KINDS)}{hint}")


def _check_kind(key: str, value: Any) -> None:
    kind, expected = KINDS[key]
    fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if fits and kind is int:
        fits = value >= 1
    if fits and kind is str:
        fits = _is_text(value)
    if not fits:
        raise DeploymentError(f"{key} must be {expected}; found {value!r:.200}")


def _is_text(value: Any) -> bool:
    """No path and no setting has a zero byte in it."""
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value


def _example(key: str) -> str:
    return KINDS[key][1].removeprefix("text, such as ").replace("'", '"')


def _sizes(data: Mapping[str, Any]) -> dict[str, Any]:
    """Executors, their cores and memory: from the descriptor, or from a master that is made for the purpose."""
    master = data["master"]
    local, cluster = _LOCAL.fullmatch(master), _LOCAL_CLUSTER.fullmatch(master)
    given = {key: data[key] for key in SIZE_KEYS if key in data}
    if given and (local or cluster):
        raise DeploymentError(f"the master {master!r} says by itself how large it is; leave out {', '.join(given)}")
    if local:
        return {"cores": usable_cores() if local[1] == "*" else int(local[1] or 1)}
    if cluster:
        given = {"executors": int(cluster[1]), "cores": int(cluster[2]), "memory": f"{cluster[3]}m"}
    if "memory" in given:
        _check_memory(given["memory"])
    return given


def _check_slots(data: Mapping[str, Any], cores: int) -> None:
    """Where neither the descriptor nor a plan says how many, every core is one."""
    if "slots" in data:
        check_slots(data["slots"])
    elif "plan" not in data and cores > MOST_SLOTS:
        raise DeploymentError(
            f"there are {cores} cores, and one slot for each is too many; add slots = {MOST_SLOTS} or less"
        )


def _check_memory(text: str) -> None:
    match = re.fullmatch(r"([0-9]{1,9})([kmgt])b?", text.lower())
    if match is None:
        raise DeploymentError(f"memory must be a whole number and a unit, such as '1g' or '800m'; found {text!r}")
    if int(match[1]) << UNITS[match[2]] < LEAST_MEMORY:
        raise DeploymentError(f"memory must be at least 450m, which Spark's executors need; found {text!r}")


def _state(text: str, folder: Path) -> Path:
    try:
        return folder / mounted_path(text, "the state")
    except QueryError as error:
        msg = f"state must be a folder of a file system that driver and executors mount at the same path; {error}"
        raise DeploymentError(msg) from None


def _plan(text: str, folder: Path) -> Path:
    path = folder / mounted_path(text, "the plan")
    if not path.is_file():
        raise DeploymentError(f"the plan {str(path)!r} is not there; headrace explain --format json makes one")
    return path


def _packages(values: list[Any], folder: Path) -> tuple[Path, ...]:
    found = {"headrace": Path(__file__).parent}  # by the name that it has on the executors
    for value in values:
        if not _is_text(value):
            raise DeploymentError(f"packages must be {KINDS['packages'][1]}; found {value!r} in it")
        path = (folder / mounted_path(value, "a package")).resolve()
        _check_package(path)
        if (other := found.setdefault(path.stem, path)) != path:
            raise DeploymentError(f"packages hold {path.stem!r} twice: {str(other)!r} and {str(path)!r}")
    return tuple(found.values())[1:]


def _check_package(path: Path) -> None:
    if not path.exists():
        raise DeploymentError(f"the package {str(path)!r} is not there")
    if path.is_dir():
        if not path.name.isidentifier() or not any(path.rglob("*.py")):
            raise DeploymentError(f"the folder {str(path)!r} is not a Python package; name one that can be imported")
    elif path.suffix == ".zip":
        if not zipfile.is_zipfile(path):
            raise DeploymentError(f"the package {str(path)!r} is not a zip file")
    elif path.suffix != ".py":
        raise DeploymentError(f"the package {str(path)!r} is neither a folder nor a .py nor a .zip file")


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Settings by their full names: `network.timeout` in [spark] is a table in a table for TOML."""
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
            continue
        full = name if name.startswith("spark.") else f"spark.{name}"
        if full in DESCRIPTOR_KEYS:
            raise DeploymentError(f"{full} does not belong into [spark]; say it with {DESCRIPTOR_KEYS[full]}")
        if not isinstance(value, (str, int, float)):  # a bool is an int
            raise DeploymentError(f"{full} must be text, a number, true or false; found {value!r}")
        yield full, str(value).lower() if isinstance(value, bool) else str(value)


# --- the master ----------------------------------------------------------------------------------------------------


def check_master_form(master: str) -> None:
    """Refuse a master that Spark would not understand."""
    if master.startswith("spark://"):
        _places(master)
    elif not (_LOCAL.fullmatch(master) or _LOCAL_CLUSTER.fullmatch(master) or _ELSEWHERE.fullmatch(master)):
        raise DeploymentError(f"the master {master!r} is of no kind that Spark knows; expected {MASTERS}")


def _places(master: str) -> list[tuple[str, int]]:
    """Hosts and ports of a standalone master and its stand-ins."""
    found = []
    for text in master.removeprefix("spark://").split(","):
        match = _PLACE.fullmatch(text.strip())
        if match is None or not 0 < int(match[2]) < 65536:
            msg = f"the master {master!r} must be spark://HOST:PORT, or several HOST:PORT with commas; found {text!r}"
            raise DeploymentError(msg)
        found.append((match[1].strip("[]"), int(match[2])))
    return found


def check_master(master: str, timeout: float = 5.0) -> None:
    """Refuse a standalone master where nobody answers. One of several is enough; all are asked at once."""
    check_master_form(master)
    if not master.startswith("spark://"):
        return
    places = _places(master)
    answers: queue.Queue[tuple[tuple[str, int], str | None]] = queue.Queue()
    for place in places:  # daemons: looking up a name may take longer than anybody waits
        threading.Thread(target=lambda at: answers.put((at, _knock(at, timeout))), args=(place,), daemon=True).start()
    trouble = dict.fromkeys(places, _silent(timeout))
    deadline = time.monotonic() + timeout + 0.5  # the half second is for the threads to tell
    for _ in places:
        try:
            place, what = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if what is None:
            return
        trouble[place] = what
    found = "; ".join(f"{host}:{port}: {what}" for (host, port), what in trouble.items())
    msg = f"no Spark master answers at {master} ({found}); is it up, and is this the URL that its web page shows?"
    raise EngineError(msg)


def _knock(place: tuple[str, int], timeout: float) -> str | None:
    """What is wrong with a place; None if somebody opens."""
    try:
        with socket.create_connection(place, timeout):
            return None
    except TimeoutError:
        return _silent(timeout)
    except ConnectionRefusedError:
        return "connection refused"
    except (socket.gaierror, UnicodeError):
        return "unknown host"
    except OSError as error:
        return error.strerror or str(error)


def _silent(timeout: float) -> str:
    return f"no answer within {timeout:g} seconds"


# --- what is shipped -----------------------------------------------------------------------------------------------


def zipped(package: Path, target: Path) -> Path:
    """A Python package as a zip file that can be imported from."""
    files = sorted(p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for path in files:
            archive.write(path, path.relative_to(package.parent))
    return target


# --- words and numbers ---------------------------------------------------------------------------------------------


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
