"""One piece of an answer that comes in several messages.

A frame is told from a reply by its `stream_id` (a reply has `ok`). `seq` counts data frames from 1 without
gaps; `accepted` (seq 0) tells the caller which instance has its call; `ping` proves life but is not data;
exactly one `end` or `error` is last. Only callers whose envelope says `frames` are sent any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from reach.wire.reply import Failure

FrameKind = Literal["accepted", "data", "ping", "end", "error"]


@dataclass(slots=True)
class Frame:
    """One frame. `body` holds: accepted `{instance, generation, provider}`, data any value, end `{latency_ms, …}`, error a failure map."""

    stream_id: str
    seq: int
    kind: FrameKind
    body: Any = None

    def to_map(self) -> dict[str, Any]:
        """Give the wire form: `{stream_id, seq, <kind>: body}`."""
        return {"stream_id": self.stream_id, "seq": self.seq, self.kind: True if self.kind == "ping" else self.body}

    @classmethod
    def from_map(cls, m: dict[str, Any]) -> Frame:
        """Read the wire form. Raises `ValueError` for what is not a frame."""
        seq = m.get("seq")
        stream_id = m.get("stream_id")
        if type(seq) is not int or type(stream_id) is not str:
            msg = "a frame has a text stream_id and a whole seq"
            raise ValueError(msg)
        for kind in ("data", "end", "accepted", "ping", "error"):
            if kind in m:
                return cls(stream_id, seq, kind, m[kind])  # type: ignore[arg-type]  # the tuple holds the kinds
        msg = "a frame holds one of data, end, accepted, ping, error"
        raise ValueError(msg)

    def failure(self) -> Failure:
        """Give the failure of an error frame."""
        return Failure.from_map(self.body if isinstance(self.body, dict) else {})
