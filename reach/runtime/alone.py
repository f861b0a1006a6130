"""What an instance holds while nobody leads: read off the table that the last leader left, or off who else is there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from reach.errors import ReachError
from reach.policy.standby import tickets_alone
from reach.wire import codec
from reach.wire.registration import ROUTES, read_message, route_key
from reach.wire.route import RouteEntry

if TYPE_CHECKING:
    from reach.bus.connection import Connection
    from reach.registry.cards import CardDirectory
    from reach.wire.card import CapabilityCard, Card

TABLE_S: Final = 0.5
"""How long the table may take to be read."""

USUAL_TIER: Final = 10
"""An instance of this tier or a better one does not ask who else there is before it takes part."""


async def tickets(connection: Connection, cards: CardDirectory, card: Card) -> dict[str, int]:
    """Give the tickets of one instance by capability, all of them named. Raises `LinkDown`."""
    asked = [one for one in card.capabilities if one.kind != "task"]  # Tasks are pulled from a queue.
    counts = await asyncio.gather(*(_of(connection, cards, card, one) for one in asked))
    return {one.tag: count for one, count in zip(asked, counts, strict=True)}


async def _of(connection: Connection, cards: CardDirectory, card: Card, served: CapabilityCard) -> int:
    entry = await _entry(connection, served.tag)
    return tickets_alone(
        priority=served.priority,
        agent_id=card.agent_id,
        version=card.version,
        labels=card.labels,
        entry=entry,
        lowest_known=None if entry is not None else await _lowest(cards, card, served),
    )


async def _entry(connection: Connection, capability: str) -> RouteEntry | None:
    """Read what the last leader wrote; None where there is nothing, or no store."""
    subject = f"$JS.API.DIRECT.GET.KV_{ROUTES}.$KV.{ROUTES}.{route_key(capability)}"
    try:
        data = await connection.request(subject, b"", timeout_s=TABLE_S)
        return read_message(codec.unpack(data), RouteEntry) if data else None
    except ReachError:
        return None


async def _lowest(cards: CardDirectory, card: Card, served: CapabilityCard) -> int | None:
    """Give the best tier that is known; who is of a worse one than usual asks first."""
    known = cards.cards(served.tag)
    if served.priority > USUAL_TIER:
        known = await cards.instances(served.tag)
    tiers = [
        one.priority
        for other in known
        for one in other.capabilities
        if one.tag == served.tag and other.instance != card.instance
    ]
    return min(tiers, default=None)
