"""One request that an agent has taken, and one capability that it serves.

A job knows how to answer in kind (one message to a plain caller, frames to one that understands them) and why
it was ended, so that the pipeline can say truthfully what is known about execution.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from reach.call.context import CallContext, Marks
from reach.policy.bulkhead import Bulkhead, Waiter
from reach.policy.deadline import attempt_share_s
from reach.runtime.executor import AsyncExecutor, Executor
from reach.wire.envelope import Envelope
from reach.wire.trace import Trace

if TYPE_CHECKING:
    from reach.observe.metrics import Tally
    from reach.runtime.keeper import Run
    from reach.runtime.signature import Handler
    from reach.wire.card import CapabilityCard


NO_TRACE: Final = Trace("", "")


class EndedBy(StrEnum):
    """Why a running handler was stopped from outside."""

    DEADLINE = "deadline"
    CANCEL = "cancel"
    STOP = "stop"


class Served:
    """One capability of one agent, with its places and figures.

    `places` are taken by what runs, threads that cannot be stopped included; `mean_ms` is how long one is held.
    """

    def __init__(
        self,
        card: CapabilityCard,
        handler: Handler,
        executor: Executor,
        places: Bulkhead,
        timeout_s: float,
        *,
        is_stream: bool = False,
    ) -> None:
        self.card = card
        self.handler = handler
        self.executor = executor
        self.places = places
        self.timeout_s = timeout_s
        self.is_stream = is_stream
        self.name = card.tag
        self.chain = (card.tag,)
        """What nested calls have above them: this capability."""
        self.in_loop = not is_stream and isinstance(executor, AsyncExecutor)
        """Whether its handler is a coroutine, which needs nothing around it."""
        self.refused = 0
        self.done = 0
        self.failed = 0
        self.busy_ms = 0.0
        self.tally: Tally | None = None
        """Where its good answers are counted; set by the instance that serves it."""

    @property
    def running(self) -> int:
        """Places that are taken."""
        return self.places.used

    @property
    def limit(self) -> int:
        """How many there are."""
        return self.places.limit

    @property
    def mean_ms(self) -> float:
        """How long a place is held on the average; 100 ms until anything is known."""
        return self.busy_ms / self.done if self.done else 100.0


class Job(Struct, gc=False, eq=False):
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
    waiter: Waiter | None = None
    """Its place in the queue, as long as it waits there."""
    marks: Marks = field(default_factory=Marks)
    credit: int = 0
    grants: int = 0
    """How often its reader has given credit."""
    credit_waiter: asyncio.Future[None] | None = None
    sent_frames: int = 0
    run: Run | None = None
    """What it leads under its idempotency key."""

    def context(self, agent_id: str) -> CallContext:
        """Give what calls made inside the handler inherit (CALL-4)."""
        envelope = self.envelope
        trace = envelope.trace or NO_TRACE
        chain = self.served.chain
        context = CallContext(
            self.deadline,
            trace.trace_id or None,
            trace.span_id or None,
            trace.started_at,
            envelope.session_id,
            envelope.tenant,
            envelope.task_id,
            agent_id,
            envelope.trigger,
            chain if envelope.chain is None else (*envelope.chain, *chain),
            self.marks,
            bool(trace.hops),
        )
        if envelope.attempt > 1:
            context.again = True
        return context

    @property
    def wants_answer(self) -> bool:
        """Whether anybody waits."""
        return bool(self.reply_to) and self.envelope.type != "event"

    @property
    def due(self) -> float:
        """When it is ended from outside: at its deadline.

        While it waits for a place a margin earlier (CALL-3's), so that its caller hears in time that nothing was done.
        """
        if self.waiter is None:
            return self.deadline
        return self.received + attempt_share_s(self.deadline - self.received, may_retry=False)

    @property
    def is_nested_in_itself(self) -> bool:
        """Whether a call of this very capability is above it: it would wait for that one's place (CALL-4)."""
        return self.served.name in (self.envelope.chain or ())

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
