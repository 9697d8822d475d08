"""The cost model of parasplit (Zeitler and Risch, VLDB 2011, sections 3 and 4), with the paper's names.

A window router PR distributes physical windows to p window splitters PS. Each splitter sends every tuple to its query
processors PQ: to one of q (a share r of the tuples), to all of them (b) or to none (o).

Units: a cost c is CPU time per tuple, and a rate phi is tuples of the input stream per unit of time. Any unit works,
such as the paper's seconds per megabit and Mbit/s. Costs with a W are costs of a whole physical window, divided by its
number of tuples. Every phi counts tuples of the *input*. A query processor receives only a share of them, so its rate
is the rate of the tuples that it receives, divided by that share.

Invariant: this module is pure arithmetic. It measures nothing, and no result of a query depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from headrace.support.limits import MOST_SPLITTERS

BROADCAST = 0.01  # the heuristic's share of tuples that are broadcast


@dataclass(frozen=True)
class ModelCosts:
    """CPU time per tuple. A splitter reads whole windows of tuples; a query processor reads single tuples."""

    cr_W: float = 0.0  # read: a tuple's share of the time to read a physical window
    cs_W: float = 0.0  # split: share of choosing a splitter for the window
    ce_W: float = 0.0  # emit: share of sending the window
    cs: float = 0.0  # split: evaluate route and broadcast
    ce: float = 0.0  # emit: send the tuple to one query processor
    cr: float = 0.0  # read: receive the tuple in a query processor
    cp: float = 0.0  # poll, per splitter
    cm: float = 0.0  # merge, per splitter
    cr_PR: float | None = (
        None  # read, in the router; None: cr_W, as in the paper; 0: it only names windows and reads none
    )


@dataclass(frozen=True)
class SplitShares:
    """The shares of tuples by destination: r + b + o = 1."""

    q: int  # number of substreams
    r: float  # routing percentage: to one of them
    b: float  # broadcast percentage: to all of them
    o: float = 0.0  # omit percentage: to none
    copies: int | None = None  # copies that a splitter sends of a broadcast tuple; None: q, as in the paper
    processors: int | None = None  # query processors that share the substreams; None: q, one for each, as in the paper

    def __post_init__(self) -> None:
        if self.q < 1 or min(self.r, self.b, self.o) < 0 or not math.isclose(self.r + self.b + self.o, 1.0):
            raise ValueError(f"r + b + o must be 1, none of them below 0, and q at least 1; found {self}")

    @property
    def sent(self) -> float:
        """Return the tuples that a splitter sends per tuple that it reads: r + q b in the paper."""
        return self.r + self.b * (self.q if self.copies is None else self.copies)

    @property
    def delivered(self) -> float:
        """Return the tuples that all query processors together receive per tuple of the input: r + q b."""
        return self.r + self.b * self.q


# --- costs per tuple -------------------------------------------------------------------------------------------------


def C(costs: ModelCosts, split: SplitShares, *, u: int = 1, cq: float = 0.0, sigma: float = 1.0) -> float:
    """Equation 1: the cost of a tuple in any stream process with u inputs, a query of cost cq and selectivity sigma.

    cr + (cp + cm) u + cq + sigma (cs (o + r + q b) + ce (r + q b))
    """
    out = costs.cs * (split.o + split.sent) + costs.ce * split.sent
    return costs.cr + (costs.cp + costs.cm) * u + cq + sigma * out


def C_PR(costs: ModelCosts) -> float:
    """Equation 2: the cost of a tuple in the window router, as its share of a window: cr_W + cs_W + ce_W."""
    return (costs.cr_W if costs.cr_PR is None else costs.cr_PR) + costs.cs_W + costs.ce_W


def C_PS(costs: ModelCosts, split: SplitShares) -> float:
    """Equation 3: the cost of a tuple in a window splitter: cr_W + cs (o + r + q b) + ce (r + q b)."""
    return costs.cr_W + costs.cs * (split.o + split.sent) + costs.ce * split.sent


def C_PQ(costs: ModelCosts, p: int, O: float = 0.0) -> float:
    """Equation 4: the cost of a tuple in a query processor with p splitters, including the query's own cost O.

    cr + p (cp + cm) + O
    """
    return costs.cr + p * (costs.cp + costs.cm) + O


def C_PS_hat(cs_ce: float, q: int, b: float = BROADCAST) -> float:
    """Equation 5, the heuristic's cost of a tuple in a splitter, with cr_W = 0 and o = 0; cs_ce is cs + ce.

    (cs + ce) (0.99 + 0.01 q) for b = 0.01
    """
    return cs_ce * ((1 - b) + b * q)


# --- rates -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProcessRates:
    """The highest input rate of each kind of process, over all processes of the kind."""

    PR: float
    PS: float
    PQ: float

    @property
    def parasplit(self) -> float:
        """Return the rate of section 3.2: each kind has its own CPUs and all run at once, so the slowest kind
        decides."""
        return min(self.PR, self.PS, self.PQ)

    @property
    def in_turn(self) -> float:
        """Return the rate if the kinds take turns on the same CPUs, as the stages of an epoch do."""
        each = (self.PR, self.PS, self.PQ)
        return 0.0 if 0.0 in each else 1 / sum(1 / rate for rate in each) if min(each) < math.inf else math.inf


def rates(costs: ModelCosts, split: SplitShares, p: int, *, O: float = 0.0, network: float = math.inf) -> ProcessRates:
    """Return the rates with p splitters. `network`: tuples per time that one process can receive or send."""
    n = split.q if split.processors is None else split.processors
    links = ProcessRates(
        network, network * p / max(split.sent, 1.0), network * n / split.delivered if split.delivered else math.inf
    )
    return ProcessRates(
        PR=min(_over(1.0, C_PR(costs)), links.PR),
        PS=min(_over(p, C_PS(costs, split)), links.PS),
        PQ=min(_over(n, C_PQ(costs, p, O) * split.delivered), links.PQ),
    )


def _over(processes: float, cost: float) -> float:
    return processes / cost if cost else math.inf


# --- how many splitters ------------------------------------------------------------------------------------------------


def p_hat(phi_D: float, phi_PS_1: float, q: int, b: float = BROADCAST) -> int:
    """Equation 6, the heuristic: the fewest splitters that sustain phi_D by equation 5.

    phi_PS_1: the rate of a single splitter with q = 1, which gives cs + ce = 1 / phi_PS_1.
    """
    return max(1, _up(phi_D * C_PS_hat(1 / phi_PS_1, q, b)))


def p_model(rate: Callable[[int], float], phi_D: float, most: int = MOST_SPLITTERS) -> int:
    """Return the fewest splitters whose rate reaches phi_D, or else the fewest with the highest rate.

    The fewest are best, because the cost of equation 4 grows with p. `rate` returns the rate of p splitters (see
    `rates`).
    """
    enough = (p for p in range(1, most + 1) if rate(p) >= phi_D * (1 - 1e-12))
    return next(enough, max(range(1, most + 1), key=rate))


def _up(number: float) -> int:
    """Round up, ignoring floating point error."""
    return math.ceil(round(number, 9))


# --- efficiency --------------------------------------------------------------------------------------------------------


def eta(p: int, q: int, T_PR: float, T_PS: float, T_PQ: float) -> float:
    """Equation 7: the splitters' share of all CPU time, without the queries (O).

    p T_PS / (T_PR + p T_PS + q T_PQ), where T is the time that *one process* of a kind takes in a run. The paper writes
    C, its letter for costs per tuple; those would have to be weighted by the tuples that a process receives.
    """
    splitting = p * T_PS
    everything = T_PR + splitting + q * T_PQ
    return splitting / everything if everything else 1.0


def efficiency(costs: ModelCosts, split: SplitShares, p: int) -> float:
    """Equation 7 from costs per tuple: a splitter receives one in p tuples of the input, a query processor its
    share."""
    share = split.delivered / split.q
    return eta(p, split.q, C_PR(costs), C_PS(costs, split) / p, C_PQ(costs, p) * share)
