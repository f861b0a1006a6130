"""Why connecting failed, in words that say where it was tried and what to do."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from reach.bus.translate import translate
from reach.errors import ConfigError, ReachError, Unreachable
from reach.faults import Reason

if TYPE_CHECKING:
    from reach.bus.settings import Settings


def why_not(error: Exception, settings: Settings, role: str) -> Exception:
    """Give the error to raise for a connection that did not come about within its time."""
    if isinstance(error, ConfigError):
        return error
    where = settings.display
    text = str(error).lower()
    if "authorization" in text or "authentication" in text:
        return ConfigError(f"NATS at {where} refused the credentials of role {role!r}. {_login(settings)}")
    kind = translate(error)
    reason = kind.reason if isinstance(kind, Unreachable) else Reason.CONNECT
    message = (
        f"NATS at {where} cannot be reached within {settings.connect_timeout_s:g} s: {_plain(error)}. "
        "Start a local one with `reach up`, or point REACH_URL at one that runs; `reach doctor` checks the way."
    )
    return Unreachable(message, reason=reason)


def _login(settings: Settings) -> str:
    """Say what was tried to log in, and what would be right."""
    login = settings.credentials
    if login.kind == "none":
        return (
            "It wants a login, and none was given. Right would be REACH_NKEY, REACH_CREDS, REACH_USER with "
            "REACH_PASSWORD, or REACH_TOKEN; or no REACH_URL, to use the local server of `reach up`."
        )
    return f"They were: {login.kind}, {login.source}. Put that right, or give another one way to log in."


def _plain(error: Exception) -> str:
    """Say the common reasons as one would say them."""
    match error:
        case ConnectionRefusedError():
            return "nothing listens there"
        case socket.gaierror():
            return "the host's name leads nowhere"
        case TimeoutError():
            return "no answer"
    return short(error)


def short(error: BaseException) -> str:
    """Give an error in one short line."""
    if isinstance(error, ReachError):
        return error.message
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
