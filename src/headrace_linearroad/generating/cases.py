"""Rare cases, planted on expressway 0 (and 1). Each is a scene of some cars that is repeated.

A scene is a function that scripts its cars from second `at` on, and returns how to find the case in the tuples. Most
scenes are repeated every ten minutes and end within them. Scenes whose toll depends on one car or on half a mile per
hour need segments without other cars: the first miles of expressway 0 are reserved for them (world.STAGE).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace_linearroad.generating.accidents import Accident, Stop, collide, stand
from headrace_linearroad.generating.acting import Car, Script
from headrace_linearroad.generating.settings import Settings
from headrace_linearroad.generating.world import ACTORS, EAST, HOURS, LENGTH, MILE, WEST

OFTEN, SELDOM = 600, 1800  # seconds
NUMBERS = 1024  # car numbers for all scenes that begin within ten minutes

Found = dict[str, Any]


@dataclass
class Scene:
    """The context of a scene: its first second, its cars and its accidents."""

    script: Script
    at: int
    number: int
    accidents: list[Accident] = field(default_factory=list)

    def car(self, direction: int = EAST, xway: int = 0) -> Car:
        self.number += 1
        return self.script.car(xway, direction, self.number - 1, home=0)

    def again(self, car: Car, xway: int) -> Car:
        """Return the same car for another journey."""
        return Car(self.script, car.vid, xway, car.direction)

    def accident(
        self, mile: int, seconds: tuple[int, int], times: tuple[int, int], feet: int = 2000, direction: int = EAST
    ) -> Found:
        """Add an accident of two cars, whose first reports from the place are `seconds` after the scene begins."""
        cars = (self.car(direction), self.car(direction))
        firsts = (self.at + seconds[0], self.at + seconds[1])
        return self.happened(collide(cars, mile * MILE + feet, 2, firsts, times))

    def happened(self, accident: Accident) -> Found:
        self.accidents.append(accident)
        return accident.truth(0, HOURS) or {}

    def witness(self, mile: int, second: int, miles: int = 3, direction: int = EAST) -> int:
        """Add a car that drives past a place and leaves. Return its number."""
        car = self.car(direction).enter(self.at + second, mile)
        return car.drive(60, times=2 * miles - 1).leave().vid


# --- accidents --------------------------------------------------------------------------------------------------------


def accident_cleared_in_the_minute_of_the_last_stop(scene: Scene) -> Found:
    """The last report of a stop and the first after it are in one minute: the profiles differ by a minute."""
    found = scene.accident(12, (125, 130), (5, 6))
    return found | {"witnesses": [scene.witness(10, 245), scene.witness(10, 302)]}


def accident_over_in_the_minute_it_was_found_in(scene: Scene) -> Found:
    """An accident is detected and cleared within one minute: official affects the next minute, walmart none."""
    found = scene.accident(20, (145, 155), (5, 5))
    return found | {"witnesses": [scene.witness(18, 302)]}


def two_accidents_within_five_segments(scene: Scene) -> Found:
    """Two accidents at the same time, three segments apart: the nearest counts."""
    both = [scene.accident(30, (130, 140), (9, 9)), scene.accident(33, (135, 150), (8, 9))]
    return {"accidents": both, "witnesses": [scene.witness(29, 300, 2), scene.witness(31, 300)]}


def second_accident_in_the_segment(scene: Scene) -> Found:
    """A second accident, some minutes after the first was cleared, at another place of the segment."""
    both = [scene.accident(42, (130, 140), (5, 5)), scene.accident(42, (345, 350), (5, 5), feet=3000)]
    return {"accidents": both, "witnesses": [scene.witness(40, 240), scene.witness(42, 485, 1)]}


def accident_cleared_by_a_change_of_lane(scene: Scene) -> Found:
    """One of the cars is still at the same position, in another lane."""
    way, stops = 48 * MILE + 2000, []
    for first in (130, 140):
        car = stand(scene.car(), way, 2, scene.at + first, 6)
        stops.append(Stop(car.vid, scene.at + first, car.second))
        car.shift(3).drive(30, 3).leave()
    found = scene.happened(Accident(0, EAST, way, 2, (stops[0], stops[1])))
    return found | {"witnesses": [scene.witness(46, 240)]}


def accident_in_the_last_segment(scene: Scene) -> Found:
    """An accident in the last segment of the road, eastbound: no segment is downstream of it."""
    found = scene.accident(99, (130, 145), (8, 8), feet=1500)
    return found | {"witnesses": [scene.witness(97, 250)]}


def accident_near_the_first_segment(scene: Scene) -> Found:
    """An accident westbound in segment 98: only one of the four segments upstream of it exists."""
    found = scene.accident(1, (130, 145), (7, 7), feet=1500, direction=WEST)
    return found | {"witnesses": [scene.witness(0, 250, direction=WEST)]}


def car_that_stands_alone(scene: Scene) -> Found:
    """Six equal reports of one car: no accident."""
    car = stand(scene.car(), 52 * MILE + 1000, 3, scene.at + 100, 6)
    found = {"vid": car.vid, "pos": car.place()["pos"]}
    car.drive(30).leave()
    return found


def _side_by_side(scene: Scene, places: list[tuple[Car, int, int]]) -> Found:
    """Let cars stand at (way, lane), without an accident."""
    for n, (car, way, lane) in enumerate(places):
        stand(car, way, lane, scene.at + 130 + 10 * n, 6)
    found = {"vids": [car.vid for car, _, _ in places], "pos": places[0][0].place()["pos"]}
    for car, _, _ in places:
        car.drive(30).leave()
    return found


def same_position_in_other_lanes(scene: Scene) -> Found:
    """Two cars stand at one position in different lanes: no accident."""
    way = 57 * MILE + 700
    return _side_by_side(scene, [(scene.car(), way, 1), (scene.car(), way, 2)])


def same_position_in_other_directions(scene: Scene) -> Found:
    """Two cars stand at one position, one eastbound and one westbound: no accident."""
    way = 62 * MILE + 700
    return _side_by_side(scene, [(scene.car(), way, 2), (scene.car(WEST), LENGTH - 1 - way, 2)])


def same_position_on_other_expressways(scene: Scene) -> Found:
    """Two cars stand at one position of different expressways: no accident."""
    way = 67 * MILE + 700
    return _side_by_side(scene, [(scene.car(), way, 2), (scene.car(xway=1), way, 2)])


# --- journeys ---------------------------------------------------------------------------------------------------------


def returns_to_the_same_expressway(scene: Scene) -> Found:
    """A car leaves by a ramp, returns two minutes later and visits the same segments again."""
    car = scene.car().enter(scene.at + 5, 70).drive(60, times=3).leave()
    back = scene.again(car, 0).enter(car.second + 125, 70).drive(60, times=3)
    qid = back.ask_balance()
    return {"vid": car.vid, "left": car.second, "back": back.second - 90, "qid": qid, "last": back.leave().second}


def returns_to_another_expressway(scene: Scene) -> Found:
    """A car leaves expressway 0 and returns on expressway 1: it has one account."""
    car = scene.car().enter(scene.at + 5, 72).drive(60, times=3).leave()
    back = scene.again(car, 1).enter(car.second + 95, 30).drive(60, times=3)
    return {"vid": car.vid, "left": car.second, "back": back.second - 90, "qid": back.ask_balance()}


def returns_though_it_never_left(scene: Scene) -> Found:
    """A car stops reporting on a travel lane, and enters again more than 60 s later."""
    car = scene.car().enter(scene.at + 5, 74).drive(60, times=3)
    back = scene.again(car, 0).enter(car.second + 101, 75).drive(60, times=2)
    return {"vid": car.vid, "vanished": car.second, "back": back.second - 60, "last": back.leave().second}


def exit_in_a_new_segment(scene: Scene) -> Found:
    """The report on the exit ramp is the first one from its segment."""
    car = scene.car().enter(scene.at + 5, 76).drive(60, times=3).leave_at_once(62)
    return {"vid": car.vid, "second": car.second, "seg": car.seg}


def car_that_vanishes(scene: Scene) -> Found:
    """A car stops reporting without an exit."""
    car = scene.car().enter(scene.at + 5, 78).drive(60, times=4)
    return {"vid": car.vid, "second": car.second, "lane": car.lane}


def from_end_to_end(scene: Scene) -> Found:
    """Cars drive in the first and last segments, in both directions."""
    first = [scene.car(way).enter(scene.at + 250, 0).drive(60, times=4) for way in (EAST, WEST)]
    last = [scene.car(way).enter(scene.at + 250, 97).drive(60, times=4) for way in (EAST, WEST)]
    return {"vids": [car.leave().vid for car in (*first, *last)]}


# --- questions --------------------------------------------------------------------------------------------------------


def question_when_entering(scene: Scene) -> Found:
    """Questions in the second of a car's first report, before and after it in the input."""
    car = scene.car().enter(scene.at + 5, 80)
    qids = [car.ask_balance(before=True), car.ask_balance()]
    car.drive(60, times=2).leave()
    return {"vid": car.vid, "second": scene.at + 5, "qids": qids}


