"""Loops are compiled once, and anew as soon as something that was compiled into them is another."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numba
import pytest

from headrace import compiled
from headrace.compiled import inner

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


@pytest.mark.thorough
def test_a_loop_is_kept_until_what_it_is_made_of_changes(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    (tmp_path / "library.py").write_text(LIBRARY.format(factor=1, step=1))
    assert told(tmp_path) == "2 False True"
    assert told(tmp_path) == "2 True True"
    (tmp_path / "library.py").write_text(LIBRARY.format(factor=1, step=10))
    assert told(tmp_path) == "11 False True", "a loop of another file that it calls"
    (tmp_path / "library.py").write_text(LIBRARY.format(factor=3, step=10))
    assert told(tmp_path) == "33 False True", "a constant of another file"


# --- loops that were made as text ------------------------------------------------------------------------------------

TEXT = "def loop(value):\n    return {factor} * step(value)\n"


@inner
def step(value):
    return value + 1


@pytest.fixture
def kept(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(compiled, "kept_in", lambda: tmp_path)
    return tmp_path


def hits(text: str, uses: str = "") -> int:
    loop = compiled.from_text(text, "loop", uses, {"step": step})
    assert loop(1) == 2 * int(text.split("return ")[1].split()[0])
    return sum(loop.stats.cache_hits.values())


def test_a_text_is_kept_by_its_content(kept, monkeypatch):
    text = TEXT.format(factor=3)
    assert [hits(text), hits(text)] == [0, 1]
    assert hits(TEXT.format(factor=4)) == hits(text, "other meanings of names") == 0
    assert len(list(kept.iterdir())) == 3, "one file each, nothing beside"
    monkeypatch.setattr(numba, "__version__", "0.0")
    assert hits(text) == 0


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: b"", lambda d: d[:99] + bytes([d[99] ^ 1]) + d[100:]])
def test_a_damaged_file_is_made_again(kept, damage, caplog):
    text = TEXT.format(factor=5)
    hits(text)
    (file,) = kept.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert [hits(text), hits(text)] == [0, 1]
    assert "is not used" in caplog.text


@pytest.mark.thorough
def test_other_processes_find_it(tmp_path):
    program = (
        "from headrace.compiled import from_text; loop = from_text('def loop(v): return v + 1', 'loop', '', {});"
        "print(loop(1), sum(loop.stats.cache_hits.values()))"
    )
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    run = partial(subprocess.Popen, [sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, text=True)
    at_once = [run(), run()]
    assert {each.communicate()[0].strip() for each in at_once} <= {"2 0", "2 1"}
    assert run().communicate()[0].strip() == "2 1"


def test_without_a_folder_it_is_compiled_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "kept_in", lambda: None)
    assert hits(TEXT.format(factor=6)) == 0
    assert hits(TEXT.format(factor=6)) == 0


def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled.config, "CACHE_DIR", str(tmp_path))
    folder = compiled.kept_in()
    assert folder is not None and folder.parent == tmp_path
    for others in (0o770, 0o707):
        folder.chmod(others)
        assert compiled.kept_in() is None
