"""Speed limits of traffic by expressway, direction, mile and minute, including jams.

Jams are the hills of a random landscape over (mile, minute), which is drawn at the corners of a grid and interpolated
smoothly. The denser the traffic, the lower the hills that cause a jam. The landscape does not depend on the cars: they
accumulate in slow places because the inflow stays the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace_linearroad.generating.draws import Ints, draw, salt, share
from headrace_linearroad.generating.world import SEGMENTS

FREE, CRAWL = 64, 20  # miles per hour
WIDE, LASTS = 8, 20  # miles and minutes between two grid corners
DEEP = 3.0  # steepness of the sides of a jam
FROM = 0.4  # height above which traffic jams at full density

Floats = npt.NDArray[np.float64]


def _smooth(at: Floats) -> Floats:
    return at * at * (3 - 2 * at)


def heights(seed: int, xways: Ints, direction: int, minute: int) -> Floats:
    """Return the heights of the landscape: [expressway, mile]."""
    across, along = np.divmod(np.arange(SEGMENTS), WIDE)
    corner, late = divmod(minute, LASTS)
    corners = np.arange(across[-1] + 2)
    purpose = salt(seed, "jams", direction)
    then, next_ = (share(draw(purpose, xways[:, None], corners, corner + n)) for n in (0, 1))
    now = then + (next_ - then) * _smooth(np.array([late / LASTS]))
    left, right = now[:, across], now[:, across + 1]
    found: Floats = left + (right - left) * _smooth(along / WIDE)
    return found


def limits(seed: int, xways: Ints, direction: int, minute: int, fullness: float) -> Ints:
    """Return the limits in miles per hour: [expressway, mile]. fullness: 1 is full density."""
    over = (heights(seed, xways, direction, minute) - (1 - (1 - FROM) * fullness)) * DEEP
    jammed = np.clip(over, 0, 1)
    return np.rint(FREE - (FREE - CRAWL) * jammed).astype(np.int32)
