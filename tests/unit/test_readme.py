"""The README and the pages in docs/ name what exists: commands, files, and everything that can be called."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

import headrace as hr
from headrace.run import start as starting
from headrace.run.run import Run
from headrace.telemetry.progress import EpochSummary, Progress

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_readme_names_the_two_commands():
    assert "make demo" in README
    assert "make test" in README


def test_every_make_target_in_the_readme_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z]+)", README)) <= targets | {"it"}


def test_the_manual_names_everything_that_can_be_called():
    """Public names, options of `start`, fields of a policy and of progress, what a run and a stream can do."""
    manual = (ROOT / "docs" / "USING.md").read_text()
    known = {name: getattr(hr, name) for name in hr.__all__}
    errors = {name for name, each in known.items() if isinstance(each, type) and issubclass(each, Exception)}
    words = set(hr.__all__) - errors - {"__version__", "Stream"}
    words |= {name for name in inspect.signature(starting.start).parameters if name != "results"}
    words |= {
        f.name for record in (hr.Policy, Progress, EpochSummary) for f in fields(record) if not f.name.startswith("_")
    }
    words |= {name for kind in (hr.Stream, Run) for name in vars(kind) if not name.startswith("_")}
    words |= {name for name in ("parquet", "memory", "console", "foreach") if hasattr(hr.sinks, name)}
    words |= {name for call in (hr.files, hr.stream) for name in inspect.signature(call).parameters}
    assert sorted(word for word in words if not re.search(rf"\b{word}\b", manual)) == []


PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", *ROOT.glob("CONTRIBUTING.md")]
MADE_BY_RUNS = {"spark/", "state/", "blocks/", "manifests/"}  # folders of a checkpoint


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_docs_name_only_files_that_exist(page):
    text = page.read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", text)) - MADE_BY_RUNS
    roots = (ROOT, ROOT / "src", ROOT / "src" / "headrace")
    missing = {name for name in named if not any((root / name).exists() for root in roots)}
    links = set(re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text))
    missing |= {link for link in links if not (page.parent / link).exists()}
    assert not missing
