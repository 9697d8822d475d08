"""Deployment descriptors: the cluster that runs a query, its resources, and the folder for the state.

`read_descriptor` returns only valid descriptors: every key is known and has the right type, every file that it names
exists, and the master has a form that Spark understands. `check_master` tests whether the master answers. It runs
before a JVM starts, because Spark would retry for a minute and then raise an unrelated error.

The driver runs where the descriptor is read. The executors receive the settings and, with `ship`, the headrace sources,
so they need only headrace's dependencies.
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
# copied unchanged from the file
PLAIN = ("slots", "splitters", "physical_window", "epoch", "ship", "python", "patience")
DESCRIPTOR_KEYS = {  # Spark settings that a key of the descriptor replaces
    "spark.master": "master",
    "spark.executor.instances": "executors",
    "spark.executor.cores": "cores",
    "spark.cores.max": "executors and cores",
    "spark.executor.memory": "memory",
    "spark.submit.pyFiles": "packages",
    "spark.pyspark.python": "python",
}
MASTERS = "spark://HOST:PORT, local[N], local-cluster[N,CORES,MEGABYTES], yarn or k8s://..."
LEAST_MEMORY = 450 << 20  # bytes; Spark's own limit, 1.5 times the memory that it reserves
UNITS = {"k": 10, "m": 20, "g": 30, "t": 40}

_PLACE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:,/\[\]]+):(\d{1,5})")
_LOCAL = re.compile(r"local(?:\[([1-9][0-9]{0,8}|\*)(?:,\s*[1-9][0-9]{0,8})?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*([1-9][0-9]{0,8})\s*,\s*([1-9][0-9]{0,8})\s*,\s*([1-9][0-9]{0,8})\s*\]")
_ELSEWHERE = re.compile(r"yarn|k8s://\S+")


@dataclass(frozen=True)
class DeploymentDescriptor:
    """Where and how to deploy a query; `read_descriptor` returns it. Sizes are per executor."""

    master: str
    state: Path
    executors: int = 1
    cores: int = 1
    memory: str = "1g"
    slots: int | None = None  # None: one per core, unless a plan has another number
    splitters: int | None = None  # None for both: adapted to the load
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
        """Return whether the master is local: the work is done in the driver's process, without executors."""
        return _LOCAL.fullmatch(self.master) is not None

    @property
    def size(self) -> str:
        """Return the requested resources as text."""
        if self.is_local:
            return _count(self.cores, "core") + " of this machine"
        return f"{_count(self.executors, 'executor')} with {_count(self.cores, 'core')} and {self.memory} each"

    def settings(self) -> dict[str, str]:
        """Return the Spark configuration without the master."""
        found: dict[str, str] = {}
        if not self.is_local:
            found = {
                "spark.executor.instances": str(self.executors),
                "spark.executor.cores": str(self.cores),
                "spark.executor.memory": self.memory,
                # a standalone master derives the number of executors from this
                "spark.cores.max": str(self.executors * self.cores),
            }
        if self.ship:
            # executors import the shipped packages, not those on the driver's path
            found["spark.executorEnv.PYTHONPATH"] = ""
        if self.python is not None:
            found["spark.pyspark.python"] = self.python
        return {**found, **self.spark}

    def shipped(self) -> list[str]:
        """Return the names of the packages that are sent to the executors."""
        return [*([f"headrace {__version__}"] if self.ship else []), *(p.name for p in self.packages)]

    def pack(self, folder: Path) -> list[Path]:
        """Return the files to send to the executors. Zip files are created in `folder`."""
        own = [zipped(Path(__file__).parent, folder / f"headrace-{__version__}.zip")] if self.ship else []
        return own + [zipped(p, folder / f"{p.name}.zip") if p.is_dir() else p for p in self.packages]


# --- reading -------------------------------------------------------------------------------------------------------


def read_descriptor(path: str | os.PathLike[str]) -> DeploymentDescriptor:
    """Read a descriptor from a TOML file. Paths in it are relative to the file."""
    file = given_path(path, "the deployment descriptor")
    data = read_toml(file, "the deployment descriptor", error=DeploymentError)
    try:
        return _checked(data, file.resolve().parent)
    except (DeploymentError, QueryError) as error:  # QueryError: an invalid duration
        raise DeploymentError(f"{file}: {error}") from None
    except OSError as error:  # an invalid path
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
    hint = f"; put Spark settings into the table [spark], as {key!r} = ..." if key.startswith("spark.") else ""
    raise DeploymentError(f"unknown key {key!r}; {meant}The keys are {', '.join(KINDS)}{hint}")


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
    """Return whether the value is text without zero bytes, which neither paths nor settings may contain."""
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value


def _example(key: str) -> str:
    return KINDS[key][1].removeprefix("text, such as ").replace("'", '"')


