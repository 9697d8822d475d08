"""The files of a rating between its run and the end of its judgement, which can be interrupted or killed and resumed.

unjudged.json           the offered input, and the result without the verdict; written once, before judging begins
judged                  a line of JSON for each judged group of expressways; an incomplete last line is ignored
answers, work/history   the rows to judge, and the histories for it
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headrace.errors import WorkloadError
from headrace_linearroad.forms import HISTORY, OUTPUTS
from headrace_linearroad.generating.settings import Settings
from headrace_linearroad.rating import judging
from headrace_linearroad.rating.judging import Line
from headrace_linearroad.rating.making import Counts

UNJUDGED, JUDGED, ANSWERS, WORK = "unjudged.json", "judged", "answers", "work"


@dataclass(frozen=True)
class Judgement:
    """The judgement of the rating in a folder."""

    folder: Path
    settings: Settings
    offered: Counts
    result: dict[str, Any]  # the result without the verdict

    def write(self) -> None:
        """Write the state. From now on the judgement can be resumed."""
        told = {"settings": asdict(self.settings), "offered": asdict(self.offered), "result": self.result}
        hidden = self.folder / f"_{UNJUDGED}"
        hidden.write_text(json.dumps(told) + "\n")
        hidden.rename(self.folder / UNJUDGED)

    def judge(self, stop: Callable[[], bool], tell: Callable[[str], None]) -> dict[str, Any]:
        """Judge the rows and return the result with its verdict."""
        began, answers = time.monotonic(), self.folder / ANSWERS
        kept = self._kept()
        with open(self.folder / JUDGED, "a") as file:

            def keep(line: Line) -> None:
                file.write(json.dumps(line) + "\n")
                file.flush()

            verdict = judging.judge(
                self.settings,
                self.offered,
                answers,
                {name: _rows(answers / name) for name in OUTPUTS},
                self.folder / WORK / HISTORY,
                self.result["profile"],
                self.folder / WORK,
                stop,
                tell,
                kept,
                keep,
            )
        judged = verdict | {"took": round(time.monotonic() - began, 1)}
        return self.result | {"judged": judged, "held": held(self.result, judged)}

    def end(self) -> None:
        """Delete the state after the judgement is complete."""
        for name in (UNJUDGED, JUDGED):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder / WORK, ignore_errors=True)

    def _kept(self) -> list[Line]:
        path = self.folder / JUDGED
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        path.write_text(whole)
        return [json.loads(line) for line in whole.splitlines()]


def waits(folder: Path) -> bool:
    return (folder / UNJUDGED).exists()


def read(folder: Path) -> Judgement:
    """Read the unfinished judgement in a folder."""
    try:
        found = json.loads((folder / UNJUDGED).read_text())
        return Judgement(folder, Settings(**found["settings"]), Counts(**found["offered"]), found["result"])
    except FileNotFoundError:
        msg = f"{str(folder)!r} has no rating to judge: there is no {UNJUDGED}"
        raise WorkloadError(f"{msg}; give the --out of a rating that was interrupted while it was judged") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WorkloadError(f"{str(folder / UNJUDGED)!r} cannot be read: {error}; rate again") from None


def held(result: Mapping[str, Any], judged: Mapping[str, Any] | None) -> bool:
    """Return whether every limit was kept and every row is right."""
    in_time = all(output["held"] for output in result["outputs"].values())
    return bool(in_time and result["given_up"] is None and judged is not None and judged["ok"])


def _rows(folder: Path) -> int:
    """Return the number of rows in all files of an output, from their footers."""
    return sum(pq.read_metadata(file).num_rows for file in judging.published(folder))
