"""`headrace generate`: a generated stream, written to files or a topic, with its progress on the terminal."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from headrace.errors import WorkloadError
from headrace.showing.progress_bar import show_progress
from headrace.showing.signals import stop_on_first_signal
from headrace.showing.terminal import say
from headrace.support.durations import MICROSECONDS, parse_duration
from headrace_demo import broker as brokers
from headrace_demo.topic import Sender
from headrace_demo.workloads import BModel, Hot, Uniform, Workload, Written
from headrace_demo.workloads.keys import COUNT, Keys
from headrace_demo.workloads.stream import BEGIN

BEHIND = 1.0  # seconds by which a live stream may be late before a warning
HERE = "here"  # value of --kafka that starts a broker


@dataclass(frozen=True)
class Options:
    """The options of the command line. None: not given."""

    rate: float = 1000
    rates: str | None = None
    every: str | None = None
    keys: str = "bmodel"
    bias: float | None = None
    count: int = COUNT
    arrivals: str = "poisson"
    hot: float | None = None
    hot_every: str | None = None
    begin: str | None = None
    live: bool = False
    seed: int = 7
    name: str = "stream"

    def workload(self) -> Workload:
        if self.every is not None and self.rates is None:
            raise WorkloadError("--every is the time between --rates; add rates, such as --rates 1000,8000")
        return Workload(
            rate=_numbers(self.rates) if self.rates is not None else self.rate,
            every=_seconds(self.every, "--every"),
            keys=self._keys(),
            arrivals=self.arrivals,
            hot=self._hot(),
            seed=self.seed,
            name=self.name,
            begin=self._begin(),
        )

    def _keys(self) -> Keys:
        if self.keys == "bmodel":
            return BModel(0.7 if self.bias is None else self.bias, self.count)
        if self.bias is not None:
            raise WorkloadError("--bias applies to skewed keys (--keys bmodel), not to uniform keys; leave it out")
        return Uniform(self.count)

    def _hot(self) -> Hot | None:
        if self.hot is not None:
            return Hot(self.hot, _seconds(self.hot_every, "--hot-every"))
        if self.hot_every is not None:
            raise WorkloadError("--hot-every is the time between moves of a hot key; give its share, such as --hot 0.5")
        return None

    def _begin(self) -> float:
        if self.begin is None:
            return time.time() if self.live else BEGIN
        try:
            moment = datetime.fromisoformat(self.begin)
        except ValueError:
            msg = f"--begin is not a time; found {self.begin!r}; expected a time such as '2026-03-01 12:00:00' (UTC)"
            raise WorkloadError(msg) from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        msg = f"--rates must be numbers separated by commas; found {text!r}; expected, for example, '1000,8000'"
        raise WorkloadError(msg) from None


def _seconds(text: str | None, what: str) -> float | None:
    return None if text is None else parse_duration(text, what) / MICROSECONDS["second"]


def generate(workload: Workload, folder: Path, seconds: int, files_per_second: float, live: bool) -> None:
    """Write the stream into files."""
    write = partial(workload.write, folder, seconds, files_per_second=files_per_second, live=live)
    if _shown(write, seconds, _in_files, f"in {folder}").files:
        say(_console(), f"read it with hr.files(spark, {str(folder)!r}, time='ts')", "dim")


@dataclass(frozen=True)
class Topic:
    """A topic and the format of its messages. `servers` may be `HERE`: a broker that is started for it and runs until
    Ctrl-C.
    """

    servers: str
    name: str
    partitions: int = 4
    format: str = "json"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]{1,249}", self.name, re.ASCII) or self.name in (".", ".."):
            msg = f"with --kafka the stream goes into a topic, whose name has letters, digits, '.', '_' and '-'; found {self.name!r}"
            raise WorkloadError(msg)

    def send(self, workload: Workload, seconds: int, per_second: float, live: bool) -> None:
        if self.servers != HERE:
            self._send(self.servers, workload, seconds, per_second, live)
            return
        broker = brokers.Broker(brokers.needed("--kafka here"))
        try:
            self._send(broker.servers, workload, seconds, per_second, live)
            say(_console(), f"the broker at {broker.servers} runs until Ctrl-C, and ends with all its data")
            with stop_on_first_signal() as stop:
                while not stop.asked:
                    time.sleep(0.1)
        finally:
            broker.remove()

    def _send(self, servers: str, workload: Workload, seconds: int, per_second: float, live: bool) -> None:
        key = "key" if self.format == "json" else None
        sender = Sender(servers, self.name, key, self.format, who="headrace generate --kafka")
        try:
            made = sender.create(self.partitions)
            more = f", made with {self.partitions} partitions" if made else ""
            send = partial(workload.put, lambda _, table: sender.put(table), seconds, per_second=per_second, live=live)
            _shown(send, seconds, _tuples, f"in topic {self.name}{more}")
        finally:
            sender.close()
        more = "" if self.format == "json" else f", format={self.format!r}"
        read = f"hr.kafka(spark, {servers!r}, {self.name!r}, time='ts', schema=headrace_demo.workloads.SCHEMA{more})"
        say(_console(), f"read it with {read}", "dim")


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def _shown(write: Callable[..., Written], seconds: int, summary: Callable[[Written], str], where: str) -> Written:
    """Write and show the progress. An interrupt before the end is not an error."""
    console, last = _console(), Written()
    with show_progress(console, seconds) as show:

        def tell(written: Written) -> None:
            nonlocal last
            last = written
            show(written.seconds, _line(written, summary))

        try:
            write(tell=tell)
            ending = ""
        except KeyboardInterrupt:
            ending = f"stopped after {last.seconds:g} of {seconds} seconds: "
    say(console, f"{ending}{summary(last)} {where}")
    return last


def _line(written: Written, summary: Callable[[Written], str]) -> str:
    late = f", {written.behind:.1f} s behind the clock" if written.behind > BEHIND else ""
    return f"{summary(written)}{late}"


def _in_files(written: Written) -> str:
    files = f"{written.files:,} file{'' if written.files == 1 else 's'}"
    return f"{_tuples(written)} in {files}"


def _tuples(written: Written) -> str:
    return f"{written.tuples:,} tuples"
