"""Libraries that only some sinks need: `headrace.extras`."""

from headrace.extras import library as library
