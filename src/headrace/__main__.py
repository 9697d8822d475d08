"""`python -m headrace` is the command `headrace`."""

from headrace_command import main

main()
