"""Settings of a session: what is no setting of Spark is refused before a JVM starts."""

from __future__ import annotations

import pytest

from headrace.errors import QueryError
from headrace.spark.session import session


@pytest.mark.parametrize("name", ["cores", "app_name", "memory"])
def test_a_setting_without_a_dot_is_refused(name: str) -> None:
    with pytest.raises(QueryError, match=rf"session has no setting '{name}'; slots=4"):
        session(slots=2, **{name: 2})
