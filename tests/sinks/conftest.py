from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kafka.conftest import a_topic, broker  # noqa: F401  # fixtures here too
from tests.sinks import postgres
from tests.sinks.stores import Store

_names = (f"results_{number}" for number in itertools.count())


@pytest.fixture(scope="session")
def server() -> Iterator[postgres.Server]:
    if postgres.programs() is None:
        if os.environ.get("HEADRACE_LEAVE_NOTHING_OUT"):
            pytest.fail(postgres.HOW)
        pytest.skip(postgres.HOW)
    server = postgres.Server()
    yield server
    server.remove()


@pytest.fixture
def a_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Store]:
    """By kind, with a table of its own that is not there yet."""

    def make(kind: str) -> Store:
        if kind == "postgres":
            return Store(kind, request.getfixturevalue("server").url, next(_names))
        return Store(kind, str(tmp_path))

    return make
