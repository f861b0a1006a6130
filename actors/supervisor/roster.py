"""Who is there: each instance with its card, its lease, its load, and what all of that makes of its share.

An instance's *standing* is its share relative to its neighbours (1 is usual), and why it is not 1. What it says of
itself (not ready, degraded) and what is known (gone, leaving) is taken as it is; what is only judged (silent,
busy, failing) goes through the panic rule first: with most of a lane judged unwell, the judgement is ill.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from actors.supervisor.doubt import Doubts
from actors.supervisor.doubt import State as Doubt
from reach.policy import load, warmup
from reach.policy.lease import Change, Heard, Kind, Leases, State
from reach.policy.tier import eject
from reach.wire.card import CapabilityCard, Card
from reach.wire.life import Heartbeat
from reach.wire.registration import CardEntry, Register
from reach.wire.route import ExceptionState

DEGRADED: Final = 0.1
"""What an instance that calls itself degraded keeps of its share (LIFE-5)."""

FAILING: Final = 0.1
"""What an instance that fails where its neighbours do not keeps of its share, so that its recovery is seen."""


@dataclass(slots=True, eq=False)
class Member:
    """One instance that is registered. Times ending in `_ms` are epoch milliseconds, others seconds since boot."""

    card: Card
    registered_ms: int
    heard_at: float
    server: str = ""
    connection: int = 0
    warm_since: float | None = None
    ready: bool = True
    health: str = "healthy"
    busy: str | None = None
    failing: str | None = None
    draining: bool = False
    linked: bool = True
    """False once it has said goodbye and its connection has ended."""
    inflight: int = 0
    queue: int = 0
    cpu: float = 0.0
    rss_bytes: int = 0
    loop_lag_ms: float = 0.0
    state: ExceptionState | None = None
    changed_ms: int = 0
    ended: Kind | None = None
    ended_ms: int = 0
    serves: dict[str, CapabilityCard] = field(default_factory=dict)
    kept: CardEntry | None = None
    """What the bucket of cards has of it."""
    unproven: bool = False
    """Whether only the bucket says that it is there: a new leader has not heard of it yet."""

    @property
    def name(self) -> str:
        """The instance."""
        return self.card.instance

    @property
    def generation(self) -> int:
        """Its start in epoch milliseconds."""
        return self.card.generation


@dataclass(frozen=True, slots=True)
class Standing:
    """An instance's share relative to its neighbours, and what makes it other than 1 (`state` is None when 1)."""

    factor: float = 1.0
    state: ExceptionState | None = None
    why: str = ""
    until: float | None = None


_USUAL: Final = Standing()
_JUDGED: Final = frozenset({"steered", "fenced", "busy"})


