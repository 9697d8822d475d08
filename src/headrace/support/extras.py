"""Optional libraries: imported on first use, with an error that says how to install them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headrace.errors import MissingLibrary


def import_extra(module: str, extra: str, what: str) -> Any:
    """Import a module of an optional library. `what` needs it, and `pip install headrace[extra]` installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        missing = module.partition(".")[0].replace("_", "-")
        msg = f"{what} needs {missing}, which cannot be imported ({error}); install it: pip install 'headrace[{extra}]'"
        raise MissingLibrary(msg) from None
