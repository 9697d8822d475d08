"""The benchmark of adaptation: rates that flip, skewed keys, a load that rises and falls, a hot key. Each claim gets a
verdict.

`diffusion` and `elasticity` count in this process and give the same results on any machine. `degree` and the first part
of `hot key` run on Spark, in separate processes.
"""

from __future__ import annotations

from headrace_bench import parts
from headrace_bench.adaptive import degree, diffusion, elasticity, hot_key
from headrace_bench.options import Options
from headrace_bench.parts import Part
from headrace_bench.report import Report

PARTS = (
    Part("diffusion", diffusion.run),
    Part("elasticity", elasticity.run),
    Part("degree", degree.run),
    Part("hot key", hot_key.run),
)


def run(options: Options) -> Report:
    return parts.run("adaptive", "Adapting to rates, skew, load and hot keys", PARTS, options)