def question_when_leaving(scene: Scene) -> Found:
    """Questions in the second of the report on the exit ramp, before and after it in the input."""
    car = scene.car().enter(scene.at + 5, 81).drive(60, times=2).leave()
    return {"vid": car.vid, "second": car.second, "qids": [car.ask_balance(before=True), car.ask_balance()]}


def question_after_leaving(scene: Scene) -> Found:
    """A question 45 s after the last report of the car."""
    car = scene.car().enter(scene.at + 5, 82).drive(60, times=2).leave()
    return {"vid": car.vid, "left": car.second, "qid": car.ask_balance(later=45)}


def expenditure_of_day_0(scene: Scene) -> Found:
    """A question for the expenditure of today, which has no history."""
    car = scene.car().enter(scene.at + 5, 83)
    qid = car.ask_expenditure(0)
    car.drive(60, times=2).leave()
    return {"vid": car.vid, "qid": qid}


def expenditure_without_a_row(scene: Scene) -> Found:
    """A question for the expenditure of a car without history."""
    car = scene.car().enter(scene.at + 5, 84)
    qid = car.ask_expenditure(7)
    car.drive(60, times=2).leave()
    return {"vid": car.vid, "day": 7, "qid": qid, "unknown": car.vid}


def trip_that_means_nothing(scene: Scene) -> Found:
    """A question with zeros instead of a trip, as in official data."""
    car = scene.car().enter(scene.at + 5, 85)
    qid = car.ask_trip(0, 0, 0, 0)
    car.drive(60, times=2).leave()
    return {"vid": car.vid, "qid": qid}


