"""What exceptions of other libraries mean for a call (behaviour ERR-1, ERR-2).

A guarded body talks to its far end with whatever library it likes. What that library raises is read here as
what is known: was anybody there, may it have happened. What this page does not know is the body's own
affair. Libraries are recognised only where the program has imported them; none is imported here.
"""

from __future__ import annotations

import socket
import ssl
import sys
from typing import Any

from reach.errors import NotExecuted, ReachError
from reach.faults import Executed, Reason
from reach.wire.reply import Failure

_TOO_MANY = 429
_NOT_FOUND = 404
_UNAUTHORIZED = 401
_FORBIDDEN = 403
_SERVER_ERRORS = 500
_MAY_PASS = frozenset({502, 503, 504})


def failure_of(error: Exception) -> Failure | None:
    """Give what an exception means; None for one that is the body's own."""
    if isinstance(error, ReachError):
        return Failure.of_error(error)
    if isinstance(error, NotExecuted):
        return Failure.of(Reason.HANDLER_ERROR, executed=Executed.NO)
    found = _of_httpx(error)
    return found if found is not None else _of_socket(error)


def is_flagged(failure: Failure) -> bool:
    """Whether the far end said that the same call may succeed a moment later."""
    return failure.reason is Reason.REMOTE_5XX and failure.retryable


def _of_socket(error: Exception) -> Failure | None:
    if isinstance(error, ConnectionRefusedError):
        return Failure.of(Reason.CONNECT)
    if isinstance(error, socket.gaierror):
        return Failure.of(Reason.DNS)
    if isinstance(error, ssl.SSLCertVerificationError):
        return Failure.of(Reason.TLS)
    if isinstance(error, TimeoutError):
        return Failure.of(Reason.DEADLINE)
    if isinstance(error, ConnectionError):
        return Failure.of(Reason.INSTANCE_GONE)
    return None


def _of_httpx(error: Exception) -> Failure | None:
    httpx: Any = sys.modules.get("httpx")
    if httpx is None:
        return None
    if isinstance(error, httpx.HTTPStatusError):
        return _of_status(error.response.status_code, error.response.headers.get("retry-after"))
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return Failure.of(Reason.CONNECT)
    if isinstance(error, httpx.TimeoutException):
        return Failure.of(Reason.DEADLINE)
    if isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
        return Failure.of(Reason.INSTANCE_GONE)
    return None


def _of_status(status: int, retry_after: str | None) -> Failure:
    """Read an HTTP status (ERR-2)."""
    if status == _TOO_MANY:
        wait = retry_after.strip() if retry_after else ""
        return Failure.of(Reason.REMOTE_429, retry_after_ms=int(wait) * 1000 if wait.isdecimal() else None)
    if status >= _SERVER_ERRORS:
        return Failure.of(Reason.REMOTE_5XX, retryable=status in _MAY_PASS)
    if status in {_UNAUTHORIZED, _FORBIDDEN}:
        return Failure.of(Reason.FORBIDDEN if status == _FORBIDDEN else Reason.AUTH_DENIED)
    return Failure.of(Reason.REMOTE_4XX)
