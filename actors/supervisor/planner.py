"""Which capabilities have to be worked out again, and the entry and tickets that each has now.

Whatever changes *touches* a capability; it is worked out once for many touches, the less often the more instances
it has (a lane of ten thousand twice a second), and again when time alone changes something: a step of a warm-up, a
tier that returns. Figures are taken from the ledger each few seconds where there is traffic.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from actors.supervisor.orders import Orders
from actors.supervisor.outcomes import Ledger
from actors.supervisor.roster import Member, Roster
from actors.supervisor.scribe import Scribe
from actors.supervisor.table import ALONE, Choice, LaneInput, LanePlan, Plan, differs, plan
from actors.supervisor.verdicts import Verdicts
from reach.policy.inherit import Inheritance
from reach.policy.tier import Bar, Ladder
from reach.policy.warmup import WARM_UP
from reach.policy.weight import quality
from reach.wire import codec
from reach.wire.registration import ROUTES, route_key
from reach.wire.route import Breaker, Figures, RouteEntry

PAUSE_S_PER_INSTANCE: Final = 50e-6
"""A capability is worked out at most once in so long: some 2 µs are spent on each instance, 4 % of the time."""

LAZY: Final = 4
"""What can wait (newcomers have tickets already) waits so many times as long."""

FIGURES_KEPT_S: Final = 300.0
"""For so long figures say something of a lane after its last calls (ROUTE-2)."""

FIGURES_S: Final = 5.0
"""How often the figures of a lane with traffic are taken anew."""


MOST_AT_ONCE: Final = 250
"""Capabilities that one step works out: some 100 ms. More would cost the leadership, which is renewed in between."""


class Planner:
    """The plans of all capabilities, as one leader has them."""

    def __init__(
        self,
        *,
        roster: Roster,
        ledger: Ledger,
        verdicts: Verdicts,
        orders: Orders,
        scribe: Scribe,
        inheritance: Inheritance = ALONE,
    ) -> None:
        self._roster = roster
        self._ledger = ledger
        self._verdicts = verdicts
        self._orders = orders
        self._scribe = scribe
        self.inheritance = inheritance
        self._heirs: dict[str, set[str]] = {}
        """By capability, those below it that were planned: what changes of it may change them."""
        self.term = 0
        self.revision = 0
        self.choices: dict[str, Choice] = {}
        self.plans: dict[str, Plan] = {}
        self.entries: dict[str, RouteEntry] = {}
        self.panics: set[tuple[str, str]] = set()
        self._ladders: dict[str, Ladder] = {}
        self._touched: dict[str, bool] = {}
        """What is to be worked out, and whether it can wait."""
        self._planned_at: dict[str, float] = {}
        self._timers: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}
        self._figures: dict[tuple[str, str], tuple[float, Figures, float]] = {}

    # -- asking ---------------------------------------------------------------------------------------

    def choice(self, capability: str) -> Choice:
        """Give what operators set for a capability, to read."""
        return self.choices.get(capability, Choice())

    def known(self, capability: str) -> bool:
        """Whether anybody ever served it, or an operator set anything for it."""
        return (
            capability in self.entries or capability in self.choices or bool(self._roster.lanes(capability))
        )

    def serving(self, provider: str, capability: str) -> str | None:
        """Give the name that a provider serves a capability by: its own, or a more general one; None for neither."""
        if provider in self._roster.lanes(capability):
            return capability
        elders = self.inheritance.ancestors(capability)
        return next((name for name, _ in elders if provider in self._roster.lanes(name)), None)

    def touch(self, capabilities: Iterable[str], *, lazy: bool = False) -> None:
        """See to it that these are worked out again soon; `lazy`: it can wait a little."""
        for capability in capabilities:
            self._touched[capability] = lazy and self._touched.get(capability, True)

    def step(self, now: float, at_ms: int) -> None:
        """Work out what is due."""
        while self._timers and self._timers[0][0] <= now:
            at, capability = heapq.heappop(self._timers)
            if self._due.get(capability) == at:
                del self._due[capability]
                self._touched[capability] = False
        due = (one for one, lazy in self._touched.items() if self.rested(one, now, lazy=lazy))
        for capability in list(islice(due, MOST_AT_ONCE)):
            self.work_out(capability, now, at_ms)

    def rested(self, capability: str, now: float, *, lazy: bool = False) -> bool:
        """Whether a capability may be worked out again already."""
        size = sum(len(lane) for lane in self._roster.lanes(capability).values())
        last = self._planned_at.get(capability, -math.inf)
        return now - last >= size * PAUSE_S_PER_INSTANCE * (LAZY if lazy else 1)

    # -- working out ----------------------------------------------------------------------------------

    def work_out(self, capability: str, now: float, at_ms: int) -> Plan:
        """Work one capability out now: its tickets are wanted, and its entry written where it differs."""
        self._touched.pop(capability, None)
        self._planned_at[capability] = now
        found = self.look(capability, now, at_ms)
        self.plans[capability] = found
        self._schedule(capability, now, found.next_s)
        self._orders.want(capability, found.tickets.counts, found.off_lane)
        self.panics = {one for one in self.panics if one[0] != capability} | {
            (capability, provider) for provider in found.panic
        }
        for name, _ in self.inheritance.ancestors(capability):
            self._heirs.setdefault(name, set()).add(capability)
        if differs(found.entry, self.entries.get(capability)):
            self._publish(found.entry)
            self.touch(self._heirs.get(capability, ()))
        return found

    def look(
        self,
        capability: str,
        now: float,
        at_ms: int,
        *,
        choice: Choice | None = None,
        breakers: Mapping[str, tuple[Breaker, Bar | None]] | None = None,
        trial: bool = False,
    ) -> Plan:
        """Work one capability out without consequences.

        For a trial `choice` stands in place of what operators set, `breakers` in that of what the lanes' say.
        """
        roster = self._roster
        providers = [*roster.lanes(capability)]
        providers += [
            lane.provider for lane in self._entry_lanes(capability) if lane.provider not in providers
        ]
        inputs = {provider: self._input(provider, capability, now, at_ms) for provider in providers}
        kinds = {roster.card(capability, provider).kind for provider in roster.lanes(capability)}
        for name, generation in self.inheritance.ancestors(capability):
            for provider in roster.lanes(name).keys() - inputs.keys():
                if kinds and roster.card(name, provider).kind not in kinds:
                    continue  # Who asks for one answer does not want a stream.
                elder = self._input(provider, name, now, at_ms)
                inputs[provider] = replace(elder, serves=name, generation=generation)
        for provider, (told, bar) in (breakers or {}).items():
            known = inputs.get(provider, LaneInput(provider=provider))
            inputs[provider] = replace(known, breaker=told, bar=bar)
        ladder = self._ladders.setdefault(capability, Ladder())
        if trial:
            ladder = ladder.copy()
        return plan(
            capability,
            roster=roster,
            inputs=inputs,
            choice=choice or self.choice(capability),
            ladder=ladder,
            now=now,
            at_ms=at_ms,
            inheritance=self.inheritance,
        )

    def newcomer(self, capability: str, member: Member, now: float) -> int:
        """Give a just registered instance its tickets by the last plan, where working it out anew has to wait.

        As many as a neighbour of its lane has for its share; the next plan puts it right.
        """
        found = self.plans.get(capability)
        lane = None if found is None else _lane_of(found, member.card.agent_id)
        if found is None or lane is None:
            return 0
        age_s = math.inf if member.warm_since is None else now - member.warm_since
        for name in lane.members:
            count = found.tickets.counts.get(name, 0)
            if count and lane.factor(name) == 1:
                # Where the warmest is only warming itself, a newcomer is as good.
                part = WARM_UP.factor(age_s) if lane.members[name].warm_since is None else 1.0
                return max(1, round(count * part))
        return 0

    # -- taking over ----------------------------------------------------------------------------------

    def adopt(self, entry: RouteEntry, now: float, at_ms: int) -> None:
        """Go on from an entry of the table: what operators set, the breakers, the tiers in use."""
        self.entries[entry.capability] = entry
        self.revision = max(self.revision, entry.revision)
        choice = Choice(
            weights={lane.provider: lane.terms.traffic for lane in entry.lanes if lane.terms.traffic != 1},
            limits={lane.provider: lane.limit for lane in entry.lanes if lane.limit is not None},
            canary=entry.canary,
            strategy=entry.strategy,
            terms_off=entry.terms_off,
        )
        if choice != Choice():
            self.choices[entry.capability] = choice
        for lane in entry.lanes:
            key = (lane.provider, lane.serves or entry.capability)
            self._verdicts.adopt(key, lane.breaker, now=now, at_ms=at_ms)
            self._figures[key] = (now, lane.figures, lane.terms.quality)
        ladder = self._ladders[entry.capability] = Ladder()
        if not entry.last_resort and len(entry.tiers) <= 2:  # noqa: PLR2004 - one serves, one may return
            best = min((tier.priority for tier in entry.tiers), default=0)
            ladder.resume(
                [(tier.priority, tier.share) for tier in entry.tiers],
                now=now,
                failed={lane.priority for lane in entry.lanes if lane.priority < best},
            )
        self._touched[entry.capability] = False

    def never_there(self, member: Member) -> None:
        """Take it that an instance that the buckets showed was not there any more: its tiers did not fail now."""
        for capability, offered in member.serves.items():
            ladder = self._ladders.get(capability)
            if ladder is not None:
                ladder.unsee(offered.priority)

    # -- figures --------------------------------------------------------------------------------------

    def told(self, provider: str, capability: str, now: float) -> None:
        """There was traffic: its figures count, when they have rested."""
        at, _, _ = self._figures.get((provider, capability), (-math.inf, Figures(), 1.0))
        if now - at >= FIGURES_S:
            self._touched[capability] = False

    def reset_quality(self, provider: str, capability: str) -> None:
        """Let a lane's slow quality begin anew."""
        at, figures, _ = self._figures.get((provider, capability), (-math.inf, Figures(), 1.0))
        self._figures[provider, capability] = (at, figures, 1.0)

    def _input(self, provider: str, capability: str, now: float, at_ms: int) -> LaneInput:
        key = (provider, capability)
        at, figures, value = self._figures.get(key, (-math.inf, Figures(), 1.0))
        book = self._ledger.book(provider, capability)
        if book is not None and now - at >= FIGURES_S:
            # A time without calls moves nothing: what comes after it must not be charged with all of it.
            elapsed_s = min(now - at, FIGURES_KEPT_S) if at > -math.inf else 0.0
            value = quality(value, success_24h=book.success_24h(now), elapsed_s=elapsed_s)
            figures = book.figures(now)
            self._figures[key] = (now, figures, value)
        breaker = self._verdicts.known(key)
        if breaker is not None and breaker.usual_p99_ms is not None:
            figures = figures.model_copy(update={"usual_p99_ms": breaker.usual_p99_ms})
        return LaneInput(
            provider=provider,
            figures=figures,
            breaker=self._verdicts.told(key, now=now, at_ms=at_ms),
            bar=self._verdicts.bar(key),
            quality=value,
        )

    # -- inside ---------------------------------------------------------------------------------------

    def _entry_lanes(self, capability: str) -> Iterable[LaneInput]:
        """Give the lanes of the present entry that an operator holds open, though nobody is in them."""
        entry = self.entries.get(capability)
        for lane in entry.lanes if entry is not None else ():
            if lane.breaker.state == "forced_open" and lane.serves is None:
                yield LaneInput(provider=lane.provider)

    def _schedule(self, capability: str, now: float, in_s: float) -> None:
        if in_s == math.inf:
            self._due.pop(capability, None)
            return
        at = now + max(in_s, 0.001)
        self._due[capability] = at
        heapq.heappush(self._timers, (at, capability))

    def _publish(self, entry: RouteEntry) -> None:
        self.revision += 1
        entry = entry.model_copy(update={"term": self.term, "revision": self.revision})
        self.entries[entry.capability] = entry
        self._scribe.put(ROUTES, route_key(entry.capability), packed(entry))


def packed(entry: RouteEntry) -> bytes:
    """Give an entry as the table holds it: what is as usual is left out."""
    body = entry.model_dump(mode="json", exclude_defaults=True)
    return codec.pack({**body, "capability": entry.capability})


def _lane_of(found: Plan, provider: str) -> LanePlan | None:
    return next((lane for lane in found.lanes if lane.provider == provider), None)
