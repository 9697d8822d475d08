from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import killing


@pytest.fixture(scope="session")
def nursery() -> Iterator[killing.Nursery]:
    nursery = killing.Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def wanted() -> dict[str, killing.Rows]:
    return killing.expected()


@pytest.fixture(scope="session")
def steps(nursery: killing.Nursery, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The steps of a run, in order, such as "storage write blocks/e000000000-s0-..." or "sink deliver 0 result-1"."""
    return killing.steps_of(nursery, Path(tmp_path_factory.mktemp("steps")) / "run")


@pytest.fixture(scope="session")
def listed_steps(nursery: killing.Nursery, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Those of a run that takes the files that are there, and ends."""
    return killing.steps_of(nursery, Path(tmp_path_factory.mktemp("listed")) / "run", listed=True)
