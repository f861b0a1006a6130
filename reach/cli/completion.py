"""What the shell offers after TAB: names of capabilities and agents that are there right now.

A person waits at a prompt, so this asks for half a second at most, and anything that goes wrong means "no
suggestions": a completion that prints an error would destroy the line being typed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reach.wire.card import Card

_PATIENCE_S = 0.5


def complete_capability(incomplete: str) -> list[tuple[str, str]]:
    """Offer capabilities, with what they do."""
    found: dict[str, str] = {}
    for card in _cards():
        for capability in card.capabilities:
            if capability.tag.startswith(incomplete):
                found.setdefault(capability.tag, capability.description.partition("\n")[0])
    return sorted(found.items())


def complete_agent(incomplete: str) -> list[tuple[str, str]]:
    """Offer agents."""
    return sorted(
        {
            card.agent_id: card.display_name for card in _cards() if card.agent_id.startswith(incomplete)
        }.items()
    )


def _cards() -> list[Card]:
    from reach.cli.dial import open_bus
    from reach.cli.roster import read_cards

    async def ask() -> list[Card]:
        async with asyncio.timeout(_PATIENCE_S), open_bus(None) as bus:
            return await read_cards(bus.connection, patience_s=_PATIENCE_S / 2)

    try:
        return asyncio.run(ask())
    except Exception:  # noqa: BLE001 - see above: nothing may be said here
        return []
