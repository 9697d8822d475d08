"""The right answers to an input: one table for each output, and counts of invalid tuples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headrace_linearroad.validating import accidents, accounts, journeys, lookups, statistics
from headrace_linearroad.validating.duck import Connection, connection
from headrace_linearroad.validating.reading import Column, Columns, Flags, parts_of, read
from headrace_linearroad.validating.rules import PROFILES, Rules
from headrace_linearroad.validating.shapes import BALANCE, EXPENDITURE, OUTPUTS, TRAVEL

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Answer:
    """`tables`: one right answer for each output, unsorted; `accepted`: every right answer to balance questions."""

    tables: Mapping[str, pa.Table]
    accepted: pa.Table
    tuples: int
    left: Counter[str]  # invalid tuples, by reason
    unanswered: Counter[str]  # valid questions without an answer, by output
    without: frozenset[str]  # outputs whose history was not given


def silent(text: str) -> None:
    """Ignore a progress message."""


def expected(
    path: Path, given: Sequence[Path] = (), profile: str = "official", *, rules: Rules | None = None
) -> dict[str, pa.Table]:
    """Return one right answer for each output. Of several right balances, return the one that every check accepts."""
    found = answer(path, given, rules or PROFILES[profile])
    return {name: _as_output(found.tables[name].select(shape.columns)) for name, shape in OUTPUTS.items()}


def _as_output(table: pa.Table) -> pa.Table:
    table = table.cast(pa.schema([(name, pa.int64()) for name in table.column_names]))
    ts = pa.compute.multiply(table["time"], 1_000_000).cast(pa.timestamp("us", "UTC"))
    return table.add_column(0, "ts", ts)


def answer(path: Path, given: Sequence[Path], rules: Rules, *, parts: int | None = None, tell: Tell = silent) -> Answer:
    """Return the right answers. `parts`: number of parts to divide the cars into; default: as memory requires."""
    histories = lookups.histories(given, path)
    with connection() as con:
        return _answer(con, path, histories, rules, parts or parts_of(path), tell)


def _answer(con: Connection, path: Path, histories: lookups.Histories, rules: Rules, parts: int, tell: Tell) -> Answer:
    pieces, last = [], 0
    for part in range(parts):
        tell("cars" if parts == 1 else f"cars, part {part + 1} of {parts}")
        tuples = read(path, part, parts)
        cars = journeys.cars(tuples.reports, rules)
        sums = statistics.gathered(con, cars.reports, rules)
        last = max(last, int(cars.reports["time"].max(initial=0)))
        pieces.append(Piece(sums, cars.visits, cars.exits, cars.stops, tuples.queries))
    tell("statistics and accidents")
    known = statistics.statistics(con, [piece.sums for piece in pieces], rules)
    found = accidents.accidents(con, [piece.stops for piece in pieces], last, rules)
    tell("tolls and balances")
    by_piece = [_of_piece(piece, known, found, rules) for piece in pieces]
    tables = {name: pa.concat_tables([each[name] for each in by_piece]) for name in by_piece[0]}
    tell("histories")
    asked = {kind: _asked([piece.queries for piece in pieces], kind) for kind in (BALANCE, EXPENDITURE, TRAVEL)}
    tables["expenditures"] = lookups.expenditures(con, histories.tolls, asked[EXPENDITURE])
    tables["travel_times"] = lookups.travel_times(con, histories.segments, asked[TRAVEL], rules)
    unanswered = {
        name: len(asked[kind]["qid"]) - tables[name].num_rows
        for name, kind in (("expenditures", EXPENDITURE), ("travel_times", TRAVEL))
    }
    files = {"expenditures": histories.tolls, "travel_times": histories.segments}
    without = frozenset(name for name, given in files.items() if not given)
    return Answer(tables, tables.pop("accepted"), tuples.seen, tuples.left, Counter(unanswered), without)


@dataclass(frozen=True)
class Piece:
    """The results of one part of the cars that later steps need."""

    sums: pa.Table
    visits: journeys.Visits
    exits: Column
    stops: Columns
    queries: Columns


def _asked(queries: Sequence[Columns], kind: int) -> Columns:
    return {name: np.concatenate([each[name][each["type"] == kind] for each in queries]) for name in queries[0]}


def _of_piece(
    piece: Piece, known: statistics.Statistics, found: accidents.Accidents, rules: Rules
) -> dict[str, pa.Table]:
    visits = piece.visits
    minute = (visits.time // rules.minute + 1).astype(np.int64)
    lav, nov = known.of(visits.cell, minute, rules)
    ahead = found.ahead(visits.cell, minute, rules)
    toll = tolls(lav, nov, ahead >= 0, rules)
    where = {"xway": visits.cell // 200, "dir": visits.cell // 100 % 2, "seg": visits.cell % 100}
    rows = {"vid": visits.vid, "time": visits.time, "lav": lav, "toll": toll, **where}
    balances = accounts.balances(visits, toll, piece.exits, _asked([piece.queries], BALANCE), rules)
    return {
        "tolls": _table("tolls", rows, visits.notified),
        "accidents": _table("accidents", rows | {"seg": ahead}, visits.notified & (ahead >= 0)),
        "balances": balances.canonical,
        "accepted": balances.accepted,
    }


def _table(name: str, rows: Mapping[str, Column], which: Flags) -> pa.Table:
    return pa.table({column: rows[column][which] for column in OUTPUTS[name].columns})


def tolls(lav: Column, nov: Column, near_accident: Flags, rules: Rules) -> Column:
    free = (lav >= rules.free_speed) | (nov <= rules.free_cars) | (near_accident & rules.waived)
    return np.where(free, 0, rules.factor * (nov - rules.free_cars) ** rules.power)
