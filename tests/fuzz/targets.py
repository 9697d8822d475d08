"""What is fuzzed: for every kind of file, how a real one is made, and all that is done with it once it was read.

write(rng, folder)  puts a changed file there and says of which query it is
use(folder, query)  may return, or raise a HeadraceError; anything else that comes out of it is a fault
"""

from __future__ import annotations

import io
import json
import random
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

import headrace as hr
from headrace import deployment
from headrace.cli import decision_history, explain_output, query_file
from headrace.compile import CompiledQuery, plan_of
from headrace.compile.bind import bind_plan
from headrace.compile.subqueries import Plan
from headrace.control.policy import Policy, parse_policy
from headrace.driver import stored_checks
from headrace.driver.position import Batch, Position, admit_batch, check_alignment
from headrace.errors import HeadraceError
from headrace.plan.figures import Figures
from headrace.routing import RangesRouter
from headrace.routing import layout_from_json as layout_of
from headrace.showing.explain import explain
from headrace.showing.picture import svg
from headrace.state.manifest import _seal, manifest_digest
from headrace.state.store import StateStore
from headrace.stream import node_of
from headrace.testing import LocalRun, table_stream
from headrace.tools import plan_file
from headrace.tools.calibrate import calibrate

from . import mutating

SECOND = 1_000_000
FORMATS = ("text", "json", "svg")


# --- queries and their input ---------------------------------------------------------------------------------------


def rows(seed: int, begin: int, count: int = 40) -> pa.Table:
    rng = random.Random(seed)
    times = sorted(begin * SECOND + rng.randrange(2 * SECOND) for _ in range(count))
    return pa.table(
        {
            "ts": pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC")),
            "k": [rng.choice("aaaaabcdefgh") for _ in times],
            "v": [rng.randrange(100) for _ in times],
            "w": [rng.random() * 10 for _ in times],
        }
    )


def left() -> hr.Stream:
    return table_stream(rows(1, 0), name="left", lateness="1 second")


def right() -> hr.Stream:
    return table_stream(rows(2, 0), name="right")


QUERIES: dict[str, Callable[[], hr.Stream]] = {
    "equality": lambda: left().join(right(), on="l.k = r.k", within="2 seconds").aggregate(
        by=["l_k"], window="2 seconds", n="count(*)", s="sum(r_v)"
    ),
    "any predicate": lambda: left().filter("v > 1").join(right(), on="l.v < r.v", within="1 second"),
    "band": lambda: left().join(right(), on="abs(l.w - r.w) <= 1", within="1 second"),
    "count": lambda: left().join(right(), on="l.v < r.v", last=5).aggregate(by=["l_k"], last=3, m="max(l_v)"),
    "tuples": lambda: left().union(right()).aggregate(by=["k"], window="2 seconds", every="1 second", m="list(v)"),
}  # fmt: skip
SAMPLED = ("equality", "band")  # of these there are figures


@cache
def queries() -> dict[str, hr.Stream]:
    return {name: make() for name, make in QUERIES.items()}


def epoch(run: LocalRun, number: int) -> None:
    run.epoch({s.name: rows(7 * number + i, 2 * number) for i, s in enumerate(run.plan.sources)}, splitters=2)


@cache
def figures_of(name: str) -> Figures | None:
    return calibrate([node_of(queries()[name])], [False], slots=1, tuples=20) if name in SAMPLED else None


@cache
def plans() -> list[tuple[str, dict[str, Any]]]:
    """Real plans: with and without figures, under every strategy."""
    found = []
    for name, query in queries().items():
        for strategy in ("subquery", "operator", "query"):
            for figures in [None, figures_of(name)] if name in SAMPLED else [None]:
                plan = plan_of([node_of(query)], [False], strategy, 4, figures)
                found.append((name, json.loads(json.dumps(plan.to_json()))))
    return found


# --- plans and figures ---------------------------------------------------------------------------------------------


def write_plan(rng: random.Random, folder: Path) -> str:
    name, plan = rng.choice(plans())
    write(rng, folder / "plan.json", plan)
    return name


def use_plan(folder: Path, name: str) -> None:
    """Read, look at, bind to its query, run."""
    plan = query_file.read_plan(folder / "plan.json")
    look_at(plan)
    query = queries()[name]
    bind_plan(plan, CompiledQuery([node_of(query)]))
    if plan.slots > 16:  # tasks tell each other goodbye: the square of the slots, in one process
        return
    with running(query, folder / "state", slots=plan.slots, plan=plan) as run:
        epoch(run, 0)


