"""What one entry of the routing table means for a caller: lanes, their shares, and whether NATS may pick.

Tickets let the queue group do what the table says, so most entries need nothing more: calls stay on the group's
subject (`special` is False). Special is what tickets cannot say, or not yet:

==========================================  ===============================================================
found in the entry                          what follows
==========================================  ===============================================================
several lanes, not alike                    a lane is drawn by its share, which is exact where tickets round
a tier that is not the best one             a lane is drawn, and the reply says how far it fell
a breaker that is not closed                the lane is left out, or asked for a probe
a limit of calls                            calls under way are counted
an instance that may not listen to orders   the others are addressed directly (`by_instance`): it was told to
(suspect, unavailable, steered, fenced)     hold no tickets, and may still hold them
a canary, a strategy                        instances are addressed directly
==========================================  ===============================================================

An instance that is warming up, busy or leaving holds fewer tickets itself: where there is one lane, that is enough.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from reach.call.choose import Route, limit_of
from reach.policy import canary as canaries
from reach.policy import pick
from reach.policy.alias import Weighted
from reach.policy.inherit import stands_in
from reach.policy.tickets import spread
from reach.policy.weight import shares
from reach.wire import subjects

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from reach.call.lanes import Lane, Lanes
    from reach.call.ready import Ready
    from reach.wire.card import Card
    from reach.wire.route import Lane as Told
    from reach.wire.route import RouteEntry

_log = logging.getLogger("reach.call")

PASSING: Final = frozenset({"closed", "forced_closed", "disabled"})
"""What a breaker is while it lets calls pass."""

DEAF: Final = frozenset({"suspect", "unavailable", "steered", "fenced"})
"""What is said of instances that may not have heard that they hold fewer tickets."""

ALIKE: Final = 0.02
"""Lanes whose shares for each instance differ by less than this part of them are alike: the group is as good."""

WHOLE_LANE: Final = "lane."
"""Begins the name of a candidate that stands for a lane of which no instance is known. Instances have no dots."""


@dataclass(slots=True)
class Part:
    """One lane as the table has it. `share` is its part of the calls; 0 where it is not in use."""

    told: Told
    lane: Lane
    level: int
    route: Route
    share: float = 0.0

    @property
    def provider(self) -> str:
        """Whose it is."""
        return self.told.provider

    @property
    def there(self) -> bool:
        """Whether it has instances that take calls, and an operator has not taken it out."""
        return self.told.instances > 0 and self.told.weight > 0

    def factor(self, card: Card, at_ms: int) -> float:
        """Give an instance's share relative to its neighbours."""
        for one in self.told.exceptions:
            if one.instance == card.instance:
                lapsed = one.until is not None and one.until <= at_ms
                return 1.0 if lapsed or card.generation > one.generation else one.factor
        return 1.0


@dataclass(frozen=True, slots=True)
class Asker:
    """Who draws: the client's region, the calls that it has under way at an instance, the time (epoch ms)."""

    region: str
    load: Callable[[str], int]
    at_ms: int


@dataclass(slots=True)
class Crowd:
    """Instances that one draw is among, and the lane of each."""

    picker: pick.Picker
    parts: dict[str, Part]
    ways: dict[str, Route] = field(default_factory=dict)

    def way(self, name: str) -> Route:
        """Give the way to a drawn name, made at first use."""
        found = self.ways.get(name)
        if found is None:
            part = self.parts[name]
            capability = part.told.serves or part.lane.capability
            if name.startswith(WHOLE_LANE):
                found = Route(part.route.subject, None, part.lane, None, part.level)
            else:
                found = Route(subjects.inst(name, capability), name, part.lane, None, part.level)
            self.ways[name] = found
        return found


