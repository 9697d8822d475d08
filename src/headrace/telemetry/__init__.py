"""Observation of runs: epoch records, listeners, progress, sizes of state tables.

`incomplete` does more than observe: it also changes the plan, so that windows of added operators are withheld while
they are incomplete. It is in this package because progress shows the same times.
"""
