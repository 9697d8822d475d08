"""All cars with a part to play, and what is known of them: the accidents of every expressway, and the rare cases."""

from __future__ import annotations

from typing import Any

from headrace_linearroad.generating.accidents import Accident, happening
from headrace_linearroad.generating.acting import Played, Script
from headrace_linearroad.generating.cases import CASES, plant
from headrace_linearroad.generating.settings import Settings


class Cast:
    """Of the expressways `xways`; traffic begins in second `first`."""

    def __init__(self, settings: Settings, xways: range, first: int) -> None:
        script = Script()
        accidents = [accident for xway in xways for accident in happening(settings, xway, first, script)]
        planted, more = ([], []) if settings.plain else plant(settings, script)
        self.settings, self.planted = settings, planted
        self.accidents: list[Accident] = accidents + [accident for accident in more if accident.xway in xways]
        self.played = Played(script.within(xways), filled=settings.walmart)

    def truth(self, begin: int, end: int) -> dict[str, Any]:
        """What is to be found in the tuples of [begin, end): accidents, and the cases that are in them as a whole."""
        inside = [planted for planted in self.planted if begin <= planted.begin and planted.end < end]
        accidents = [found for accident in self.accidents if (found := accident.truth(begin, end)) is not None]
        return {
            "accidents": sorted(accidents, key=lambda found: (found["detected"], found["xway"], found["pos"])),
            "planted": [planted.to_json() for planted in inside],
            "missing": [case.name for case in CASES if case.name not in {one.case.name for one in inside}],
        }

    @property
    def unknown(self) -> list[int]:
        """Cars that no history knows."""
        return [planted.found["unknown"] for planted in self.planted if "unknown" in planted.found]

    @property
    def vids(self) -> set[int]:
        """Of all of them."""
        return self.played.vids
