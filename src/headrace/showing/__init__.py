"""Plans as text and pictures, progress of runs, signals, notebooks, and output streams whose reader may have closed
them.
"""
