"""Modules without dependencies on other packages: paths, secrets, durations, limits, validators, terminal text."""
