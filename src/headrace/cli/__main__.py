"""`python -m headrace.cli` runs the same program as the script `headrace`."""

from headrace_command import main

main()
