"""The lanes of a capability as they are shown: from the routing table where there is one, else from cards."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from reach.wire.route import Breaker, Canary, Lane, RouteEntry, Strategy

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from reach.wire.card import Card

_STYLES: Final = {"closed": "green", "forced_closed": "green", "disabled": "yellow", "half_open": "yellow"}


@dataclass(frozen=True, slots=True)
class LaneShown:
    """One lane; `lane` and `share` (0 to 1) are None where nobody measures and decides."""

    provider: str
    priority: int
    instances: int
    lane: Lane | None = None
    share: float | None = None

    def to_map(self) -> dict[str, Any]:
        """Give it for programs."""
        lane = self.lane
        return {
            "provider": self.provider,
            "priority": self.priority,
            "instances": self.instances,
            "share": None if self.share is None else round(self.share, 4),
            "weight": None if lane is None else round(lane.weight, 4),
            "breaker": None if lane is None else lane.breaker.state,
            "limit": None if lane is None else lane.limit,
        }

    @property
    def share_shown(self) -> str:
        """Its share for people."""
        return "-" if self.share is None else percent(self.share)

    @property
    def breaker_shown(self) -> RenderableType:
        """Its breaker for people."""
        return "-" if self.lane is None else breaker(self.lane.breaker)


def lanes_of(entry: RouteEntry) -> list[LaneShown]:
    """Give the lanes of an entry of the table, by tier."""
    return [
        LaneShown(lane.provider, lane.priority, lane.instances, lane, lane.share)
        for lane in sorted(entry.lanes, key=lambda lane: (lane.priority, lane.provider))
    ]


def is_over(lane: Lane) -> bool:
    """Whether all that is left of a lane is instances that said goodbye: the table keeps them for a minute."""
    return (
        lane.instances == 0
        and bool(lane.exceptions)
        and all(one.state == "draining" for one in lane.exceptions)
    )


def lanes_in(cards: Iterable[Card], capability: str) -> list[LaneShown]:
    """Give the lanes that cards speak of, by tier."""
    counted: dict[str, tuple[int, int]] = {}
    for card in cards:
        for one in card.capabilities:
            if one.tag == capability:
                priority, count = counted.get(card.agent_id, (one.priority, 0))
                counted[card.agent_id] = (min(priority, one.priority), count + 1)
    found = [LaneShown(provider, priority, count) for provider, (priority, count) in counted.items()]
    return sorted(found, key=lambda lane: (lane.priority, lane.provider))


# ------------------------------------------------------------------------------------------------ in words


def percent(part: float) -> str:
    """Give a part of the whole: `66.7 %`, `100 %`, and `<0.1 %` for what is little and not nothing."""
    if 0 < part < 0.0005:  # noqa: PLR2004 - what would be shown as 0.0
        return "<0.1 %"
    text = f"{part * 100:.1f}".removesuffix(".0")
    return f"{text} %"


def breaker(told: Breaker) -> Text:
    """Give a breaker's state, and for how long an open one stays so."""
    from rich.text import Text

    word = told.state.replace("_", " ")
    if told.state == "open" and told.until is not None:
        word += f" {max(0, told.until / 1000 - time.time()):.0f} s"
    return Text(word, style=_STYLES.get(told.state, "red"))


def canary(told: Canary) -> str:
    """Say who is tried out, with how much."""
    group = [told.version] if told.version is not None else []
    group += [f"{key}={value}" for key, value in told.labels.items()]
    callers = f", and all of {', '.join(told.callers)}" if told.callers else ""
    return f"{told.percent:g} % to {' '.join(group) or 'nobody'}{callers}"


def strategy(told: Strategy) -> str:
    """Say how an instance is picked."""
    text = told.name if told.key is None else f"{told.name} by {told.key}"
    parts = [
        f"{share.provider or ' '.join(f'{key}:{value}' for key, value in share.labels.items())}={share.weight:g}"
        for share in told.shares
    ]
    return f"{text} ({', '.join(parts)})" if parts else text
