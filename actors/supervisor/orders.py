"""Who is told to hold how many tickets, and when: promote first, withdraw when that is confirmed.

An order names everything that an instance is to hold, so that a lost one is made good by the next. What it names is
what is wanted; but who is to leave a capability keeps what it holds until somebody who is to stay is known to take
part (`reach.policy.tier.withdrawable`): a subject without a responder is worse than one with a bad one. Known is
the least that an instance may hold: an order under way that takes tickets from it may arrive any time.

An order that is not confirmed is sent again; whoever never confirms is found out by what its heartbeats say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from reach.policy.tier import withdrawable

AGAIN_S: Final = 0.5
MOST_TRIES: Final = 4
"""An instance that does not confirm in two seconds is asked again when it is next heard of."""

ASSUMED: Final = 0
"""The revision of what a predecessor is taken to have ordered."""

MOST_SENT: Final = 1000
"""Orders sent in one go: some 15 ms."""


@dataclass(frozen=True, slots=True)
class Told:
    """What an instance is told to hold; `revision` is the order's own, in this leader's term."""

    instance: str
    revision: int
    tickets: dict[str, int]
    off_lane: tuple[str, ...]


@dataclass(slots=True)
class _Desk:
    """What is known of one instance's tickets."""

    wanted: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    least: dict[str, int] = field(default_factory=dict)
    """What it holds at least, whichever of the orders under way arrives."""
    off_lane: set[str] = field(default_factory=set)
    told: Told | None = None
    told_at: float = 0.0
    tries: int = 0
    confirmed: bool = True


