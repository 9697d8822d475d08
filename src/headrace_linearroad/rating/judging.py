"""The judgement of every row of a rating, one group of expressways at a time, so that memory does not grow with their
number.

The run deletes its input, so it is generated again here: the traffic of an expressway does not depend on the others. A
car belongs to the expressway of its number, and drives on a few others at most (`entering.BACK`). So the rows of a
group's cars follow from the traffic of the group and of a few other expressways. Each row is judged once, with its
car; travel times are judged with the expressway of their question. Digests show that the generated traffic equals the
offered traffic. The sum of the rows of all groups shows that every row belongs to a group.

A judgement takes longer than the rating, so it can be interrupted: `keep` is called with the result of each group, and
the groups in `kept` are not judged again.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute

from headrace.deployment import usable_cores
from headrace_linearroad.forms import COMPLETE, OUTPUTS
from headrace_linearroad.generating.entering import BACK
from headrace_linearroad.generating.settings import Settings
from headrace_linearroad.generating.traffic import Traffic
from headrace_linearroad.generating.world import CARS, QUESTIONS
from headrace_linearroad.generating.writing import columns
from headrace_linearroad.rating import helpers
from headrace_linearroad.rating.helpers import Seldom, helper, told
from headrace_linearroad.rating.making import Counts, digest
from headrace_linearroad.validating import PROFILES, answer, compare, outputs
from headrace_linearroad.validating.comparing import KINDS
from headrace_linearroad.validating.duck import connection

MODULE = "headrace_linearroad.rating.judging"
AT_ONCE = 16_000_000  # minimum tuples of a group: about 2 GB
PER_TUPLE, SHARE = (
    125,
    0.5,
)  # bytes of memory per tuple of a group; share of free memory that all groups may use
OWNERS = dict.fromkeys(OUTPUTS, ("vid", CARS)) | {"travel_times": ("qid", QUESTIONS)}
"""The column of each output that determines the expressway of a row, and the numbers per expressway in that column."""

Group = tuple[int, int]  # expressways [first, end)
Groups = Sequence[Group]
Line = Mapping[str, Any]  # the result of a group


@dataclass
class Judged:
    """The results of all groups."""

    found: Counter[str] = field(default_factory=Counter)  # number of rows, by output
    faults: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in OUTPUTS})
    examples: list[str] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)  # one per second
    groups: int = 0

    def add(self, line: Line) -> None:
        self.groups += 1
        before = self.digests or [0] * len(line["digests"])
        self.digests = [(a + b) % 2**64 for a, b in zip(before, line["digests"], strict=True)]
        for name, output in line["outputs"].items():
            self.found[name] += output["found"]
            self.faults[name].update({kind: output[kind] for kind in KINDS})
            self.examples += [f"{name}: {example}" for example in output["examples"]]

    def verdict(self, rows: Mapping[str, int], offered: Counts) -> dict[str, Any]:
        """Return the verdict. rows: the number of rows of each output."""
        nobodys = {name: rows[name] - self.found[name] for name in OUTPUTS if rows[name] != self.found[name]}
        same = self.digests == offered.digests
        wrong = sum(faults.total() for faults in self.faults.values())
        return {
            "ok": not wrong and not nobodys and same,
            "rows": dict(self.found),
            "faults": {name: dict(faults) for name, faults in self.faults.items()},
            "nobodys": nobodys,
            "input_is_what_was_offered": same,
            "groups": self.groups,
            "examples": self.examples[:20],
        }


def at_once(judges: int) -> int:
    """Return the tuples of a group. Larger groups need fewer other expressways, and read all answers fewer times."""
    return max(AT_ONCE, int(psutil.virtual_memory().available * SHARE / PER_TUPLE / judges))


def groups(settings: Settings, seconds: int, tuples: int, fit: int = AT_ONCE) -> list[Group]:
    """Divide the expressways into groups of at least one that fit in memory with the other expressways they need."""
    beside = len({far for _, far in BACK if far})
    per_road = max(tuples / settings.expressways, seconds)
    size = max(1, int(fit / per_road) - beside)
    return [(first, min(first + size, settings.roads)) for first in range(0, settings.roads, size)]


def needed(settings: Settings, group: Group) -> list[range]:
    """Return the expressways of a group, and then those on which its cars may drive too, as the fewest ranges."""
    own, roads = range(*group), settings.roads
    beside = sorted({(xway - far) % roads for xway in own for _, far in BACK} - set(own))
    found = [own]
    for xway in beside:
        if found[-1] is not own and found[-1].stop == xway:
            found[-1] = range(found[-1].start, xway + 1)
        else:
            found.append(range(xway, xway + 1))
    return found


def judge(
    settings: Settings,
    offered: Counts,
    answers: Path,
    rows: Mapping[str, int],
    history: Path,
    profile: str,
    folder: Path,
    stop: Callable[[], bool],
    tell: Callable[[str], None],
    kept: Sequence[Line] = (),
    keep: Callable[[Line], None] = lambda line: None,
) -> dict[str, Any]:
    """Judge all rows of a run that was offered these seconds, with one process per core. Return the verdict."""
    outputs.demand(answers)
    every = _left(groups(settings, len(offered.tuples), sum(offered.tuples), at_once(usable_cores())), kept)
    many = min(usable_cores(), len(every))
    found = Judged()
    for line in kept:
        found.add(line)
    with ExitStack() as stack:
        judges = []
        for number in range(many):
            own = folder / f"judge-{number}"
            job = {
                "settings": asdict(settings),
                "begin": offered.begin,
                "seconds": len(offered.tuples),
                "answers": str(answers),
                "history": str(history),
                "profile": profile,
                "groups": every[number::many],
                "folder": str(own),
            }
            judges.append(stack.enter_context(helper(MODULE, job, folder / f"judge-{number}.errors")).said(stop))
        for line in _in_turn(judges):
            if "outputs" in line:
                found.add(line)
                keep(line)
            tell(f"judging: {found.groups:,} of {len(kept) + len(every):,} groups of expressways")
    return found.verdict(rows, offered)


def _left(every: Groups, kept: Sequence[Line]) -> list[Group]:
    """Return the groups without the judged expressways. Groups depend on free memory, so they may have changed."""
    done = {xway for line in kept for xway in range(*line["group"])}
    left = list[Group]()
    for first, end in every:
        for xway in range(first, end):
            if xway in done:
                continue
            if left and left[-1][1] == xway and xway != first:
                left[-1] = (left[-1][0], xway + 1)
            else:
                left.append((xway, xway + 1))
    return left


def _in_turn(judges: Sequence[Iterator[Any]]) -> Iterator[Any]:
    """Yield the lines of some processes in turn. Each process reports often, so no other waits for long."""
    left = list(judges)
    while left:
        for each in list(left):
            line = next(each, None)
            if line is None:
                left.remove(each)
            else:
                yield line


# --- in a separate process --------------------------------------------------------------------------------------------


def work(job: Mapping[str, Any]) -> None:
    settings, folder = Settings(**job["settings"]), Path(job["folder"])
    seconds = range(job["begin"], job["begin"] + job["seconds"])
    is_time = Seldom(1.0)

    def tell(doing: str) -> None:
        if is_time():
            told({"doing": doing})

    for group in job["groups"]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        digests = _made_again(settings, tuple(group), seconds, folder, tell)
        # in one part: a group already fits in memory, and each part would read the whole input
        right = answer(folder, [Path(job["history"])], PROFILES[job["profile"]], parts=1, tell=tell)
        own = {name: _own(right.tables[name], name, group) for name in OUTPUTS}
        verdict = compare(replace(right, tables=own), _output_rows(Path(job["answers"]), group), tell=tell)
        said = {name: output.to_json() for name, output in verdict.outputs.items()}
        told({"group": list(group), "outputs": said, "digests": digests})
    shutil.rmtree(folder, ignore_errors=True)


def _made_again(
    settings: Settings, group: Group, seconds: range, folder: Path, tell: Callable[[str], None]
) -> list[int]:
    """Write the traffic that a group needs to files. Return the digests of the group's own expressways."""
    parts = [
        Traffic(settings, xways).seconds(seconds.start, seconds.stop, lambda: tell("cars"))
        for xways in needed(settings, group)
    ]
    digests = []
    for tables in zip(*parts, strict=True):
        second, own = tables[0]
        digests.append(digest(own))
        with columns(folder / f"{second:06d}.arrow", own.schema) as writer:
            for _, table in tables:
                writer.write_table(table)
        tell("traffic")
    (folder / COMPLETE).write_text("{}\n")
    return digests


