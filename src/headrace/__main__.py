"""`python -m headrace` is the command `headrace`."""

from headrace.cli import app

app()
