"""Observation of runs: epoch records, listeners, progress, sizes of state tables."""
