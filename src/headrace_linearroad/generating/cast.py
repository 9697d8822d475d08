"""All scripted cars: the accidents of every expressway, the planted rare cases, and the truth about them."""

from __future__ import annotations

from typing import Any

from headrace_linearroad.generating.accidents import Accident, happening
from headrace_linearroad.generating.acting import Played, Script
from headrace_linearroad.generating.cases import CASES, plant
from headrace_linearroad.generating.settings import Settings


class Cast:
    """The scripted cars of the expressways `xways`, for traffic that begins in second `first`."""

    def __init__(self, settings: Settings, xways: range, first: int) -> None:
        script = Script()
        accidents = [accident for xway in xways for accident in happening(settings, xway, first, script)]
        planted, more = ([], []) if settings.plain else plant(settings, script)
        self.settings, self.planted = settings, planted
        self.accidents: list[Accident] = accidents + [accident for accident in more if accident.xway in xways]
        self.played = Played(script.within(xways), filled=settings.walmart)

    def truth(self, begin: int, end: int) -> dict[str, Any]:
        """Return the accidents in the tuples of [begin, end), and the cases that are completely in them."""
        inside = [planted for planted in self.planted if begin <= planted.begin and planted.end < end]
        accidents = [found for accident in self.accidents if (found := accident.truth(begin, end)) is not None]
        return {
            "accidents": sorted(accidents, key=lambda found: (found["detected"], found["xway"], found["pos"])),
            "planted": [planted.to_json() for planted in inside],
            "missing": [case.name for case in CASES if case.name not in {one.case.name for one in inside}],
        }

    @property
    def unknown(self) -> list[int]:
        """Cars without a row in any history."""
        return [planted.found["unknown"] for planted in self.planted if "unknown" in planted.found]

    @property
    def vids(self) -> set[int]:
        """The numbers of all scripted cars."""
        return self.played.vids
