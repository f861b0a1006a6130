"""Capabilities that nobody registered, served by a more general name: what the routing table says of them (ROUTE-4).

The supervisor puts stand-ins into the entry of every capability that it knows. Of a name that was never registered it
knows nothing, so whoever calls it works its entry out from those of its ancestors, by the rule that the supervisor has
written down: the nearest one that has somebody serves, the others are the tiers after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reach.wire.route import RouteEntry, TierShare

if TYPE_CHECKING:
    from collections.abc import Callable

    from reach.policy.inherit import Inheritance
    from reach.wire.route import Lane


def derived(
    capability: str, rule: Inheritance, entry_of: Callable[[str], RouteEntry | None]
) -> RouteEntry | None:
    """Work out the entry of a capability that has none; None where nobody more general serves anything.

    Args:
        capability: Whose.
        rule: The rule in force.
        entry_of: Gives what the table says of a name.
    """
    lanes: dict[str, Lane] = {}
    nearest: RouteEntry | None = None
    tiers: tuple[TierShare, ...] = ()
    for name, generation in rule.ancestors(capability):
        entry = entry_of(name)
        if entry is None:
            continue
        own = {lane.provider: lane for lane in entry.lanes if lane.serves is None}
        for provider, lane in own.items():
            priority = rule.priority(lane.priority, generation)
            lanes.setdefault(provider, lane.model_copy(update={"serves": name, "priority": priority}))
        in_use = {lane.priority for lane in own.values() if lane.instances and lane.weight > 0}
        if not tiers and in_use:
            nearest = entry
            used = [tier for tier in entry.tiers if tier.priority in in_use]
            whole = sum(tier.share for tier in used)
            tiers = tuple(
                TierShare(priority=rule.priority(tier.priority, generation), share=tier.share / whole)
                for tier in used
                if whole > 0
            )
    if nearest is None:
        return None
    return RouteEntry(
        capability=capability,
        term=nearest.term,
        revision=nearest.revision,
        at=nearest.at,
        lanes=tuple(lanes.values()),
        tiers=tiers,
        last_resort=nearest.last_resort,
        canary=nearest.canary,
        strategy=nearest.strategy,
        terms_off=nearest.terms_off,
    )


class Heirs:
    """Who was worked out from whom, so that what changes of a name is heeded for those below it."""

    __slots__ = ("_below",)

    def __init__(self) -> None:
        self._below: dict[str, set[str]] = {}

    def note(self, capability: str, rule: Inheritance) -> None:
        """Remember that a capability has no entry of its own."""
        for name, _ in rule.ancestors(capability):
            self._below.setdefault(name, set()).add(capability)

    def below(self, name: str) -> tuple[str, ...]:
        """Give the capabilities that go by what is said of a name."""
        return tuple(self._below.get(name, ()))

    def clear(self) -> None:
        """Forget all of it."""
        self._below.clear()
