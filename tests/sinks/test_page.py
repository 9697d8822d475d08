"""docs/SINKS.md names every sink; tests/docs runs its Python."""

from __future__ import annotations

import re
from pathlib import Path

from headrace import sinks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "SINKS.md").read_text()


def test_every_sink_is_there():
    named = set(re.findall(r"hr\.sinks\.(\w+)\(", PAGE))
    assert named == {"database", "delta", "iceberg", "kafka"} and all(hasattr(sinks, name) for name in named)
