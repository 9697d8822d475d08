"""The program `headrace`: its command line, and what signals do before and after it.

It stands beside headrace, because to import anything of headrace takes most of a second.
"""

from __future__ import annotations

import signal


def main() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as who started us may want it
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing has begun that would have to be ended
    from headrace.cli import app
    from headrace.showing import stopping

    try:
        app(prog_name="headrace")
    finally:
        stopping.ignore()
