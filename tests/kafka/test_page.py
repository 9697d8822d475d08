"""docs/KAFKA.md names every option; tests/docs runs its Python."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import headrace as hr

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "KAFKA.md").read_text()


def test_every_option_is_there():
    options = set(inspect.signature(hr.kafka).parameters) - {"spark", "servers"}
    named = {
        name
        for line in PAGE.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    assert named == options