class Roster:
    """All instances."""

    def __init__(self, doubts: Doubts) -> None:
        self.leases = Leases()
        self.members: dict[str, Member] = {}
        self._doubts = doubts
        self._odd: set[str] = set()
        """Whose standing may be other than usual."""
        self._cards: dict[tuple[str, str], CapabilityCard] = {}
        self._lanes: dict[str, dict[str, dict[str, Member]]] = {}
        """By capability, by provider."""

    # -- looking --------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Iterable[str]:
        """Everything that anybody serves."""
        return self._lanes.keys()

    def lanes(self, capability: str) -> Mapping[str, Mapping[str, Member]]:
        """Give the members that serve a capability, by provider."""
        return self._lanes.get(capability, {})

    def card(self, capability: str, provider: str) -> CapabilityCard:
        """Give what a lane's instances say: the best tier that one of them offers, and the newest one's weight."""
        found = self._cards.get((capability, provider))
        if found is None:
            members = self.lanes(capability).get(provider, {}).values()
            newest = max(members, key=lambda member: member.generation, default=None)
            found = CapabilityCard(tag=capability) if newest is None else newest.serves[capability]
            best = min((member.serves[capability].priority for member in members), default=found.priority)
            if best != found.priority:
                found = found.model_copy(update={"priority": best})
            self._cards[capability, provider] = found
        return found

    def standings(self, lane: Mapping[str, Member], now: float) -> tuple[dict[str, Standing], bool]:
        """Give the standing of the members of a lane that are, or were, not as usual; and if its panic rule holds.

        Who is not named is as usual: of ten thousand that are well, none is looked at.
        """
        odd = sorted(lane.keys() & self._odd)
        if not odd:
            return {}, False
        parts = self._warm_parts(lane, odd, now)
        found = {name: self._standing(lane[name], parts.get(name, 1.0), now) for name in odd}
        for name, standing in found.items():
            if standing is _USUAL and lane[name].warm_since is None:
                self._odd.discard(name)
        judged = [name for name, standing in found.items() if standing.state in _JUDGED]
        if not judged:
            return found, False
        known_gone = [
            name for name, standing in found.items() if standing.factor <= 0 and standing.state not in _JUDGED
        ]
        ejection = eject(lane.keys() - set(known_gone), judged)
        if ejection.panic:
            found |= dict.fromkeys(judged, _USUAL)
        return found, ejection.panic

    def watch(self, instance: str) -> None:
        """Look at an instance's standing at the next plan: something about it is another matter now."""
        self._odd.add(instance)

    def next_step_s(self, lane: Mapping[str, Member], now: float) -> float:
        """Give the seconds until a standing changes by time alone; infinity when none does."""
        warming = {
            name: since for name in lane.keys() & self._odd if (since := lane[name].warm_since) is not None
        }
        return warmup.next_change_s(warming, now=now) if warming else math.inf

    def _warm_parts(self, lane: Mapping[str, Member], odd: list[str], now: float) -> dict[str, float]:
        """Give the part of its share that each warming member has, relative to the warmest that takes calls."""
        for name in odd:
            since = lane[name].warm_since
            if since is not None and now - since >= warmup.WARM_UP.length_s:
                lane[name].warm_since = None
        if all(lane[name].warm_since is None for name in odd):
            return {}
        there = {name: lane[name].warm_since for name in odd if self._takes_calls(lane[name])}
        if len(odd) < len(lane):
            there[""] = None  # Whoever is as usual is warm.
        return warmup.factors(there, now=now)

    def _takes_calls(self, member: Member) -> bool:
        return (
            member.ready
            and not member.draining
            and self.leases.weight(member.name) > 0
            and self._doubts.state(member.name) in {None, Doubt.ASKED}
        )

    def _standing(self, member: Member, warm: float, now: float) -> Standing:
        state = self.leases.state(member.name)
        if state in {State.UNAVAILABLE, State.REMOVED}:
            return Standing(0.0, "unavailable", _ENDED.get(member.ended, "its lease has run out"))
        if state is State.LEFT or member.draining:
            return Standing(0.0, "draining", "it leaves")
        doubt = self._doubts.state(member.name)
        if doubt in {Doubt.STEERED, Doubt.FENCED}:
            silent_s = now - (self._doubts.since(member.name) or now)
            return Standing(0.0, doubt.value, f"no answer to a ping for {silent_s:.0f} s")  # type: ignore[arg-type]
        if not member.ready:
            return Standing(0.0, "not_ready", "it says so")
        if member.busy is not None:
            return Standing(0.0, "busy", member.busy)
        return self._part(member, warm, suspect=state is State.SUSPECT)

    def _part(self, member: Member, warm: float, *, suspect: bool) -> Standing:
        """Give the standing of one that takes calls: the product of what speaks against it."""
        factor, named = warm, None
        if suspect:
            factor *= self.leases.weight(member.name)
            named = Standing(0, "suspect", "two heartbeats are missing")
        if member.health == "degraded":
            factor *= DEGRADED
            named = named or Standing(0, "degraded", "it says so")
        if member.failing is not None:
            factor *= FAILING
            named = named or Standing(0, "degraded", member.failing)
        if named is None and warm >= 1:
            return _USUAL
        if named is None:
            since = member.warm_since
            until = None if since is None else since + warmup.WARM_UP.length_s
            return Standing(factor, "warmup", "it is new, or back after a silence", until)
        return Standing(factor, named.state, named.why)

    # -- what instances say ---------------------------------------------------------------------------

    def register(self, message: Register, *, now: float, at_ms: int) -> Heard:
        """Take an instance in. Raises `ValueError` for a lease that is none."""
        card = message.card
        heard = self.leases.register(
            card.instance, generation=card.generation, ttl_s=card.lease_ttl_s, now=now
        )
        if heard.answer != "welcome":
            return heard
        before = self.members.get(card.instance)
        if before is None or before.generation < card.generation:
            self._list(Member(card, registered_ms=at_ms, heard_at=now, ready=card.ready, health=card.health))
        elif before.card != card:
            before.card = card
            self._list(before)
        member = self.members[card.instance]
        member.heard_at, member.server, member.connection = now, message.server, message.connection
        member.ended = None
        member.linked, member.unproven = True, False
        self._odd.add(card.instance)
        self._note(member, heard.change, now)
        if heard.change is not None and heard.change.kind is Kind.REGISTERED:
            # Who has been running for long is not new, only unknown to us. A clock that is wrong costs a warm-up.
            age_s = max(0.0, (at_ms - card.generation) / 1000)
            member.warm_since = now - age_s if age_s < warmup.WARM_UP.length_s else None
        self._doubts.alive(card.instance, now)
        return heard

    def adopt(self, member: Member, *, now: float, state: State = State.LIVE) -> None:
        """Take over an instance that the buckets show, as just seen."""
        card = member.card
        self.leases.adopt(
            card.instance, generation=card.generation, ttl_s=card.lease_ttl_s, state=state, now=now
        )
        known = self.members.get(card.instance)
        if known is None or known.generation < card.generation:
            self._list(member)
            self._odd.add(card.instance)

    def beat(self, beat: Heartbeat, now: float) -> tuple[Heard, bool]:
        """Take in a heartbeat; also whether anybody's standing changed by it. Raises `ValueError` as `register`."""
        heard = self.leases.heard(
            beat.instance, generation=beat.generation, now=now, ttl_s=beat.lease_ttl_s or None
        )
        member = self.members.get(beat.instance)
        if heard.answer != "welcome" or member is None:
            return heard, False
        member.heard_at, member.unproven = now, False
        member.inflight, member.queue, member.cpu = beat.inflight, beat.queue, beat.cpu
        member.rss_bytes, member.loop_lag_ms = beat.rss_bytes, beat.loop_lag_ms
        busy = beat.busy or load.judge(
            cpu=beat.cpu, queue=beat.queue, rss_bytes=beat.rss_bytes, was_busy=member.busy is not None
        )
        changed = (
            heard.change is not None
            or (busy is None) != (member.busy is None)
            or beat.ready != member.ready
            or beat.health != member.health
        )
        if changed:
            self._odd.add(beat.instance)
        member.busy, member.ready, member.health = busy, beat.ready, beat.health
        self._note(member, heard.change, now)
        return heard, changed

    def alive(self, instance: str, now: float) -> bool:
        """Take in a sign of life of an instance in doubt; whether its standing changed: then it warms up."""
        ended = self._doubts.alive(instance, now)
        member = self.members.get(instance)
        if member is not None:
            member.unproven = False
        if ended not in {Doubt.STEERED, Doubt.FENCED} or member is None:
            return False
        member.warm_since = now
        self._odd.add(instance)
        return True

    def end(self, change: Change, at_ms: int) -> Member | None:
        """Note how an instance ended, and forget one that is removed; the member that it was."""
        member = self.members.get(change.instance)
        if member is None or member.generation != change.generation:
            return None
        self._odd.add(change.instance)
        if change.kind in {Kind.EXPIRED, Kind.LOST, Kind.LEFT}:
            member.ended, member.ended_ms = change.kind, at_ms
            self._doubts.forget(change.instance)
        elif change.kind is Kind.REMOVED:
            self._unlist(member)
            self._odd.discard(change.instance)
            del self.members[change.instance]
        return member

    def unlinked(self, instance: str, generation: int) -> None:
        """Note that its connection has ended: whoever said goodbye before has left for good."""
        member = self.members.get(instance)
        if member is not None and member.generation == generation:
            member.linked = False

    # -- inside ---------------------------------------------------------------------------------------

    def _note(self, member: Member, change: Change | None, now: float) -> None:
        if change is None:
            return
        member.ended = None
        if warmup.begins(misses=change.misses, registered=change.kind is Kind.REGISTERED):
            member.warm_since = now

    def _list(self, member: Member) -> None:
        before = self.members.get(member.name)
        if before is not None:
            self._unlist(before)
        self.members[member.name] = member
        # Tasks are pulled from a queue: nobody is subscribed for them.
        served = (one for one in member.card.capabilities if one.kind != "task" and not one.withdrawn)
        member.serves = {one.tag: one for one in served}
        for tag, offered in member.serves.items():
            lanes = self._lanes.setdefault(tag, {})
            lanes.setdefault(member.card.agent_id, {})[member.name] = member
            if self._cards.get((tag, member.card.agent_id)) != offered:
                self._cards.pop((tag, member.card.agent_id), None)

    def _unlist(self, member: Member) -> None:
        for tag in member.serves:
            lanes = self._lanes.get(tag, {})
            lane = lanes.get(member.card.agent_id, {})
            lane.pop(member.name, None)
            if not lane or self._cards.get((tag, member.card.agent_id)) != member.serves[tag]:
                self._cards.pop((tag, member.card.agent_id), None)
            if not lane:
                lanes.pop(member.card.agent_id, None)
            if not lanes:
                self._lanes.pop(tag, None)


_ENDED: Final[dict[Kind | None, str]] = {
    Kind.LOST: "its connection ended",
    Kind.EXPIRED: "its lease has run out",
}
