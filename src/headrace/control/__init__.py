"""The controller's components: measurement of each epoch, and decisions at reorganisation epochs.

Exactness: a pair of tuples is evaluated only in the epoch in which the later of the two arrives, and only in the one
slot that this epoch's layout assigns to their groups. State is stored once and any slot can read it, and all tasks of
an epoch use one layout. So every pair is evaluated exactly once, whatever the layouts of earlier epochs were: shapes,
masters, moves, hot groups and slots may change between any two epochs, and no decision can make a result wrong. A
decision and its reason are recorded in manifest n before it takes effect in epoch n + 1, so a crash in between repeats
it.
"""
