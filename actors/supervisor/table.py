"""One capability's entry of the routing table, and the tickets that express it.

`plan` looks at everything that is known of a capability: who stands how (roster), what the lanes were measured to
do (figures), what their breakers say, what operators set. It gives the entry that callers read, and for each
instance the number of queue subscriptions that makes NATS do the same for plain clients. What is only measured
moves all the time; `differs` says whether an entry is worth writing again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from actors.supervisor.roster import Member, Roster, Standing
from reach.policy import canary as canaries
from reach.policy.inherit import Inheritance, Mode
from reach.policy.tickets import Tickets, spread, tickets
from reach.policy.tier import Bar, Ladder, Offer, Phase, last_resort
from reach.policy.tier import Standing as Tiers
from reach.policy.weight import LaneFacts, Term, Weight, shares, weigh
from reach.wire.card import CapabilityCard
from reach.wire.route import (
    Breaker,
    Canary,
    Figures,
    InstanceException,
    Lane,
    RouteEntry,
    Strategy,
    TermName,
    Terms,
    TierShare,
)

MOST_EXCEPTIONS: Final = 2000
"""Exceptions that an entry names: some 200 kB. Those that keep calls away come first."""

WEIGHT_STEP: Final = 0.05
"""A weight that moved by less than this part of itself is not worth a new entry."""

ALONE: Final = Inheritance(Mode.OFF)

FIGURES_S: Final = 30.0
"""How old figures may become in an entry while they change."""


@dataclass(slots=True)
class Choice:
    """What operators set for a capability."""

    weights: dict[str, float] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    canary: Canary | None = None
    strategy: Strategy = field(default_factory=Strategy)
    terms_off: tuple[TermName, ...] = ()

    def copy(self) -> Choice:
        """Give another one that may be changed."""
        return Choice(dict(self.weights), dict(self.limits), self.canary, self.strategy, self.terms_off)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneInput:
    """What is known of one lane, beside who is in it.

    `serves` is the more general name that it serves by, so many generations up; None for the capability's own.
    """

    provider: str
    serves: str | None = None
    generation: int = 0
    figures: Figures = field(default_factory=Figures)
    breaker: Breaker = field(default_factory=Breaker)
    bar: Bar | None = None
    quality: float = 1.0


@dataclass(slots=True)
class LanePlan:
    """One lane, worked out. `standings` are those of members that are, or were, not as usual."""

    provider: str
    priority: int
    members: Mapping[str, Member]
    standings: dict[str, Standing]
    weight: Weight
    offer: Offer
    input: LaneInput
    panic: bool = False
    share: float = 0.0

    def factor(self, instance: str) -> float:
        """An instance's share relative to its neighbours."""
        standing = self.standings.get(instance)
        return 1.0 if standing is None else standing.factor

    @property
    def instances(self) -> int:
        """How many take calls."""
        return self.offer.instances

    @property
    def serves(self) -> str | None:
        """The more general name that it serves by."""
        return self.input.serves


@dataclass(slots=True)
class Plan:
    """What follows for one capability. `tickets` by instance, everybody who serves it named."""

    entry: RouteEntry
    tickets: Tickets
    lanes: list[LanePlan]
    tiers: Tiers
    off_lane: frozenset[str]
    next_s: float
    panic: tuple[str, ...] = ()


