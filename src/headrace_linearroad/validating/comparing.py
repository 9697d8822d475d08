"""Comparison of a run's output with the right answers: every row, in both directions.

Equal rows cancel each other, with multiplicity. Of the other rows, an expected and a found row with the same key count
as one `wrong` row. The rest are `missing` or `extra`, and right rows that occur too often are `doubled`. If several
answers are right, each of them counts as the canonical one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace_linearroad.validating import outputs
from headrace_linearroad.validating.answers import Answer, Tell, answer, silent
from headrace_linearroad.validating.duck import Connection, connection
from headrace_linearroad.validating.outputs import Given
from headrace_linearroad.validating.rules import Rules
from headrace_linearroad.validating.shapes import OUTPUTS

KINDS = ("missing", "extra", "wrong", "doubled")
SHOWN = 3  # examples of each kind
Row = dict[str, Any]


@dataclass(frozen=True)
class Example:
    kind: str
    found: Row | None
    expected: list[Row]  # alternatives: any one of these rows would be right


@dataclass(frozen=True)
class Compared:
    """The comparison of one output. All found rows are right except those that are extra, wrong or doubled."""

    expected: int
    found: int
    faults: Counter[str]
    examples: list[Example]

    @property
    def ok(self) -> bool:
        return not self.faults.total()

    def to_json(self) -> dict[str, Any]:
        counts = {"expected": self.expected, "found": self.found} | {kind: self.faults[kind] for kind in KINDS}
        return counts | {"examples": [asdict(example) for example in self.examples]}


@dataclass(frozen=True)
class Verdict:
    outputs: Mapping[str, Compared]
    answer: Answer

    @property
    def ok(self) -> bool:
        return all(output.ok for output in self.outputs.values())

    def to_json(self) -> dict[str, Any]:
        outputs = {
            name: output.to_json() | {"unanswered": self.answer.unanswered[name]}
            for name, output in self.outputs.items()
        }
        left = {reason: n for reason, n in self.answer.left.items() if n}
        return {"ok": self.ok, "tuples": self.answer.tuples, "left_out": left, "outputs": outputs}


def judge(path: Path, given: Given, histories: Sequence[Path], rules: Rules, *, tell: Tell = silent) -> Verdict:
    """Compare a run's output with the right answers of its input. Unreadable outputs raise first."""
    outputs.demand(given)
    return compare(answer(path, histories, rules, tell=tell), given, tell=tell)


def compare(right: Answer, given: Given, *, tell: Tell = silent) -> Verdict:
    """Compare an output with the right answers. `given`: the folder of a run, or a table for each output."""
    found = {}
    with connection() as con:
        for name in OUTPUTS:
            tell(f"comparing {name}")
            outputs.register(con, given, name)
            found[name] = _compared(con, right, name)
    return Verdict(found, right)


def _compared(con: Connection, right: Answer, name: str) -> Compared:
    con.register("want", right.tables[name])
    if name == "balances":
        con.register("accepted", right.accepted)
        want, got = _needed(), _normalised()
    else:
        want, got = "want", "got"
    _cancel(con, name, want, got)
    faults = Counter(
        {kind: int(n) for kind, n in con.sql("SELECT kind, count(*) FROM faults GROUP BY kind").fetchall()}
    )
    examples = [example for kind in KINDS for example in _examples(con, name, kind)] if faults else []
    counts = [int(con.sql(f"SELECT count(*) FROM {rows}").fetchall()[0][0]) for rows in (want, "got")]
    return Compared(counts[0], counts[1], faults, examples)


def _needed() -> str:
    """Return SQL for the expected balances: of questions that must be answered, and of those that were."""
    return "(SELECT * FROM want WHERE needed OR (qid, time, vid) IN (SELECT (qid, time, vid) FROM got))"


