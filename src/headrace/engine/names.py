"""What stands beside the operators' state in a manifest; no operator has a colon in its name."""

from __future__ import annotations

WORK, CONTROL = "work:", "control:"


def ledger_name(source: str) -> str:
    """The name under which the taken files of a source stand."""
    return f"files:{source}"