def _sizes(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return executors, cores and memory: from the descriptor, or from a local master, whose URL contains them."""
    master = data["master"]
    local, cluster = _LOCAL.fullmatch(master), _LOCAL_CLUSTER.fullmatch(master)
    given = {key: data[key] for key in SIZE_KEYS if key in data}
    if given and (local or cluster):
        raise DeploymentError(f"the master {master!r} already gives the size; leave out {', '.join(given)}")
    if local:
        return {"cores": usable_cores() if local[1] == "*" else int(local[1] or 1)}
    if cluster:
        given = {"executors": int(cluster[1]), "cores": int(cluster[2]), "memory": f"{cluster[3]}m"}
    if "memory" in given:
        _check_memory(given["memory"])
    return given


def _check_slots(data: Mapping[str, Any], cores: int) -> None:
    """Check the number of slots. Without `slots` and `plan` there is one slot per core."""
    if "slots" in data:
        check_slots(data["slots"])
    elif "plan" not in data and cores > MOST_SLOTS:
        raise DeploymentError(
            f"{cores} cores, with one slot each, are too many slots; add slots = {MOST_SLOTS} or less"
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
        raise DeploymentError(f"the plan {str(path)!r} does not exist; create one with headrace explain --format json")
    return path


def _packages(values: list[Any], folder: Path) -> tuple[Path, ...]:
    found = {"headrace": Path(__file__).parent}  # by the module name that executors import
    for value in values:
        if not _is_text(value):
            raise DeploymentError(f"packages must be {KINDS['packages'][1]}; found {value!r} in it")
        path = (folder / mounted_path(value, "a package")).resolve()
        _check_package(path)
        if (other := found.setdefault(path.stem, path)) != path:
            raise DeploymentError(f"packages contain {path.stem!r} twice: {str(other)!r} and {str(path)!r}")
    return tuple(found.values())[1:]


def _check_package(path: Path) -> None:
    if not path.exists():
        raise DeploymentError(f"the package {str(path)!r} does not exist")
    if path.is_dir():
        if not path.name.isidentifier() or not any(path.rglob("*.py")):
            raise DeploymentError(
                f"the folder {str(path)!r} is not a Python package; name a folder that Python can import"
            )
    elif path.suffix == ".zip":
        if not zipfile.is_zipfile(path):
            raise DeploymentError(f"the package {str(path)!r} is not a zip file")
    elif path.suffix != ".py":
        raise DeploymentError(f"the package {str(path)!r} is neither a folder nor a .py nor a .zip file")


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield settings with full names. In TOML, `network.timeout` in [spark] is a table within a table."""
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
            continue
        full = name if name.startswith("spark.") else f"spark.{name}"
        if full in DESCRIPTOR_KEYS:
            raise DeploymentError(f"{full} must not be set in [spark]; use the key {DESCRIPTOR_KEYS[full]} instead")
        if not isinstance(value, (str, int, float)):  # a bool is an int
            raise DeploymentError(f"{full} must be text, a number, true or false; found {value!r}")
        yield full, str(value).lower() if isinstance(value, bool) else str(value)


# --- the master ----------------------------------------------------------------------------------------------------


def check_master_form(master: str) -> None:
    """Raise if the master has a form that Spark does not understand."""
    if master.startswith("spark://"):
        _places(master)
    elif not (_LOCAL.fullmatch(master) or _LOCAL_CLUSTER.fullmatch(master) or _ELSEWHERE.fullmatch(master)):
        raise DeploymentError(f"the master {master!r} has no form that Spark knows; expected {MASTERS}")


def _places(master: str) -> list[tuple[str, int]]:
    """Return host and port of each standalone master in the URL."""
    found = []
    for text in master.removeprefix("spark://").split(","):
        match = _PLACE.fullmatch(text.strip())
        if match is None or not 0 < int(match[2]) < 65536:
            msg = f"the master {master!r} must be spark://HOST:PORT, or several HOST:PORT with commas; found {text!r}"
            raise DeploymentError(msg)
        found.append((match[1].strip("[]"), int(match[2])))
    return found


def check_master(master: str, timeout: float = 5.0) -> None:
    """Raise if no standalone master answers. All masters in the URL are contacted at once, and one answer is enough."""
    check_master_form(master)
    if not master.startswith("spark://"):
        return
    places = _places(master)
    answers: queue.Queue[tuple[tuple[str, int], str | None]] = queue.Queue()
    for place in places:  # daemon threads, because a name lookup may exceed the timeout
        threading.Thread(target=lambda at: answers.put((at, _knock(at, timeout))), args=(place,), daemon=True).start()
    trouble = dict.fromkeys(places, _silent(timeout))
    deadline = time.monotonic() + timeout + 0.5  # the half second lets the threads report
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
    """Connect to a host and port. Return the error as text, or None on success."""
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
    """Write a Python package to a zip file that Python can import from."""
    files = sorted(p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for path in files:
            archive.write(path, path.relative_to(package.parent))
    return target


# --- words and numbers ---------------------------------------------------------------------------------------------


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
