"""Generator of Linear Road traffic: cars, jams, accidents, questions, and the histories that answer them.

    for second, tuples in Traffic(Settings(expressways=4, density=1700)).seconds(0, 1800):
        ...  # a table of forms.INPUT

The traffic is a function of the settings. `Traffic(settings, range(0, 2))` and `Traffic(settings, range(2, 4))` in two
processes generate the same as one process for four expressways, and the tuples of a second do not depend on the first
second. Memory holds the cars on the road, about 30 bytes each, and the tuples of one second.
"""

from headrace_linearroad.generating.settings import Settings
from headrace_linearroad.generating.traffic import Traffic

__all__ = ["Settings", "Traffic"]