def _own(table: pa.Table, name: str, group: Sequence[int]) -> pa.Table:
    column, many = OWNERS[name]
    values = table[column]
    low, high = pa.scalar(group[0] * many, pa.int64()), pa.scalar(group[1] * many, pa.int64())
    mine = pa.compute.and_(pa.compute.greater_equal(values, low), pa.compute.less(values, high))
    return table.filter(mine)


def _output_rows(answers: Path, group: Sequence[int]) -> dict[str, pa.Table]:
    """Return the rows of each output that belong to a group: its first expressway and the one after its last."""
    found = {}
    with connection() as con:
        for name in OUTPUTS:
            column, many = OWNERS[name]
            files = sorted(str(file) for file in published(answers / name))
            sql = f"SELECT * FROM read_parquet(?, union_by_name = true) WHERE {column} >= ? AND {column} < ?"
            rows: pa.Table = con.execute(sql, [files, group[0] * many, group[1] * many]).to_arrow_table()
            found[name] = rows.select(OUTPUTS[name].names)
    return found


def published(folder: Path) -> Iterable[Path]:
    """Yield the finished Parquet files of a folder."""
    for file in folder.rglob("*.parquet"):
        if not any(part.startswith(("_", ".")) for part in file.relative_to(folder).parts):
            yield file


if __name__ == "__main__":
    helpers.serve(work)
