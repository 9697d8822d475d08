"""The program `headrace`: its command line, and what signals do before and after it.

It is a package of its own, because the import of headrace takes most of a second.
"""

from __future__ import annotations

import signal


def main() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the parent process has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # there is nothing to clean up yet
    from headrace.cli import app
    from headrace.showing import signals

    try:
        app(prog_name="headrace")
    finally:
        signals.ignore()