class Orders:
    """The tickets of all instances: wanted, ordered, held."""

    def __init__(self) -> None:
        self._desks: dict[str, _Desk] = {}
        self._plans: dict[str, tuple[dict[str, int], frozenset[str]]] = {}
        """By capability: the tickets that are wanted, everybody who serves it named, and who is off the lane."""
        self._dirty: set[str] = set()
        """Capabilities of which somebody holds something else than before."""
        self._held_back: dict[str, set[str]] = {}
        """By capability, who is to lose tickets of it when that is safe."""
        self._open: dict[str, None] = {}
        """Instances that may have to be told something, in the order in which that came up."""
        self._unconfirmed: set[str] = set()
        self._revision = 0

    # -- what is known --------------------------------------------------------------------------------

    def held(self, instance: str) -> dict[str, int]:
        """Give what an instance is believed to hold."""
        desk = self._desks.get(instance)
        return {} if desk is None else dict(desk.held)

    def held_of(self, capability: str) -> dict[str, int]:
        """Give the tickets of a capability that are held, by instance."""
        return {
            name: count
            for name in self._wanted(capability)
            if (count := self._desks[name].held.get(capability, 0)) > 0
        }

    def next_revision(self) -> int:
        """Give a revision above all before."""
        self._revision += 1
        return self._revision

    # -- what is wanted -------------------------------------------------------------------------------

    def want(self, capability: str, tickets: Mapping[str, int], off_lane: Iterable[str]) -> None:
        """Take a plan: what each instance is to hold of a capability."""
        off = frozenset(off_lane)
        last, last_off = self._plans.get(capability, ({}, frozenset[str]()))
        self._plans[capability] = (dict(tickets), off)
        for name in last.keys() - tickets.keys():
            desk = self._desks.get(name)
            if desk is not None:
                desk.wanted.pop(capability, None)
                desk.held.pop(capability, None)
                desk.off_lane.discard(capability)
        changed = {name for name, _ in tickets.items() - last.items()} | (off ^ last_off) & tickets.keys()
        for name in changed:
            desk = self._desks.setdefault(name, _Desk())
            desk.wanted[capability] = tickets[name]
            (desk.off_lane.add if name in off else desk.off_lane.discard)(capability)
            self._open[name] = None
        if changed:
            self._dirty.add(capability)  # Whoever was held back may now have a successor.

    def add(self, capability: str, instance: str, count: int) -> None:
        """Want this of one instance, before the capability is planned anew."""
        self._desks.setdefault(instance, _Desk()).wanted[capability] = count
        self._plans.setdefault(capability, ({}, frozenset()))[0][instance] = count

    def assume(self, instance: str) -> None:
        """Believe that an instance holds what is wanted: for a new leader, until it says otherwise."""
        desk = self._desks.get(instance)
        if desk is not None:
            desk.held = dict(desk.wanted)
            desk.least = dict(desk.wanted)
            desk.told = Told(instance, ASSUMED, dict(desk.wanted), tuple(sorted(desk.off_lane)))

    def forget(self, instance: str) -> None:
        """Drop an instance that is removed."""
        desk = self._desks.pop(instance, None)
        self._open.pop(instance, None)
        self._unconfirmed.discard(instance)
        if desk is not None:
            for capability in desk.wanted:
                self._wanted(capability).pop(instance, None)
                self._dirty.add(capability)

    def ended(self, instance: str) -> None:
        """Its link has ended, and with it everything that it held."""
        desk = self._desks.get(instance)
        if desk is None:
            return
        self._dirty.update(desk.held)
        desk.held.clear()
        desk.least.clear()
        desk.told, desk.confirmed = None, True
        self._unconfirmed.discard(instance)

    # -- what instances say ---------------------------------------------------------------------------

    def answer(self, instance: str, tickets: Mapping[str, int], now: float) -> Told:
        """Give what an instance that registers is told: it holds `tickets` now. It confirms by its heartbeat."""
        desk = self._desks.setdefault(instance, _Desk())
        desk.held = {name: count for name, count in tickets.items() if count > 0}
        desk.least = dict(desk.held)
        self._dirty.update(desk.wanted)
        return self._tell(instance, desk, self._target(instance, desk), now)

    def confirm(self, instance: str, tickets: Mapping[str, int], revision: int, now: float) -> None:
        """Take in what an instance says that it holds, having followed the order `revision` of this term."""
        desk = self._desks.get(instance)
        if desk is None:
            return
        held = {name: count for name, count in tickets.items() if count > 0}
        if held != desk.held:
            self._dirty.update(held.keys() | desk.held.keys())
            desk.held = held
        told = desk.told
        followed = told is not None and (revision >= told.revision or told.revision == ASSUMED)
        if told is None or followed:
            if desk.least != held:
                self._dirty.update(held)
            desk.least = dict(held)
        if told is None:
            self._open[instance] = None
        elif followed:
            desk.confirmed = True
            self._unconfirmed.discard(instance)
            if any(held.get(name, 0) != count for name, count in told.tickets.items()):
                desk.told = None  # It followed, and holds something else: its link ended in between.
                self._open[instance] = None
        elif now - desk.told_at >= AGAIN_S and desk.tries >= MOST_TRIES:
            desk.tries = 0
            self._unconfirmed.add(instance)

    # -- what to send ---------------------------------------------------------------------------------

    def due(self, now: float, *, reachable: Callable[[str], bool] = lambda _: True) -> list[Told]:
        """Give the orders to send now; who is not `reachable` is not told."""
        for capability in self._dirty:
            self._open.update(dict.fromkeys(self._held_back.pop(capability, ())))
        self._dirty.clear()
        found: list[Told] = []
        withdrawals: dict[str, dict[str, int]] = {}
        for name in list(self._open):
            if len(found) >= MOST_SENT:
                return found
            del self._open[name]
            desk = self._desks.get(name)
            if desk is None or not reachable(name):
                continue
            target = self._target(name, desk, withdrawals)
            off = tuple(sorted(desk.off_lane))
            last = desk.told
            if last is None:
                if target == desk.held and not off:
                    continue
            elif (last.tickets, last.off_lane) == (target, off):
                continue
            found.append(self._tell(name, desk, target, now))
        found += self._again(now, reachable)
        return found

    def _again(self, now: float, reachable: Callable[[str], bool]) -> list[Told]:
        found = []
        for name in list(self._unconfirmed):
            desk = self._desks[name]
            if desk.told is None or not reachable(name) or desk.tries >= MOST_TRIES:
                self._unconfirmed.discard(name)
            elif now - desk.told_at >= AGAIN_S:
                desk.told_at = now
                desk.tries += 1
                found.append(desk.told)
        return found

    def _tell(self, instance: str, desk: _Desk, target: dict[str, int], now: float) -> Told:
        told = Told(instance, self.next_revision(), target, tuple(sorted(desk.off_lane)))
        desk.least = {name: min(count, target.get(name, count)) for name, count in desk.least.items()}
        desk.told, desk.told_at, desk.tries, desk.confirmed = told, now, 1, False
        self._unconfirmed.add(instance)
        self._open.pop(instance, None)
        return told

    def _target(
        self, instance: str, desk: _Desk, withdrawals: dict[str, dict[str, int]] | None = None
    ) -> dict[str, int]:
        """Give what may be ordered now: more at once, less when that is safe."""
        known: dict[str, dict[str, int]] = {} if withdrawals is None else withdrawals
        target = {}
        for capability, wanted in desk.wanted.items():
            held = desk.held.get(capability, 0)
            if wanted == 0 < held:
                if capability not in known:
                    known[capability] = self._withdrawable(capability)
                wanted = known[capability].get(instance, held)  # noqa: PLW2901 - what may be ordered of it
                if wanted == held:
                    self._held_back.setdefault(capability, set()).add(instance)
            target[capability] = wanted
        return target

    def _withdrawable(self, capability: str) -> dict[str, int]:
        """Give whose tickets may be taken away altogether now: everybody's who is not wanted, or nobody's."""
        wanted = self._wanted(capability)
        held = {
            name: (desk.least if count else desk.held).get(capability, 0)
            for name, count in wanted.items()
            if (desk := self._desks.get(name)) is not None
        }
        return withdrawable(held, wanted, confirmed=())

    def _wanted(self, capability: str) -> dict[str, int]:
        found = self._plans.get(capability)
        return {} if found is None else found[0]
