# mypy: disable-error-code="no-untyped-def"
"""Functions that the source of a pair loop calls: `NAMES` for compiled loops, `ON_ARRAYS` for the same source on
arrays.

The functions are those of C, as DuckDB's are; none raises an error.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from headrace.columnar.numba_cache import compile_inner

TEXT = Path(__file__).read_text() if Path(__file__).exists() else __loader__.get_source(__name__)  # type: ignore[name-defined]


@compile_inner
def where(condition, one, other):
    return one if condition else other


NAMES: dict[str, Any] = {
    "where": where,
    "INF": math.inf,
    "NAN": math.nan,
    "abs": abs,
    "f64": np.float64,
    "i64": np.int64,
    "single": compile_inner(lambda number: np.float64(np.float32(number))),
    "sqrt": math.sqrt,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "atan2": math.atan2,
    "sinh": math.sinh,
    "cosh": math.cosh,
    "tanh": math.tanh,
    "exp": math.exp,
    "log": math.log,
    "log2": np.log2,
    "log10": math.log10,
    "power": math.pow,
    "fmod": np.fmod,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
}

ON_ARRAYS: dict[str, Any] = {
    **{name: getattr(np, name) for name in NAMES if hasattr(np, name)},
    "INF": math.inf,
    "NAN": math.nan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "f64": lambda number: np.asarray(number).astype(np.float64),
    "i64": lambda number: np.asarray(number).astype(np.int64),
    "single": lambda number: np.asarray(number).astype(np.float32).astype(np.float64),
}
