"""The answer: a result or a structured failure, and how it came about.

`Failure` is the wire's error object; `ReachError` is the same as an exception. `Reply.unwrap` turns one
into the other. Both messages are packed by hand (see `reach.wire.envelope`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from reach.errors import BY_CODE, ReachError
from reach.faults import Advice, Code, Executed, Reason, fault, is_retryable
from reach.wire.envelope import VERSION
from reach.wire.trace import Trace

_FAILURE_OPTIONAL: Final = ("retry_after_ms", "limit", "cause")


@dataclass(slots=True)
class Failure:
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
    retry_after_ms: int | None = None
    limit: dict[str, Any] | None = None
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
            "code": self.code.value,
            "reason": self.reason.value,
            "message": self.message,
            "executed": self.executed.value,
            "retryable": self.retryable,
            "advice": self.advice.value,
        }
        for name in _FAILURE_OPTIONAL:
            if (value := getattr(self, name)) is not None:
                m[name] = value
        return m

    @classmethod
    def from_map(cls, m: dict[str, Any]) -> Failure:
        """Read the wire form; words that this version does not know become `UNKNOWN/UNMAPPED`, `maybe`."""
        try:
            row = fault(Reason(m.get("reason", "")), Code(m.get("code", "")))
        except ValueError:
            row = fault(Reason.UNMAPPED)
        try:
            executed = Executed(m.get("executed", ""))
        except ValueError:
            executed = Executed.MAYBE
        try:
            advice = Advice(m.get("advice", ""))
        except ValueError:
            advice = row.advice
        after = m.get("retry_after_ms")
        limit = m.get("limit")
        cause = m.get("cause")
        return cls(
            code=row.code,
            reason=row.reason,
            message=str(m.get("message") or row.en),
            executed=executed,
            retryable=m.get("retryable") is True,
            advice=advice,
            retry_after_ms=after if type(after) is int else None,
            limit=limit if type(limit) is dict else None,
            cause=cause if type(cause) is str else None,
        )


@dataclass(slots=True)
class Reply:
    """The one answer to a call; `provider, instance, attempt, latency_ms, degraded, degrade_level, reach_id` always.

    `latency_ms` is the agent's time when an agent sends it and the whole call's when `bus.request` returns it.
    """

    ok: bool
    data: Any = None
    error: Failure | None = None
    message_id: str = ""
    version: int = VERSION
    provider: str | None = None
    instance: str | None = None
    attempt: int = 1
    latency_ms: float = 0.0
    degraded: bool = False
    degrade_level: int = 0
    cached: bool = False
    stale: bool = False
    duplicate: bool = False
    durable: bool = True
    retried: bool = False
    cost: float | None = None
    notice: str | None = None
    reach_id: str | None = None
    blob: dict[str, Any] | None = None
    trace: Trace | None = None

    def unwrap(self) -> Any:  # noqa: ANN401 - results are the capability's own
        """Give `data`, or raise the matching `ReachError`."""
        if self.ok:
            return self.data
        failure = self.error or Failure.of(Reason.UNMAPPED)
        raise failure.to_error(self.reach_id)

    def to_map(self, *, full: bool = False) -> dict[str, Any]:
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
        for name, default in _REPLY_OPTIONAL:
            value = getattr(self, name)
            if full or value != default:
                m[name] = value
        return m

    @classmethod
    def from_map(cls, m: dict[str, Any]) -> Reply:
        """Read the wire form; a reply that does not hold together becomes `UNKNOWN/UNMAPPED`, never an exception."""
        get = m.get
        error = get("error")
        ok = get("ok") is True
        failure = Failure.from_map(error) if type(error) is dict else None
        if not ok and failure is None:
            failure = Failure.of(Reason.UNMAPPED)
        trace = get("trace")
        return cls(
            ok=ok,
            data=get("data"),
            error=failure,
            message_id=get("message_id") or "",
            provider=get("provider"),
            instance=get("instance"),
            attempt=get("attempt", 1),
            latency_ms=get("latency_ms", 0.0),
            degraded=get("degraded", False),
            degrade_level=get("degrade_level", 0),
            cached=get("cached", False),
            stale=get("stale", False),
            duplicate=get("duplicate", False),
            durable=get("durable", True),
            retried=get("retried", False),
            cost=get("cost"),
            notice=get("notice"),
            reach_id=get("reach_id"),
            blob=get("blob"),
            trace=Trace.from_map(trace) if type(trace) is dict else None,
        )


_REPLY_OPTIONAL: Final = (
    ("degraded", False),
    ("degrade_level", 0),
    ("cached", False),
    ("stale", False),
    ("duplicate", False),
    ("durable", True),
    ("cost", None),
    ("notice", None),
    ("reach_id", None),
    ("blob", None),
)
