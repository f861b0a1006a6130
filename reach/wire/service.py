"""What an agent answers on `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`.

The forms are those of NATS's own service API (ADR-32), so that any NATS tool lists our agents as services.
They are JSON, whatever else speaks msgpack. Until there is a supervisor, an instance's card travels in the
metadata of INFO. Times here are ADR-32's: `processing_time` in nanoseconds, `started` in RFC 3339.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Service(_Message):
    name: str
    id: str
    version: str
    metadata: dict[str, str] = Field(default_factory=dict)


class ServicePing(_Service):
    """The answer to `$SRV.PING`: who is there."""

    type: Literal["io.nats.micro.v1.ping_response"]


class EndpointInfo(_Message):
    """One subject that a service answers on."""

    name: str
    subject: str
    queue_group: str
    metadata: dict[str, str] = Field(default_factory=dict)


class ServiceInfo(_Service):
    """The answer to `$SRV.INFO`: what is offered."""

    type: Literal["io.nats.micro.v1.info_response"]
    description: str = ""
    endpoints: tuple[EndpointInfo, ...]


class EndpointStats(_Message):
    """What one subject of a service has seen since it started."""

    name: str
    subject: str
    queue_group: str
    num_requests: int = Field(ge=0)
    num_errors: int = Field(ge=0)
    last_error: str
    processing_time: int = Field(ge=0)
    average_processing_time: int = Field(ge=0)
    data: dict[str, Any] | None = None


class ServiceStats(_Service):
    """The answer to `$SRV.STATS`: how it went."""

    type: Literal["io.nats.micro.v1.stats_response"]
    started: str
    endpoints: tuple[EndpointStats, ...]
