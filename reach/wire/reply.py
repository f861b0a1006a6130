"""The answer: a result or a structured failure, and how it came about.

`Failure` is the wire's error object; `ReachError` is the same as an exception. `Reply.unwrap` turns one
into the other. msgspec reads and writes our own form whole (see `reach.wire.envelope`). Reading an answer never
raises: whatever arrived, its caller is told something, and a figure that is none has its default.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, MsgspecError, Struct, field
from msgspec.msgpack import Decoder, Encoder
from pydantic import Field, WithJsonSchema

from reach.errors import BY_CODE, ReachError, SchemaInvalid
from reach.faults import FAULTS, Advice, Code, Executed, Fault, Reason, fault, is_retryable
from reach.wire import codec
from reach.wire.codec import refuse_ext
from reach.wire.envelope import VERSION, BlobRef, is_blob
from reach.wire.trace import Trace
from reach.wire.whole import MAX_WHOLE, Count, Whole, whole

_ROWS: Final[dict[tuple[object, object], Fault]] = {
    (code.value, reason.value): row for (code, reason), row in FAULTS.items()
}
_EXECUTED: Final[dict[object, Executed]] = {word.value: word for word in Executed}
_ADVICE: Final[dict[object, Advice]] = {word.value: word for word in Advice}
_NUMBERS: Final = (int, float)

# What the published schema says of a refusal's limit.
Limit = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "title": "Limit",
            "description": "The limit that refused the call.",
            "properties": {
                "name": {"type": "string"},
                "owner": {"type": "string"},
                "used": {"type": "number"},
                "allowed": {"type": "number"},
                "resets_in_ms": {"type": "number", "minimum": 0},
            },
        }
    ),
]
"""`{name, owner, used, allowed, resets_in_ms}`: which limit, whose, how much is used, when it resets."""


class Failure(Struct, omit_defaults=True, gc=False):
    """What went wrong. `message` is safe to show a model or a person.

    `retryable` is for whoever receives the reply; our own pipeline decides from `executed` instead.
    `limit` (for refusals) is `{name, owner, used, allowed, resets_in_ms}`; `cause` is the reason word of what
    led to an unknown outcome.
    """

    code: Code
    reason: Reason
    message: str
    executed: Executed
    retryable: bool
    advice: Advice
    retry_after_ms: Whole | None = None
    limit: Limit | None = None
    cause: str | None = None

    @classmethod
    def of(  # noqa: PLR0913 - one keyword a field of the wire
        cls,
        reason: Reason,
        message: str | None = None,
        *,
        code: Code | None = None,
        executed: Executed | None = None,
        retryable: bool | None = None,
        idempotent: bool = False,
        retry_after_ms: int | None = None,
        limit: dict[str, Any] | None = None,
        cause: str | None = None,
    ) -> Failure:
        """Build a failure from the table; what is not given has the table's value."""
        row = fault(reason, code)
        return cls(
            code=row.code,
            reason=row.reason,
            message=row.en if message is None else message,
            executed=row.executed if executed is None else executed,
            retryable=is_retryable(row, idempotent=idempotent) if retryable is None else retryable,
            advice=row.advice,
            retry_after_ms=retry_after_ms,
            limit=limit,
            cause=cause,
        )

    @classmethod
    def of_error(cls, error: ReachError) -> Failure:
        """Give the wire form of an exception."""
        return cls(
            code=error.code,
            reason=error.reason,
            message=error.message,
            executed=error.executed,
            retryable=error.retryable,
            advice=error.advice,
            retry_after_ms=error.retry_after_ms,
            limit=error.limit,
            cause=error.cause,
        )

    def to_error(self, reach_id: str | None = None) -> ReachError:
        """Give the exception form."""
        error = BY_CODE[self.code](
            self.message,
            reason=self.reason,
            executed=self.executed,
            retryable=self.retryable,
            retry_after_ms=self.retry_after_ms,
            advice=self.advice,
            limit=self.limit,
            cause=self.cause,
        )
        error.reach_id = reach_id
        return error

    def to_map(self) -> dict[str, Any]:
        """Give the wire form."""
        m: dict[str, Any] = {
            "code": str(self.code),
            "reason": str(self.reason),
            "message": self.message,
            "executed": str(self.executed),
            "retryable": self.retryable,
            "advice": str(self.advice),
        }
        if self.retry_after_ms is not None:
            m["retry_after_ms"] = self.retry_after_ms
        if self.limit is not None:
            m["limit"] = self.limit
        if self.cause is not None:
            m["cause"] = self.cause
        return m

    @property
    def is_known(self) -> bool:
        """Whether code and reason go together, and the message says something."""
        return bool(self.message) and (self.code, self.reason) in FAULTS

    @classmethod
    def from_map(cls, m: dict[str, Any]) -> Failure:
        """Read the wire form; words that this version does not know become `UNKNOWN/UNMAPPED`, `maybe`."""
        get = m.get
        code, reason, executed, advice = get("code"), get("reason"), get("executed"), get("advice")
        row = _ROWS.get((code, reason)) if type(code) is str and type(reason) is str else None
        if row is None:
            row = fault(Reason.UNMAPPED)
        message = get("message")
        after = get("retry_after_ms")
        limit = get("limit")
        cause = get("cause")
        return cls(
            row.code,
            row.reason,
            message if type(message) is str and message else row.en,
            _EXECUTED.get(executed, Executed.MAYBE) if type(executed) is str else Executed.MAYBE,
            get("retryable") is True,
            _ADVICE.get(advice, row.advice) if type(advice) is str else row.advice,
            None if after is None else whole(after),
            limit if type(limit) is dict else None,
            cause if type(cause) is str else None,
        )


