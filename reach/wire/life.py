"""The life of an instance: that it is there, that it leaves, that it is in doubt, that it is gone.

`Heartbeat` and `Goodbye` come from the instance itself. `Gone` comes from whoever saw its connection end
(the sentinel, from the server's own disconnect events) and lets callers judge at once what that instance
had accepted, instead of waiting for each call's deadline. `Suspicion` comes from a caller that was left waiting.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from reach.wire.bounds import Lease, Stored
from reach.wire.names import Token
from reach.wire.whole import Whole


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Heartbeat(_Message):
    """An instance is there. `at` is epoch milliseconds; `inflight` counts what its handlers are doing now.

    `queue` counts what waits for a place, `cpu` is the share of its processors that its process used since the
    last one (0 to 1), `loop_lag_ms` how late its loop was at worst, and `busy` why it should be given no calls by
    its own measure. `term`, `revision` and `tickets` say which order it followed last and what it holds, so that a
    lost order is found out.
    """

    agent_id: Token
    instance: Token
    generation: Stored = Field(ge=0)
    at: Stored = Field(ge=0)
    ready: bool = True
    health: str = "healthy"
    inflight: Stored = Field(default=0, ge=0)
    lease_ttl_s: Lease = Field(default=30.0, gt=0)
    queue: Whole = 0
    cpu: float = Field(default=0.0, ge=0)
    rss_bytes: Whole = 0
    loop_lag_ms: float = Field(default=0.0, ge=0)
    busy: str = ""
    term: Whole = 0
    revision: Whole = 0
    tickets: dict[str, Whole] | None = None


class Goodbye(_Message):
    """An instance leaves in good order: it takes no new work, and its lease need not run out."""

    agent_id: Token
    instance: Token
    generation: Stored = Field(ge=0)
    at: Stored = Field(ge=0)
    reason: Literal["stop", "drain"] = "stop"


class Gone(_Message):
    """An instance's connection ended and did not come back.

    `capabilities` names what it served, where whoever reports it knows; empty means "not known".
    """

    instance: Token
    generation: Stored = Field(ge=0)
    at: Stored = Field(ge=0)
    cause: Literal["disconnected", "kicked", "lease"] = "disconnected"
    capabilities: tuple[str, ...] = ()


class Suspicion(_Message):
    """A call has waited for `waited_ms` without any frame: whoever was sent it may be stopped or blocked."""

    capability: str
    subject: str
    waited_ms: Stored = Field(ge=0)
