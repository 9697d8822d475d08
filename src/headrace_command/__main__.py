"""`python -m headrace_command` is the command `headrace`."""

from headrace_command import main

main()
