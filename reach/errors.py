"""Every exception a user of Reach can meet.

::

    ReachError                       a call failed; carries code, reason, executed, advice ...
    ├── CallTimeout                  TIMEOUT
    ├── Unreachable                  CONN_REFUSED
    ├── UpstreamFailure              UPSTREAM_5XX
    ├── UpstreamRefusal              UPSTREAM_4XX
    ├── SchemaInvalid                SCHEMA_INVALID
    ├── RateLimited                  RATE_LIMITED
    └── UnknownFailure               UNKNOWN
    NotExecuted                      raised by a handler: nothing was done, the call may go elsewhere
    ConfigError (ValueError)         a setting, key, folder or file is wrong; says what would be right
    NameRefused (ValueError)         a name does not fit a subject; `.nearest` is one that would
    NotOnTheWire (ValueError)        a value cannot cross the wire; `.path` says where it sits
    LinkDown (Exception)             the connection is not there (internal to the bus; calls turn it into Unreachable)

`bus.request` returns failures as replies; `unwrap`, `stream`, `submit` and touched functions raise them.
Programming mistakes are plain `TypeError` and `ValueError`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from reach.faults import Advice, Code, Executed, Reason, fault, is_retryable


class ReachError(Exception):
    """A call that failed, with everything that is known about it.

    A handler may raise a subclass to answer with that failure; what it leaves out comes from the table
    in `reach.faults`. `limit` (for refusals) is a map `{name, owner, used, allowed, resets_in_ms}`.
    """

    code: ClassVar[Code] = Code.UNKNOWN
    default_reason: ClassVar[Reason] = Reason.UNMAPPED

    def __init__(
        self,
        message: str | None = None,
        *,
        reason: Reason | None = None,
        executed: Executed | None = None,
        retryable: bool | None = None,
        retry_after_ms: int | None = None,
        advice: Advice | None = None,
        limit: dict[str, Any] | None = None,
        cause: str | None = None,
    ) -> None:
        row = fault(reason or self.default_reason, self.code)
        self.reason = row.reason
        self.message = row.en if message is None else message
        self.executed = row.executed if executed is None else executed
        self.retryable = is_retryable(row, idempotent=False) if retryable is None else retryable
        self.retry_after_ms = retry_after_ms
        self.advice = row.advice if advice is None else advice
        self.limit = limit
        self.cause = cause
        self.reach_id: str | None = None
        super().__init__(self.message)

    def __str__(self) -> str:
        tail = f" [{self.reach_id}]" if self.reach_id else ""
        return f"{self.code}/{self.reason}: {self.message}{tail}"


class CallTimeout(ReachError):
    """The time ran out: deadline, first byte, or silence inside a stream."""

    code = Code.TIMEOUT
    default_reason = Reason.DEADLINE


class Unreachable(ReachError):
    """Nobody was there, or our own link was not."""

    code = Code.CONN_REFUSED
    default_reason = Reason.NO_RESPONDERS


class UpstreamFailure(ReachError):
    """The far end failed: it stopped, answered nonsense, or its code raised."""

    code = Code.UPSTREAM_5XX
    default_reason = Reason.HANDLER_ERROR


class UpstreamRefusal(ReachError):
    """The far end understood and refused."""

    code = Code.UPSTREAM_4XX
    default_reason = Reason.REMOTE_4XX


class SchemaInvalid(ReachError):
    """The parameters, their size, or the capability's name do not fit."""

    code = Code.SCHEMA_INVALID
    default_reason = Reason.SCHEMA


class RateLimited(ReachError):
    """A limit refused the call; `limit` names it."""

    code = Code.RATE_LIMITED
    default_reason = Reason.OVERLOADED


class UnknownFailure(ReachError):
    """Not known what happened, or nothing better is known."""

    code = Code.UNKNOWN
    default_reason = Reason.UNMAPPED


BY_CODE: dict[Code, type[ReachError]] = {
    cls.code: cls
    for cls in (
        CallTimeout,
        Unreachable,
        UpstreamFailure,
        UpstreamRefusal,
        SchemaInvalid,
        RateLimited,
        UnknownFailure,
    )
}
"""One class a code."""


class NotExecuted(Exception):
    """Raised by a handler that failed before it changed anything: the call is safe to send elsewhere."""


class ConfigError(ValueError):
    """A setting, key, folder or file is wrong; the message says what would be right."""


class NameRefused(ValueError):
    """A name that would not survive as part of a subject; `nearest` is one that would."""

    def __init__(self, message: str, *, nearest: str | None = None) -> None:
        super().__init__(message)
        self.nearest = nearest


class NotOnTheWire(ValueError):
    """A value that cannot cross the wire; `path` is where it sits, such as `params.lines[3].price`."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class LinkDown(Exception):
    """The connection to NATS is not there right now."""
