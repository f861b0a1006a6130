"""What an agent says about itself.

A card is what others may check a call against: names, schemas, limits, whether a capability is idempotent.
Figures that an agent could flatter itself with (latency, success, cost) are first estimates only; the
supervisor measures them. Until there is a supervisor, cards travel in the metadata of `$SRV.INFO`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from reach.wire.bounds import MOST_CAPABILITIES, Dearness, Factor, Lease, Priority, Stored, at_most
from reach.wire.names import CapabilityName, Token


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


TESTED_SHARE = 0.65
"""The part of the concurrency that an agent was tested with which its callers use (behaviour GUARD-1)."""


class Limits(_Message):
    """What one calling process may have under way at an agent (behaviour GUARD-1).

    `max_concurrency` says it outright; `tested_concurrency` is what the agent was seen to bear.
    """

    max_concurrency: int | None = Field(default=None, ge=1)
    tested_concurrency: int | None = Field(default=None, ge=1)

    @property
    def of_lane(self) -> int | None:
        """Calls that one caller may have open; None for no limit."""
        if self.max_concurrency is not None or self.tested_concurrency is None:
            return self.max_concurrency
        return max(1, int(self.tested_concurrency * TESTED_SHARE))


class Cache(_Message):
    """How long an answer may be given again (GUARD-5).

    A result is fresh for `ttl_s` seconds; for `stale_if_error_s` more it takes the place of a failure, marked `stale`.
    """

    ttl_s: float = Field(default=5.0, gt=0)
    stale_if_error_s: float = Field(default=0.0, ge=0)


class Batch(_Message):
    """How point reads are merged into one call of a capability that takes many at once (GUARD-6).

    Calls that differ only in parameter `by` are collected for `window_ms`, at most `max` of them, and made as one
    call of capability `into`, with the list of their values as parameter `many`. It answers with a list in that
    order, or with a map from each value to its result.
    """

    by: str = Field(min_length=1)
    into: CapabilityName
    many: str = Field(min_length=1)
    max: int = Field(default=50, ge=2)
    window_ms: float = Field(default=5.0, gt=0)


class Rate(_Message):
    """How many calls all callers together may make (GUARD-3).

    `calls` in any `per_s` seconds, and `concurrent` under way at once; for all tenants together, or for each.
    """

    calls: int | None = Field(default=None, ge=1)
    per_s: float = Field(default=1.0, gt=0)
    concurrent: int | None = Field(default=None, ge=1)
    per: Literal["capability", "tenant"] = "capability"


class CapabilityCard(_Message):
    """One capability of one agent. Schemas are JSON Schema (top level is checked by callers).

    `cost_weight` says how dear a call is, in a unit that its providers agree on: it counts beside the cheapest of its
    tier (ROUTE-2). `withdrawn` says why the instance takes no calls of it any more (LIFE-9).

    `task` says that the same work is offered as a task, too: then a call may become one (CALL-11).

    `reads` says that a call changes nothing, so that equal ones may share an answer; `dedupe` that a repeated write
    within a task gets the first result (IDEM-4).
    """

    tag: CapabilityName
    description: str = ""
    kind: Literal["request", "stream", "task"] = "request"
    weight: Factor = Field(default=1.0, ge=0)
    cost_weight: Dearness | None = None
    priority: Priority = 10
    idempotent: bool = False
    timeout_s: float | None = None
    timeout_hint_ms: int | None = None
    max_concurrency: int | None = None
    max_payload_bytes: int = 32 * 1024 * 1024
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    slow_ms: int | None = None
    withdrawn: str = ""
    limits: Limits | None = None
    reads: bool = False
    dedupe: bool = True
    cache: Cache | None = None
    batch: Batch | None = None
    rate: Rate | None = None
    task: bool = False

    @property
    def is_thrifty(self) -> bool:
        """Whether a call has to ask, before it is sent, if it may be made or need not be."""
        return self.reads or self.rate is not None


class Card(_Message):
    """One instance of one agent. `generation` is its start in epoch milliseconds."""

    agent_id: Token
    instance: Token
    generation: Stored
    version: str = "0.0.0"
    display_name: str = ""
    owner: str = ""
    endpoint: str = "nats"
    protocol: str = "reach/1"
    capabilities: Annotated[tuple[CapabilityCard, ...], at_most(MOST_CAPABILITIES)] = ()
    supported_langs: tuple[str, ...] = ()
    region: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    lease_ttl_s: Lease = 30.0
    ready: bool = True
    health: str = "healthy"
