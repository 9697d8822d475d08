"""Libraries that only some sinks need: `headrace.support.extras`."""

from headrace.support.extras import import_extra as import_extra