@dataclass(slots=True)
class Plan:
    """One entry, worked out; good until the next one, or `until_ms` (epoch), when an exception ends by itself."""

    entry: RouteEntry
    parts: dict[str, Part]
    tiers: dict[int, list[Part]]
    """All lanes by priority, best first."""
    tables: dict[int, Weighted]
    """The lanes of each tier."""
    in_use: tuple[tuple[int, float], ...]
    special: bool
    by_instance: bool
    until_ms: float
    split: canaries.Split
    crowds: dict[tuple[int, bool, tuple[str, ...]], Crowd | None] = field(default_factory=dict)
    """By tier, whether they are the canary's, and the lanes that may be used (none named: all)."""
    limits: dict[str, int | None] = field(default_factory=dict)
    """Of each provider that is known, how many calls its cards allow."""
    ready: dict[int, Ready] = field(default_factory=dict)
    """What calls of each kind draw from, while nothing moves."""
    known: tuple[Card, ...] = ()
    known_at: int = -1
    """The directory's count of changes that `crowds` and `limits` were made at."""

    def know(self, cards: tuple[Card, ...], changes: int) -> None:
        """Take in who is known by now; to be told when the directory's count of changes is another one."""
        self.known_at = changes
        if cards == self.known:
            return  # It was somebody of another capability.
        self.known = cards
        self.crowds.clear()
        by_provider: dict[str, list[Card]] = {}
        for card in cards:
            by_provider.setdefault(card.agent_id, []).append(card)
        self.limits = {
            provider: limit_of(theirs, self.serves(provider)) for provider, theirs in by_provider.items()
        }

    def serves(self, provider: str) -> str:
        """Give the name that a provider serves this by: the capability's own, or a more general one."""
        part = self.parts.get(provider)
        return (None if part is None else part.told.serves) or self.entry.capability

    @property
    def names(self) -> tuple[str, ...]:
        """All names that it is served by, its own first."""
        inherited = {part.told.serves: None for part in self.parts.values() if part.told.serves is not None}
        return (self.entry.capability, *inherited)

    def tier(self, at: float) -> int | None:
        """Give the tier that a call goes to first, with `at` uniform in [0, 1); None where none is in use."""
        first = None
        for priority, share in self.in_use:
            first = priority
            at -= share
            if at < 0:
                break
        return first

    def order(self, at: float) -> list[int]:
        """Give the tiers in the order in which a call tries them."""
        first = self.tier(at)
        return [*([] if first is None else [first]), *(one for one in self.tiers if one != first)]


def plan(entry: RouteEntry, lanes: Lanes, *, at_ms: int, start: float, previous: Plan | None = None) -> Plan:
    """Work an entry out.

    Args:
        entry: What the table says.
        lanes: What this caller knows of lanes.
        at_ms: Epoch milliseconds.
        start: Uniform in [0, 1): where this caller's even picks begin.
        previous: The plan before, whose canary's split goes on.
    """
    priorities = sorted({told.priority for told in entry.lanes})
    # Nobody serves the very name: whoever stands in is a tier below those who would.
    fallen_before = int(bool(entry.lanes) and all(stands_in(one.serves, one.priority) for one in entry.lanes))
    parts: dict[str, Part] = {}
    tiers: dict[int, list[Part]] = {priority: [] for priority in priorities}
    for told in entry.lanes:
        lane = lanes.of(entry.capability, told.provider)
        level = priorities.index(told.priority) + fallen_before
        route = Route(subjects.lane(told.provider, told.serves or entry.capability), None, None, None, level)
        parts[told.provider] = part = Part(told, lane, level, route)
        tiers[told.priority].append(part)
    in_use = tuple((tier.priority, tier.share) for tier in entry.tiers if tier.priority in tiers)
    for priority, share in in_use:
        usable = [part for part in tiers[priority] if part.there and part.told.breaker.state in PASSING]
        for provider, own in shares({part.provider: part.told.weight for part in usable}).items():
            parts[provider].share = own * share
    split = previous.split if previous is not None else canaries.Split(None, caller=None, start=start)
    split.change(entry.canary)
    chosen = [part for part in parts.values() if part.share > 0]
    by_instance = _by_instance(entry, chosen)
    limited = any(told.limit is not None for told in entry.lanes)
    waiting = any(told.breaker.state not in PASSING for told in entry.lanes)
    fallen = any(part.level or part.told.serves for part in chosen) or entry.last_resort
    fallen = fallen or (bool(parts) and not chosen)
    ends = [one.until for told in entry.lanes for one in told.exceptions if one.until is not None]
    return Plan(
        entry=entry,
        parts=parts,
        tiers=tiers,
        tables={
            priority: Weighted(shares({one.provider: one.told.weight for one in some if one.there}))
            for priority, some in tiers.items()
        },
        in_use=in_use,
        special=by_instance or limited or waiting or fallen or not _alike(chosen),
        by_instance=by_instance,
        until_ms=min((one for one in ends if one > at_ms), default=math.inf),
        split=split,
    )


