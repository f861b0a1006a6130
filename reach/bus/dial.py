"""Opening one link to one server, with everything that we ask of it; and noticing that its login was replaced."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import nats.errors

from reach.bus.internals import NatsLink
from reach.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from reach.bus.settings import Settings

OUTSTANDING_PINGS: Final = 2
"""Unanswered PINGs after which a link counts as dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEvents:
    """Who is told what happens to a link; all of them are instant."""

    lost: Callable[[NatsLink], None]
    error: Callable[[NatsLink, Exception], None]
    fault: Callable[[BaseException], None]
    lame_duck: Callable[[NatsLink], None]


async def dial(
    settings: Settings, server: str, *, name: str, inbox: str, timeout_s: float, events: LinkEvents
) -> NatsLink:
    """Open a link within `timeout_s`. Raises `OSError`, `TimeoutError`, `nats.errors.Error`, `ConfigError`."""
    link = NatsLink(on_fault=events.fault, on_end=events.lost)
    tried: list[Exception] = []

    async def failed(error: Exception) -> None:
        tried.append(error)
        events.error(link, error)

    async def lame_duck() -> None:
        events.lame_duck(link)

    options: dict[str, Any] = settings.to_nats_options()
    options.update(
        servers=[server],
        name=name,
        inbox_prefix=inbox,
        allow_reconnect=False,
        connect_timeout=timeout_s,
        # Trying again is ours; left to itself nats-py would knock sixty times in a row.
        max_reconnect_attempts=1,
        reconnect_time_wait=0,
        ping_interval=settings.ping_interval_s,
        max_outstanding_pings=OUTSTANDING_PINGS,
        error_cb=failed,
        lame_duck_mode_cb=lame_duck,
        skip_subject_validation=True,
    )
    try:
        async with asyncio.timeout(timeout_s):
            await _connect(link, options, tried)
        if settings.wants_tls and not link.encrypted:
            raise ConfigError(
                f"TLS was asked for, but NATS at {server} speaks plain text. "
                "Let the server require TLS, or take the tls:// and TLS settings away."
            )
    except BaseException:
        await link.abandon()
        raise
    return link


async def _connect(link: NatsLink, options: dict[str, Any], tried: list[Exception]) -> None:
    """Connect, and raise what went wrong rather than that no server was left."""
    try:
        await link.connect(**options)
    except nats.errors.NoServersError:
        if not tried:
            raise
        raise tried[-1] from None


class LoginFiles:
    """The files that a login is read from; `replaced` says whether they changed since it was last asked."""

    def __init__(self, settings: Settings) -> None:
        login = settings.credentials
        tls = settings.tls
        files = [login.nkey_file, login.creds_file]
        if tls is not None:
            files += [tls.cert, tls.key]
        self._files: list[Path] = [path for path in files if path is not None]
        self._seen = self._stamps()

    def replaced(self) -> bool:
        """Whether any file is another one than before; one that is being replaced right now is none yet."""
        now = self._stamps()
        if None in now or now == self._seen:
            return False
        self._seen = now
        return True

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._files]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
