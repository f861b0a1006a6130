"""What a handler sees of the call it serves: small on purpose.

Nested calls need nothing from it (they inherit by context variable, behaviour CALL-4); it is for those who
want to look: time left, who asked, a bus to call others with.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reach.call.client import Bus
    from reach.runtime.job import Job


class Context:
    """The call that a handler serves."""

    __slots__ = ("_job", "bus", "instance")

    def __init__(self, job: Job, bus: Bus, instance: str) -> None:
        self._job = job
        self.bus = bus
        """Call other capabilities; deadline, trace, session and tenant are inherited."""
        self.instance = instance
        """This instance's name."""

    @property
    def capability(self) -> str:
        """The capability that was called."""
        return self._job.served.name

    @property
    def message_id(self) -> str:
        """The request's id."""
        return self._job.envelope.message_id

    @property
    def source(self) -> str | None:
        """Who called, as far as it said so."""
        return self._job.envelope.source

    @property
    def session_id(self) -> str | None:
        """The session that the call belongs to."""
        return self._job.envelope.session_id

    @property
    def task_id(self) -> str | None:
        """The task that the call belongs to."""
        return self._job.envelope.task_id

    @property
    def tenant(self) -> str | None:
        """The tenant, from the subject where it names one."""
        return self._job.envelope.tenant

    @property
    def attempt(self) -> int:
        """Which try of the caller this is, from 1."""
        return self._job.envelope.attempt

    @property
    def idempotency_key(self) -> str | None:
        """The caller's idempotency key."""
        return self._job.envelope.idempotency_key

    @property
    def trace_id(self) -> str | None:
        """The W3C trace id."""
        trace = self._job.envelope.trace
        return None if trace is None else trace.trace_id

    @property
    def time_left_s(self) -> float:
        """Seconds until the caller stops waiting."""
        return max(0.0, self._job.deadline - monotonic())

    def cost(self, amount: float) -> None:
        """Add what this call has cost (any unit that the capability's callers agree on); it travels in the reply."""
        self._job.marks.cost = (self._job.marks.cost or 0.0) + amount
