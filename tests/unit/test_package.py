"""What is shipped beside the modules."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())


def test_type_checkers_may_use_the_annotations():
    """PEP 561: the marker lies in the package, and setuptools puts it into a wheel."""
    assert (files("headrace") / "py.typed").is_file()
    assert PROJECT["tool"]["setuptools"]["package-data"]["headrace"] == ["py.typed"]