# --- tolls at the thresholds ------------------------------------------------------------------------------------------


def _platoon(scene: Scene, mile: int, speeds: list[int], direction: int = EAST) -> None:
    """Add cars that report twice from a segment in the third minute, at one speed each."""
    for n, speed in enumerate(speeds):
        scene.car(direction).enter(scene.at + 120 + n % 30, mile, 600 + 3 * n, speed).drive(speed).leave(speed)


def _tolled(scene: Scene, mile: int, direction: int = EAST, second: int = 185) -> Found:
    """Add a car that enters the segment in the fourth minute, continues to the next ones and asks for its balance."""
    car = scene.car(direction).enter(scene.at + second, mile)
    found = {"vid": car.vid, "second": car.second, "dir": direction, "seg": car.seg}
    qid = car.drive(60, times=3).ask_balance()
    car.leave()
    return found | {"qid": qid}


def _of_mean_speed(scene: Scene, mile: int, speeds: list[int]) -> Found:
    _platoon(scene, mile, speeds)
    return _tolled(scene, mile) | {"nov": len(speeds), "mean": sum(speeds) / len(speeds)}


def fifty_cars(scene: Scene) -> Found:
    """NOV is exactly 50, traffic is slow: no toll."""
    return _of_mean_speed(scene, 0, [30] * 50)


