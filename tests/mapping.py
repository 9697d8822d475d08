"""Files that processes have mapped."""

from __future__ import annotations

from pathlib import Path


def deleted_blocks(process: int, folder: Path) -> list[str]:
    """The blocks below a folder that a process still maps although they were deleted: their space on the disk is not free."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    return [line for line in lines if line.endswith(" (deleted)") and f"{folder}/" in line and "/blocks/" in line]
