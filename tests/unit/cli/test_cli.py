"""The command line without Spark: help, errors, the display of a run that is played to it."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
import weakref
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner

import headrace as hr
from headrace import cli
from headrace.cli import query_file
from headrace.showing import live, signals
from headrace.showing.signals import end_by_interrupt, stop_on_first_signal
from headrace.telemetry.epoch_record import EpochRecord
from headrace.telemetry.progress import EpochSummary, Progress
from tests.patience import PATIENCE

runner = CliRunner()


def call(*arguments: str) -> Any:
    return runner.invoke(cli.app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


def write_query(folder: Path, text: str) -> Path:
    path = folder / "my_query.py"
    path.write_text(text)
    return path


def table_query(returns: str) -> str:
    return f"""
import pyarrow as pa
import headrace as hr
from headrace.testing import table_stream
s = table_stream(pa.table({{"ts": pa.array([1, 2]).cast(pa.timestamp("us", "UTC")), "x": [1, 2]}}))
def query(spark):
    return {returns}
"""


# --- help, version, errors -----------------------------------------------------------------------------------------


def test_version() -> None:
    assert call("--version").stdout == f"headrace {hr.__version__}\n"
    module = subprocess.run([sys.executable, "-m", "headrace", "--version"], capture_output=True, text=True, check=True)
    assert module.stdout == f"headrace {hr.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ["run", "demo", "--version"]),
        ([], ["run", "demo"]),
        (
            ["run", "--help"],
            [
                "FILE",
                "--checkpoint",
                "--slots",
                "--splitters",
                "--physical-window",
                "--epoch",
                "--master",
                "--out",
                "--order",
                "--late",
                "--errors",
                "--seconds",
                "--until-idle",
                "--once",
                "--json",
            ],
        ),
        (["demo", "-h"], ["--rate", "--seconds", "--slots", "--keep"]),
    ],
)
def test_help_names_everything(arguments: list[str], words: list[str]) -> None:
    shown = call(*arguments).output
    assert [word for word in words if word not in shown] == []


def test_the_file_with_the_mistake_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_helper.py").write_text("\n\ndef f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = call("run", str(write_query(tmp_path, "import broken_helper\ndef query(spark): pass")))
    assert found.exit_code == 1 and "broken_helper.py, line 3:" in found.stderr


@pytest.mark.parametrize("ignored", [True, False])
def test_nohup_is_respected(ignored: bool) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        with stop_on_first_signal() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.asked is not ignored
    finally:
        signal.signal(signal.SIGHUP, before)


def test_splitters_and_physical_windows_reach_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    session = SimpleNamespace(sparkContext=None)
    monkeypatch.setattr(cli, "_spark", lambda *_, **__: nullcontext(session))
    monkeypatch.setattr(cli, "_go", lambda module, file, spark, out, options, *_: seen.append(options))
    monkeypatch.setattr("headrace.spark.executors.executor_count", lambda _: 1)
    path, place = write_query(tmp_path, "def query(spark): pass"), tmp_path / "cluster.toml"
    least = f'master = "local"\nstate = "{tmp_path}/state"\nship = false\n'
    for text in ("", 'splitters = 3\nphysical_window = "4 MiB"\n'):
        place.write_text(least + text)
        assert call("deploy", str(path), "--to", str(place)).exit_code == 0
    assert call("run", str(path)).exit_code == 0
    assert call("run", str(path), "--splitters", "3", "--physical-window", "4MiB").exit_code == 0
    found = [(options["splitters"], options["physical_window"]) for options in seen]
    assert found == [(None, None), (3, "4 MiB"), (None, None), (3, "4MiB")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--seed", "-1"], "--seed"),
        (["run", "FILE", "--splitters", "513"], "less than or equal to 512"),
        (["run", "FILE", "--physical-window", "16"], "from 1 KiB to 1 GiB"),
        (["demo", "--seconds", "inf"], "--seconds must be a number of seconds; found inf"),
        (
            ["calibrate", "FILE", "--out", "missing/figures.json"],
            "cannot be written; give a file in an existing, writable folder",
        ),
    ],
)
def test_what_is_known_to_fail_fails_at_once(tmp_path: Path, arguments: list[str], message: str) -> None:
    path = write_query(tmp_path, "def query(spark): raise AssertionError")
    found = call(*(str(path) if word == "FILE" else word for word in arguments))
    assert found.exit_code and message in found.output and "Traceback" not in found.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run", "FILE", "--once", "--until-idle"],
            "--once and --until-idle contradict each other: --once exits after",
        ),
        (["deploy", "FILE", "--to", "FILE", "--until-idle", "--once"], "--once and --until-idle contradict each other"),
        (
            ["run", "FILE", "--plan", "FILE", "--auto-slots"],
            "--plan and --auto-slots contradict each other: a plan fixes",
        ),
        (["run", "FILE", "--plan", "FILE", "--policy", "FILE"], "--plan and --policy contradict each other"),
        (["explain", "--checkpoint", "c", "--slots", "3"], "--checkpoint and --slots contradict each other"),
        (["explain", "--checkpoint", "c", "--strategy", "query"], "--checkpoint and --strategy contradict each other"),
        (["explain", "--checkpoint", "c", "--figures", "FILE"], "--checkpoint and --figures contradict each other"),
        (["explain", "--checkpoint", "c", "--cost", "a=1"], "--checkpoint and --cost contradict each other"),
        (["generate", "made", "--rate", "5", "--rates", "5,6"], "--rate and --rates contradict each other"),
        (["generate", "made", "--partitions", "2"], "--partitions needs --kafka: files have neither partitions nor"),
        (["generate", "made", "--format", "json"], "--format needs --kafka"),
        (["bench", "join", "--quick", "--full"], "--quick and --full contradict each other"),
    ],
)
def test_options_that_contradict_each_other(
    tmp_path: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_query(tmp_path, "raise AssertionError('no file is read before the options are checked')")
    found = call(*(str(path) if word == "FILE" else word for word in arguments))
    assert found.exit_code == 2 and message in " ".join(found.stderr.split()), found.output
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "does not exist"),
        ("x = 1", "no function 'query'"),
        ("query = 3", "no function 'query'"),
        ("def query(spark)\n    pass", "line 1: expected ':'"),
        ("import no_such_module_anywhere", "line 1: ModuleNotFoundError"),
        ("\n\n1 / 0", "line 3: ZeroDivisionError"),
    ],
)
def test_a_file_that_is_no_query(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "absent.py" if text is None else write_query(tmp_path, text)
    found = call("run", str(path))
    assert found.exit_code == 1
    assert message in found.stderr
    assert found.stderr.startswith("error: ")
    assert path.name in found.stderr
    assert "Traceback" not in found.output


def test_a_folder_and_another_kind_of_file_are_no_query(tmp_path: Path) -> None:
    assert "is a folder" in call("run", str(tmp_path)).stderr
    (tmp_path / "notes.txt").write_text("hello")
    assert "not a Python file" in call("run", str(tmp_path / "notes.txt")).stderr


def test_traceback_is_shown_when_asked_for(tmp_path: Path) -> None:
    found = call("run", str(tmp_path / "absent.py"), "--traceback")
    assert found.exit_code == 1
    assert found.stderr.startswith("Traceback") and "QueryError: the query file" in found.stderr


def test_being_interrupted_is_no_error_but_has_its_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(_: Path) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    monkeypatch.setattr(query_file, "load_query_file", interrupted)
    found = call("run", str(tmp_path / "q.py"))
    assert (found.exit_code, found.stderr) == (130, "stopped\n")


@pytest.mark.parametrize("arguments", [["run"], ["run", "x.py", "--order", "fast"], ["demo", "--rate", "0"], ["fly"]])
def test_wrong_usage(arguments: list[str]) -> None:
    assert call(*arguments).exit_code == 2


# --- what query(spark) returns -------------------------------------------------------------------------------------


def returned(folder: Path, returns: str, *, given: bool = False) -> query_file.Results:
    path = write_query(folder, table_query(returns))
    return query_file.query_results(query_file.load_query_file(path), path, None, hr.sinks.memory(), given=given)


def test_a_stream_gets_the_default_sink(tmp_path: Path) -> None:
    ((stream, sink),) = returned(tmp_path, "s.filter('x > 1')", given=True)
    assert stream.columns == ["ts", "x"]
    assert repr(sink) == "memory()"


def test_pairs_keep_their_sinks(tmp_path: Path) -> None:
    pairs = returned(tmp_path, "[(s, hr.sinks.console()), (s.map(y='x'), hr.sinks.memory())]")
    assert [repr(sink) for _, sink in pairs] == ["console()", "memory()"]


@pytest.mark.parametrize("what", ["None", "42", "[]", "[s]", "[(s, 'out/')]", "[(s, hr.sinks.memory(), 1)]"])
def test_anything_else_is_refused(tmp_path: Path, what: str) -> None:
    with pytest.raises(hr.QueryTypeError, match=r"must return a Stream, or a list of \(Stream, sink\)"):
        returned(tmp_path, what)


def test_out_and_own_sinks_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(hr.QueryError, match="leave out --out"):
        returned(tmp_path, "[(s, hr.sinks.memory())]", given=True)


def test_an_error_of_the_query_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(query_file.QueryFileError, match=r"my_query.py, line 7: .*nope"):
        returned(tmp_path, "s.filter('nope > 1')")


# --- display -------------------------------------------------------------------------------------------------------


def at_epoch(number: int) -> Progress:
    done = number + 1
    return Progress(
        epoch=number,
        tuples_in=1000 * done,
        results_out=3 * done,
        sources={"calls": 1000 * done},
        results={"result-0": 2 * done, "result-1": done},
        watermark={"calls": 1_700_000_000_000_000},
        state_bytes=3 << 20,
        blocks=7,
        backlog=2,
        last=EpochSummary(number, 0.25, 1000, 3, 0, 0, {"calls": 1000}, {"result-0": 2, "result-1": 1}, 0.1),
        latency={"p50": 0.5, "p99": 1.25},
    )


@dataclass
class Played:
    """A run that is one epoch further at every look, and then ends."""

    epochs: int
    error: Exception | None = None
    busy: bool = False
    looks: int = 0
    moments: list[Progress] = field(default_factory=lambda: [Progress()])

    def wait(self, timeout: float) -> bool:
        self.looks += 1
        if self.looks > self.epochs:
            if self.error is not None:
                raise self.error
            return True
        self.moments.append(at_epoch(self.looks - 1))
        return False

    @property
    def progress(self) -> Progress:
        return self.moments[-1]


def played(epochs: int, **more: Any) -> Any:
    return Played(epochs, **more)


def test_json_has_one_line_per_epoch() -> None:
    out = io.StringIO()
    shown = live.JsonLines(out)
    for epoch in range(5):
        shown.tell(EpochRecord(epoch, seconds=0.25, progress=at_epoch(epoch)))
    live.watch_run(played(5), display=shown)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["epoch"] for line in lines] == [0, 1, 2, 3, 4]
    assert lines[-1]["sources"] == {"calls": 5000}
    assert lines[-1]["last"]["tuples_in"] == 1000
    assert set(lines[0]) >= {"time", "tuples_in", "results_out", "late", "rejected", "watermark", "backlog", "latency"}
    assert lines[-1]["record"]["seconds"] == 0.25 and "progress" not in lines[-1]["record"]


def test_json_lines_show_after_a_while_that_the_program_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    shown = live.JsonLines(out)
    for now[0] in (29.0, 31.0, 40.0):
        shown.show(Progress(running=now[0]))
    shown.tell(EpochRecord(0, progress=at_epoch(0)))
    for now[0] in (69.0, 70.0):
        shown.show(at_epoch(0))
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["epoch"], line["running"], line["record"] is None) for line in lines] == [
        (-1, 31.0, True),
        (0, None, False),
        (0, None, True),
    ]


def test_that_nobody_reads_the_lines_any_longer_ends_the_program() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    shown = live.JsonLines(Gone())
    shown.tell(EpochRecord(0))
    with pytest.raises(BrokenPipeError):
        live.watch_run(played(5), display=shown)


def test_plain_lines_come_at_most_once_a_second_and_the_last_always() -> None:
    out = io.StringIO()
    live.watch_run(played(5), console=Console(file=out, width=80))
    first, last = out.getvalue().splitlines()
    assert first.startswith("epoch 0 250 ms  in 1,000 (")
    assert last.startswith("epoch 4 250 ms  in 5,000 (")
    for part in (
        "late 0 rejected 0",
        "2 files waiting",
        "complete until 2023-11-14 22:13:20 UTC",
        "3.0 MiB in 7 blocks",
    ):
        assert part in last
    assert last.endswith("latency p50 500 ms p99 1.2 s")


def test_plain_lines_give_a_sign_of_life_when_no_epoch_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    out, clock = io.StringIO(), [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    display = live.for_console(Console(file=out, width=80))
    moments = [
        (0, Progress()),
        (9, Progress()),
        (1, Progress()),
        (5, Progress(running=4.0)),
        (6, Progress(running=10.0)),
    ]
    for passed, progress in [*moments, (1, at_epoch(0)), (5, at_epoch(0)), (5, at_epoch(0))]:
        clock[0] += passed
        display.show(progress)
    display.close()
    first, second, third, fourth = out.getvalue().splitlines()
    assert first == "waiting for input, running for 10.0 s; 0 tuples in, 0 results out so far"
    assert second == "epoch 0 has been running for 10.0 s; 0 tuples in, 0 results out so far"
    assert third.startswith("epoch 0 250 ms  in 1,000 (")
    assert fourth == "waiting for input, running for 32.0 s; 1,000 tuples in, 3 results out so far, 2 files waiting"
    assert "\x1b" not in out.getvalue() and "\r" not in out.getvalue()


def test_the_live_table_shows_everything() -> None:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, no_color=True)
    display = live.for_console(console, "my query", {"result-0": "alarms"}, lambda: "below the table")
    live.watch_run(played(3), display=display)
    shown = out.getvalue()
    for part in ("my query", "epoch 2 took 250 ms", "calls", "3,000", "alarms", "result-1", "2023-11-14 22:13:20 UTC"):
        assert part in shown
    for part in ("within 500 ms", "1.2 s", "2 files waiting", "0 late", "3.0 MiB", "below the table"):
        assert part in shown


def test_failed_tuples_are_shown_where_there_are_some() -> None:
    progress, rates, out = at_epoch(0), live.RecentRates(), io.StringIO()
    rates.see(progress)
    assert "failed" not in live.progress_line(progress, rates) and "failed" not in live.dropped_text(progress)
    progress.failed = 1200
    assert "late 0 rejected 0 failed 1,200" in live.progress_line(progress, rates)
    display = live.for_console(Console(file=out, width=120, force_terminal=True, no_color=True), "title")
    display.show(progress)
    display.close()
    assert "0 late, 0 rejected, 1,200 failed" in out.getvalue()


def test_what_others_print_appears_above_the_table() -> None:
    out = io.StringIO()
    display = live.for_console(Console(file=out, width=120, force_terminal=True, no_color=True), "title")
    display.show(at_epoch(0))
    table = pa.table({"a_column_wider_than_the_title": [42]})
    hr.sinks.console().deliver(hr.sinks.Delivery("q", 3, "result-0", table))
    display.show(at_epoch(1))
    display.close()
    before, after = out.getvalue().split("epoch 3: 1 results")
    assert "title" in before and "title" in after
    assert "42" in after
    print("as before")
    assert "as before" not in out.getvalue()


def test_a_run_that_has_not_begun_can_be_shown() -> None:
    out = io.StringIO()
    live.watch_run(played(0), console=Console(file=out, force_terminal=True, width=100))
    assert "waiting for the first epoch" in out.getvalue()
    out = io.StringIO()
    live.watch_run(played(0), console=Console(file=out))
    assert out.getvalue() == ""


def test_watch_ends_when_it_should_and_raises_what_ended_the_run() -> None:
    run = played(100)
    live.watch_run(run, lambda r: r.progress.epoch >= 3, display=live.JsonLines(io.StringIO()))
    assert run.progress.epoch == 3
    with pytest.raises(hr.DataError, match="broken"):
        live.watch_run(
            played(2, error=hr.DataError("broken")), console=Console(file=io.StringIO(), force_terminal=True)
        )


def test_rates_are_per_second_of_the_last_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    rates = live.RecentRates()
    for number in range(20):
        rates.see(at_epoch(number))
        now[0] += 2.0
    assert rates.of("calls") == pytest.approx(500.0)
    assert rates.of("result-0", "result-1") == pytest.approx(1.5)
    assert rates.of("unknown") == 0.0
    now[0] += 60.0
    assert rates.of("calls") == 0.0


def test_after_counts_from_the_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    after, never = live.StopAfter(3.0), live.StopAfter(None)
    now[0] += 60.0
    assert not after(played(1))
    now[0] += 3.0
    assert after(played(1))
    assert not never(played(1))


# --- signals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_cleans_up_is_not_interrupted_again(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    with end_by_interrupt() as stop:
        with pytest.raises(KeyboardInterrupt), stop_on_first_signal():
            os.kill(os.getpid(), number)
            assert not stop.insisted
            os.kill(os.getpid(), number)
        assert stop.insisted
        os.kill(os.getpid(), number)
        now[0] += signals.DEAF + 1  # whatever it does, it does not clean up any more
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)


class Referred:
    """Something whose end calls a function in which Python discards every exception."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_python_discards_is_raised_again(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    raised: list[float] = []
    with pytest.raises(KeyboardInterrupt), end_by_interrupt():
        referred = Referred()
        reference = weakref.ref(referred, lambda _: signal.raise_signal(number))
        del referred
        raised.append(time.monotonic())  # the interrupt did not come here
        time.sleep(PATIENCE)
    assert reference() is None and len(raised) == 1 and time.monotonic() < raised[0] + PATIENCE
    assert capsys.readouterr().err == ""


