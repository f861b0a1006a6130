"""Replacing a link that still works: the new one first, then the old one is drained.

Done when the login was replaced on disk, and when the server says that it is about to stop (lame duck). Nothing
that was under way is lost: requests in a queue group go to either link, answers to both (the reply side knows
each call once), and the old link closes only after everything sent over it was handed on.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

from reach.bus.why import short
from reach.errors import LinkDown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from reach.bus.connection import Connection
    from reach.bus.internals import NatsLink

_log = logging.getLogger("reach.bus")

ROUND_TRIP_S: Final = 5.0
DRAIN_S: Final = 30.0
"""How long transfers that began on the old link may take to end."""

_LOOK_S: Final = 0.05


async def renew(connection: Connection, *, elsewhere: bool = False) -> bool:
    """Put a connection on a new link, on another server where there is one. Whether it came about.

    With `elsewhere` only another server will do: this one is leaving.
    """
    old = connection.link
    if old is None:
        return False
    connection.learn(old)
    here = old.address
    servers = [server for server in connection.known_servers if server != here]
    if not elsewhere:
        servers.append(here)
    for server in servers:
        try:
            new = await connection.dial(server, connection.settings.connect_timeout_s)
        except Exception as failed:  # noqa: BLE001 - a damaged login alone has a dozen kinds; the old link stays
            connection.last_error = short(failed)
            continue
        if connection.link is not old or not old.is_connected:
            await new.abandon()  # The old one has ended meanwhile; that has an order of its own.
            return False
        await _change(connection, old, new)
        return True
    if servers:
        _log.warning(
            "the link to %s could not be renewed: %s", connection.settings.display, connection.last_error
        )
    return False


async def _change(connection: Connection, old: NatsLink, new: NatsLink) -> None:
    """Use the new link, and let the old one hand on what is under way."""
    # Taken now: while the new link was dialled, subscriptions came and went on the old one.
    sids = [subscription.sid for subscription in connection.subscriptions if subscription.sid]
    connection.take(new)
    connection.leaving = old
    try:
        with suppress(LinkDown, TimeoutError):
            # Two sockets: what the new one subscribes must be there before the old one's interest ends.
            await new.round_trip(ROUND_TRIP_S)
        await _drain(old, sids, stays=lambda: not new.is_closed)
    except asyncio.CancelledError:
        old.abort()
        raise
    finally:
        connection.leaving = None


async def _drain(old: NatsLink, sids: Iterable[int], *, stays: Callable[[], bool]) -> None:
    """Let an old link hand on what is under way, for as long as the new one `stays`, then close it."""
    sids = list(sids)
    for sid in sids:
        old.unlisten(sid)
    with suppress(LinkDown, TimeoutError):
        await old.round_trip(ROUND_TRIP_S)
    for sid in sids:
        old.forget(sid)
    patience = monotonic() + DRAIN_S
    while old.has_others and not old.is_closed and stays() and monotonic() < patience:  # noqa: ASYNC110 - no event
        await asyncio.sleep(_LOOK_S)
    await old.close()
    old.release_pongs()
