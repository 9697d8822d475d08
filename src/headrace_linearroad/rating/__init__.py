"""The rating: the number of expressways that a machine can serve with every answer in time and every row right.

making      the process that generates the traffic, piece by piece, so that a large rating fits the disk
offering    the feeder process, which only publishes each second of traffic when it is due
trial       the rating of one number of expressways: warm-up, clock, answers, end
parts       processor time and memory of each part of the system
responses   the response time of each answer, compared with its limit
judging     the judgement of every row, some expressways at a time
model       an estimate of the expressways for other numbers of cores
searching   the search for the largest number that holds
show        the command;  report: the HTML page
"""
