"""The independent judge of Linear Road: from an input to the right answer, by group-bys over all of it at once."""

from headrace_linearroad.validating.answers import Answer, answer, expected
from headrace_linearroad.validating.comparing import Verdict, compare, judge
from headrace_linearroad.validating.rules import OFFICIAL, PROFILES, WALMART, Rules

__all__ = ["OFFICIAL", "PROFILES", "WALMART", "Answer", "Rules", "Verdict", "answer", "compare", "expected", "judge"]