def plan(
    capability: str,
    *,
    roster: Roster,
    inputs: Mapping[str, LaneInput],
    choice: Choice,
    ladder: Ladder,
    now: float,
    at_ms: int,
    inheritance: Inheritance = ALONE,
) -> Plan:
    """Work a capability out.

    Args:
        capability: Which.
        roster: Who is there.
        inputs: What is known of each lane, by provider; providers without members keep what operators set.
        choice: What operators set.
        ladder: Its tiers over time; it is moved on.
        now: Seconds since boot.
        at_ms: The same moment in epoch milliseconds.
        inheritance: How providers of more general names count, of which there may be inputs.
    """
    members = roster.lanes(capability)
    kept = [name for name in (*choice.weights, *choice.limits) if name not in members]
    barred = [name for name, one in inputs.items() if one.bar is Bar.FORCED and name not in members]
    elders = [name for name, one in inputs.items() if one.serves is not None and name not in members]
    providers = dict.fromkeys([*members, *kept, *barred, *elders])
    known = {name: inputs.get(name) or LaneInput(provider=name) for name in sorted(providers)}
    offered = {name: _offered(capability, one, roster, inheritance) for name, one in known.items()}
    cheapest = _cheapest(offered.values())
    lanes = [
        _lane(capability, one, roster, offered[name], cheapest, choice=choice, now=now, at_ms=at_ms)
        for name, one in known.items()
    ]
    tiers = ladder.look([lane.offer for lane in lanes], now=now)
    weights = _weights(lanes, tiers, choice)
    held = tickets(_wanted(lanes, weights))
    resort = tiers.phase is Phase.LAST_RESORT
    entry = RouteEntry(
        capability=capability,
        term=0,
        revision=0,
        at=at_ms,
        lanes=tuple(_told(lane, choice, now, at_ms) for lane in lanes),
        tiers=tuple(TierShare(priority=priority, share=share) for priority, share in tiers.shares),
        last_resort=resort,
        canary=choice.canary,
        strategy=choice.strategy,
        terms_off=choice.terms_off,
    )
    steps = [roster.next_step_s(lane.members, now) for lane in lanes]
    if tiers.next_at is not None:
        steps.append(max(0.0, tiers.next_at - now))
    return Plan(
        entry=entry,
        tickets=held,
        lanes=lanes,
        tiers=tiers,
        off_lane=frozenset(
            name
            for lane in lanes
            for name, standing in lane.standings.items()
            if standing.factor <= 0 and lane.serves is None
        ),
        next_s=min(steps, default=math.inf),
        panic=tuple(lane.provider for lane in lanes if lane.panic and lane.serves is None),
    )


@dataclass(frozen=True, slots=True)
class _Offered:
    """What a lane's card says of a capability: its tier there, and whether its weight is that of an inherited name."""

    card: CapabilityCard
    priority: int
    inherited: bool


def _offered(capability: str, known: LaneInput, roster: Roster, inheritance: Inheritance) -> _Offered:
    card = roster.card(known.serves or capability, known.provider)
    return _Offered(
        card,
        inheritance.priority(card.priority, known.generation),
        known.serves is not None and inheritance.mode is Mode.WEIGHT,
    )


def _cheapest(offered: Iterable[_Offered]) -> dict[int, float]:
    """Give the least `cost_weight` of each tier that has one: those of its lanes are told relative to it."""
    found: dict[int, float] = {}
    for one in offered:
        cost = one.card.cost_weight
        if cost is not None:
            found[one.priority] = min(cost, found.get(one.priority, math.inf))
    return found


def _lane(
    capability: str,
    known: LaneInput,
    roster: Roster,
    offered: _Offered,
    cheapest: Mapping[int, float],
    *,
    choice: Choice,
    now: float,
    at_ms: int,
) -> LanePlan:
    provider, card, priority = known.provider, offered.card, offered.priority
    members = roster.lanes(known.serves or capability).get(provider, {})
    standings, panic = roster.standings(members, now)
    for name, standing in standings.items():
        if members[name].state != standing.state:
            members[name].state, members[name].changed_ms = standing.state, at_ms
    facts = LaneFacts(
        traffic_weight=choice.weights.get(provider, 1.0),
        tag_weight=card.weight,
        inherited=offered.inherited,
        through=known.serves or "",
        success=known.figures.success,
        cost=known.figures.cost,
        cost_weight=card.cost_weight,
        p99_ms=known.figures.p99_hour_ms,
        quality=known.quality,
    )
    weight = weigh(facts, cheapest=cheapest.get(priority), off=[Term(name) for name in choice.terms_off])
    usable = len(members) - sum(1 for standing in standings.values() if standing.factor <= 0)
    bar = known.bar if weight.value > 0 or known.bar is not None else Bar.FORCED
    offer = Offer(provider, priority, usable, bar)
    return LanePlan(provider, priority, members, standings, weight, offer, known, panic)


def _weights(lanes: list[LanePlan], tiers: Tiers, choice: Choice) -> dict[str, float]:
    """Give what each instance weighs, all tiers in use together."""
    found: dict[str, float] = {}
    for priority, part in tiers.shares:
        chosen = [lane for lane in lanes if lane.priority == priority and _in_use(lane, tiers.phase)]
        parts = shares({lane.provider: lane.weight.value for lane in chosen})
        if not any(parts.values()):  # A last resort whose weight is 0 is one all the same.
            parts = dict.fromkeys(parts, 1 / max(1, len(parts)))
        for lane in chosen:
            lane.share = parts[lane.provider] * part
        found |= _spread(chosen, {name: share * part for name, share in parts.items()})
    if choice.canary is None:
        return found
    group = [
        name
        for lane in lanes
        for name, member in lane.members.items()
        if canaries.belongs(choice.canary, version=member.card.version, labels=member.card.labels)
    ]
    found = canaries.factors(choice.canary, found, group=frozenset(group))
    total = math.fsum(found.values())
    for lane in lanes:
        lane.share = math.fsum(found.get(name, 0.0) for name in lane.members) / total if total > 0 else 0.0
    return found


