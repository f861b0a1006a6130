"""Why connecting failed, in words that say where it was tried and what to do."""

from __future__ import annotations

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
        return ConfigError(
            f"NATS at {where} refused the credentials of role {role!r}. "
            "Check REACH_NKEY / REACH_CREDS, or remove REACH_URL to use the local server of `reach up`."
        )
    kind = translate(error)
    reason = kind.reason if isinstance(kind, Unreachable) else Reason.CONNECT
    message = (
        f"NATS at {where} cannot be reached ({short(error)}) within {settings.connect_timeout_s:g} s. "
        "Start a local one with `reach up`, or point REACH_URL at one that runs; `reach doctor` checks the way."
    )
    return Unreachable(message, reason=reason)


def short(error: BaseException) -> str:
    """Give an error in one short line."""
    if isinstance(error, ReachError):
        return error.message
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
