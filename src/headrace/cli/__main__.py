"""`python -m headrace.cli`, the same as the script `headrace`."""

from headrace.cli import app

app(prog_name="headrace")
