"""Who is there and what they offer, as they say themselves when asked (`$SRV.INFO`, `$SRV.STATS`).

A sweep ends when nobody new has answered for a moment: a person waits for it. What does not answer is not
listed; `reach doctor CAPABILITY` finds agents that take calls and are silent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from reach.registry.cards import CardDirectory, merged
from reach.wire.service import ServiceStats

if TYPE_CHECKING:
    from reach.bus.connection import Connection
    from reach.call.client import Bus
    from reach.wire.card import CapabilityCard, Card

_STATS = "$SRV.STATS"

_PATIENCE_S = 2.0
_STALL_S = 0.2


@dataclass(frozen=True, slots=True)
class Present:
    """One instance: its card, and what it counted. `inflight` is None where the instance does not tell."""

    card: Card
    uptime_s: float
    requests: int
    errors: int
    inflight: int | None

    def to_map(self) -> dict[str, Any]:
        """Give it for programs."""
        return {
            "agent": self.card.agent_id,
            "instance": self.card.instance,
            "version": self.card.version,
            "owner": self.card.owner,
            "region": self.card.region,
            "labels": self.card.labels,
            "capabilities": [one.tag for one in self.card.capabilities],
            "generation": self.card.generation,
            "uptime_s": round(self.uptime_s, 1),
            "inflight": self.inflight,
            "requests": self.requests,
            "errors": self.errors,
        }


@dataclass(frozen=True, slots=True)
class Offer:
    """One capability: what holds for every instance of it, and who serves it."""

    card: CapabilityCard
    providers: tuple[str, ...]
    instances: int

    @property
    def summary(self) -> str:
        """The first line of its description."""
        return self.card.description.partition("\n")[0]

    def to_map(self, *, full: bool) -> dict[str, Any]:
        """Give it for programs; the schemas only when `full`."""
        told = self.card.model_dump(exclude=None if full else {"input_schema", "output_schema"})
        return {
            "capability": told.pop("tag"),
            **told,
            "agents": list(self.providers),
            "instances": self.instances,
        }


async def read_cards(connection: Connection, *, patience_s: float = _PATIENCE_S) -> list[Card]:
    """Ask every instance for its card. Raises `LinkDown`."""
    directory = CardDirectory(connection)
    try:
        return await directory.everybody(timeout_s=patience_s, stall_s=min(_STALL_S, patience_s))
    finally:
        await directory.close()


async def read_present(connection: Connection) -> list[Present]:
    """Ask every instance for its card and its figures. Raises `LinkDown`."""
    cards, stats = await asyncio.gather(read_cards(connection), _read_stats(connection))
    return [_present(card, stats.get(card.instance)) for card in cards]


async def _read_stats(connection: Connection) -> dict[str, ServiceStats]:
    found: dict[str, ServiceStats] = {}
    async for data in connection.request_many(_STATS, b"", timeout_s=_PATIENCE_S, stall_s=_STALL_S):
        try:
            stats = ServiceStats.model_validate_json(data)
        except ValidationError:
            continue  # A service that is not ours may say what it likes.
        found[stats.id] = stats
    return found


def _present(card: Card, stats: ServiceStats | None) -> Present:
    now = time.time()
    if stats is None:
        return Present(card, now - card.generation / 1000, 0, 0, None)
    told = [(one.data or {}).get("inflight") for one in stats.endpoints]
    inflight = [count for count in told if isinstance(count, int)]
    return Present(
        card=card,
        uptime_s=max(0.0, now - _started(stats, card)),
        requests=sum(one.num_requests for one in stats.endpoints),
        errors=sum(one.num_errors for one in stats.endpoints),
        inflight=sum(inflight) if inflight else None,
    )


def _started(stats: ServiceStats, card: Card) -> float:
    try:
        return datetime.fromisoformat(stats.started).timestamp()
    except ValueError:
        return card.generation / 1000


def offers(cards: Iterable[Card]) -> list[Offer]:
    """Turn cards around: by capability, in order of name."""
    by_tag: dict[str, list[tuple[Card, CapabilityCard]]] = {}
    for card in cards:
        for one in card.capabilities:
            by_tag.setdefault(one.tag, []).append((card, one))
    return [
        Offer(
            card=merged([one for _, one in serving]),
            providers=tuple(sorted({card.agent_id for card, _ in serving})),
            instances=len(serving),
        )
        for _, serving in sorted(by_tag.items())
    ]


async def idempotent(bus: Bus, capability: str) -> bool:
    """Whether every agent that serves it says that doing it twice is the same as once."""
    card = await bus.cards.card_for(capability)
    return card is not None and card.idempotent
