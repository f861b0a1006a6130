"""One piece of an answer that comes in several messages.

A frame is told from a reply by its `stream_id` (a reply has `ok`). `seq` counts data frames from 1 without
gaps; `accepted` (seq 0) tells the caller which instance has its call; `ping` proves life but is not data;
exactly one `end` or `error` is last. Only callers whose envelope says `frames` are sent any.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from msgspec import Struct

from reach.wire import names
from reach.wire.reply import Failure
from reach.wire.whole import whole

FrameKind = Literal["data", "end", "accepted", "ping", "error"]
_KINDS: Final[tuple[FrameKind, ...]] = get_args(FrameKind)


class Frame(Struct, gc=False):
    """One frame.

    `body` holds: accepted `{instance, generation, provider, retried}`, data any value, end `{latency_ms, …}`, error a
    failure's map; a ping has none.
    """

    stream_id: str
    seq: int
    kind: FrameKind
    body: Any = None

    def to_map(self) -> dict[str, Any]:
        """Give the wire form: `{stream_id, seq, <kind>: body}`."""
        body = self.body
        if self.kind == "ping":
            body = True
        elif body is None and self.kind != "data":
            body = {}
        return {"stream_id": self.stream_id, "seq": self.seq, self.kind: body}

    @classmethod
    def from_map(cls, m: dict[str, Any]) -> Frame:
        """Read the wire form. Raises `ValueError` for what is not a frame."""
        stream_id = m.get("stream_id")
        seq = whole(m.get("seq"))
        if seq is None or type(stream_id) is not str:
            raise ValueError("a frame has a text stream_id and a whole seq from 0")
        for kind in _KINDS:
            if kind not in m:
                continue
            body = m[kind]
            if kind == "data":
                return cls(stream_id, seq, kind, body)
            if kind == "ping":
                return cls(stream_id, seq, kind)
            if type(body) is not dict:
                raise ValueError(f"the {kind} of a frame is a map")
            if kind == "accepted":
                _check_name(body.get("instance"))
            return cls(stream_id, seq, kind, body)
        raise ValueError(f"a frame holds one of {', '.join(_KINDS)}")

    def failure(self) -> Failure:
        """Give the failure of an error frame."""
        return Failure.from_map(self.body if isinstance(self.body, dict) else {})


def _check_name(instance: object) -> None:
    """Check the name of who accepted: its caller publishes to a subject with it. Raises `ValueError`."""
    if type(instance) is not str:
        raise ValueError("who accepted has a text for its instance")
    names.token(instance, "instance")
