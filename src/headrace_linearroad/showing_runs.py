"""The output of a run for its user: preparation, progress, and remarks at the end."""

from __future__ import annotations

import shlex
from functools import partial
from typing import TextIO

from rich.console import Console

from headrace.cli import explain_output
from headrace.cli.follow import follow_run, spark_session
from headrace.deployment import usable_cores
from headrace.showing import terminal
from headrace.stream import node_of
from headrace_linearroad import query, running
from headrace_linearroad.profiles import Profile
from headrace_linearroad.running import Given


def show(given: Given, slots: int | None, epoch: int | None, explain: bool, json: TextIO | None) -> None:
    """Run the query and show its progress. json: write progress for programs to this stream instead."""
    say = terminal.say_on_stderr if json else partial(terminal.say, Console(highlight=False))
    looked, count = running.look(given), slots or usable_cores()
    if explain:
        roots = [node_of(stream) for stream in running.shape(given)]
        print(explain_output.explain_query(roots, [False] * len(roots), "subquery", count, None, {}, "text"))
        return
    with running.prepare(given, looked, say) as prepared, spark_session(count, quiet=json is not None) as spark:
        say(f"checkpoint {given.checkpoint}")
        if not query.is_compiled(bool(prepared.wandering)):
            say("compiling loops for this and all later runs; the first epoch takes longer")
        results = running.results(spark, given, prepared, epoch)
        run = follow_run(results, running.options(given, count), lambda _: False, title="linearroad", json=json)
        if run.progress.closed:
            for remark in running.remarks(given, prepared, run):
                say(remark)
            say(f"check the answers with {_judging(given)}")


def _judging(given: Given) -> str:
    words = ["headrace", "linearroad", "validate", "--input", str(given.input), "--out", str(given.out)]
    words += [word for path in given.histories for word in ("--history", str(path))]
    return shlex.join(words + (["--profile", given.profile] if given.profile != Profile.official else []))
