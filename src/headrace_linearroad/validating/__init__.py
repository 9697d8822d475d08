"""The validator of Linear Road: it computes the right answers of an input independently, with group-bys over all of it.

It shares no code with the query, the generator or the engine. `shapes` defines the files again and `rules` the rules.
Tests compare the validator with a second implementation that works tuple by tuple.

    expected(input, histories, profile)   return one right answer for each of the five outputs
    answer(...), compare(answer, out)     also return every right balance, and compare every row of a run with them
    judge(input, out, histories, rules)   do both

    reading, text    the input, and counts of its invalid tuples
    journeys         journeys, visits of segments and stops of each car
    statistics       cars and speeds of segments and minutes
    accidents        the minutes in which each segment has an accident
    accounts         charges, and the balances that are right
    lookups          expenditures and travel times from history
    outputs, comparing, showing

Where the rules of the benchmark leave a choice, the validator chooses as follows.

Input
- A line has fifteen fields separated by commas. A field that the tuple's type uses must be a whole number of at most 18
  digits. Spaces and tabs around it, and CR before LF, are allowed. A blank line is malformed, as is a tuple of an Arrow
  file that lacks a value it needs or whose `ts` differs from its `time`.
- A file of a folder must have tuples of one second, later than those of files with smaller names. Otherwise it is an
  error.
- A valid tuple has type 0, 2, 3 or 4, time 0..10799 and vid 0..2^31-1. A valid question also has qid 0..2^31-1. A valid
  report also has every field within its domain, and xway up to 32767. `seg` need not equal pos div 5280. Fields that a
  type does not use may contain anything. The other fields of a question decide whether it has an answer, not whether it
  is valid.
- In text, a tuple goes back in time if an earlier line, valid by the rules above, has a larger time. An invalid line
  does not advance the clock. In a file of a folder, the order of tuples has no effect.
- Reports of one car in one second, which no real car sends, are processed in the order of spd, xway, lane, dir, seg,
  pos.

Journeys
- Official: a journey begins with the first report of a car, with the report after one on lane 4 (on any lane, so a
  second report on lane 4 is a separate journey), and with a report on lane 0 after more than 60 s. Nothing else begins
  a journey: no pause on another lane, and no change of expressway or direction. Those changes are another segment, so
  the car is notified and charged.
- Walmart: a dropped report has no effect, neither on statistics nor as "the report before". Dropped are reports on lane
  4 of a car without a kept report, and all reports between an exit and the next one on lane 0. That one begins a
  journey, however soon it comes.

Accidents. A place is (xway, dir, lane, seg, pos), on any lane.
- A car is stopped from its fourth successive report from one place in one journey, until its next report from another
  place or the next that begins a journey. The reports need not be 30 s apart. Official: only reports with speed 0
  count, and a report with another speed ends the stop. A car that never reports again stays stopped.
- A second counts as a whole: a car that moves in it is not stopped in it, and a car that becomes stopped in it is.
- Official: minute m is affected if in minute m-1 a stopped car reported while another car was stopped at its place. So
  an accident is over once none of its cars reports, which is known without looking ahead.
- Walmart: minute m is affected if two cars were stopped at one place when it began: both since before its first second,
  and neither moved before it.
- Accidents do not affect each other. A car is alerted of the nearest one downstream.

Accounts
- The toll of a visit is charged by the next report of the same journey from another segment, even on lane 4, and never
  otherwise.
- Official balances: (a, B(a)) where a is the last segment entry up to the question; the entry before it, if the last
  was less than 30 s ago; or the first entry less than 60 s ago. B is the sum of charges up to and including second a,
  or of tolls notified before a, as in the official check. In a second with an exit-lane report of the car, (time,
  charges) is also right. So the charge of an exit-lane report is in no later balance before the car enters a segment
  again. For a car without an entry so far, (time, 0) or no answer is right.
- Walmart balances: all charges up to and including that second, or all but the last charge above 0. The result time is
  at most 30 s ago, or any time before if there were fewer than two such charges. Old validators also accepted later
  times; this one does not. Every question is answered.

History
- Rows with a day outside 1..69, a minute outside 1..1440, or an unknown direction or segment are ignored.
- Two rows of one (vid, day, xway) with different tolls are an error if a question asks for them.
"""

from headrace_linearroad.validating.answers import Answer, answer, expected
from headrace_linearroad.validating.comparing import Verdict, compare, judge
from headrace_linearroad.validating.rules import OFFICIAL, PROFILES, WALMART, Rules

__all__ = ["OFFICIAL", "PROFILES", "WALMART", "Answer", "Rules", "Verdict", "answer", "compare", "expected", "judge"]
