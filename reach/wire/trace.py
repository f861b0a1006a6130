"""The trace that travels with a call: who asked, through which nodes, how long each took.

Ids have the sizes of W3C trace context, so `traceparent` carries them through other protocols unchanged;
what arrives may be any short printable text, because other systems number their calls in other ways.
Hops accumulate on the way back; a reply carries them when its call failed, is sampled, or asked for them.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Struct, field
from pydantic import Field, WithJsonSchema

from reach import ids
from reach.wire.whole import MAX_WHOLE, Whole, whole

MAX_ID: Final = 64
"""Longest trace or span id that is accepted, in characters."""

MAX_HOPS: Final = 64
"""Most hops that are accepted: a call through more nodes runs in a circle."""

_FLOATS: Final = (int, float)

ShortId = Annotated[
    str, WithJsonSchema({"type": "string", "maxLength": MAX_ID, "not": {"pattern": "[^ -~]"}})
]
"""Printable ASCII of at most `MAX_ID` characters: safe in a header of any protocol."""


class Hop(Struct, gc=False):
    """One node that a call went through. `at` is epoch milliseconds of arrival, `took_ms` its time there."""

    node: str
    at: Whole
    took_ms: Annotated[float, Field(ge=0)] = 0.0
    forwarded_to: str | None = None
    status: str = "ok"

    def to_map(self) -> dict[str, Any]:
        """Give the wire form."""
        return {
            "node": self.node,
            "at": self.at,
            "took_ms": self.took_ms,
            "forwarded_to": self.forwarded_to,
            "status": self.status,
        }

    @classmethod
    def from_map(cls, m: dict[str, Any]) -> Hop:
        """Read the wire form. Raises `ValueError` for what is not a hop."""
        get = m.get
        node = get("node")
        at = whole(get("at"))
        took_ms = get("took_ms", 0.0)
        forwarded_to = get("forwarded_to")
        status = get("status", "ok")
        if (
            type(node) is not str
            or type(status) is not str
            or (forwarded_to is not None and type(forwarded_to) is not str)
        ):
            raise ValueError("the node, status and forwarded_to of a hop are texts")
        if at is None or type(took_ms) not in _FLOATS or not took_ms >= 0:
            raise ValueError("the at and took_ms of a hop are numbers from 0")
        return cls(node, at, took_ms, forwarded_to, status)


class Trace(Struct, gc=False):
    """Trace context of one call. `started_at` is epoch milliseconds of the outermost call."""

    trace_id: ShortId = field(default_factory=ids.trace_id)
    span_id: ShortId = field(default_factory=ids.span_id)
    hops: Annotated[list[Hop], Field(max_length=MAX_HOPS)] = field(default_factory=list)
    started_at: Whole = 0

    def to_map(self) -> dict[str, Any]:
        """Give the wire form."""
        hops = self.hops
        return {
            "trace_id": self.trace_id,
            "span_id": self.span_id,
            "hops": [hop.to_map() for hop in hops] if hops else [],
            "started_at": self.started_at,
        }

    @classmethod
    def from_map(cls, m: dict[str, Any]) -> Trace:
        """Read the wire form; ids that are missing or empty are made. Raises `ValueError`."""
        get = m.get
        trace_id = get("trace_id", "")
        span_id = get("span_id", "")
        started_at = get("started_at", 0)
        hops = get("hops", [])
        if (
            type(trace_id) is not str
            or type(span_id) is not str
            or len(trace_id) > MAX_ID
            or len(span_id) > MAX_ID
            or not (both := trace_id + span_id).isascii()
            or not both.isprintable()
        ):
            raise ValueError(f"trace_id and span_id are printable ASCII of up to {MAX_ID} characters")
        if type(started_at) is not int or not 0 <= started_at <= MAX_WHOLE:
            started_at = whole(started_at)
            if started_at is None:
                raise ValueError("started_at is epoch milliseconds, a whole number")
        if hops or type(hops) is not list:
            hops = _hops(hops)
        return cls(trace_id or ids.trace_id(), span_id or ids.span_id(), hops, started_at)

    @property
    def is_sound(self) -> bool:
        """Whether what `msgspec` read is also what `from_map` lets through: ids to be passed on, and no hops yet."""
        both = self.trace_id + self.span_id
        return (
            not self.hops
            and 0 < len(self.trace_id) <= MAX_ID
            and 0 < len(self.span_id) <= MAX_ID
            and both.isascii()
            and both.isprintable()
        )

    def traceparent(self) -> str:
        """Give the W3C `traceparent` header."""
        return f"00-{self.trace_id}-{self.span_id}-01"


def _hops(value: Any) -> list[Hop]:
    if type(value) is not list or len(value) > MAX_HOPS:
        raise ValueError(f"hops is a list of at most {MAX_HOPS}")
    hops = []
    for hop in value:
        if type(hop) is not dict:
            raise ValueError("a hop is a map {node, at, took_ms, forwarded_to, status}")
        hops.append(Hop.from_map(hop))
    return hops
