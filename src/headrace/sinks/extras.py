"""Libraries that only some sinks need: `headrace.support.extras`."""

from headrace.support.extras import library as library
