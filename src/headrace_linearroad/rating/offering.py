"""The feeder: a process that only publishes the file of each second when it is due, by a rename.

Second t is due (t - first) / speed seconds after the start. This clock also counts delays of the feeder itself. The
module imports nothing from headrace, so the process uses almost no processor time and memory.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from typing import Any

NAME, SUFFIX = "{:06d}{}", ".arrow"
CPU = "cpu"


def offer(job: dict[str, Any]) -> None:
    """Publish all seconds, and log the delay of each and at the end the processor time."""
    parent = os.getppid()
    first, last, start, speed = job["first"], job["last"], job["start"], job["speed"]
    with open(job["log"], "w") as log:
        for second in range(first, last):
            due = start + (second - first) / speed
            while (left := due - time.monotonic()) > 0:
                time.sleep(min(left, 1.0))
                if os.getppid() != parent:  # the parent has ended
                    return
            publish(job["made"], job["road"], second, job.get("suffix", SUFFIX))
            log.write(f"{second}\t{time.monotonic() - due:.6f}\n")
            log.flush()
        log.write(f"{CPU}\t{time.process_time():.6f}\n")


def publish(made: str, road: str, second: int, suffix: str = SUFFIX) -> None:
    """Publish a second. A second without tuples has no file."""
    name = NAME.format(second, suffix)
    with suppress(FileNotFoundError):
        os.rename(os.path.join(made, name), os.path.join(road, name))  # noqa: PTH104


if __name__ == "__main__":
    offer(json.loads(sys.argv[1]))
