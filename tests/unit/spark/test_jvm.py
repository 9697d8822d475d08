"""Work with Spark's JVM, of which a signal reaches only those who wait for it; another process stands for the JVM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from pyspark import java_gateway

from headrace.spark import jvm
from headrace.support.shutdown import uninterrupted
from tests.patience import PATIENCE

DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(900)
"""


@pytest.fixture(autouse=True)
def nothing_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session that other tests of this process share stays."""
    monkeypatch.setattr(jvm, "_forget", lambda: None)
    monkeypatch.setattr(jvm, "_stop_listening", lambda: None)
    monkeypatch.setattr(jvm, "_process", None)


def interrupt(number: signal.Signals, after: float) -> None:
    threading.Timer(after, os.kill, (os.getpid(), number)).start()


@pytest.mark.parametrize("apart", [False, True])
def test_who_is_interrupted_ends_the_jvm_and_the_work(apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["sleep", "900"], process_group=0 if apart else None)
    monkeypatch.setattr(jvm, "_process", process)
    interrupt(signal.SIGINT, 0.2)
    with pytest.raises(KeyboardInterrupt):
        jvm.run_beside_jvm(process.wait)
    assert process.returncode == -signal.SIGTERM


def test_a_jvm_that_starts_after_the_interrupt_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def work() -> None:
        time.sleep(0.5)
        started.append(subprocess.Popen(["sleep", "900"]))
        monkeypatch.setattr(jvm, "_process", started[0])
        started[0].wait(PATIENCE)

    interrupt(signal.SIGINT, 0.1)
    with pytest.raises(KeyboardInterrupt):
        jvm.run_beside_jvm(work)
    assert started[0].returncode == -signal.SIGTERM


def test_work_with_grace_is_completed_before_the_jvm_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int | None] = []
    with subprocess.Popen(["sleep", "900"]) as process:
        monkeypatch.setattr(jvm, "_process", process)

        def work() -> None:
            time.sleep(0.5)
            done.append(process.poll())

        interrupt(signal.SIGINT, 0.1)
        with pytest.raises(KeyboardInterrupt):
            jvm.run_beside_jvm(work, grace=PATIENCE)
        assert (done, process.returncode) == ([None], -signal.SIGTERM)


def test_a_jvm_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "EXIT_SECONDS", 0.1)
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        monkeypatch.setattr(jvm, "_process", process)
        jvm.end()
        assert process.returncode == -signal.SIGKILL


def test_what_work_gives_and_raises_reaches_who_waits() -> None:
    assert jvm.run_beside_jvm(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        jvm.run_beside_jvm(lambda: 1 // 0)


def test_cleaning_up_is_not_interrupted() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with uninterrupted():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_jvm_has_a_process_group_of_its_own_and_no_python_runs_in_it() -> None:
    def crash() -> None:
        os._exit(1)

    with jvm._apart():
        started = java_gateway.Popen(["sleep", "900"], preexec_fn=crash)
    assert jvm._process is started and os.getpgid(started.pid) == started.pid
    jvm._send(started, signal.SIGTERM)
    assert started.wait(PATIENCE) == -signal.SIGTERM
