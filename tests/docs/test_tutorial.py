"""The tutorial runs as it is written in a clean environment: an empty home, a new virtual environment, the built wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import pages

TUTORIAL = pages.ROOT / "docs" / "tutorial.md"
WHEEL = "/path/to/headrace-0.1.0-py3-none-any.whl"
KEPT = ("LANG", "LC_ALL", "JAVA_HOME", "PIP_CERT", "PIP_INDEX_URL", "PIP_FIND_LINKS", "SSL_CERT_FILE", "HTTPS_PROXY")


def test_the_tutorial_names_the_wheel_of_this_version():
    from headrace import __version__

    assert WHEEL in TUTORIAL.read_text() and __version__ in WHEEL


@pytest.mark.long
def test_the_tutorial_in_a_clean_environment(tmp_path: Path):
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    wheel = build_wheel(tmp_path)
    commands = "".join(block.text for block in pages.blocks(TUTORIAL) if block.language in {"console", "bash"})
    assert commands.count(WHEEL) == 1
    script = "set -euo pipefail\n" + commands.replace(WHEEL, str(wheel))
    path = os.pathsep.join(
        part for part in os.environ["PATH"].split(os.pathsep) if Path(part) != Path(sys.executable).parent
    )
    settings = {name: os.environ[name] for name in KEPT if name in os.environ}
    settings |= {"HOME": str(home), "PATH": path, "PIP_CONSTRAINT": str(pages.ROOT / "requirements.lock")}
    done = subprocess.run(["bash", "-c", script], cwd=work, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "the run was killed" in done.stdout
    assert "the results are exactly those of one sequential machine" in done.stdout
    assert "pairs were found by hand as well" in done.stdout


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the sources, so that nothing is written into the checkout."""
    copy = folder / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(pages.ROOT / name, copy)
    shutil.copytree(pages.ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(folder / "dist"),
        str(copy),
    ]
    subprocess.run(command, check=True)
    [wheel] = (folder / "dist").glob("*.whl")
    return wheel