def fifty_one_cars(scene: Scene) -> Found:
    """NOV is exactly 51, traffic is slow: a toll of 2."""
    return _of_mean_speed(scene, 1, [30] * 51)


def mean_speed_39_5(scene: Scene) -> Found:
    """LAV is 39 in the official profile (a toll), and 40 in the walmart profile (no toll)."""
    return _of_mean_speed(scene, 2, [39, 40] * 30)


def mean_speed_39_99(scene: Scene) -> Found:
    """LAV is 39 in the official profile (a toll), and 40 in the walmart profile (no toll)."""
    return _of_mean_speed(scene, 3, [40] * 99 + [39])


def mean_speed_40(scene: Scene) -> Found:
    """LAV is 40: no toll."""
    return _of_mean_speed(scene, 4, [40] * 60)


def last_and_first_second_of_a_minute(scene: Scene) -> Found:
    """Of two cars that enter one second apart, the first counts among the 51 for which the second pays."""
    _platoon(scene, 3, [30] * 50, WEST)
    first, second = _tolled(scene, 3, WEST, 179), _tolled(scene, 3, WEST, 180)
    return {"vids": [first["vid"], second["vid"]], "seconds": [scene.at + 179, scene.at + 180], "seg": first["seg"]}


# --- list of cases ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    play: Callable[[Scene], Found]
    every: int = OFTEN
    roads: int = 1  # number of expressways that it needs
    ways: int = 1  # number of directions of expressway 0 that it needs

    @property
    def name(self) -> str:
        return self.play.__name__

    @property
    def what(self) -> str:
        return str(self.play.__doc__)


CASES = (
    Case(accident_cleared_in_the_minute_of_the_last_stop),
    Case(accident_over_in_the_minute_it_was_found_in),
    Case(two_accidents_within_five_segments),
    Case(second_accident_in_the_segment),
    Case(accident_cleared_by_a_change_of_lane),
    Case(accident_in_the_last_segment),
    Case(accident_near_the_first_segment, ways=2),
    Case(car_that_stands_alone),
    Case(same_position_in_other_lanes),
    Case(same_position_in_other_directions, ways=2),
    Case(same_position_on_other_expressways, roads=2),
    Case(returns_to_the_same_expressway),
    Case(returns_to_another_expressway, roads=2),
    Case(returns_though_it_never_left),
    Case(exit_in_a_new_segment),
    Case(car_that_vanishes),
    Case(from_end_to_end, ways=2),
    Case(question_when_entering),
    Case(question_when_leaving),
    Case(question_after_leaving),
    Case(expenditure_of_day_0),
    Case(expenditure_without_a_row),
    Case(trip_that_means_nothing),
    Case(fifty_cars, SELDOM),
    Case(fifty_one_cars, SELDOM),
    Case(mean_speed_39_5, SELDOM),
    Case(mean_speed_39_99, SELDOM),
    Case(mean_speed_40, SELDOM),
    Case(last_and_first_second_of_a_minute, SELDOM, ways=2),
)


@dataclass(frozen=True)
class Planted:
    """One repetition of a scene, from its first tuple to its last."""

    case: Case
    begin: int
    end: int
    found: Found

    def to_json(self) -> Found:
        return {"case": self.case.name, "what": self.case.what, "from": self.begin, "to": self.end, **self.found}


def plant(settings: Settings, script: Script) -> tuple[list[Planted], list[Accident]]:
    """Write all scenes of the three hours into the script."""
    planted, accidents = list[Planted](), list[Accident]()
    for turn, at in enumerate(range(0, HOURS, OFTEN)):
        number = ACTORS + turn * NUMBERS
        for case in CASES:
            if at % case.every == 0 and case.roads <= settings.roads and case.ways <= len(settings.ways(0)):
                scene = Scene(script, at, number)
                lines, asked = len(script.lines), len(script.asked)
                found = case.play(scene)
                begin, end = script.span(lines, asked)
                planted.append(Planted(case, begin, end, found))
                accidents += scene.accidents
                number = scene.number
        assert number <= ACTORS + (turn + 1) * NUMBERS
    return planted, accidents
