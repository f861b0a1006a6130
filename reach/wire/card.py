"""What an agent says about itself.

A card is what others may check a call against: names, schemas, limits, whether a capability is idempotent.
Figures that an agent could flatter itself with (latency, success, cost) are first estimates only; the
supervisor measures them. Until there is a supervisor, cards travel in the metadata of `$SRV.INFO`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from reach.wire.names import CapabilityName, Token


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


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


class CapabilityCard(_Message):
    """One capability of one agent. Schemas are JSON Schema (top level is checked by callers)."""

    tag: CapabilityName
    description: str = ""
    kind: Literal["request", "stream", "task"] = "request"
    weight: float = Field(default=1.0, ge=0)
    priority: int = 10
    idempotent: bool = False
    timeout_s: float | None = None
    timeout_hint_ms: int | None = None
    max_concurrency: int | None = None
    max_payload_bytes: int = 32 * 1024 * 1024
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    slow_ms: int | None = None
    limits: Limits | None = None


class Card(_Message):
    """One instance of one agent. `generation` is its start in epoch milliseconds."""

    agent_id: Token
    instance: Token
    generation: int
    version: str = "0.0.0"
    display_name: str = ""
    owner: str = ""
    endpoint: str = "nats"
    protocol: str = "reach/1"
    capabilities: tuple[CapabilityCard, ...] = ()
    supported_langs: tuple[str, ...] = ()
    region: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    lease_ttl_s: float = 30.0
    ready: bool = True
    health: str = "healthy"