def look_at(plan: Plan) -> None:
    explain(["a query"], plan)
    str(plan)
    ET.fromstring(svg(plan))
    assert Plan.from_json(json.loads(json.dumps(plan.to_json(), allow_nan=False))) == plan


def write_figures(rng: random.Random, folder: Path) -> str:
    name = rng.choice(SAMPLED)
    figures = figures_of(name)
    assert figures is not None
    write(rng, folder / "figures.json", json.loads(json.dumps(figures.to_json())))
    return name


def use_figures(folder: Path, name: str) -> None:
    figures = explain_output.read_figures(folder / "figures.json")
    for strategy in ("subquery", "operator"):
        look_at(plan_of([node_of(queries()[name])], [False], strategy, 4, figures))


# --- policies and descriptors, which are TOML ------------------------------------------------------------------------

POLICY = """diffusion = "ragged"
elastic = "gain"
hot = true
every = 1
supplier = 0.7
consumer = 0.4
beta = 0.5
moves = 16
worth = 0.1
[pinned.join-1]
12 = 0
13 = 1
"""
CLUSTER = """master = "spark://somewhere:7077"
state = "state"
executors = 2
cores = 2
memory = "1g"
slots = 4
epoch = "1 second"
ship = true
packages = ["helper.py"]
python = "python3"
patience = "60 seconds"
plan = "plan.json"
[spark]
network.timeout = "300s"
"spark.eventLog.enabled" = false
"""
ODD_TOML = (
    *(
        "-1",
        "0",
        "1",
        "2",
        "1024",
        "1025",
        "1_000_000",
        "9" * 30,
        "9" * 5_000,
        "0x" + "f" * 300,
        "1e999",
        "nan",
        "-inf",
    ),
    *("0.5", "true", '""', '"x"', '"\\u0000"', '"paper"', '"off"', '"local[2]"', '"local[99999999999]"', "[]", "{}"),
    *("[" * 60 + "]" * 60, "[" * 100_000, "{a = 1}", "2026-01-01", '"1000000000000 days"', "[[1]]", '["a", 1]', "'\\'"),
    *('"local-cluster[1,1,1024]"', '"yarn"', '"spark://:0"', '"' + "9" * 4_000 + 'g"', '"' + "9" * 3_000 + ' days"'),
)


def write_toml(rng: random.Random, path: Path, text: str) -> None:
    lines = text.splitlines()
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(lines))
        key, sign, _ = lines[at].partition(" = ")
        match rng.randrange(8):
            case 0:
                del lines[at]
            case 1:
                lines.insert(rng.randrange(len(lines)), lines[at])
            case 2:
                lines[at] = rng.choice(("[a]", "[pinned]", "x.y = 1", f"{'.'.join('a' * 2_000)} = 1", f"x{lines[at]}"))
            case _:
                lines[at] = f"{key}{sign or ' = '}{rng.choice(ODD_TOML)}"
    path.write_bytes(mutating.spoiled(rng, "\n".join(lines)))


def write_policy(rng: random.Random, folder: Path) -> str:
    write_toml(rng, folder / "policy.toml", POLICY)
    return "equality"


def use_policy(folder: Path, name: str) -> None:
    rules = parse_policy(folder / "policy.toml")
    with running(queries()[name], folder / "state", slots=3, policy=rules) as run:
        for number in range(3):
            epoch(run, number)


def write_cluster(rng: random.Random, folder: Path) -> str:
    (folder / "helper.py").touch()
    (folder / "plan.json").touch()
    write_toml(rng, folder / "cluster.toml", CLUSTER)
    return ""


def use_cluster(folder: Path, _: str) -> None:
    place = deployment.read_descriptor(folder / "cluster.toml")
    assert place.settings() and place.size and place.shipped() is not None


# --- checkpoints ---------------------------------------------------------------------------------------------------


@cache
def checkpoints(root: Path) -> dict[str, Path]:
    """A checkpoint of every query after some epochs, with decisions, merged blocks and undelivered results."""
    for name, query in queries().items():
        run = LocalRun(query, root, **options(name, root / name))
        for number in range(4):
            epoch(run, number)
        plan_file.write_plan(root / name, [node_of(query)], query.plan(slots=3, figures=figures_of(name)))
        run.close()
    return {name: root / name for name in queries()}


def options(name: str, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"store": StateStore.open(folder / "state", fsync=False), "slots": 3, "groups": 16}
    if name == "band":  # by ranges, which only a plan can ask for here
        plan = queries()[name].plan(slots=3)
        router = RangesRouter(("r.w",), (2.0, 5.0, 7.0), points=1)
        found["plan"] = replace(plan, subqueries=(replace(plan.subqueries[0], router=router),))
        return found
    return {**found, "auto": name == "equality", "limit": 4, "policy": Policy(every=1), "ordered": name == "tuples"}