def _nothing() -> None:
    """Give nothing. A default that msgspec knows is left out of a message; these fields never are."""


def _version() -> Literal[1]:
    """Give the version of this wire, for the same reason."""
    return VERSION


class Reply(Struct, omit_defaults=True, gc=False):
    """The one answer to a call.

    `provider, instance, attempt, latency_ms, degraded, degrade_level, reach_id` are always there.
    `latency_ms` is the agent's time when an agent sends it, the whole call's when `bus.request` returns it.
    """

    ok: bool
    data: Any = field(default_factory=_nothing)
    error: Failure | None = None
    message_id: str = field(default_factory=str)
    version: Annotated[int, Field(ge=1)] = field(default_factory=VERSION.__int__)
    provider: str | None = field(default_factory=_nothing)
    instance: str | None = field(default_factory=_nothing)
    attempt: Count = field(default_factory=(1).__int__)
    latency_ms: Annotated[float, Field(ge=0), Meta(ge=0)] = field(default_factory=float)
    degraded: bool = False
    degrade_level: Whole = 0
    cached: bool = False
    stale: bool = False
    duplicate: bool = False
    durable: bool = True
    retried: bool = False
    cost: float | None = None
    notice: str | None = None
    reach_id: str | None = None
    blob: BlobRef | None = None
    trace: Trace | None = None

    @property
    def task(self) -> Any:
        """The handle of the task that a call with `mode="auto"` has become; None for every other call."""
        return None

    def unwrap(self) -> Any:
        """Give `data`, or raise the matching `ReachError`."""
        if self.ok:
            return self.data
        failure = self.error or Failure.of(Reason.UNMAPPED)
        raise failure.to_error(self.reach_id)

    def to_map(self, *, full: bool = False) -> dict[str, Any]:  # noqa: C901 - a loop is twice as slow
        """Give the wire form; without `full` what has its default is left out."""
        m: dict[str, Any] = {
            "version": self.version,
            "message_id": self.message_id,
            "ok": self.ok,
            "data": self.data,
            "provider": self.provider,
            "instance": self.instance,
            "attempt": self.attempt,
            "latency_ms": self.latency_ms,
        }
        if self.error is not None or full:
            m["error"] = None if self.error is None else self.error.to_map()
        if self.retried or full:
            m["retried"] = self.retried
        if self.trace is not None:
            m["trace"] = self.trace.to_map()
        if self.degraded or full:
            m["degraded"] = self.degraded
        if self.degrade_level or full:
            m["degrade_level"] = self.degrade_level
        if self.cached or full:
            m["cached"] = self.cached
        if self.stale or full:
            m["stale"] = self.stale
        if self.duplicate or full:
            m["duplicate"] = self.duplicate
        if not self.durable or full:
            m["durable"] = self.durable
        if self.cost is not None or full:
            m["cost"] = self.cost
        if self.notice is not None or full:
            m["notice"] = self.notice
        if self.reach_id is not None or full:
            m["reach_id"] = self.reach_id
        if self.blob is not None or full:
            m["blob"] = self.blob
        return m

    def pack(self) -> bytes:
        """Encode as msgpack. Raises `NotOnTheWire`; `codec.wire_form` has given the data."""
        try:
            return _encode(self)
        except (ValueError, TypeError, OverflowError):
            return codec.pack(self.to_map())  # Which says what does not fit, and where.

    @classmethod
    def read(cls, data: bytes) -> Reply | dict[str, Any]:
        """Read a body of either form: a reply, or the map of a frame. Raises `SchemaInvalid` for what is no body.

        A reply that does not hold together is `UNKNOWN/UNMAPPED`, as with `from_map`.
        """
        try:
            reply = _decode(data)
        except (MsgspecError, ValueError, RecursionError, SchemaInvalid):
            pass  # JSON, a frame, words that this version does not know, or nonsense: read by hand.
        else:
            error = reply.error
            if (
                (error is None) is reply.ok
                and (error is None or (error.is_known and codec.has_text_keys(error.limit)))
                and (reply.trace is None or reply.trace.is_sound)
                and (reply.blob is None or is_blob(reply.blob))
                and len(data) <= codec.MAX_BYTES
            ):
                return reply
        body = codec.unpack(data)
        return cls.from_map(body) if "ok" in body else body

    @classmethod
    def from_map(cls, m: dict[str, Any]) -> Reply:
        """Read the wire form; what does not hold together is `UNKNOWN/UNMAPPED`, never an exception."""
        get = m.get
        ok = get("ok")
        error = get("error")
        if error is None and ok is True:
            failure = None
        else:
            # Success and failure at once is neither, and nobody may take it for a success.
            failure = Failure.from_map(error if type(error) is dict and ok is False else {})
            ok = False
        attempt = get("attempt", 1)
        if type(attempt) is not int or not 1 <= attempt <= MAX_WHOLE:
            attempt = whole(attempt, 1) or 1
        latency_ms = get("latency_ms", 0.0)
        level = get("degrade_level", 0)
        if type(level) is not int or not 0 <= level <= MAX_WHOLE:
            level = whole(level) or 0
        blob = get("blob")
        trace = get("trace")
        return cls(
            ok,
            get("data"),
            failure,
            text if type(text := get("message_id")) is str else "",
            VERSION,
            text if type(text := get("provider")) is str else None,
            text if type(text := get("instance")) is str else None,
            attempt,
            latency_ms if type(latency_ms) in _NUMBERS and latency_ms >= 0 else 0.0,
            get("degraded") is True,
            level,
            get("cached") is True,
            get("stale") is True,
            get("duplicate") is True,
            get("durable") is not False,
            get("retried") is True,
            cost if type(cost := get("cost")) in _NUMBERS else None,
            text if type(text := get("notice")) is str else None,
            text if type(text := get("reach_id")) is str else None,
            blob if blob is not None and is_blob(blob) else None,
            None if trace is None else _trace(trace),
        )


class _Told(Reply, kw_only=True, gc=False):
    """A reply as our own agents send it."""

    ok: bool
    version: Literal[1] = field(default_factory=_version)
    data: codec.Simple = field(default_factory=_nothing)
    blob: dict[str, codec.Simple] | None = None


_encode: Final = Encoder().encode
_decode: Final = Decoder(_Told, ext_hook=refuse_ext).decode


def _trace(value: Any) -> Trace | None:
    try:
        return Trace.from_map(value) if type(value) is dict else None
    except ValueError:
        return None  # A result is worth more than the list of its hops.