def _spread(chosen: list[LanePlan], parts: Mapping[str, float]) -> dict[str, float]:
    """Divide what each lane has among its instances."""
    factors = {
        lane.provider: dict.fromkeys(lane.members, 1.0)
        | {name: standing.factor for name, standing in lane.standings.items()}
        for lane in chosen
    }
    return spread(parts, factors)


def _wanted(lanes: list[LanePlan], weights: Mapping[str, float]) -> dict[str, float]:
    """Give what the tickets are to express: the weights of those who serve the very name.

    Stand-ins hold none: they are not subscribed to it. Where only they are in use, plain NATS clients are left what
    they would have without them, the lanes that only a breaker bars.
    """
    exact = [lane for lane in lanes if lane.serves is None]
    wanted = {name: weights.get(name, 0.0) for lane in exact for name in lane.members}
    if any(wanted.values()) or len(exact) == len(lanes):
        return wanted
    priority = last_resort([lane.offer for lane in exact])
    resort = [lane for lane in exact if lane.priority == priority and lane.offer.bar is Bar.BREAKER]
    return wanted | _spread(resort, {lane.provider: 1.0 for lane in resort})


def _in_use(lane: LanePlan, phase: Phase) -> bool:
    if phase is Phase.LAST_RESORT:
        return lane.offer.bar is Bar.BREAKER
    return lane.offer.bar is None


def _told(lane: LanePlan, choice: Choice, now: float, at_ms: int) -> Lane:
    exceptions = [
        InstanceException(
            instance=name,
            generation=lane.members[name].generation,
            state=standing.state,
            factor=standing.factor,
            since=lane.members[name].changed_ms,
            until=None if standing.until is None else at_ms + max(0, round((standing.until - now) * 1000)),
            reason=standing.why,
        )
        for name, standing in lane.standings.items()
        if standing.state is not None and standing.factor != 1
    ]
    exceptions.sort(key=lambda one: (one.factor, one.instance))
    return Lane(
        provider=lane.provider,
        serves=lane.serves,
        priority=lane.priority,
        instances=lane.instances,
        weight=lane.weight.value,
        share=min(1.0, lane.share),
        terms=Terms(**lane.weight.as_map()),
        limit=choice.limits.get(lane.provider),
        breaker=lane.input.breaker,
        figures=lane.input.figures,
        exceptions=tuple(exceptions[:MOST_EXCEPTIONS]),
    )


# ------------------------------------------------------------------------------------------ worth writing?


def differs(new: RouteEntry, old: RouteEntry | None) -> bool:
    """Whether callers should hear of a new entry: anything but figures, or weights that moved visibly."""
    if old is None:
        return True
    if new.at - old.at >= FIGURES_S * 1000 and any(
        now.figures != before.figures for now, before in zip(new.lanes, old.lanes, strict=False)
    ):
        return True
    return _bare(new) != _bare(old) or not all(
        _close(now, before) for now, before in zip(new.lanes, old.lanes, strict=True)
    )


def _bare(entry: RouteEntry) -> tuple[object, ...]:
    lanes = tuple(
        (lane.provider, lane.serves, lane.priority, lane.instances, lane.limit, _settled(lane))
        for lane in entry.lanes
    )
    return lanes, entry.tiers, entry.last_resort, entry.canary, entry.strategy, entry.terms_off


def _settled(lane: Lane) -> tuple[object, ...]:
    """What of a lane is worth telling at once: times that move with the clock are not."""
    breaker = lane.breaker
    return (
        breaker.state,
        breaker.opened_in_a_row,
        tuple((one.instance, one.generation, one.state, one.factor) for one in lane.exceptions),
        lane.terms.traffic,
    )


def _close(now: Lane, before: Lane) -> bool:
    return abs(now.weight - before.weight) <= WEIGHT_STEP * max(now.weight, before.weight)
