"""Run the code blocks of a page of the documentation as they are written, in order, in one folder.

Languages of blocks: `python` and `bash` are run. `console` shows commands that need a network, a cluster or much time: their
names and options are checked. All other blocks show files or output.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "bash", "console", "text", "toml", "sql", "sh", "json", ""}
BLOCK = re.compile(r"^```(\w*)[ ]*\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int  # of its first line on the page, from 1


def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page."""
    text = page.read_text()
    return [Block(m[1], m[2], text.count("\n", 0, m.start(2)) + 1) for m in BLOCK.finditer(text)]


def runnable(page: Path) -> list[Block]:
    """Return the blocks of a page that are run."""
    return [block for block in blocks(page) if block.language in {"python", "bash"}]


def run(page: Path, addresses: Mapping[str, str], given: Mapping[str, Any]) -> None:
    """Run the blocks of a page in the working folder; addresses: what replaces the addresses of servers on the page."""
    names = {"__name__": "__main__", **given}
    for block in runnable(page):
        text = block.text
        for address, here in addresses.items():
            text = text.replace(address, here)
        if block.language == "bash":
            _run_bash(text, f"{page.name}, line {block.line}")
        else:  # empty lines before it, so that a traceback has the lines of the page
            exec(compile("\n" * (block.line - 1) + text, str(page), "exec"), names)


def _run_bash(text: str, where: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}
    command = ["bash", "-euo", "pipefail", "-c", text]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{where} ended with exit code {done.returncode}:\n{done.stdout}\n{done.stderr}"