def _by_instance(entry: RouteEntry, chosen: list[Part]) -> bool:
    if entry.canary is not None or entry.strategy.name != "pool":
        return True
    if any(one.state in DEAF for part in chosen for one in part.told.exceptions):
        return True
    return len(chosen) > 1 and not all(part.told.uniform for part in chosen)


def _alike(chosen: list[Part]) -> bool:
    """Whether all instances have the same share: then each holds as many tickets as the others."""
    each = [part.share / part.told.instances for part in chosen]
    return not each or max(each) - min(each) <= ALIKE * max(each)


def crowd(
    plan: Plan,
    parts: Iterable[Part],
    cards: Collection[Card],
    *,
    asker: Asker,
    canary: bool,
    strict: bool = False,
) -> Crowd | None:
    """Put those together that a call may go to; None when there is nobody.

    Args:
        plan: The plan that `parts` are of.
        parts: The lanes that may be used.
        cards: The instances that are known, or that fit.
        asker: Who draws.
        canary: Whether the canary's group is asked for, and not the others; without a canary all are "the others".
        strict: Whether only `cards` are meant: a lane of which none is among them is out.
    """
    trying = plan.entry.canary
    by_provider: dict[str, list[Card]] = {}
    for card in cards:
        by_provider.setdefault(card.agent_id, []).append(card)
    owners: dict[str, Part] = {}
    known: dict[str, Card] = {}
    factors: dict[str, dict[str, float]] = {}
    for part in parts:
        mine = factors[part.provider] = {}
        theirs = by_provider.get(part.provider, [])
        for card in theirs:
            is_tried = trying is not None and canaries.belongs(
                trying, version=card.version, labels=card.labels
            )
            if is_tried is canary and card.ready:
                mine[card.instance] = part.factor(card, asker.at_ms)
                owners[card.instance], known[card.instance] = part, card
        if not theirs and not strict and not canary:
            name = WHOLE_LANE + part.provider
            mine[name] = 1.0
            owners[name] = part
    weights = spread(_parts_of(factors, owners), factors)
    if not any(weights.values()):
        return None
    candidates = [
        pick.Candidate(
            name=name,
            weight=weight,
            provider=owners[name].provider,
            region=known[name].region if name in known else "",
            labels=known[name].labels if name in known else {},
        )
        for name, weight in weights.items()
    ]
    return Crowd(_picker(plan.entry, candidates, asker), owners)


def _parts_of(factors: Mapping[str, dict[str, float]], owners: Mapping[str, Part]) -> dict[str, float]:
    """Give each lane's share among those that have somebody."""
    weights = {
        provider: owners[next(iter(mine))].told.weight
        for provider, mine in factors.items()
        if mine and any(mine.values())
    }
    found = shares(weights)
    return found if any(found.values()) else dict.fromkeys(weights, 1.0)


def _picker(entry: RouteEntry, candidates: list[pick.Candidate], asker: Asker) -> pick.Picker:
    strategy = entry.strategy
    name = "random" if strategy.name == "pool" else strategy.name
    options = pick.Options(
        region=asker.region,
        load=asker.load,
        shares=tuple(
            pick.Share(weight=one.weight, provider=one.provider, labels=one.labels) for one in strategy.shares
        ),
    )
    try:
        plugins = {} if name in pick.BUILT_IN else plugged_in()
        return pick.build(name, candidates, options, plugins=plugins)
    except ValueError as error:
        _log.warning("%s is routed by weight: %s", entry.capability, error)
        return pick.build("random", candidates, options)


def plugged_in() -> dict[str, pick.Build]:
    """Give the strategies of others, by the name of their entry point in the group `reach.strategies`."""
    return {point.name: point.load() for point in entry_points(group="reach.strategies")}
