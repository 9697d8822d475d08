"""Linear Road's traffic, made up: cars, jams, accidents, questions, and the histories that answer them."""

from headrace_linearroad.generating.settings import Settings
from headrace_linearroad.generating.traffic import Traffic

__all__ = ["Settings", "Traffic"]
