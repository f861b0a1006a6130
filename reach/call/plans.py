"""The plans of one client: for each capability that it calls, what the routing table says, worked out.

A plan is made anew when the table's entry changes, and when something in it ends by itself. A capability that nobody
registered goes by the entries of the more general ones, and follows those (`reach.registry.inheritance`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reach.call.plan import Plan, plan
from reach.chance import random
from reach.registry.inheritance import Heirs, derived

if TYPE_CHECKING:
    from collections.abc import Callable

    from reach.call.lanes import Lanes
    from reach.registry.cards import CardDirectory
    from reach.registry.routes import Routes
    from reach.wire.card import Card
    from reach.wire.route import RouteEntry

MAX_FOLLOWED: Final = 10_000
"""Capabilities that plans are kept for."""


class Plans:
    """See the module. `clock_ms` gives the broker's time for loop seconds; `suspicion` is told each lane's P99."""

    def __init__(
        self,
        routes: Routes,
        directory: CardDirectory,
        lanes: Lanes,
        *,
        clock: Callable[[], float],
        clock_ms: Callable[[float], int],
        suspicion: Callable[[str, float | None], None],
    ) -> None:
        self._routes = routes
        self._directory = directory
        self._lanes = lanes
        self._clock = clock
        self._clock_ms = clock_ms
        self._suspicion = suspicion
        self._plans: dict[str, Plan | None] = {}
        self._heirs = Heirs()
        self.special: dict[str, Plan] = {}
        """Of those that say what the queue group does not do by itself."""
        routes.on_change(self._changed)
        routes.on_rule(self._ruled)

    def of(self, capability: str) -> Plan | None:
        """Give a capability's plan."""
        return self._plans.get(capability)

    def follows(self, capability: str) -> bool:
        """Whether the table is heeded for a capability."""
        return capability in self._plans

    def follow(self, capability: str) -> None:
        """Heed what the table says of a capability from now on."""
        if capability in self._plans:
            return
        if len(self._plans) >= MAX_FOLLOWED:
            self._plans.clear()
            self.special.clear()
            self._heirs.clear()
        self._plans[capability] = None
        self._changed(capability, self._routes.entry(capability))

    def cards(self, found: Plan) -> tuple[Card, ...]:
        """Give the instances that are known of everybody in a plan, whichever name they serve by."""
        names = found.names
        if len(names) == 1:
            return self._directory.cards(names[0])
        return tuple({card.instance: card for name in names for card in self._directory.cards(name)}.values())

    def look(self) -> None:
        """Work those out anew of which something has ended by itself; to be called each second."""
        now_ms = self._clock_ms(self._clock())
        for capability, found in [
            (name, one) for name, one in self.special.items() if one.until_ms <= now_ms
        ]:
            self._plan(capability, found.entry)

    # -- what changes --------------------------------------------------------------------------------

    def _changed(self, capability: str, entry: RouteEntry | None) -> None:
        for heir in self._heirs.below(capability):
            if heir in self._plans and self._routes.entry(heir) is None:
                self._heed(heir, self._inherited(heir))
        if capability in self._plans:
            self._heed(capability, self._inherited(capability) if entry is None else entry)

    def _ruled(self) -> None:
        """Another rule of inheritance holds: what goes by it is worked out anew."""
        self._heirs.clear()
        for capability in [name for name in self._plans if self._routes.entry(name) is None]:
            self._heed(capability, self._inherited(capability))

    def _inherited(self, capability: str) -> RouteEntry | None:
        rule = self._routes.inheritance
        self._heirs.note(capability, rule)
        entry = derived(capability, rule, self._routes.entry)
        self._directory.goes_by(capability, None if entry is None else entry.lanes[0].serves)
        return entry

    def _heed(self, capability: str, entry: RouteEntry | None) -> None:
        if entry is None:
            self._plans[capability] = None
            self.special.pop(capability, None)
            return
        now = self._clock()
        now_ms = self._clock_ms(now)
        for told in entry.lanes:
            lane = self._lanes.of(capability, told.provider)
            breaker = told.breaker
            open_s = 0.0 if breaker.until is None else max(0.0, (breaker.until - now_ms) / 1000)
            self._lanes.tell(lane, breaker.state, now, why=breaker.why, open_s=open_s)
            lane.account.tell_apart(entry.strategy.name == "consistent_hash")
        self._plan(capability, entry)
        p99s = [told.figures.p99_ms for told in entry.lanes if told.figures.p99_ms is not None]
        self._suspicion(capability, max(p99s, default=None))

    def _plan(self, capability: str, entry: RouteEntry) -> None:
        now_ms = self._clock_ms(self._clock())
        found = plan(
            entry,
            self._lanes,
            at_ms=now_ms,
            start=random(),
            previous=self._plans.get(capability),
        )
        self._plans[capability] = found
        if found.special:
            self.special[capability] = found
        else:
            self.special.pop(capability, None)
        if found.by_instance and sum(part.told.instances for part in found.parts.values()) != len(
            self.cards(found)
        ):
            self._directory.refresh()  # The table knows of another number of instances than we do.
