"""A plan as text: its subqueries, the routing of their input, and the cost of the alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.compile.allocate import slot_shares, work_per_second
from headrace.compile.subqueries import MeasuredRates, Plan, Subquery
from headrace.plan.figures import ASSUMED_RATE
from headrace.routing import RoutingCost
from headrace.support.terminal_text import printable

HEADS = ("", "sent/s", "held", "read by a slot", "compared by a slot/s")
CHOSEN, REJECTED, FOUND = "chosen", "rejected", "measured"


def explain(
    queries: Sequence[str],
    plan: Plan,
    measured: Mapping[str, MeasuredRates] | None = None,
    hints: Sequence[str] = (),
) -> str:
    """Return the query and the plan with its estimates, measured figures if given, and hints for the query."""
    shown = [f"{printable(query, lines=True)}\n" for query in queries]
    return "\n".join([*shown, *map(printable, [*_lines(plan, measured or {}), *hints])])


def _lines(plan: Plan, measured: Mapping[str, MeasuredRates]) -> Iterator[str]:
    yield plan.headline
    if plan.measured:
        yield "numbers for full windows, from a sample of the input"
    else:
        yield f"nothing was measured; assumptions: every source delivers {ASSUMED_RATE:,.0f} tuples/s, every filter passes all tuples and every sample its fraction; headrace calibrate measures them"
    for source in plan.sources:
        found = measured.get(source.name)
        yield f"  {source.name}: {amount_text(source.rate)} tuples/s" + (
            f" ({amount_text(found.arriving)} measured)" if found else ""
        )
    for subquery in plan.subqueries:
        yield ""
        yield from _subquery(subquery, measured.get(subquery.name))
    yield ""
    yield from _work(plan)


def _subquery(subquery: Subquery, measured: MeasuredRates | None) -> Iterator[str]:
    yield f"{subquery.name} <- {', '.join(subquery.inputs)}"
    yield from (f"  {text}" for text in subquery.operators)
    yield from (f"  pairs: {text}" for text in subquery.meets)
    if not subquery.router.sends:
        yield f"  routed by: {subquery.router}"
    else:
        yield from (f"  {line}" for line in _table(subquery, measured))
    yield f"  {_slots(subquery, measured)}"


def _slots(subquery: Subquery, measured: MeasuredRates | None) -> str:
    parts = [f"slots: {subquery.slots}"]
    if subquery.first:
        parts[0] += f", starting at slot {subquery.first}"
    if subquery.share is not None and subquery.share != subquery.slots:
        parts[0] += f" ({subquery.share} if each subquery had its own)"
    if subquery.cost is not None:
        parts.append(f"cost: {amount_text(subquery.cost)} us per tuple")
        parts.append(f"busy: {_percent(work_per_second(subquery) / 1e6 / subquery.slots)} of them")
    if measured and measured.cost is not None:
        parts.append(f"measured: {amount_text(measured.cost)} us per tuple")
    parts.append(f"results: {amount_text(subquery.numbers.results)}/s")
    if measured:
        parts[-1] += f" ({amount_text(measured.results)} measured)"
    return "; ".join(parts)


def _table(subquery: Subquery, measured: MeasuredRates | None) -> Iterator[str]:
    rows = [(f"{CHOSEN}: {subquery.router}", *_cells(subquery.numbers))]
    if measured:
        rows.append((FOUND, amount_text(measured.sent), amount_text(measured.state), "", ""))
    rows += [(f"{REJECTED}: {option.router}", *_cells(option.numbers)) for option in subquery.rejected]
    table = [("routed by", *HEADS[1:]), *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(HEADS))]
    for row in table:
        numbers = "  ".join(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        yield f"{row[0].ljust(widths[0])}  {numbers}".rstrip()


def _cells(numbers: RoutingCost) -> tuple[str, str, str, str]:
    return (
        amount_text(numbers.sent),
        amount_text(numbers.state),
        amount_text(numbers.opened),
        amount_text(numbers.compared),
    )


def _work(plan: Plan) -> Iterator[str]:
    """Describe the bottleneck, the utilisation, and the idle capacity if each subquery had separate slots."""
    loads = [work_per_second(s) for s in plan.subqueries]
    splitting = sum(s.rate * s.cost for s in plan.sources if s.cost is not None)
    own = [load for load, s in zip(loads, plan.subqueries, strict=True) if s.router.sends]
    total = max([splitting + sum(own), *loads])  # the work before the first exchange is part of the splitting
    if plan.measured and total and loads:
        worst = max(range(len(loads)), key=lambda i: (loads[i] / plan.subqueries[i].slots, loads[i]))
        name = plan.subqueries[worst].name
        yield f"bottleneck: {name} with {_percent(loads[worst] / total)} of the work"
        yield f"utilisation: {_percent(total / 1e6 / plan.slots)} of {plan.slots} slots at these rates (stages take turns, so each subquery may use all of its slots)"
    found = slot_shares(loads, plan.slots)
    if found is None and len(plan.subqueries) > 1:
        yield f"with separate slots for each subquery, {plan.slots} slots are too few for {len(plan.subqueries)} subqueries"
    elif found is not None and len(plan.subqueries) > 1:
        each = " + ".join(map(str, found.slots))
        basis = "" if plan.measured else " (by tuples alone: costs are unknown)"
        yield f"with separate slots for each subquery{basis}: {each}; {_percent(found.idle / plan.slots)} of the capacity would be idle"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def amount_text(number: float) -> str:
    """Return a number in readable form.

    >>> [amount_text(n) for n in (0, 0.1234, 7.25, 1234.6, 12_345_678, 3.2e12)]
    ['0', '0.123', '7.25', '1,235', '12.3 M', '3,200 G']
    """
    if number >= 1e10:
        return f"{number / 1e9:,.0f} G"
    if number >= 1e7:
        return f"{number / 1e6:,.1f} M"
    return f"{number:,.0f}" if number >= 100 or number == 0 else f"{number:.3g}"
