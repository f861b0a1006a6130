"""What the shell offers after TAB: names of capabilities and agents that are there right now.

A person waits at a prompt, so this asks briefly, and anything that goes wrong means "no
suggestions": a completion that prints an error would destroy the line being typed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reach.wire.card import Card

_PATIENCE_S = 1.5
"""For a server that does not answer. One that does is heard out in a fifth of a second."""


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


def complete_instance(incomplete: str) -> list[tuple[str, str]]:
    """Offer agents, and their instances."""
    cards = _cards()
    found = {card.agent_id: card.display_name for card in cards}
    found |= {card.instance: card.version for card in cards}
    return sorted((name, about) for name, about in found.items() if name.startswith(incomplete))


def _cards() -> list[Card]:
    try:
        # All of what is needed before the clock runs: importing takes longer than asking.
        from reach.bus.connection import Connection
        from reach.bus.keys import Role
        from reach.bus.settings import resolve
        from reach.cli.roster import read_cards

        settings = resolve(role=Role.OPERATOR)

        async def ask() -> list[Card]:
            async with asyncio.timeout(_PATIENCE_S):
                connection = await Connection.open(settings, role=Role.OPERATOR.value)
                try:
                    return await read_cards(connection, patience_s=_PATIENCE_S)
                finally:
                    await connection.close()

        return asyncio.run(ask())
    except Exception:  # noqa: BLE001 - see above: nothing may be said here
        return []
