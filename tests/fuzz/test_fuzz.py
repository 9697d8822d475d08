"""Files as no run ever wrote them: whatever is in them, only errors of ours come out, and soon.

HEADRACE_FUZZ_SEED     other cases (a number); `make soak` takes a fresh one and says which
HEADRACE_FUZZ_SECONDS  for each kind of file, instead of a fixed number of cases
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headrace.compile import subqueries
from headrace.control import policy
from headrace.driver import stored_checks

from . import fuzzing
from .fuzzing import fuzz
from .targets import TARGETS

SEED = int(os.environ.get("HEADRACE_FUZZ_SEED", "2026"))
SECONDS = float(os.environ.get("HEADRACE_FUZZ_SECONDS", "0"))
CASES = {"plan": 60, "figures": 150, "policy": 60, "cluster": 200, "manifest": 60, "shown plan": 60}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.timeout(600 + 2 * int(SECONDS))
@pytest.mark.parametrize("target", TARGETS)
def test_only_our_errors_come_out(target: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = fuzz(target, SEED, root, cases=0 if SECONDS else CASES[target], seconds=SECONDS)
    with capsys.disabled():
        print(f"\n{found}")
    assert not found.faults, "\n".join(found.faults)
    assert len(found.outcomes) > 1 and found.outcomes["fine"], "some are refused, some are not, or the rig is of no use"


# --- readers that are broken on purpose: the fuzzer must see each ----------------------------------------------------


def nothing(*_: Any) -> None:
    pass


def endless(*_: Any) -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("target", "module", "name", "fault"),
    [
        ("plan", subqueries, "_demand", "KeyError"),
        ("manifest", stored_checks, "check_manifest", "Error"),
        ("policy", policy, "_demand", "TypeError"),
        ("plan", subqueries, "_demand_texts", "Endless"),
    ],
)
def test_canary(target: str, module: Any, name: str, fault: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "LONGEST", 0.3)
    monkeypatch.setattr(module, name, endless if fault == "Endless" else nothing)
    for number in range(0, 300, 5):
        found = fuzz(target, 2026, root / "broken", cases=5, first=number)
        if any(fault in trouble for trouble in found.faults):
            return
    pytest.fail(f"nobody noticed that {name} is broken")
