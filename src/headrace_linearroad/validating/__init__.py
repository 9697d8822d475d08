"""The independent judge of Linear Road: from an input to the right answer, by group-bys over all of it at once.

It shares no code with the query, the generator or the engine: what lies in files is said in `shapes`, the rules are in
`rules`, and tests hold it against a second reading that goes tuple by tuple.

    expected(input, histories, profile)   one right answer for each of the five outputs
    answer(...), compare(answer, out)     the same with every right balance, and every row of a run held against it
    judge(input, out, histories, rules)   both

    reading, text    the input, and what of it does not count
    journeys         cars one by one: journeys, visits of segments, stops
    statistics       cars and speeds of segments and minutes
    accidents        which segments are warned of what in which minutes
    accounts         charges, and which balances are right
    lookups          expenditures and travel times out of history
    outputs, comparing, showing

Where the rules of the benchmark leave a choice, this is what was chosen.

Input
- A line is fifteen fields between commas, whole numbers of at most 18 digits where the tuple's type has a use for them;
  spaces and tabs around them, and CR before LF, are no fault. A blank line is malformed, as is a tuple of an Arrow file that
  lacks a value it needs or whose `ts` is not its `time`.
- A file of a folder has tuples of one second, later than those of files that come before it by name; else it is an error.
- Of all tuples: type 0, 2, 3 or 4, time 0..10799, vid 0..2^31-1; of queries: qid 0..2^31-1; of reports: every field within
  its domain, xway up to 32767. `seg` need not be pos div 5280: fields are taken as they stand. Fields that a tuple has no
  use for may hold anything. Whatever else a query asks for decides whether it has an answer, not whether it counts.
- In text, a tuple goes back in time if one that counts by the rules above stands before it with a larger time. A line that
  does not count moves no clock. In a file of a folder, order means nothing.
- Reports of one car in one second, which no car sends, are taken in the order of spd, xway, lane, dir, seg, pos.

Journeys
- Official: a journey begins with the first report of a car, after a report on lane 4 (on whatever lane, so that a second
  report on lane 4 is a journey of its own), and on lane 0 after more than 60 s. Nothing else begins one: not a pause on
  another lane, not another expressway or direction; the latter two are another segment, so they are told and charged.
- Walmart: a report that is dropped leaves no trace, neither in statistics nor as "the report before". Dropped are reports
  on lane 4 of a car of which none was kept, and after an exit all until the next on lane 0, which begins a journey
  however soon it comes.

Accidents. A place is (xway, dir, lane, seg, pos), on any lane.
- A car is stopped from the fourth report in a row, of one journey, from one place, until its next report that is from
  another place or begins a journey. That they are 30 s apart is not asked for. Official: only reports with speed 0 count,
  and one with another speed ends the stop. A car that is never heard of again stays stopped.
- A second counts as a whole: a car that moves in it is not stopped in it, one that becomes stopped in it is.
- Official: minute m is affected if in minute m-1 a stopped car reported while another was stopped at its place. So an
  accident whose cars are all silent is over, which is known without looking ahead.
- Walmart: minute m is affected if two cars were stopped at one place when it began: both since before its first second,
  and neither moved before it.
- Every accident counts, wherever others are or were. The nearest one downstream is told.

Accounts
- The toll of a visit is charged by the next report of the same journey from another segment, be it on lane 4, and never
  otherwise.
- Official balances: (a, B(a)) for a = the last segment entry up to the query; the one before it, if the last was less than
  30 s ago; the first less than 60 s ago. B is what was charged up to and with second a, or what was notified before
  a, as the official check has it. In a second with an exit-lane report of the car also (time, what was charged). So
  what an exit-lane report charged is in no later balance before the car enters a segment again. A car without an entry up to
  then: (time, 0), or no answer.
- Walmart balances: all that was charged up to and with that second, or all but the last charge above 0; the result time not
  more than 30 s ago, and anything before if there were fewer than two such charges. That old validators looked
  later is not imitated. Every query is answered.

History
- Rows with a day outside 1..69, a minute outside 1..1440, a direction or a segment that there is not, count for nothing.
- Two rows of one (vid, day, xway) with different tolls are an error if somebody asks for them.
"""

from headrace_linearroad.validating.answers import Answer, answer, expected
from headrace_linearroad.validating.comparing import Verdict, compare, judge
from headrace_linearroad.validating.rules import OFFICIAL, PROFILES, WALMART, Rules

__all__ = ["OFFICIAL", "PROFILES", "WALMART", "Answer", "Rules", "Verdict", "answer", "compare", "expected", "judge"]
