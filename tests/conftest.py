"""What all tests share: one Spark session per test process, started when the first test asks for it."""

from __future__ import annotations

import pytest

from tests import jvm

jvm.use()


@pytest.fixture(scope="session")
def spark():
    import headrace as hr

    session = hr.session(slots=2)
    yield session
    session.stop()
