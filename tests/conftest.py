"""What all tests share: one Spark session per test process, started when the first test asks for it."""

from __future__ import annotations

import os
from importlib.metadata import version

import pytest

from tests import another_user as users
from tests import jvm
from tests.choosing import few

jvm.use()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--few", type=int, help="of the cases of each test take no more than so many")


@pytest.hookimpl(trylast=True)  # of those that -m has left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if most := config.getoption("few"):
        taken = few(items, most, lambda item: item.nodeid.partition("[")[0])
        config.hook.pytest_deselected(items=[item for item in items if item not in taken])
        items[:] = [item for item in items if item in taken]


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


@pytest.fixture
def another_user() -> users.AnotherUser:
    if not users.may_be():
        if os.environ.get("HEADRACE_LEAVE_NOTHING_OUT"):
            pytest.fail(users.HOW)
        pytest.skip(users.HOW)
    return users.AnotherUser()
