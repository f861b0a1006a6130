"""The trace that travels with a call: who asked, through which nodes, how long each took.

Ids have the sizes of W3C trace context, so `traceparent` carries them through other protocols unchanged.
Hops accumulate on the way back; a reply carries them when its call failed, is sampled, or asked for them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from reach import ids

_KEYS_HOP = ("node", "at", "took_ms", "forwarded_to", "status")


@dataclass(slots=True)
class Hop:
    """One node that a call went through. `at` is epoch milliseconds of arrival, `took_ms` its time there."""

    node: str
    at: int
    took_ms: float = 0.0
    forwarded_to: str | None = None
    status: str = "ok"

    def to_map(self) -> dict[str, Any]:
        """Give the wire form."""
        return {key: getattr(self, key) for key in _KEYS_HOP}

    @classmethod
    def from_map(cls, m: dict[str, Any]) -> Hop:
        """Read the wire form; missing figures become zero."""
        return cls(
            node=str(m.get("node", "")),
            at=int(m.get("at") or 0),
            took_ms=float(m.get("took_ms") or 0.0),
            forwarded_to=m.get("forwarded_to"),
            status=str(m.get("status", "ok")),
        )


@dataclass(slots=True)
class Trace:
    """Trace context of one call. `started_at` is epoch milliseconds of the outermost call."""

    trace_id: str = field(default_factory=ids.trace_id)
    span_id: str = field(default_factory=ids.span_id)
    hops: list[Hop] = field(default_factory=list)
    started_at: int = 0

    def to_map(self) -> dict[str, Any]:
        """Give the wire form."""
        return {
            "trace_id": self.trace_id,
            "span_id": self.span_id,
            "hops": [hop.to_map() for hop in self.hops],
            "started_at": self.started_at,
        }

    @classmethod
    def from_map(cls, m: dict[str, Any]) -> Trace:
        """Read the wire form. Raises `TypeError`, `ValueError` for what is not one."""
        return cls(
            trace_id=str(m.get("trace_id") or ids.trace_id()),
            span_id=str(m.get("span_id") or ids.span_id()),
            hops=[Hop.from_map(hop) for hop in m.get("hops") or ()],
            started_at=int(m.get("started_at") or 0),
        )

    def traceparent(self) -> str:
        """Give the W3C `traceparent` header."""
        return f"00-{self.trace_id}-{self.span_id}-01"
