"""The identity of a running task, and its access to the state folder."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from headrace.state.blocks import BlockReader
from headrace.state.storage import Storage
from headrace.task.messages import Attempt


@dataclass
class Task:
    """One attempt of a task: a splitter (stage 0) or a slot in a later stage."""

    stage: int
    number: int  # number of the splitter or slot
    attempt: int
    storage: Storage
    reader: BlockReader
    stamp: str = field(default_factory=lambda: uuid.uuid4().hex)  # unique for every attempt

    @property
    def itself(self) -> Attempt:
        """Return the name of the attempt in messages and reports."""
        return Attempt(self.stage, self.number, self.attempt)
