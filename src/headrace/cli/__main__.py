"""`python -m headrace.cli`, the same as the script `headrace`."""

from headrace_command import main

main()
