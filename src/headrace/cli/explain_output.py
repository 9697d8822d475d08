"""The output of `headrace explain`, for a query or a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from headrace.compile import plan_of
from headrace.compile.subqueries import MeasuredRates, Plan
from headrace.driver import stored_checks
from headrace.errors import QueryError
from headrace.plan.figures import Figures
from headrace.query import nodes
from headrace.query.join_chains import chain_hints
from headrace.routing import SubstreamRouter
from headrace.showing import live
from headrace.showing.explain import explain
from headrace.showing.picture import svg
from headrace.state.store import StateStore
from headrace.support.json_toml import read_json
from headrace.support.terminal_text import printable
from headrace.telemetry.epoch_record import EpochRecord, record_from_manifests
from headrace.tools import plan_file
from headrace.tools.measured import covered_seconds, measured_figures


def explain_query(
    roots: Sequence[nodes.Node],
    ordered: Sequence[bool],
    strategy: str,
    slots: int,
    figures: Figures | None,
    costs: Mapping[str, float],
    format: str,
) -> str:
    plan = plan_of(roots, ordered, strategy, slots, figures, costs)
    if format == "json":
        return json.dumps(plan.to_json(), indent=2)
    return _shown(nodes.outline(*roots), plan, {}, format, chain_hints(*roots))


def explain_run(checkpoint: Path, format: str) -> str:
    """Return the plan of a run with its measured figures. The run may be active."""
    plan_file.require_plan(checkpoint)
    with StateStore.open(checkpoint / "state", read_only=True) as store:
        last, before = store.last, store.previous
    if last is not None:
        stored_checks.check_manifest(last)
    # read after the state, which checks the version that wrote the checkpoint
    queries, plan, labels = plan_file.read_plan(checkpoint)
    found = measured_figures(plan, last) if last else {}
    if format == "json":
        figures = {name: asdict(each) for name, each in found.items()}
        newest = record_from_manifests(before, last, _substreams(plan), labels).to_json() if last else None
        return json.dumps({"query": queries, "plan": plan.to_json(), "measured": figures, "epoch": newest}, indent=2)
    shown = _shown(queries, plan, found, format)
    if format == "svg" or last is None:
        return shown
    tuples = sum(source.delivered for source in last.sources.values())
    covered = f"epoch {last.number}: {tuples:,} tuples so far, which cover {covered_seconds(last):,.0f} s of event time"
    missing = "" if found else "; no figures to compare: no epoch under this plan has ended"
    record = record_from_manifests(before, last, _substreams(plan), labels)
    return f"{shown}\n\n{covered}{missing}\n{_newest(record)}"


def _substreams(plan: Plan) -> dict[str, int]:
    """Return the number of substreams of each operator that runs on substreams."""
    found = [(name, s.router) for s in plan.subqueries for name in s.members]
    return {name: router.substreams for name, router in found if isinstance(router, SubstreamRouter)}


def _newest(record: EpochRecord) -> str:
    """Describe the newest epoch, operator by operator."""
    came = ", ".join(f"{name} {source.delivered:,}" for name, source in record.sources.items())
    went = ", ".join(f"{name} {result.rows:,}" for name, result in record.results.items()) or "no results"
    lines = [f"in it: {came} tuples; {went}"]
    for name, each in record.operators.items():
        compared = f", compared {each.compared:,} pairs" if each.compared else ""
        lines.append(
            f"  {name}: {each.arrived - each.dropped:,} of {each.arrived:,} tuples taken, {each.sent:,} sent,"
            f" {each.held:,} held, {each.read:,} read{compared}, {each.out:,} emitted, {each.cpu:.3f} CPU s"
        )
    lines += [f"  {name}: {words}" for name, words in live.splits_text(record.progress, record.splits)]
    lines += [f"  {name}: {words}" for name, words in live.tables_text(record.progress)]
    lines += [f"  table {name}: {words}" for name, words in live.versions_text(record.versions)]
    lines += [f"  {name}: {words}" for name, words in live.incomplete_text(record.progress)]
    return "\n".join(map(printable, lines))


def _shown(
    queries: list[str], plan: Plan, found: Mapping[str, MeasuredRates], format: str, hints: Sequence[str] = ()
) -> str:
    return svg(plan, found) if format == "svg" else explain(queries, plan, found, hints)


def read_figures(path: Path) -> Figures:
    return Figures.from_json(read_json(path, "the figures", "headrace calibrate --out makes some"))


def read_costs(given: Sequence[str]) -> dict[str, float]:
    """Parse costs such as `subquery-1=3.5`."""
    found = {}
    for text in given:
        name, separator, cost = text.partition("=")
        try:
            found[name.strip()] = float(cost) if separator else float("nan")
        except ValueError:
            found[name.strip()] = float("nan")
        if not 0 <= found[name.strip()] < float("inf"):
            raise QueryError(
                f"--cost must be NAME=N, a subquery and its microseconds per tuple; found {text!r}; expected, for example, subquery-1=3.5"
            )
    return found
