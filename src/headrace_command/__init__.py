"""The program `headrace`: starts the command line and handles signals before and after it.

This is a separate package, because importing headrace takes most of a second.
"""

from __future__ import annotations

import signal


def main() -> None:
    # otherwise the parent process ignores SIGINT, and so does this program
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # there is nothing to clean up yet
    from headrace.cli import app
    from headrace.showing import signals

    try:
        app(prog_name="headrace")
    finally:
        signals.ignore()
