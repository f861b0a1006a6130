"""What happened in one call, kept so that "why did this fail" is a lookup.

A call ends in exactly one record, whatever its end was, cancelled included. It holds digests of what was
decided (attempts, phases, times), never payloads. One is made for each call, so both messages are structs, like
the envelope.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Struct, field
from pydantic import Field

CallKind = Literal["request", "stream", "broadcast", "publish", "task"]
Outcome = Literal["ok", "failed", "cancelled"]
Milliseconds = Annotated[float, Field(ge=0)]


class Attempt(Struct, gc=False):
    """One try. `started_ms` counts from the start of the call; `decision` is what the judge made of it.

    `decision` is a word such as `done`, `retry`, `next_tier`, `fallback` or `give_up`.
    """

    n: Annotated[int, Field(ge=1)]
    subject: str
    started_ms: Milliseconds = 0.0
    took_ms: Milliseconds = 0.0
    provider: str | None = None
    instance: str | None = None
    code: str | None = None
    reason: str | None = None
    executed: str | None = None
    decision: str = ""

    def to_map(self) -> dict[str, Any]:
        """Give the wire form."""
        return {
            "n": self.n,
            "subject": self.subject,
            "started_ms": self.started_ms,
            "took_ms": self.took_ms,
            "provider": self.provider,
            "instance": self.instance,
            "code": self.code,
            "reason": self.reason,
            "executed": self.executed,
            "decision": self.decision,
        }


class ReachRecord(Struct, kw_only=True, gc=False):
    """One call. `at` is epoch milliseconds of its start; `latency_ms` is the whole call as the caller saw it.

    `provider` and `instance` are those of the last attempt, `node` is the process that called. `phases` are
    milliseconds by name: `admit_ms`, `choose_ms`, `wait_ms`, `handler_ms`, and what later floors add.

    A call that was not made itself has no attempts. `coalesced_with` or `batched_with` is the `reach_id` of the call
    that brought its answer, whose own record counts those who waited for it (`waiters`). `cached` says that the answer
    had been brought before, and `stale` that it is older than its time to live.
    """

    reach_id: str
    at: Annotated[int, Field(ge=0)]
    capability: str
    outcome: Outcome
    kind: CallKind = "request"
    code: str | None = None
    reason: str | None = None
    provider: str | None = None
    instance: str | None = None
    node: str | None = None
    latency_ms: Milliseconds = 0.0
    degrade_level: Annotated[int, Field(ge=0)] = 0
    retried: bool = False
    caller: str | None = None
    agent_id: str | None = None
    session_id: str | None = None
    task_id: str | None = None
    tenant: str | None = None
    trace_id: str | None = None
    attempts: list[Attempt] = field(default_factory=list)
    phases: dict[str, Milliseconds] = field(default_factory=dict)
    cached: bool = False
    stale: bool = False
    coalesced_with: str | None = None
    batched_with: str | None = None
    waiters: Annotated[int, Field(ge=0)] = 0

    @property
    def ok(self) -> bool:
        """Whether the caller got its result."""
        return self.outcome == "ok"

    def to_map(self) -> dict[str, Any]:
        """Give the wire form; `ok` is there beside `outcome` for those who only count."""
        return {
            "reach_id": self.reach_id,
            "at": self.at,
            "capability": self.capability,
            "kind": self.kind,
            "ok": self.outcome == "ok",
            "outcome": self.outcome,
            "code": self.code,
            "reason": self.reason,
            "provider": self.provider,
            "instance": self.instance,
            "node": self.node,
            "latency_ms": self.latency_ms,
            "degrade_level": self.degrade_level,
            "retried": self.retried,
            "caller": self.caller,
            "agent_id": self.agent_id,
            "session_id": self.session_id,
            "task_id": self.task_id,
            "tenant": self.tenant,
            "trace_id": self.trace_id,
            "attempts": [attempt.to_map() for attempt in self.attempts],
            "phases": self.phases,
            "cached": self.cached,
            "stale": self.stale,
            "coalesced_with": self.coalesced_with,
            "batched_with": self.batched_with,
            "waiters": self.waiters,
        }
