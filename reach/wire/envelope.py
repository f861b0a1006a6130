"""The request: what a caller publishes to a capability subject.

A body is an envelope only if `version`, `message_id` and `payload` are all there; otherwise it is the bare
parameters, so that `nats req cap.invoice.extract '{"file_url": "…"}'` works. Inside an envelope (and only
there) a payload of exactly `{action, params}` is unwrapped. The subject's tenant wins over the body's.
This is the hot path: msgspec reads and writes our own form whole; what it does not take (JSON, bare parameters,
numbers as other languages write them, mistakes that deserve a sentence) is read by hand, in `from_map`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, get_args

from msgspec import Meta, MsgspecError, Struct, field
from msgspec.msgpack import Decoder, Encoder
from pydantic import Field, WithJsonSchema

from reach import ids
from reach.errors import SchemaInvalid
from reach.wire import codec
from reach.wire.trace import Trace
from reach.wire.whole import MAX_WHOLE, Count, Whole, whole

VERSION: Final = 1
"""Version of the wire. A higher one is refused by name; unknown fields of the same version are ignored."""

MAX_CHAIN: Final = 64
"""Most capabilities that a call may be nested in: deeper is a circle."""

MessageType = Literal["request", "stream", "task", "event"]
Priority = Literal["core", "normal", "offline"]
_TYPES: Final = get_args(MessageType)
_PRIORITIES: Final = get_args(Priority)
_ACTION_KEYS: Final = frozenset({"action", "params"})
_MAX_BUCKET: Final = 64
_MAX_BLOB_NAME: Final = 128
_bucket_fits = re.compile(rf"[A-Za-z0-9_-]{{1,{_MAX_BUCKET}}}").fullmatch

# What the published schema says of the field; `is_blob` below says the same.
BlobRef = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "title": "BlobRef",
            "description": "Stands in for what was too large for one message.",
            "properties": {
                "bucket": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": _MAX_BUCKET,
                    # Not "^…$": that lets a line break at the end through in Python's dialect.
                    "not": {"pattern": "[^A-Za-z0-9_-]"},
                },
                "name": {"type": "string", "minLength": 1, "maxLength": _MAX_BLOB_NAME},
                "size": {"type": "integer", "minimum": 0, "maximum": MAX_WHOLE},
            },
            "required": ["bucket", "name", "size"],
        }
    ),
]
"""`{bucket, name, size}`: an object of an object store, and its size in bytes."""


def _no_parameters() -> dict[str, Any]:
    """Give an empty map. Not `dict` itself: a default that msgspec knows is left out, and a payload never is."""
    return {}


class Envelope(Struct, omit_defaults=True, gc=False):
    """One request.

    `timeout_ms` is what is left when it is sent; `expires_at` the same as epoch milliseconds of the broker.
    `frames` says that the sender understands frames; everybody else gets exactly one message back.
    `blob` (`{bucket, name, size}`) stands in for a payload that was too large for one message. `chain` names the
    capabilities that this call is nested in: it never queues behind itself. `dedupe` is false where a task means to
    repeat a write with the same parameters.
    """

    payload: dict[str, Any] = field(default_factory=_no_parameters)
    message_id: Annotated[str, Field(min_length=1)] = field(default_factory=ids.new_id)
    version: Annotated[int, Field(ge=1, le=VERSION)] = field(default_factory=VERSION.__int__)
    type: MessageType = "request"
    source: str | None = None
    target: str | None = None
    session_id: str | None = None
    tenant: str | None = None
    capability: str | None = None
    timeout_ms: Whole | None = None
    expires_at: Whole | None = None
    attempt: Count = 1
    frames: bool = False
    idempotency_key: str | None = None
    priority: Priority = "normal"
    task_id: str | None = None
    require: dict[str, Any] | None = None
    prefer: dict[str, Any] | None = None
    trigger: dict[str, Any] | None = None
    blob: BlobRef | None = None
    trace: Trace | None = None
    chain: Annotated[list[str], Field(max_length=MAX_CHAIN)] | None = None
    dedupe: bool = True

    def to_map(self) -> dict[str, Any]:  # noqa: C901, PLR0912 - a loop is twice as slow
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
        if self.target is not None:
            m["target"] = self.target
        if self.session_id is not None:
            m["session_id"] = self.session_id
        if self.tenant is not None:
            m["tenant"] = self.tenant
        if self.idempotency_key is not None:
            m["idempotency_key"] = self.idempotency_key
        if self.task_id is not None:
            m["task_id"] = self.task_id
        if self.require is not None:
            m["require"] = self.require
        if self.prefer is not None:
            m["prefer"] = self.prefer
        if self.trigger is not None:
            m["trigger"] = self.trigger
        if self.blob is not None:
            m["blob"] = self.blob
        if self.chain is not None:
            m["chain"] = self.chain
        if not self.dedupe:
            m["dedupe"] = False
        return m

    def pack(self) -> bytes:
        """Encode as msgpack. Raises `NotOnTheWire`; `codec.wire_form` has given the payload and the other maps."""
        try:
            return _encode(self)
        except (ValueError, TypeError, OverflowError):
            # A path is the caller's: it begins where the parameters do.
            codec.pack(self.payload)
            codec.explain(self.to_map(), as_json=False)

    @classmethod
    def read(cls, data: bytes) -> Envelope:
        """Read a body of either form; bare parameters are an envelope's payload. Raises `SchemaInvalid`."""
        try:
            sent = _decode(data)
        except (MsgspecError, ValueError, RecursionError, SchemaInvalid):
            pass  # JSON, bare parameters, or a mistake that deserves a sentence: see below.
        else:
            payload = sent.payload
            if (
                (sent.trace is None or sent.trace.is_sound)
                and (sent.blob is None or is_blob(sent.blob))
                and (sent.chain is None or len(sent.chain) <= MAX_CHAIN)
                and len(data) <= codec.MAX_BYTES
            ):
                if "params" in payload:
                    sent.payload = _unwrapped(payload)
                return sent
        body = codec.unpack(data)
        return cls.from_map(body) if is_envelope(body) else cls(body)

    @classmethod
    def from_map(cls, m: dict[str, Any]) -> Envelope:  # noqa: C901, PLR0912, PLR0915 - as above
        """Read a map of which `is_envelope` is true. Raises `SchemaInvalid` naming what is wrong."""
        get = m.get
        version = m["version"]
        if version != VERSION or type(version) is not int:
            version = _version(version)
        payload = m["payload"]
        if type(payload) is not dict:
            raise _wrong("payload", "a map", payload)
        payload = _unwrapped(payload)
        message_id = m["message_id"]
        if type(message_id) is not str or not message_id:
            raise _wrong("message_id", "a text", message_id)
        if (kind := get("type", "request")) not in _TYPES:
            raise _wrong("type", "request, stream, task or event", kind)
        if (priority := get("priority", "normal")) not in _PRIORITIES:
            raise _wrong("priority", "core, normal or offline", priority)
        if type(frames := get("frames", False)) is not bool:
            raise _wrong("frames", "true or false", frames)
        attempt = get("attempt", 1)
        if type(attempt) is not int or not 1 <= attempt <= MAX_WHOLE:
            attempt = _whole("attempt", attempt, 1)
        timeout_ms = get("timeout_ms")
        if timeout_ms is not None and (type(timeout_ms) is not int or not 0 <= timeout_ms <= MAX_WHOLE):
            timeout_ms = _whole("timeout_ms", timeout_ms, 0)
        expires_at = get("expires_at")
        if expires_at is not None and (type(expires_at) is not int or not 0 <= expires_at <= MAX_WHOLE):
            expires_at = _whole("expires_at", expires_at, 0)
        if (capability := get("capability")) is not None and type(capability) is not str:
            raise _wrong("capability", "a text", capability)
        if (source := get("source")) is not None and type(source) is not str:
            raise _wrong("source", "a text", source)
        if (target := get("target")) is not None and type(target) is not str:
            raise _wrong("target", "a text", target)
        if (session_id := get("session_id")) is not None and type(session_id) is not str:
            raise _wrong("session_id", "a text", session_id)
        if (tenant := get("tenant")) is not None and type(tenant) is not str:
            raise _wrong("tenant", "a text", tenant)
        if (task_id := get("task_id")) is not None and type(task_id) is not str:
            raise _wrong("task_id", "a text", task_id)
        if (key := get("idempotency_key")) is not None and type(key) is not str:
            raise _wrong("idempotency_key", "a text", key)
        if (require := get("require")) is not None and type(require) is not dict:
            raise _wrong("require", "a map", require)
        if (prefer := get("prefer")) is not None and type(prefer) is not dict:
            raise _wrong("prefer", "a map", prefer)
        if (trigger := get("trigger")) is not None and type(trigger) is not dict:
            raise _wrong("trigger", "a map", trigger)
        if (blob := get("blob")) is not None and not is_blob(blob):
            raise _wrong("blob", "a map {bucket, name, size}", blob)
        if (trace := get("trace")) is not None:
            trace = _trace(trace)
        if (chain := get("chain")) is not None and not _is_chain(chain):
            raise _wrong("chain", f"a list of at most {MAX_CHAIN} texts", chain)
        if type(dedupe := get("dedupe", True)) is not bool:
            raise _wrong("dedupe", "true or false", dedupe)
        return cls(
            payload,
            message_id,
            version,
            kind,
            source,
            target,
            session_id,
            tenant,
            capability,
            timeout_ms,
            expires_at,
            attempt,
            frames,
            key,
            priority,
            task_id,
            require,
            prefer,
            trigger,
            blob,
            trace,
            chain,
            dedupe,
        )


