from __future__ import annotations

from tests.kafka.conftest import broker  # noqa: F401  # fixtures here too
from tests.sinks.conftest import server  # noqa: F401
