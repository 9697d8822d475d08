"""The README's Python is run as it stands, in order, in an empty folder."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.spark
def test_readme_examples_run(tmp_path, monkeypatch):
    assert len(BLOCKS) >= 4
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)


def test_readme_names_the_two_commands():
    assert "make demo" in README
    assert "make test" in README


def test_every_make_target_in_the_readme_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z]+)", README)) <= targets | {"it"}


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "GUARANTEES.md"])
def test_docs_name_only_what_exists(page):
    text = (ROOT / "docs" / page).read_text()
    for name in re.findall(r"`([a-z_]+/(?:[a-z_]+\.py)?)`", text):
        if name not in ("spark/", "state/"):
            assert (ROOT / "src" / "headrace" / name).exists(), name
