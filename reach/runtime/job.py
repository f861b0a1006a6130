"""One request that an agent has taken, and one capability that it serves.

A job knows how to answer in kind (one message to a plain caller, frames to one that understands them) and why
it was ended, so that the pipeline can say truthfully what is known about execution.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from reach.call.context import Marks

if TYPE_CHECKING:
    from reach.runtime.executor import Executor
    from reach.runtime.signature import Handler
    from reach.wire.card import CapabilityCard
    from reach.wire.envelope import Envelope


class EndedBy(StrEnum):
    """Why a running handler was stopped from outside."""

    DEADLINE = "deadline"
    CANCEL = "cancel"
    STOP = "stop"


@dataclass(slots=True)
class Served:
    """One capability of one agent. `running` counts slots that are taken, threads that cannot be stopped included."""

    card: CapabilityCard
    handler: Handler
    executor: Executor
    limit: int
    timeout_s: float
    running: int = 0
    refused: int = 0
    done: int = 0
    failed: int = 0
    busy_ms: float = 0.0

    is_stream: bool = False
    name: str = ""
    """The capability's name, from its card."""
    chain: tuple[str, ...] = ()
    """What nested calls have above them: this capability."""

    def __post_init__(self) -> None:
        self.name = self.card.tag
        self.chain = (self.name,)


@dataclass(slots=True, eq=False)
class Job:
    """One request in work. Times are loop seconds; `reply_to` is empty when nobody waits for an answer."""

    served: Served
    envelope: Envelope
    reply_to: str
    as_json: bool
    received: float
    deadline: float
    slot: int = 0
    task: asyncio.Task[None] | None = None
    entered: bool = False
    started: bool = False
    finished: bool = False
    handed_over: bool = False
    holds_slot: bool = False
    accepted: bool = False
    ended_by: EndedBy | None = None
    marks: Marks = field(default_factory=Marks)
    credit: int = 0
    grants: int = 0
    """How often its reader has given credit."""
    credit_waiter: asyncio.Future[None] | None = None
    sent_frames: int = 0

    @property
    def wants_answer(self) -> bool:
        """Whether anybody waits."""
        return bool(self.reply_to) and self.envelope.type != "event"

    @property
    def in_frames(self) -> bool:
        """Whether the answer is a stream of frames rather than one reply."""
        return self.served.is_stream and self.envelope.frames and self.envelope.type == "stream"

    def stop(self, why: EndedBy) -> None:
        """End the handler's scope from outside."""
        if self.ended_by is None:
            self.ended_by = why
            # A task that has not taken its first step would die without a word; it looks at `ended_by` instead.
            # One that is done with this request may have gone on to another.
            if self.entered and not self.finished and self.task is not None:
                self.task.cancel()

    def give_credit(self, size: int) -> None:
        """Let a stream send `size` more bytes."""
        self.credit += size
        self.grants += 1
        if self.credit > 0 and self.credit_waiter is not None and not self.credit_waiter.done():
            self.credit_waiter.set_result(None)
