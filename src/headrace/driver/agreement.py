"""Agreement of the tasks of an epoch: an epoch whose slots received messages of different attempts is run again.

Invariant: `execute_until_agreed` returns the reports of one attempt of every task, and every slot of a later stage
received the messages of exactly these attempts. A task that Spark runs twice writes under two names. No manifest names
the files of the other attempt, so the next clean-up deletes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.errors import DamagedCache, EngineError
from headrace.task.epoch import Epoch
from headrace.task.messages import Message
from headrace.task.reports import Report

_log = logging.getLogger(__name__)
Execute = Callable[[Epoch], Sequence[Message]]
ATTEMPTS = 3  # runs of an epoch whose tasks do not agree


def execute_until_agreed(epoch: Epoch, execute: Execute) -> list[Report]:
    """Return the reports of all tasks. Run the epoch again if slots received messages of different attempts of a task."""
    for _ in range(ATTEMPTS):
        reports = [message.read(Report) for message in _execute_without_damaged_caches(epoch, execute)]
        if _agree(epoch, reports):
            return reports
    msg = (
        f"epoch {epoch.number} was run {ATTEMPTS} times and its slots never all received the same attempt of every sender;"
        " executors are being lost faster than an epoch takes; nothing was committed"
    )
    raise EngineError(msg)


def _execute_without_damaged_caches(epoch: Epoch, execute: Execute) -> Sequence[Message]:
    """Execute the epoch, and again without caches if one is damaged: caches do not change the result of an epoch."""
    try:
        return execute(epoch)
    except DamagedCache as error:
        if epoch.caches is None:
            raise
        _log.warning("%s; it was removed, and epoch %s is run again from blocks alone", error, epoch.number)
        return execute(replace(epoch, caches=None))


def _agree(epoch: Epoch, reports: Sequence[Report]) -> bool:
    """Return whether every slot reported, and received messages of exactly the reported attempts of the stage before."""
    if len({(r.task.stage, r.task.number) for r in reports}) != len(reports):
        return False
    for stage in range(1, epoch.plan.last_stage + 1):
        slots = [r for r in reports if r.task.stage == stage]
        before = tuple(sorted(r.task for r in reports if r.task.stage == stage - 1))
        if len(slots) != epoch.slots or any(slot.senders != before for slot in slots):
            return False
    return True
