"""Joins that adapt while they run: what the driver measures every epoch, and what it changes at reorganisation epochs.

Exactness: a pair of tuples is looked at only in the epoch in which the later of the two arrives, and there only in the
one slot that this epoch's layout gives to their groups. State is stored once and any slot can read it; all tasks of an
epoch use one layout. So every pair is met exactly once, whatever the layouts of earlier epochs were: shapes, masters,
moves, splits and slots may change between any two epochs, and nothing in here can make an answer wrong. A decision stands
in manifest n, with its reason, before it takes effect in epoch n + 1, so a crash in between repeats it.
"""
