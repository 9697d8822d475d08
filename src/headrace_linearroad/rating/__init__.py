"""How many expressways a machine bears: traffic offered as time goes by, the age of every answer, and a judge of every row.

making      a process that makes the traffic, piece by piece: a large rating fits the disk
offering    a process that does nothing but publish what was made, each second when it is due
trial       one number of expressways: warm-up, clock, answers, end
parts       who takes which share of processor and memory
responses   when each answer was there, against its limit
judging     every row of it, judged some expressways at a time
model       what other numbers of cores would bear
searching   the largest number that holds
show        the command;  report, charts    its page
"""
