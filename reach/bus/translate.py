"""NATS's errors, and the socket's, as ours.

nats-py has three modules of errors, one of them named like a builtin; what a caller meets is one of our seven
codes (behaviour ERR-1). The table below names every class; a subclass has its parent's row, and what an error
says in numbers or words (a JetStream code, a raw `-ERR` line) refines it. What is known about execution is
part of the row: an error raised before anything was published says `no`. The original stays behind the
result as `__cause__`, for the record only: its text never reaches a caller (ERR-4, ERR-5).
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from dataclasses import dataclass
from typing import Final

import nats.errors as core
import nats.js.errors as js

from reach.errors import BY_CODE, LinkDown, ReachError
from reach.faults import Code, Executed, Reason, fault


@dataclass(frozen=True, slots=True)
class Row:
    """What one class of errors becomes. Without `executed` and `message` the fault table's are used."""

    reason: Reason
    executed: Executed | None = None
    code: Code | None = None
    message: str | None = None


_NOT_SENT: Final = Row(Reason.DISCONNECTED, Executed.NO)
_LINK_LOST: Final = Row(Reason.DISCONNECTED, Executed.MAYBE)
_LATE: Final = Row(Reason.DEADLINE)
_NO_TLS: Final = Row(Reason.TLS)
_DENIED: Final = Row(Reason.AUTH_DENIED)
_MISSING: Final = Row(Reason.NOT_FOUND, code=Code.UPSTREAM_4XX)
_REFUSED: Final = Row(Reason.REMOTE_4XX)
_GARBLED: Final = Row(Reason.NON_JSON_BODY, message="What the store gave back is not what was put there.")
_BAD_NAME: Final = Row(Reason.SCHEMA, message="A subject, header, bucket or key does not fit NATS's rules.")
_FULL: Final = Row(Reason.OVERLOADED, message="The message store is full or short of resources right now.")
_NO_STORE: Final = Row(
    Reason.NO_RESPONDERS,
    message="No stream takes this message: JetStream is off at the broker, or the stream was not created.",
)

OUR_FAULT: Final = Row(Reason.UNMAPPED)
"""A mistake in how the library was used: no caller can do anything about it, so it is `UNKNOWN` to them."""

ROWS: Final[dict[type[BaseException], Row]] = {
    # The link, before anything left: safe to send again.
    LinkDown: _NOT_SENT,
    core.ConnectionClosedError: _NOT_SENT,
    core.ConnectionDrainingError: _NOT_SENT,
    core.ConnectionReconnectingError: _NOT_SENT,
    core.OutboundBufferLimitError: _NOT_SENT,
    # The link, while something was under way.
    core.StaleConnectionError: _LINK_LOST,
    core.UnexpectedEOF: _LINK_LOST,
    core.ProtocolError: _LINK_LOST,
    ConnectionResetError: _LINK_LOST,
    ConnectionAbortedError: _LINK_LOST,
    BrokenPipeError: _LINK_LOST,
    EOFError: _LINK_LOST,
    # Getting a link at all.
    core.NoServersError: Row(Reason.CONNECT),
    core.ServerNotInPoolError: Row(Reason.CONNECT),
    core.JsonParseError: Row(Reason.CONNECT),
    OSError: Row(Reason.CONNECT),
    socket.gaierror: Row(Reason.DNS),
    core.SecureConnRequiredError: _NO_TLS,
    core.SecureConnWantedError: _NO_TLS,
    core.SecureConnFailedError: _NO_TLS,
    ssl.SSLError: _NO_TLS,
    core.AuthorizationError: _DENIED,
    core.InvalidUserCredentialsError: _DENIED,
    # Time.
    TimeoutError: _LATE,
    core.TimeoutError: _LATE,
    core.FlushTimeoutError: _LATE,
    core.DrainTimeoutError: _LATE,
    js.FetchTimeoutError: _LATE,
    asyncio.CancelledError: Row(Reason.CANCELLED),
    # What was asked.
    core.NoRespondersError: Row(Reason.NO_RESPONDERS),
    core.MaxPayloadError: Row(Reason.TOO_LARGE, message="The message is larger than the broker takes."),
    core.BadSubjectError: _BAD_NAME,
    core.BadHeaderError: _BAD_NAME,
    js.InvalidKeyError: _BAD_NAME,
    js.InvalidBucketNameError: _BAD_NAME,
    js.InvalidObjectNameError: _BAD_NAME,
    # JetStream's answers.
    js.NoStreamResponseError: _NO_STORE,
    js.ServiceUnavailableError: _NO_STORE,
    js.ServerError: Row(Reason.REMOTE_5XX),
    js.APIError: _REFUSED,
    js.BadRequestError: _REFUSED,
    js.ConsumerInvalidResetError: _REFUSED,
    js.KeyValueError: _REFUSED,
    js.KeyWrongLastSequenceError: _REFUSED,
    js.KeyHistoryTooLargeError: _REFUSED,
    js.BadBucketError: _REFUSED,
    js.ObjectAlreadyExists: _REFUSED,
    js.LinkIsABucketError: _REFUSED,
    js.KeyValueLimitMarkerTTLNotSupportedError: Row(
        Reason.REMOTE_4XX, message="This NATS server is too old: markers with a lifetime need 2.11 or newer."
    ),
    js.NotFoundError: _MISSING,
    js.BucketNotFoundError: _MISSING,
    js.KeyNotFoundError: _MISSING,
    js.KeyDeletedError: _MISSING,
    js.NoKeysError: _MISSING,
    js.ObjectNotFoundError: _MISSING,
    js.ObjectDeletedError: _MISSING,
    js.BadObjectMetaError: _GARBLED,
    js.DigestMismatchError: _GARBLED,
    js.ConsumerSequenceMismatchError: Row(Reason.STREAM_CUT),
    js.TooManyStalledMsgsError: Row(Reason.OVERLOADED),
    core.SlowConsumerError: Row(Reason.OVERLOADED, Executed.MAYBE),
    # Mistakes of ours in using the library.
    core.BadSubscriptionError: OUR_FAULT,
    core.BadTimeoutError: OUR_FAULT,
    core.InvalidCallbackTypeError: OUR_FAULT,
    core.NotJSMessageError: OUR_FAULT,
    core.MsgAlreadyAckdError: OUR_FAULT,
    # Their roots, raised with a text only.
    js.Error: OUR_FAULT,
    core.Error: OUR_FAULT,
}
"""One row a class. `tests/bus/test_translate.py` proves that no class of nats-py is missing."""

