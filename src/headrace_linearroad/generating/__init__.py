"""Linear Road's traffic, made up: cars, jams, accidents, questions, and the histories that answer them.

    for second, tuples in Traffic(Settings(expressways=4, density=1700)).seconds(0, 1800):
        ...  # a table of forms.INPUT

Everything is a function of the settings: `Traffic(settings, range(0, 2))` and `Traffic(settings, range(2, 4))` make in two
processes what one makes of four expressways, and any second is the same whichever one begins at. What is held in memory is
the cars that are on the road, some 30 bytes each, and the tuples of one second.
"""

from headrace_linearroad.generating.settings import Settings
from headrace_linearroad.generating.traffic import Traffic

__all__ = ["Settings", "Traffic"]
