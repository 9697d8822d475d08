"""What all tests share: one Spark session per test process, started when the first test asks for it."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from tests import jvm

jvm.use()


def pytest_configure(config: pytest.Config) -> None:
    """Spark before 4.2 leaves it to the garbage collector to close the sockets that it reads results from."""
    if version("pyspark").startswith(("4.0.", "4.1.")):
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="session")
def spark():
    import headrace as hr

    session = hr.session(slots=2)
    yield session
    session.stop()