class _Sent(Envelope, kw_only=True, gc=False):
    """An envelope as our own clients send it: what makes it one is there, and of this version."""

    payload: dict[str, codec.Simple]
    message_id: Annotated[str, Meta(min_length=1)]
    version: Literal[1]
    require: dict[str, codec.Simple] | None = None
    prefer: dict[str, codec.Simple] | None = None
    trigger: dict[str, codec.Simple] | None = None
    blob: dict[str, codec.Simple] | None = None


_encode: Final = Encoder().encode
_decode: Final = Decoder(_Sent, ext_hook=codec.refuse_ext).decode


def _unwrapped(payload: dict[str, Any]) -> dict[str, Any]:
    """Give the parameters of a payload that is `{action, params}`; any other is the parameters."""
    if "params" in payload and payload.keys() == _ACTION_KEYS and type(payload["params"]) is dict:
        params: dict[str, Any] = payload["params"]
        return params
    return payload


def is_envelope(m: dict[str, Any]) -> bool:
    """Whether a decoded body is an envelope rather than bare parameters."""
    return "version" in m and "message_id" in m and "payload" in m


def is_blob(value: Any) -> bool:
    """Whether a decoded value is a blob reference whose bucket and name can be asked for safely."""
    if type(value) is not dict:
        return False
    bucket, name, size = value.get("bucket"), value.get("name"), value.get("size")
    return (
        type(bucket) is str
        and _bucket_fits(bucket) is not None
        and type(name) is str
        and 1 <= len(name) <= _MAX_BLOB_NAME
        and whole(size) is not None
    )


def _is_chain(value: Any) -> bool:
    return type(value) is list and len(value) <= MAX_CHAIN and all(type(item) is str for item in value)


def _version(value: Any) -> int:
    version = whole(value, 1)
    if version is None:
        raise _wrong("version", "a whole number from 1", value)
    if version > VERSION:
        raise SchemaInvalid(
            f"version {version} of the envelope is newer than this agent understands ({VERSION})"
        )
    return version


def _trace(m: Any) -> Trace:
    if type(m) is not dict:
        raise _wrong("trace", "a map {trace_id, span_id, hops, started_at}", m)
    try:
        return Trace.from_map(m)
    except ValueError as error:
        raise SchemaInvalid(f"trace: {error}") from None


def _whole(name: str, value: Any, least: int) -> int:
    number = whole(value, least)
    if number is None:
        raise _wrong(name, f"a whole number from {least}", value)
    return number


def _wrong(name: str, wanted: str, got: object) -> SchemaInvalid:
    return SchemaInvalid(f"{name} is {wanted}, not {_shown(got)}")


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    if isinstance(value, bool | int | float) or value is None:
        return str(value)
    return f"a {type(value).__name__}"