def test_an_interrupt_that_compiled_code_discards_stops_the_command_at_its_next_step() -> None:
    with end_by_interrupt():
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), stop_on_first_signal():
            pytest.fail("the command went on")


def test_calls_to_spark_that_are_cut_off_are_no_news(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def cut_off(_: Path) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            record = logging.LogRecord("root", logging.ERROR, "py4j/java_gateway.py", 1, "cut off", (), None)
            logging.getLogger().handle(record)
            logging.getLogger("headrace").error("this is news")
            raise hr.EngineError("no answer from Java") from None

    monkeypatch.setattr(query_file, "load_query_file", cut_off)
    found = call("run", str(tmp_path / "q.py"))
    assert (found.exit_code, found.stderr) == (130, "stopped\n")
    assert [record.message for record in caplog.records] == ["this is news"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_the_second_insists(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stop_on_first_signal() as stop:
        assert not stop.asked
        os.kill(os.getpid(), number)
        assert stop.asked
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "explain takes either a query file or --checkpoint DIR"),
        (["--checkpoint", "nowhere"], "there is no plan.json in 'nowhere'"),
        (["query.py", "--cost", "subquery-1"], "--cost must be NAME=N"),
        (["query.py", "--cost", "subquery-1=-4"], "found 'subquery-1=-4'"),
        (["query.py", "--figures", "nowhere.json"], "the figures 'nowhere.json' cannot be read"),
    ],
)
def test_explain_refuses(arguments: list[str], message: str, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("explain", *arguments)
    assert done.exit_code == 1 and message in done.output.replace("\n", " ")
