"""The rating of one number of expressways on Spark: same traffic, feeder, clock, limits and judge, three of the five
outputs.

The traffic is converted to Parquet, which Spark reads natively, before the clock begins. The warm-up is the same as for
headrace: the seconds before the rated ones, at full speed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace_linearroad import forms
from headrace_linearroad.beside import spark_job
from headrace_linearroad.beside.spark_job import OUTPUTS
from headrace_linearroad.forms import COMPLETE
from headrace_linearroad.rating import making, offering
from headrace_linearroad.rating.helpers import Helper, Stopped, helper
from headrace_linearroad.rating.making import Counts, Maker, Piece
from headrace_linearroad.rating.responses import LIMITS, PUBLISHED, Clock, Found, first_broken, respond
from headrace_linearroad.rating.trial import HOPELESS, LEAD, POLL, Display, Plan
from headrace_linearroad.validating import PROFILES, answer
from headrace_linearroad.validating.comparing import compare

SUFFIX = ".parquet"


class SparkTrial:
    def __init__(self, plan: Plan, folder: Path, display: Display, stop: Callable[[], bool], *, strict: bool) -> None:
        """strict: end the trial when it is behind by more than twice the shortest limit."""
        self.plan, self.folder, self.display, self.stop = plan, folder, display, stop
        self.hopeless = 2 * min(LIMITS.values()) if strict else HOPELESS
        self.work = folder / "work"
        self.made, self.ready, self.road = self.work / "made", self.work / "ready", self.work / "road"
        self.answers = folder / "answers"
        self.visible: dict[int, float] = {}  # when each epoch became visible
        self.start = 0.0

    def run(self) -> dict[str, Any]:
        for each in (self.made, self.ready, self.road):
            each.mkdir(parents=True)
        began = time.monotonic()
        try:
            offered = self._make()
            given_up = self._stream()
            result = self._result(offered, given_up)
            result["judged"] = None if given_up else self._judge()
        finally:
            shutil.rmtree(self.work, ignore_errors=True)
        in_time = all(output["held"] for output in result["outputs"].values())
        result["held"] = bool(in_time and result["judged"] and result["judged"]["ok"])
        return result | {"took": round(time.monotonic() - began, 1)}

    def _make(self) -> Counts:
        """Generate all traffic before the clock begins, because it is small. Return its counts."""
        plan, every = self.plan, [Piece(self.plan.first, self.plan.end)]
        job = making.job(plan.settings, every, self.made, None)
        with helper(making.MODULE, job, self.work / "maker.errors") as process:
            counts = Maker(process, every).next(self.stop, lambda s: self.display.doing(f"generating traffic: {s:,}"))
        for path in sorted(self.made.glob("*.arrow")):
            self.display.doing(f"converting traffic to Parquet: {path.stem}")
            pq.write_table(pa.ipc.open_file(path).read_all(), self.ready / f"{path.stem}{SUFFIX}")
        (self.made / COMPLETE).write_text("{}\n")
        return counts

    # --- the run ------------------------------------------------------------------------------------------------------

    def _stream(self) -> str | None:
        like = shutil.copy(next(self.ready.glob(f"*{SUFFIX}")), self.work / f"like{SUFFIX}")
        paths = {"input": self.road, "like": like, "out": self.answers, "checkpoint": self.work / "checkpoint"}
        job = {name: str(path) for name, path in paths.items()} | {"slots": self.plan.slots, "files": self.plan.epoch}
        with helper(spark_job.MODULE, job, self.work / "spark.errors") as process:
            said = process.said(self.stop, wait=False)
            given_up = self._warm_up(process, said) or self._rated(process, said)
        self._publish_times()
        return given_up

    def _hear(self, process: Helper, said: Any) -> None:
        for line in said:
            if line is None:
                break
            self.visible[line["epoch"]] = line["at"]
        process.check()
        if self.stop():
            raise Stopped
        time.sleep(POLL)

    def _answered(self, second: int) -> bool:
        """Return whether the newest epoch has this second. Every second has notices of tolls."""
        newest = max(self.visible, default=None)
        if newest is None:
            return False
        files = [str(path) for path in (self.answers / f"epoch-{newest}-").rglob("*.parquet")]
        with duckdb.connect(":memory:") as con:
            found = con.execute("SELECT max(time) FROM read_parquet(?)", [files]).fetchone() if files else None
        return found is not None and found[0] is not None and found[0] >= second

    def _warm_up(self, process: Helper, said: Any) -> str | None:
        plan = self.plan
        for second in range(plan.first, plan.begin):
            offering.publish(str(self.ready), str(self.road), second, SUFFIX)
        while plan.warm_up and not self._answered(plan.begin - 1):
            self.display.doing(f"warm-up: {len(self.visible):,} epochs")
            self._hear(process, said)
        return None

    def _rated(self, process: Helper, said: Any) -> str | None:
        plan = self.plan
        self.start = time.monotonic() + LEAD
        job = {"made": str(self.ready), "road": str(self.road), "first": plan.begin, "last": plan.end, "suffix": SUFFIX}
        job |= {"start": self.start, "speed": plan.speed, "log": str(self.work / "feeder")}
        over = self.start + plan.seconds / plan.speed
        heard = len(self.visible)
        with helper(offering.__name__, job, self.work / "feeder.errors"):
            while True:
                self._hear(process, said)
                now = time.monotonic()
                if len(self.visible) > heard:
                    heard = len(self.visible)
                    self.display.doing(f"L = {plan.expressways:g}: {now - self.start:.0f} s, {heard:,} epochs")
                if now > over - 1 and self._answered(plan.end - 1):
                    return None
                if now > over + self.hopeless:
                    return f"it was {now - over:.0f} s behind at the end"

    def _publish_times(self) -> None:
        lines = (f"{epoch}\t{at - self.start:.6f}\n" for epoch, at in sorted(self.visible.items()))
        (self.folder / PUBLISHED).write_text("".join(lines))

    # --- result -------------------------------------------------------------------------------------------------------

    def _rows(self, name: str, sql: str) -> Any:
        files = [str(path) for path in self.answers.glob(f"epoch-*-/what={OUTPUTS[name][0]}/*.parquet")]
        con = duckdb.connect(":memory:")
        if not files:
            columns = ", ".join(f"0::BIGINT AS {column}" for column in OUTPUTS[name][1])
            con.execute(f"CREATE VIEW rows AS SELECT {columns}, '' AS filename WHERE false")
        else:
            listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
            con.execute(f"CREATE VIEW rows AS SELECT * FROM read_parquet([{listed}], filename = true)")
        return con.sql(sql)

    def _found(self, name: str) -> Found:
        epoch = "list_last(regexp_extract_all(filename, 'epoch-(\\d+)-', 1))::BIGINT"
        sql = f"SELECT {epoch} AS epoch, time, count(*) AS n FROM rows GROUP BY ALL"
        columns = self._rows(name, sql).fetchnumpy()
        return Found(*(np.asarray(columns[each], np.int64) for each in ("epoch", "time", "n")))

    def _result(self, offered: Counts, given_up: str | None) -> dict[str, Any]:
        plan = self.plan
        clock = Clock(plan.begin, plan.end, plan.speed)
        times = {epoch: at - self.start for epoch, at in self.visible.items()}
        found = {name: respond(self._known(name), times, clock, LIMITS[name])[0] for name in OUTPUTS}
        gaps = np.diff(sorted(at for at in times.values() if at > 0)) if len(times) > 1 else np.zeros(1)
        rated = offered.within(plan.begin, plan.end)
        return {
            "rating": "peak",
            "system": "spark",
            **asdict(plan),
            "begin": plan.begin,
            "held": False,
            "given_up": given_up,
            "first_broken": first_broken(found),
            "tuples": rated,
            "tuples_per_second": round(rated / plan.seconds * plan.speed, 1),
            "outputs": {name: each.to_json() for name, each in found.items()},
            "judged": None,
            "epoch_seconds": {"median": float(np.median(gaps)) if len(gaps) else 0.0},
            "wall": plan.seconds / plan.speed,
            "cpu": {},
            "memory": {},
            "state": {},
        }

    def _known(self, name: str) -> Found:
        """Return the rows without those of an epoch that was incomplete when the trial ended."""
        found = self._found(name)
        there = np.isin(found.epoch, list(self.visible))
        return Found(found.epoch[there], found.second[there], found.rows[there])

    def _judge(self) -> dict[str, Any]:
        """Judge all rows of the three outputs, including the warm-up."""
        right = answer(self.made, [], PROFILES[self.plan.profile], tell=self.display.doing)
        tables = dict[str, pa.Table]()
        for name, (_, columns) in OUTPUTS.items():
            listed = ", ".join(f"{column}::BIGINT AS {column}" for column in columns)
            sql = f"SELECT make_timestamptz(time * 1000000) AS ts, {listed} FROM rows"
            tables[name] = self._rows(name, sql).to_arrow_table()
        return judged(right, tables)


def judged(right: Any, tables: Mapping[str, pa.Table]) -> dict[str, Any]:
    """Return the verdict in the form of a headrace trial. Outputs that Spark does not compute are ignored."""
    none = {name: table.slice(0, 0) for name, table in right.tables.items() if name not in tables}
    given = {name: forms.OUTPUTS[name].empty_table() for name in none} | dict(tables)
    verdict = compare(replace(right, tables=dict(right.tables) | none), given)
    faults = {name: dict(verdict.outputs[name].faults) for name in tables}
    return {
        "ok": not any(sum(each.values()) for each in faults.values()),
        "rows": {name: table.num_rows for name, table in tables.items()},
        "faults": faults,
        "nobodys": {},
    }
