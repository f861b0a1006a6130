"""Step 3 of a call where there is a routing table: what the supervisor knows of everybody decides (behaviour ROUTE).

Most entries say nothing that the queue group does not do by itself: they cost a call one look into a dictionary
(`special`). For the others a plan is made at each change (`reach.call.plan`), and what this caller found out by itself
is laid upon it (`reach.call.ready`): a call draws a lane by its share of the best usable tier, or an instance where
the table names exceptions, a canary or a strategy. Who asks for something in particular is looked at alone.

A lane that the supervisor probes takes a call that may be repeated, or whoever has no other, once the leader has
given it a place (`AskFirst`). When nothing is left, the lanes that only a breaker keeps are for `core` calls (BREAK-5).
Without an entry `reach.call.choose` decides from cards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reach.call.choose import PATIENCE_S, Excluded, Refusal, Route, fitting, may_probe, nobody, usable_of
from reach.call.permits import AskFirst
from reach.call.plan import Asker, Crowd, Part, Plan, crowd
from reach.call.plans import Plans
from reach.call.ready import WAITING, Ready, asks, due_at, key_of, kind_of, make, sight
from reach.chance import random
from reach.faults import Reason
from reach.policy.alias import EvenPicks
from reach.policy.permits import Permit, Refused
from reach.wire import subjects

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from reach.call.call import Call
    from reach.call.lanes import Lane, Lanes, SharedPermit
    from reach.registry.cards import CardDirectory
    from reach.registry.routes import Routes
    from reach.wire.card import Card
    from reach.wire.reply import Failure


class Steering:
    """What one client makes of the routing table. `clock_ms` gives the broker's time for loop seconds."""

    def __init__(
        self,
        routes: Routes,
        directory: CardDirectory,
        lanes: Lanes,
        *,
        clock: Callable[[], float],
        clock_ms: Callable[[float], int],
        suspicion: Callable[[str, float | None], None],
        region: str = "",
    ) -> None:
        self._directory = directory
        self._lanes = lanes
        self._clock = clock
        self._clock_ms = clock_ms
        self._region = region
        self._picks = EvenPicks(random())
        self.plans = Plans(routes, directory, lanes, clock=clock, clock_ms=clock_ms, suspicion=suspicion)
        self.special = self.plans.special
        """The capabilities whose calls have to come here."""

    def follow(self, capability: str) -> None:
        """Heed what the table says of a capability from now on."""
        self.plans.follow(capability)

    # -- choosing ------------------------------------------------------------------------------------

    def plan_for(self, call: Call) -> Plan | None:
        """Give the plan that a call is chosen by; one that says nothing, only for a call that asks for nothing."""
        found = self.special.get(call.capability)
        if found is None and not call.attempts and call.avoid is None and not asks(call):
            found = self.plans.of(call.capability)
            return found if found is not None and found.parts else None
        return found

    def choose(self, call: Call, found: Plan, now: float) -> Route | Excluded | Failure:
        """Choose where the next attempt of a call goes. Raises `AskFirst` for one that should probe."""
        if call.avoid is None and not call.attempts and not asks(call):
            kind = kind_of(call)
            ready = found.ready.get(kind)
            if (
                ready is None
                or ready.moves != self._lanes.moves
                or ready.changes != self._directory.changes
                or now >= ready.until
            ):
                ready = self._make_ready(call, found, kind, now)
            route = None if ready is None else self._drawn(call, found, ready)
            if route is not None:
                return route
        return self._carefully(call, found, now)

    def _drawn(self, call: Call, found: Plan, ready: Ready) -> Route | None:
        """Draw from what is ready; None where that hits upon a lane that is full, or upon nobody."""
        if ready.lanes is not None:
            provider = ready.lanes.draw(self._picks.next())
            route = None if provider is None else ready.ways[provider]
        else:
            pools = ready.pools
            pool = pools[0][1] if len(pools) == 1 else ready.pool(self._picks.next())
            among, other = pool.crowd, pool.canary
            if ready.trying and self._takes_canary(call, found):
                among, other = other, among
            among = among or other
            route = None if among is None else self._among(call, among, ready.key, ready.avoid)
        if ready.limited and route is not None and route.lane is not None and route.lane.full:
            return None
        return route

    def _make_ready(self, call: Call, found: Plan, kind: int, now: float) -> Ready | None:
        """Work out what calls such as this one draw from; None where each has to be looked at."""
        found.ready.pop(kind, None)
        self._know(found)
        self._lanes.avoided(call.capability, now)  # Who is to be avoided no longer is taken out.
        seen = sight(
            found,
            priority=call.envelope.priority,
            may_probe=call.idempotent or call.keyed,
            now=now,
            barred=lambda part: self._barred(found, part) is not None,
        )
        if seen is None:
            return None

        def crowd_of(priority: int, canary: bool, parts: list[Part]) -> Crowd | None:  # noqa: FBT001 - as `_crowd`
            mates = [part for part in found.tiers[priority] if part.there]
            return self._crowd(found, priority, canary, None if len(parts) == len(mates) else parts, None)

        ready = make(
            found,
            seen,
            moves=self._lanes.moves,
            avoid=self._lanes.shunned.get(call.capability, {}),
            crowd_of=crowd_of,
        )
        if ready is not None:
            found.ready[kind] = ready
        return ready

    def probe(self, capability: str, lane: Lane, permit: SharedPermit) -> Route:
        """Give the way of a call that has been given a probe's place at a lane."""
        found = self.plans.of(capability)
        part = None if found is None else found.parts.get(lane.provider)
        if part is None:
            return Route(subjects.lane(lane.provider, capability), None, lane, permit)
        return Route(part.route.subject, None, lane, permit, part.level)

    def _carefully(self, call: Call, found: Plan, now: float) -> Route | Excluded | Failure:
        """Look at everything: tiers in order, who of them may be used, and among those who fits."""
        envelope, fit = call.envelope, None
        self._know(found)
        if asks(call):
            fit, lacking = fitting(call, self.plans.cards(found))
            if not fit and (lacking or envelope.require or envelope.prefer):
                return Excluded("; ".join(sorted(lacking)) or "no instance is known")
        parts = [part for part in found.parts.values() if _meant(call, part, fit)]
        due = [part.lane for part in parts if part.lane.told in WAITING and now >= due_at(part.lane)]
        for lane in due:
            if call.idempotent or call.keyed or now >= lane.breaker.open_until + PATIENCE_S:
                raise AskFirst(lane)
        refused: list[Refusal] = []
        order = found.order(self._picks.next())
        for priority in order:
            some = [part for part in parts if part.told.priority == priority]
            if call.avoid and priority != order[-1] and self._is_spent(call, found, some):
                continue
            usable, probing = usable_of(
                some, call, now, refused, barred=lambda part: self._refused(found, part, now)
            )
            if probing is not None and (not usable or may_probe(call, probing[0].lane, now)):
                part, permit = probing
                return Route(part.route.subject, None, part.lane, permit, part.level)
            if probing is not None:
                self._lanes.left(probing[0].lane, now, probing[1])
            if usable:
                return self._within(call, found, usable, fit, now)
        if due:
            raise AskFirst(due[0])
        return self._last_resort(call, parts, now) or self._nobody(call, refused)

    def _know(self, found: Plan) -> None:
        if found.known_at != self._directory.changes:
            found.know(self.plans.cards(found), self._directory.changes)

    def _barred(self, found: Plan, part: Part) -> Refusal | None:
        """Say what keeps every call from a lane, whatever its breaker says and however full it is."""
        lane = part.lane
        lane.limit = part.told.limit if part.told.limit is not None else found.limits.get(part.provider)
        if part.told.weight <= 0:
            return Refusal(lane, "an operator took it out", None)
        if not part.told.instances and part.provider not in found.limits:
            return Refusal(lane, "nobody is there", None)
        if lane.told == "forced_open":
            return Refusal(lane, lane.breaker.why or "an operator opened it", None)
        return None

    def _refused(self, found: Plan, part: Part, now: float) -> Refusal | None:
        """Say what keeps a call from a lane, beside the lane's own breaker."""
        lane, barred = part.lane, self._barred(found, part)
        if lane.full:
            return Refusal(lane, f"{lane.open} of {lane.limit} calls under way", None, full=True)
        if barred is None and lane.told in WAITING:
            again_at = lane.ask_at if lane.told == "half_open" else lane.breaker.open_until
            return Refusal(lane, lane.breaker.why or "being probed", max(0.0, again_at - now))
        return barred

    def _is_spent(self, call: Call, found: Plan, parts: list[Part]) -> bool:
        """Whether all of a tier that is known has failed this call: elsewhere is the next tier (RETRY-1)."""
        providers = {part.provider for part in parts}
        known = [card for card in self.plans.cards(found) if card.agent_id in providers]
        return bool(known) and all(card.instance in (call.avoid or ()) for card in known)

    def _within(
        self, call: Call, found: Plan, usable: list[Part], fit: list[Card] | None, now: float
    ) -> Route:
        """Choose among the usable lanes of one tier."""
        avoid = self._lanes.avoided(call.capability, now) | (call.avoid or frozenset())
        priority = usable[0].told.priority
        if found.by_instance or fit is not None or avoid:
            mates = [part for part in found.tiers[priority] if part.there]
            whole = fit is None and len(usable) == len(mates)
            route = self._from_crowd(
                call, found, priority, avoid=avoid, parts=None if whole else usable, fit=fit
            )
            if route is not None:
                return route
        names = {part.provider for part in usable}
        others = [part.provider for part in found.tiers[priority] if part.provider not in names]
        provider = found.tables[priority].draw(self._picks.next(), others)
        part = usable[0] if provider is None else found.parts[provider]
        return Route(part.route.subject, None, part.lane, None, part.level)

    def _from_crowd(
        self,
        call: Call,
        found: Plan,
        priority: int,
        *,
        avoid: Collection[str] = (),
        parts: list[Part] | None = None,
        fit: list[Card] | None = None,
    ) -> Route | None:
        """Draw an instance of a tier; of some of its lanes, or of those that fit, where these are given."""
        is_canary = found.entry.canary is not None and self._takes_canary(call, found)
        for side in (is_canary, not is_canary):
            among = self._crowd(found, priority, side, parts, fit)
            if among is None:
                continue
            route = self._among(call, among, found.entry.strategy.key, avoid)
            if route is not None:
                return route
        return None

    def _among(self, call: Call, among: Crowd, by: str | None, avoid: Collection[str]) -> Route | None:
        """Draw one of a crowd; one of those to be avoided where no other is left, who failed this very call last."""
        at = random()
        key = None if by is None else key_of(call, by)
        choose = among.picker.choose
        name = choose(at, key=key, avoid=avoid)
        if name is None and avoid:
            name = choose(at, key=key, avoid=call.avoid or ()) or choose(at, key=key)
        return None if name is None else among.ways.get(name) or among.way(name)

    def _crowd(
        self,
        found: Plan,
        priority: int,
        side: bool,  # noqa: FBT001 - the canary's or the others
        parts: list[Part] | None,
        fit: list[Card] | None,
    ) -> Crowd | None:
        self._know(found)
        place = (priority, side, () if parts is None else tuple(part.provider for part in parts))
        if fit is None and place in found.crowds:
            return found.crowds[place]
        among = crowd(
            found,
            [part for part in found.tiers[priority] if part.there] if parts is None else parts,
            self.plans.cards(found) if fit is None else fit,
            asker=Asker(self._region, self._lanes.load, self._clock_ms(self._clock())),
            canary=side,
            strict=fit is not None,
        )
        if fit is None:
            found.crowds[place] = among
        return among

    def _takes_canary(self, call: Call, found: Plan) -> bool:
        canary = found.entry.canary
        named = canary is not None and call.envelope.source in canary.callers
        return named or found.split.takes()

    def _last_resort(self, call: Call, parts: list[Part], now: float) -> Route | None:
        """Give a lane that only a breaker keeps to a `core` call that has no other."""
        priority = call.envelope.priority
        if priority != "core":
            return None
        for part in sorted(parts, key=lambda part: part.told.priority):
            lane = part.lane
            if lane.full or lane.told == "forced_open" or not part.there:
                continue
            verdict = lane.breaker_of(priority).admit(
                now, priority=priority, expires_at=call.deadline, last_usable=True
            )
            if not isinstance(verdict, Refused):
                permit = verdict if isinstance(verdict, Permit) else None
                return Route(part.route.subject, None, lane, permit, part.level)
        return None

    def _nobody(self, call: Call, refused: list[Refusal]) -> Route | Failure:
        """Say why none may be used. Where there just is none, the broker says so, or knows better."""
        if any(one.lane.told != "closed" or one.full or one.retry_after_s is not None for one in refused):
            return nobody(refused)
        target = call.envelope.target
        return Route(
            subjects.cap(call.capability) if target is None else subjects.lane(target, call.capability)
        )


def _meant(call: Call, part: Part, fit: list[Card] | None) -> bool:
    """Whether a lane is one that the call may go to: it fits, and was not found empty by this call."""
    if call.envelope.target not in {None, part.provider}:
        return False
    if fit and not any(card.agent_id == part.provider for card in fit):
        return False
    return not any(
        attempt.reason is Reason.NO_RESPONDERS and attempt.subject == part.route.subject
        for attempt in call.attempts
    )
