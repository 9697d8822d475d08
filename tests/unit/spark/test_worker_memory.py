"""A worker keeps the memory that a task gave back: the next one finds its pages there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.spark import worker_memory

TWICE = """
import resource, sys
import numpy as np
from headrace.spark import worker_memory as memory
if sys.argv[1] == "keep":
    memory.keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pages = [np.ones(40 << 20, np.uint8) for _ in range(5)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
first = faults()
print(faults())
"""


def again(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", TWICE, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="another C library")
def test_memory_that_was_given_back_is_there_for_the_next_task() -> None:
    kept, anew = again("keep"), again("as it is")
    assert anew > 50, "it is not asked for anew: nothing to keep"
    assert kept < anew / 10


def test_it_is_kept_below_a_limit_that_a_setting_can_hold() -> None:
    assert worker_memory.AHEAD < worker_memory.KEPT_BYTES < 1 << 31