def _normalised() -> str:
    """Return SQL for the found balances, with each right answer replaced by the canonical one."""
    return """(
        WITH canonical AS (SELECT DISTINCT qid, time, vid, resulttime, bal FROM want)
        SELECT g.* REPLACE (coalesce(c.resulttime, g.resulttime) AS resulttime, coalesce(c.bal, g.bal) AS bal)
        FROM got g LEFT JOIN canonical c ON g.qid = c.qid AND g.time = c.time AND g.vid = c.vid
             AND EXISTS (FROM accepted a WHERE a.qid = g.qid AND a.time = g.time AND a.vid = g.vid AND a.bal = g.bal
                                               AND g.resulttime BETWEEN a.low AND a.high))"""


def _cancel(con: Connection, name: str, want: str, got: str) -> None:
    """Create the table `faults`: for each fault its kind, and the columns found (`f_`) and expected (`e_`)."""
    columns, key = OUTPUTS[name].columns, OUTPUTS[name].key
    listed = ", ".join(columns)
    con.execute(f"""
        CREATE OR REPLACE TEMP TABLE odd AS
        SELECT {listed}, instant, sum(wanted)::BIGINT AS wanted, sum(found)::BIGINT AS found FROM (
            SELECT {listed}, time::BIGINT * 1000000 AS instant, 1 AS wanted, 0 AS found FROM {want}
            UNION ALL SELECT {listed}, instant, 0, 1 FROM {got})
        GROUP BY ALL HAVING sum(wanted) <> sum(found)""")
    same = " AND ".join(f"e.{column} IS NOT DISTINCT FROM f.{column}" for column in (*key, "number"))
    shown = ", ".join(f"{side}.{column} AS {side}_{column}" for side in "ef" for column in (*columns, "instant"))
    numbered = f"""SELECT *, row_number() OVER (PARTITION BY {", ".join(key)} ORDER BY {listed}, instant) AS number
                   FROM (SELECT {listed}, instant, unnest(range({{copies}})) AS copy FROM odd WHERE {{which}})"""
    con.execute(f"""
        CREATE OR REPLACE TEMP TABLE faults AS
        WITH e AS ({numbered.format(copies="wanted - found", which="wanted > found")}),
             f AS ({numbered.format(copies="found", which="wanted = 0")}),
             d AS ({numbered.format(copies="found - wanted", which="found > wanted AND wanted > 0")})
        SELECT CASE WHEN f.number IS NULL THEN 'missing' WHEN e.number IS NULL THEN 'extra' ELSE 'wrong' END AS kind, {shown}
        FROM e FULL JOIN f ON {same}
        UNION ALL SELECT 'doubled', {shown} FROM d f LEFT JOIN e ON false""")


def _examples(con: Connection, name: str, kind: str) -> list[Example]:
    columns = (*OUTPUTS[name].columns, "instant")
    order = ", ".join(["coalesce(e_time, f_time)", *(f"{side}_{column}" for side in "ef" for column in columns)])
    chosen = con.execute(f"SELECT * EXCLUDE (kind) FROM faults WHERE kind = ? ORDER BY {order} LIMIT {SHOWN}", [kind])
    examples = []
    for values in chosen.fetchall():
        expected, found = (_row(columns, part) for part in (values[: len(columns)], values[len(columns) :]))
        right = [] if expected is None else [expected]
        if name == "balances" and expected is not None:
            right = _accepted(con, expected)
        examples.append(Example(kind, found, right))
    return examples


def _row(columns: tuple[str, ...], values: tuple[Any, ...]) -> Row | None:
    """Return the row, without `instant` if it equals `time`, or None if all values are null."""
    row = dict(zip(columns, values, strict=True))
    if all(value is None for value in values):
        return None
    instant = row.pop("instant")
    return row if row["time"] is not None and instant == row["time"] * 1_000_000 else row | {"ts": instant}


def _accepted(con: Connection, question: Row) -> list[Row]:
    sql = """SELECT DISTINCT low, high, bal FROM accepted WHERE qid = ? AND time = ? AND vid = ? ORDER BY ALL"""
    found = con.execute(sql, [question[name] for name in ("qid", "time", "vid")]).fetchall()
    return [question | {"resulttime": low if low == high else f"{low}..{high}", "bal": bal} for low, high, bal in found]
