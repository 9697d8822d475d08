"""Tools: calibration, split profile, the plan file, and reading of state tables."""
