"""Loops are compiled once, and anew as soon as something that was compiled into them is another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIBRARY = """
from headrace.compiled import inner
FACTOR = {factor}

@inner
def step(value):
    return value + {step}
"""
LOOP = """
import sys
from headrace.compiled import compiled, is_kept
from library import FACTOR, step

@compiled
def loop(value):
    return FACTOR * step(value)

before = is_kept(loop)
print(loop(1), before, is_kept(loop))
"""


def told(folder: Path) -> str:
    found = subprocess.run([sys.executable, "loop.py"], cwd=folder, capture_output=True, text=True, check=True)
    return found.stdout.strip()


def test_a_loop_is_kept_until_what_it_is_made_of_changes(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    (tmp_path / "library.py").write_text(LIBRARY.format(factor=1, step=1))
    assert told(tmp_path) == "2 False True"
    assert told(tmp_path) == "2 True True"
    (tmp_path / "library.py").write_text(LIBRARY.format(factor=1, step=10))
    assert told(tmp_path) == "11 False True", "a loop of another file that it calls"
    (tmp_path / "library.py").write_text(LIBRARY.format(factor=3, step=10))
    assert told(tmp_path) == "33 False True", "a constant of another file"
