"""Warnings are errors in these tests: as pyproject.toml says, and for those too that nobody would see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SLOPPY = """
import warnings

class Ends:
    def __del__(self):
        raise ValueError("nobody hears this")

def test_deprecated():
    warnings.warn("old", DeprecationWarning)

def test_to_come():
    warnings.warn("soon", FutureWarning)

def test_file_left_open():
    open(__file__)

def test_error_while_deleting():
    Ends()

def test_tidy():
    with open(__file__):
        pass
"""


def test_what_is_only_warned_of_fails(tmp_path: Path) -> None:
    path = tmp_path / "test_sloppy.py"
    path.write_text(SLOPPY)
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-q"]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(path)], capture_output=True, text=True, cwd=tmp_path
    )
    assert "4 failed, 1 passed" in found.stdout, found.stdout + found.stderr
