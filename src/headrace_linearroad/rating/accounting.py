"""Accounting of a rating: processor seconds by part, phases of epochs, memory and state over time."""

from __future__ import annotations

import statistics
from typing import Any

from headrace_linearroad.rating.listening import PHASES, Listening
from headrace_linearroad.rating.making import Counts
from headrace_linearroad.rating.parts import DRIVER, FEEDER, JVM, PARTS, WORKERS, Parts, between

OPERATORS = {"apply-1": "roads", "apply-2": "accounts", "apply-3": "expenditures", "apply-4": "travel times"}
"""The engine's operator names, with the names of the query's processors."""


def account(listening: Listening, parts: Parts, notes: dict[str, Any], offered: Counts, speed: float) -> dict[str, Any]:
    """Return the accounts of the rated time, for JSON."""
    start = listening.start or 0.0
    epochs = [epoch for epoch in listening.epochs if epoch["at"] > start]
    first, last = notes.get("first", parts.samples[0]), notes.get("last", parts.samples[-1])
    samples = [sample for sample in parts.samples if first["at"] <= sample["at"] <= last["at"]]
    cpu = between(first["cpu"], last["cpu"])
    if "feeder" in notes:
        cpu[FEEDER] = round(notes["feeder"]["cpu"], 3)
    wall = last["at"] - first["at"]
    return {
        "wall": round(wall, 3),
        "cpu": _stages(cpu, epochs),
        "cpu_by_process": cpu,
        "feeder": notes.get("feeder"),
        "warm_up_took": notes.get("warm_up"),
        "tuples_left_out": notes.get("tuples_left_out"),
        "phases": {name: round(sum(epoch["phases"].get(name, 0.0) for epoch in epochs), 3) for name in PHASES},
        "epoch_seconds": _spread([epoch["seconds"] for epoch in epochs if epoch["tuples"]]),
        "memory": {part: max(sample["memory"][part] for sample in samples) for part in PARTS},
        "state": _state(listening, offered),
        "epochs": [_short(epoch, start) for epoch in listening.epochs],
        "samples": [
            {"at": round(sample["at"] - start, 3), "memory": sample["memory"], "cpu": _rounded(sample["cpu"])}
            for sample in samples
        ],
    }


def _stages(cpu: dict[str, float], epochs: list[dict[str, Any]]) -> dict[str, float]:
    """Return processor seconds by stage. Workers outside their tasks spend them on Spark: pickling, pipes, waiting."""

    def total(name: str) -> float:
        return float(sum(epoch["cpu"].get(name, 0.0) for epoch in epochs))

    operators = {words: total(name) for name, words in OPERATORS.items()}
    reading, slots, commit, delivery = (total(name) for name in ("reading", "slots", "commit", "delivery"))
    found = {
        "feeder": cpu[FEEDER],
        "reading and splitting": reading,
        **operators,
        "slots, the rest": max(slots - sum(operators.values()), 0.0),
        "workers, beside tasks": max(cpu[WORKERS] - reading - slots, 0.0),
        "JVM": cpu[JVM],
        "commit": commit,
        "delivery": delivery,
        "driver, the rest": max(cpu[DRIVER] - commit - delivery, 0.0),
    }
    return _rounded(found)


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}


def _spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {"median": 0.0, "p99": 0.0, "worst": 0.0}
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return _rounded({"median": statistics.median(ordered), "p99": p99, "worst": ordered[-1]})


def _state(listening: Listening, offered: Counts) -> dict[str, Any]:
    """Return the bytes of state at the end: in all, by operator, and per car on the road."""
    last = next((epoch for epoch in reversed(listening.epochs) if epoch["second"] >= 0), None)
    if last is None:
        return {}
    cars = offered.cars(last["second"])
    tables = {words: last["tables"].get(name, 0) for name, words in OPERATORS.items()}
    per_car = {words: round(size / max(cars, 1), 1) for words, size in tables.items()}
    return {
        "bytes": last["state_bytes"],
        "cars": cars,
        "bytes_per_car": round(last["state_bytes"] / max(cars, 1), 1),
        "tables": tables,
        "tables_per_car": per_car,
    }


def _short(epoch: dict[str, Any], start: float) -> dict[str, Any]:
    kept = {name: epoch[name] for name in ("epoch", "second", "tuples", "state_bytes", "tables", "backlog", "rows")}
    return kept | {
        "at": round(epoch["at"] - start, 4),
        "seconds": round(epoch["seconds"] or 0.0, 4),
        "phases": epoch["phases"],
        "cpu": _rounded(epoch["cpu"]),
    }
