"""Generated streams like those of the papers on parallel stream joins: skewed keys, bursts, a hot key.

    left = Workload(rate=(1000, 8000), every=30, keys=BModel(0.7), hot=Hot(0.5, every=20), seed=1, name="left")
    left.write("left/", seconds=60)

A stream is a function of its description alone: each second is generated from (seed, name, second), so the stream is
the same whatever the number of files, and a longer stream begins with the shorter one. (This assumes the same version
of numpy, which generates the random numbers.)
"""

from headrace_demo.workloads.arrivals import ramp
from headrace_demo.workloads.keys import BModel, Hot, Uniform
from headrace_demo.workloads.stream import SCHEMA, Workload
from headrace_demo.workloads.writing import Written

__all__ = ["SCHEMA", "BModel", "Hot", "Uniform", "Workload", "Written", "ramp"]
