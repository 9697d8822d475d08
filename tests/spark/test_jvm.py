"""The virtual machines of tests are told to start fast, and say nothing where that does not work."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests import jvm

pytestmark = pytest.mark.spark


def test_sessions_of_tests_take_the_options(spark):
    given = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    assert set(shlex.split(jvm.options())) <= set(given)


def test_an_archive_that_does_not_fit_is_passed_over_without_a_word(tmp_path: Path, monkeypatch):
    def said() -> str:
        java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
        given = [option for option in shlex.split(jvm.options()) if option not in jvm.SHORT]
        command = [
            java,
            *given,
            "-XX:+UseG1GC",
            "-cp",
            tmp_path,
            "-version",
        ]  # another collector fits no archive of ours
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout + done.stderr.replace(", sharing)", ")")

    monkeypatch.setattr(jvm, "ARCHIVE", tmp_path / "none.jsa")
    alone = said()
    (tmp_path / "none.jsa").write_bytes(b"no archive")
    assert said() == alone
    monkeypatch.undo()  # that of another class path, if there is one
    assert said() == alone
