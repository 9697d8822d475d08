"""Reads by the slots of a join without an equality whose streams change places, under every policy.

The rates are 1:8, then 8:1, and so on. A read is one tuple in one slot: a new tuple that is sent to the slot, or a
window tuple that the slot reads to join it with new ones. Theorem 2 of the load diffusion paper gives the reads that a
slot saves when the master stream is spread over k slots. It is checked with streams of constant rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.control.policy import Diffusion, Policy
from headrace.routing import Rectangles, layout_from_json
from headrace.stream import Stream
from headrace_bench import claims
from headrace_bench.adaptive import local
from headrace_bench.claims import Claim, Found
from headrace_bench.options import Options
from headrace_bench.report import Grid, Panel, Series, number
from headrace_demo.workloads import Workload

POLICIES: tuple[Diffusion, ...] = ("ssp", "adaptive-ssp", "grid", "ragged")
TIMES = 8  # factor between the rates of the two streams
MERGED = 40  # seconds; long windows, whose blocks are merged and expire later than their oldest tuples
ON = "l.value + r.value > 1990"  # true of one pair in 20,000


@dataclass(frozen=True)
class Size:
    rate: int  # tuples per second and epoch of the slower stream
    phases: int
    epochs: int  # per phase
    within: int  # seconds
    slots: int


FULL = Size(100, 4, 30, 10, 8)
QUICK = Size(20, 2, 15, 2, 4)
SHORT = 5  # seconds; windows of so few epochs that their blocks are not merged


@dataclass(frozen=True)
class Course:
    """The course of one policy: reads and shapes per epoch, and the reorganisations after each flip until nothing
    changed.
    """

    policy: str
    reads: list[int]
    shapes: list[str]
    slots: int  # slots with work in the last epoch
    settled: list[int]

    @property
    def total(self) -> int:
        return sum(self.reads)


@dataclass(frozen=True)
class Saved:
    """The tuples that a slot saves compared with a single slot: measured, and by theorem 2."""

    slots: int
    within: int  # seconds, equal to the number of epochs
    memory: float
    memory_predicted: float
    bandwidth: float
    bandwidth_predicted: float

    @property
    def ratios(self) -> tuple[float, float]:
        return self.memory / self.memory_predicted, self.bandwidth / self.bandwidth_predicted


def query(within: int) -> Stream:
    left, right = (local.stream(side) for side in local.SIDES)
    return left.join(right, on=ON, within=f"{within} seconds")


def course(policy: Diffusion, size: Size) -> Course:
    slow, fast = size.rate, size.rate * TIMES
    streams = [
        Workload(rates, every=size.epochs, name=side)
        for side, rates in zip(local.SIDES, ((slow, fast), (fast, slow)), strict=True)
    ]
    seconds = size.phases * size.epochs
    found = local.drive(
        query(size.within),
        local.epochs(streams, seconds),
        slots=size.slots,
        policy=Policy(diffusion=policy),
    )
    layouts = [_rectangles(layout) for layout in local.layouts(found)]
    flips = range(size.epochs, seconds, size.epochs)
    settled = [local.settling(layouts, flip, flip + size.epochs) for flip in flips]
    reads = [sent + read for sent, read in local.sent_and_read(found)]
    return Course(policy, reads, list(map(shown, layouts)), sum(layouts[-1].rows), settled)


def _rectangles(data: dict[str, Any]) -> Rectangles:
    layout = layout_from_json(data)
    assert isinstance(layout, Rectangles)
    return layout


def shown(layout: Rectangles) -> str:
    """
    >>> shown(Rectangles(64, (2, 2, 1)))
    '2 + 2 + 1, left by rows'
    """
    return f"{' + '.join(map(str, layout.rows))}, {'right' if layout.transposed else 'left'} by rows"


def saved(size: Size, within: int, counts: Sequence[int]) -> list[Saved]:
    """Return the savings for each number of slots. The left stream is the master and the faster one."""
    rate = size.rate * TIMES
    measured = 2 * within  # epochs; as many before them fill the windows
    alone, *others = (_per_slot(size.rate, within, measured, count) for count in (1, *counts))
    return [
        Saved(
            count,
            within,
            alone[1] - read,
            (count - 1) / count * rate * within,
            alone[0] - sent,
            (count - 1) / count * rate,
        )
        for count, (sent, read) in zip(counts, others, strict=True)
    ]


def _per_slot(rate: int, within: int, measured: int, slots: int) -> tuple[float, float]:
    """Return the new tuples that a slot receives per epoch, and the window tuples that it reads."""
    streams = [
        Workload(r, arrivals="fixed", name=side) for side, r in zip(local.SIDES, (rate * TIMES, rate), strict=True)
    ]
    found = local.drive(query(within), local.epochs(streams, 2 * measured), slots=slots, policy=Policy(diffusion="ssp"))
    counts = local.sent_and_read(found)[-measured:]
    sent, read = (sum(each) / measured / slots for each in zip(*counts, strict=True))
    return sent, read


def run(options: Options) -> Found:
    size = QUICK if options.quick else FULL
    found = []
    for policy in POLICIES:
        found.append(course(policy, size))
        options.say(f"diffusion: {policy}: {found[-1].total:,} reads")
    spared = saved(size, SHORT, [size.slots] if options.quick else [2, 4, size.slots])
    merged = [] if options.quick else saved(size, MERGED, [size.slots])
    data = {
        "size": asdict(size),
        "policies": [asdict(each) | {"total": each.total} for each in found],
        "theorem_2": [asdict(each) for each in [*spared, *merged]],
    }
    grids = [_grid(found), _saved_grid([*spared, *merged])]
    return Found(_claims(found, spared), grids, [_panel(found, size)], data, _notes(size))


def _claims(found: Sequence[Course], spared: Sequence[Saved]) -> list[Claim]:
    by = {each.policy: each for each in found}
    ragged, ssp, adaptive = by["ragged"], by["ssp"], by["adaptive-ssp"]
    ratios = [ratio for each in spared for ratio in each.ratios]
    furthest = max(ratios, key=lambda ratio: abs(ratio - 1))
    return [
        claims.at_most("reads under ragged beside fixed ssp", 0.6, ragged.total / ssp.total, " x"),
        claims.at_most("reads under ragged beside adaptive-ssp", 1.0, ragged.total / adaptive.total, " x"),
        claims.at_most("reorganisations after a flip until ragged has settled", 3, max(ragged.settled)),
        claims.within(
            "what ssp spares a slot, over theorem 2, short windows, the furthest off", 1, 0.1, furthest, " x"
        ),
    ]


def _grid(found: Sequence[Course]) -> Grid:
    first = found[0].total
    rows = [
        [
            each.policy,
            str(each.slots),
            number(each.total),
            f"{each.total / first:.2f}",
            number(max(each.reads)),
            ", ".join(map(str, each.settled)),
        ]
        for each in found
    ]
    headings = ["policy", ">slots used", ">reads", f">of {found[0].policy}'s", ">most in an epoch", ">settled after"]
    return Grid("diffusion: (tuple, slot) reads, and reorganisations after each flip until settled", headings, rows)


def _saved_grid(spared: Sequence[Saved]) -> Grid:
    rows = [
        [
            str(each.slots),
            f"{each.within} epochs",
            number(each.memory),
            number(each.memory_predicted),
            f"{each.ratios[0]:.3f}",
            number(each.bandwidth),
            number(each.bandwidth_predicted),
            f"{each.ratios[1]:.3f}",
        ]
        for each in spared
    ]
    headings = [">slots", ">window", ">memory", ">predicted", ">ratio", ">bandwidth", ">predicted", ">ratio"]
    return Grid("diffusion: tuples that ssp spares a slot, beside theorem 2", headings, rows)


def _panel(found: Sequence[Course], size: Size) -> Panel:
    series = [Series(f"{c.policy}, {number(c.total)}", range(len(c.reads)), c.reads) for c in found]
    title = f"diffusion: rates 1:{TIMES}, flipped every {size.epochs} epochs, {size.slots} slots"
    return Panel(title, "epoch", "(tuple, slot) reads in an epoch", series, plain=True)


def _notes(size: Size) -> list[str]:
    return [
        f"diffusion: {ON}, windows of {size.within} s, epochs of 1 s, {size.rate} and {TIMES * size.rate} tuples/s;"
        " counted in one process, so nothing depends on the machine. ssp and grid are what they are from the first"
        " reorganisation on. The grid uses the largest square number of slots: it replicates less than shapes of all slots,"
        " and each of its slots compares as many pairs more.",
        "theorem 2: (k - 1) / k * m * r1 * W1 of memory and (k - 1) / k * m * r1 of bandwidth; here in tuples, whose size"
        " m is the same in both streams. Memory is what a slot opens, which are blocks: in windows of many epochs blocks are"
        " merged, and the oldest reach beyond the window; the theorem knows no blocks, so the claim is about short windows.",
    ]