def write_manifest(rng: random.Random, folder: Path) -> str:
    """The newest manifest with something changed in it, and sealed again: its checksum is right."""
    name = copied(rng, folder)
    newest = sorted((folder / "state" / "manifests").iterdir())[-1]
    body = json.loads(newest.read_text())
    del body["checksum"]
    if rng.random() < 0.3:
        body["position"] = Position("spark", BATCH).to_json()
    part = rng.choice([None, *body, *KNOWN * 3])  # all of it, or a change in one section
    changed = mutating.changed(rng, body if part is None else {part: body[part]})
    body = changed if part is None else {**body, **changed}
    try:
        newest.write_bytes(_seal(body))
    except (ValueError, RecursionError, TypeError):  # beyond what a manifest can be
        newest.write_bytes(mutating.spoiled(rng, json.dumps(body)))
    return name


KNOWN = (
    "position",
    "query",
    "groups",
    "layouts",
    "sources",
    "ledgers",
    "operators",
    "totals",
    "work",
    "control",
    "decisions",
)
BATCH = Batch("q", 3, manifest_digest(b"3"))


def use_manifest(folder: Path, name: str) -> None:
    """Look at the run in every way, go on with it, look again."""
    each(
        lambda: show(folder, "text"),
        lambda: decision_history.print_decisions(folder, Console(file=io.StringIO())),
        lambda: align(folder),
        lambda: go_on(folder, name),
        lambda: show(folder, "json"),
        lambda: show(folder, "svg"),
    )


def go_on(folder: Path, name: str) -> None:
    with running(queries()[name], folder, **options(name, folder)) as run:
        last = run.store.last
        if last is not None:
            used = {operator: layout_of(found) for operator, found in last.layouts.items()}
            run.driver.control.proposals(last.number, last.groups, used)
        for number in (4, 5):
            epoch(run, number)


def show(folder: Path, form: str) -> None:
    text = explain_output.explain_run(folder, form)
    if form == "json":
        json.loads(text)
    if form == "svg":
        ET.fromstring(text)


def align(folder: Path) -> None:
    """What a run on Spark's own source does with the position before it starts."""
    spark = folder / "spark"
    for part in ("offsets", "commits"):
        (spark / part).mkdir(parents=True)
        (spark / part / "3").write_bytes(b"3")
    (spark / "metadata").write_text(json.dumps({"id": "q"}))
    with StateStore.open(folder / "state", read_only=True) as store:
        if store.last is not None:
            stored_checks.check_manifest(store.last)
            if store.last.position["kind"] == "spark":
                check_alignment(store.last, spark)
                admit_batch(store.last, replace(BATCH, number=4))


def write_shown_plan(rng: random.Random, folder: Path) -> str:
    """The plan that a run wrote down for people to look at."""
    name = copied(rng, folder)
    write(rng, folder / plan_file.NAME, json.loads((folder / plan_file.NAME).read_text()))
    return name


def use_shown_plan(folder: Path, _: str) -> None:
    each(*(partial(show, folder, form) for form in FORMATS))


# --- what they share -----------------------------------------------------------------------------------------------


def write(rng: random.Random, path: Path, tree: Any) -> None:
    path.write_bytes(mutating.spoiled(rng, mutating.dumped(mutating.changed(rng, tree))))


def copied(rng: random.Random, folder: Path) -> str:
    name = rng.choice(list(QUERIES))
    shutil.copytree(checkpoints(folder.parent / "checkpoints")[name], folder, dirs_exist_ok=True)
    return name


@contextmanager
def running(query: hr.Stream, folder: Path, **options: Any) -> Iterator[LocalRun]:
    store = options.pop("store", None) or StateStore.open(folder, fsync=False)
    run = LocalRun(query, folder, store=store, **options)
    try:
        yield run
    finally:
        run.close()


def each(*uses: Callable[[], None]) -> None:
    """All of them, also when one is refused; then the first refusal."""
    refused = []
    for use in uses:
        try:
            use()
        except HeadraceError as error:
            refused.append(error)
    if refused:
        raise refused[0]


@dataclass(frozen=True)
class Target:
    write: Callable[[random.Random, Path], str]
    use: Callable[[Path, str], None]


TARGETS = {
    "plan": Target(write_plan, use_plan),
    "figures": Target(write_figures, use_figures),
    "policy": Target(write_policy, use_policy),
    "cluster": Target(write_cluster, use_cluster),
    "manifest": Target(write_manifest, use_manifest),
    "shown plan": Target(write_shown_plan, use_shown_plan),
}
