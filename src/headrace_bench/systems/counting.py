"""Spark's work for every epoch of a run, read once from its status store after the run.

An epoch is one Spark job with at least one exchange, and no other job of a run has one. Spark is not queried during the
measurement; it is only configured to remember all jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headrace.errors import HeadraceError
from headrace.telemetry.progress import EpochSummary

REMEMBER = {"spark__ui__retainedJobs": "100000", "spark__ui__retainedStages": "1000000"}


def epochs(context: Any, seen: Sequence[tuple[int, EpochSummary]]) -> list[dict[str, float]]:
    """Return for every epoch, in order: the tuples so far, its own figures and Spark's."""
    jobs = [job for job in _jobs(context) if job["shuffles"]]
    if len(jobs) != len(seen):
        raise HeadraceError(
            f"{len(seen)} epochs were seen and {len(jobs)} Spark jobs: the epochs cannot be matched with jobs"
        )
    return [{"tuples": tuples, **_own(last), **job} for (tuples, last), job in zip(seen, jobs, strict=True)]


def _own(last: EpochSummary) -> dict[str, float]:
    return {
        "milliseconds": 1000 * last.seconds,
        "task_milliseconds": 1000 * last.cpu_seconds,
        "by_reference": last.sent_bytes,
        "in_slot": last.kept_bytes,
    }


def _jobs(context: Any) -> list[dict[str, int]]:
    """Return the jobs by number, which is their order."""
    scala = context._jsc.sc()
    scala.listenerBus().waitUntilEmpty()  # the store is filled asynchronously
    store = scala.statusStore()
    return [_job(store, job) for job in sorted(_each(store.jobsList(None)), key=lambda job: int(job.jobId()))]


def _job(store: Any, job: Any) -> dict[str, int]:
    stages = [store.lastStageAttempt(stage) for stage in _each(job.stageIds())]
    return {
        "shuffles": len(stages) - 1,
        "tasks": sum(stage.numCompleteTasks() for stage in stages),
        "by_value": sum(stage.shuffleWriteBytes() for stage in stages),
    }


def _each(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(index) for index in range(sequence.size()))