_ROOTS: Final = frozenset({core.Error, js.Error})
"""Raised by themselves these say only in words what happened."""

_BY_API_CODE: Final[dict[int, Row]] = {
    10008: _FULL,  # JetStream system temporarily unavailable
    10023: _FULL,  # insufficient resources
    10047: _FULL,  # insufficient storage resources available
    10077: _FULL,  # maximum bytes (or messages) of the stream exceeded
    10054: Row(Reason.TOO_LARGE, message="The message is larger than the stream takes."),
}
"""JetStream's own error numbers that say more than its status."""

# What the server writes after `-ERR`; nats-py hands it on in lower case, or quoted as it came.
_BY_LINE: Final[tuple[tuple[str, Row], ...]] = (
    ("permissions violation", _DENIED),
    ("authorization violation", _DENIED),
    ("authentication", _DENIED),  # … expired, revoked, timeout
    ("maximum payload", Row(Reason.TOO_LARGE, message="The message is larger than the broker takes.")),
    ("maximum connections", Row(Reason.OVERLOADED, message="The broker takes no further connections.")),
    ("maximum account active connections", Row(Reason.OVERLOADED, message="The account is full.")),
    ("maximum subscriptions", Row(Reason.OVERLOADED, message="The broker takes no further subscriptions.")),
    ("tls required", _NO_TLS),
    ("secure connection", _NO_TLS),
    ("no ssl context", _NO_TLS),
    ("slow consumer", _LINK_LOST),
    ("stale connection", _LINK_LOST),
    ("invalid client protocol", Row(Reason.CONNECT)),
    ("empty response from server", Row(Reason.CONNECT)),
    ("info message, json parse", Row(Reason.CONNECT)),
    ("invalid subject", _BAD_NAME),
    ("unknown protocol", _LINK_LOST),
)

_DENIAL: Final = re.compile(
    r"permissions violation for (publish with reply of|publish to|subscription to) \"((?:[^\"\\]|\\.)*)\"",
    re.IGNORECASE,
)
_OPERATIONS: Final = {
    "publish to": "publish",
    "publish with reply of": "reply",
    "subscription to": "subscribe",
}


def translate(exc: BaseException) -> ReachError:
    """Give the error of ours that says what `exc` says; a `ReachError` is returned as it is.

    What no row fits is `UNKNOWN/UNMAPPED`, `executed=maybe`. `exc` becomes the result's `__cause__`.
    """
    if isinstance(exc, ReachError):
        return exc
    row = row_of(exc)
    known = fault(row.reason, row.code)
    error = BY_CODE[known.code](row.message, reason=row.reason, executed=row.executed)
    error.__cause__ = exc
    return error


def row_of(exc: BaseException) -> Row:
    """Find the row of an error: by JetStream's number, by class, by what a bare text says."""
    if isinstance(exc, BaseExceptionGroup):
        return row_of(exc.exceptions[0])
    if isinstance(exc, js.APIError) and (row := _row_of_answer(exc)) is not None:
        return row
    named = next((cls for cls in type(exc).__mro__ if cls in ROWS), None)
    if named is None:
        return OUR_FAULT
    if named in _ROOTS:
        text = str(exc).lower()
        return next((row for words, row in _BY_LINE if words in text), OUR_FAULT)
    return ROWS[named]


def _row_of_answer(exc: js.APIError) -> Row | None:
    """Refine an answer of JetStream by its numbers; bare classes (as nats-py raises them) carry none."""
    number = getattr(exc, "err_code", None)
    if number in _BY_API_CODE:
        return _BY_API_CODE[number]
    if type(exc) is not js.APIError:
        return None
    status = getattr(exc, "code", None) or 0
    if status == 404:  # noqa: PLR2004 - the status of HTTP, which JetStream borrows
        return _MISSING
    return Row(Reason.REMOTE_5XX) if status >= 500 else None  # noqa: PLR2004


def denied_subject(text: str) -> tuple[str, str] | None:
    """Read a denial of the broker: `("publish" | "reply" | "subscribe", subject)`, None for another text.

    nats-py hands `-ERR` lines on in lower case, so the subject is in lower case too: compare accordingly.
    """
    found = _DENIAL.search(text)
    if found is None:
        return None
    return _OPERATIONS[found[1].lower()], found[2].replace('\\"', '"').replace("\\\\", "\\")
