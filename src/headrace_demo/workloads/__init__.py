"""Made-up streams, shaped like those of the papers on parallel stream joins: skewed keys, bursts, a key that is hot.

    left = Workload(rate=(1000, 8000), every=30, keys=BModel(0.7), hot=Hot(0.5, every=20), seed=1, name="left")
    left.write("left/", seconds=60)

A stream is a function of its description alone: it is made second by second, each from (seed, name, second), so it is
the same stream in however many files it is written, and a longer one begins with a shorter one. (Given one version of
numpy, whose random numbers these are.)
"""

from headrace_demo.workloads.arrivals import ramp
from headrace_demo.workloads.keys import BModel, Hot, Uniform
from headrace_demo.workloads.stream import SCHEMA, Workload
from headrace_demo.workloads.writing import Written

__all__ = ["SCHEMA", "BModel", "Hot", "Uniform", "Workload", "Written", "ramp"]
