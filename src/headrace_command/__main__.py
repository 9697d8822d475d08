"""`python -m headrace_command` runs the command `headrace`."""

from headrace_command import main

main()
