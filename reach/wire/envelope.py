"""The request: what a caller publishes to a capability subject.

A body is an envelope only if `version`, `message_id` and `payload` are all there; otherwise it is the bare
parameters, so that `nats req cap.invoice.extract '{"file_url": "…"}'` works. Inside an envelope (and only
there) a payload of exactly `{action, params}` is unwrapped. The subject's tenant wins over the body's.
Packed and unpacked by hand: this is the hot path, and pydantic would cost more than the rest of a call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast, get_args

from reach import ids
from reach.errors import SchemaInvalid
from reach.wire import codec
from reach.wire.trace import Trace

VERSION: Final = 1
"""Version of the wire. A higher one is refused by name; unknown fields of the same version are ignored."""

MessageType = Literal["request", "stream", "task", "event"]
Priority = Literal["core", "normal", "offline"]
_TYPES: Final = frozenset(get_args(MessageType))
_PRIORITIES: Final = frozenset(get_args(Priority))
_ACTION_KEYS: Final = frozenset({"action", "params"})
_TEXT: Final = ("session_id", "source", "target", "tenant", "capability", "idempotency_key", "task_id")
_MAPS: Final = ("require", "prefer", "trigger", "blob", "trace")


@dataclass(slots=True)
class Envelope:
    """One request.

    `timeout_ms` is what is left when it is sent; `expires_at` the same as epoch milliseconds of the broker.
    `frames` says that the sender understands frames; everybody else gets exactly one message back.
    `blob` (`{bucket, name, size}`) stands in for a payload that was too large for one message.
    """

    payload: dict[str, Any] = field(default_factory=dict)
    message_id: str = field(default_factory=ids.new_id)
    version: int = VERSION
    type: MessageType = "request"
    source: str | None = None
    target: str | None = None
    session_id: str | None = None
    tenant: str | None = None
    capability: str | None = None
    timeout_ms: int | None = None
    expires_at: int | None = None
    attempt: int = 1
    frames: bool = False
    idempotency_key: str | None = None
    priority: Priority = "normal"
    task_id: str | None = None
    require: dict[str, Any] | None = None
    prefer: dict[str, Any] | None = None
    trigger: dict[str, Any] | None = None
    blob: dict[str, Any] | None = None
    trace: Trace | None = None

    def to_map(self) -> dict[str, Any]:
        """Give the wire form; what has its default is left out."""
        m: dict[str, Any] = {
            "version": self.version,
            "message_id": self.message_id,
            "type": self.type,
            "attempt": self.attempt,
            "payload": self.payload,
        }
        if self.capability is not None:
            m["capability"] = self.capability
        if self.source is not None:
            m["source"] = self.source
        if self.timeout_ms is not None:
            m["timeout_ms"] = self.timeout_ms
        if self.expires_at is not None:
            m["expires_at"] = self.expires_at
        if self.frames:
            m["frames"] = True
        if self.trace is not None:
            m["trace"] = self.trace.to_map()
        if self.priority != "normal":
            m["priority"] = self.priority
        for name in ("target", "session_id", "tenant", "idempotency_key", "task_id"):
            if (text := getattr(self, name)) is not None:
                m[name] = text
        for name in ("require", "prefer", "trigger", "blob"):
            if (value := getattr(self, name)) is not None:
                m[name] = value
        return m

    def pack(self) -> bytes:
        """Encode as msgpack. The payload must have passed `codec.check`; leaves are checked here. Raises `NotOnTheWire`."""
        m = self.to_map()
        try:
            return codec.pack_trusted(m)
        except (ValueError, TypeError, OverflowError):
            codec.pack(m)
            raise

    @classmethod
    def from_map(cls, m: dict[str, Any]) -> Envelope:
        """Read the wire form. Raises `SchemaInvalid` naming the field that is wrong."""
        get = m.get
        version = m["version"]
        if type(version) is not int or version < 1:
            raise _wrong("version", "a whole number from 1", version)
        if version > VERSION:
            msg = f"version {version} of the envelope is newer than this agent understands ({VERSION})"
            raise SchemaInvalid(msg)
        payload = m["payload"]
        if type(payload) is not dict:
            raise _wrong("payload", "a map", payload)
        if payload.keys() == _ACTION_KEYS and type(payload["params"]) is dict:
            payload = payload["params"]
        message_id = m["message_id"]
        if type(message_id) is not str or not message_id:
            raise _wrong("message_id", "a text", message_id)
        kind = get("type", "request")
        if kind not in _TYPES:
            raise _wrong("type", "request, stream, task or event", kind)
        priority = get("priority", "normal")
        if priority not in _PRIORITIES:
            raise _wrong("priority", "core, normal or offline", priority)
        for name in _TEXT:
            if (text := get(name)) is not None and type(text) is not str:
                raise _wrong(name, "a text", text)
        for name in _MAPS:
            if (value := get(name)) is not None and type(value) is not dict:
                raise _wrong(name, "a map", value)
        attempt = _whole(m, "attempt", 1)
        return cls(
            payload=payload,
            message_id=message_id,
            version=version,
            type=kind,
            source=get("source"),
            target=get("target"),
            session_id=get("session_id"),
            tenant=get("tenant"),
            capability=get("capability"),
            timeout_ms=_whole(m, "timeout_ms", None),
            expires_at=_whole(m, "expires_at", None),
            attempt=1 if attempt is None else attempt,
            frames=get("frames") is True,
            idempotency_key=get("idempotency_key"),
            priority=priority,
            task_id=get("task_id"),
            require=get("require"),
            prefer=get("prefer"),
            trigger=get("trigger"),
            blob=get("blob"),
            trace=_trace(get("trace")),
        )


def is_envelope(m: dict[str, Any]) -> bool:
    """Whether a decoded body is an envelope rather than bare parameters."""
    return "version" in m and "message_id" in m and "payload" in m


def _trace(m: dict[str, Any] | None) -> Trace | None:
    if m is None:
        return None
    try:
        return Trace.from_map(m)
    except (TypeError, ValueError, AttributeError):
        raise _wrong("trace", "a map {trace_id, span_id, hops, started_at}", m) from None


def _whole(m: dict[str, Any], name: str, default: int | None) -> int | None:
    value = m.get(name, default)
    if value is None or (type(value) is int and value >= 0):
        return cast("int | None", value)
    if type(value) is float and value.is_integer() and value >= 0:
        return int(value)
    raise _wrong(name, "a whole number of at least 0", value)


def _wrong(name: str, wanted: str, got: object) -> SchemaInvalid:
    return SchemaInvalid(f"{name} is {wanted}, not {_shown(got)}")


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    if isinstance(value, bool | int | float) or value is None:
        return str(value)
    return f"a {type(value).__name__}"
