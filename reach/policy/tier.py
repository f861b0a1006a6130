"""Which tier serves, how one takes over from another, and how few may be thrown out (behaviour ROUTE-1).

A `Ladder` follows one capability:

============  =============================================================================================
phase         the calls go to
============  =============================================================================================
nobody        nobody: no lane has an instance
settled       the best tier that has a usable lane
returning     mostly the tier that stood in, and a growing part to the better one that is back
last resort   the best tier whose lanes only a breaker bars (panic rule): for those who may
============  =============================================================================================

Falling is at once. A tier that failed, or whose breaker was open, comes back gradually; one that is there for the first
time takes over at once, whoever came before it. `moves` puts what a new standing means for memberships in order:
promote first, withdraw when that is confirmed. `eject` is the panic rule inside a lane: with most of it
"unhealthy" it is the judgement that is ill (design, section 5; cases 8 and 28).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from reach.policy.warmup import WARM_UP, Ramp


class Bar(StrEnum):
    """Why a lane takes no calls."""

    EMPTY = "empty"
    """No instance takes calls."""
    BREAKER = "breaker"
    """Its breaker is open, or half open and waits for probes."""
    FORCED = "forced"
    """An operator holds it open."""
    FULL = "full"
    """Its concurrency limit is reached, for this call (ROUTE-9)."""
    UNFIT = "unfit"
    """It lacks what the call requires (CALL-12)."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A lane as its tier sees it. `instances` are those that take calls; without any it is barred as `EMPTY`."""

    lane: str
    priority: int
    instances: int = 1
    barred: Bar | None = None

    @property
    def bar(self) -> Bar | None:
        """Why it takes no calls; None when it does."""
        return Bar.EMPTY if self.instances <= 0 else self.barred


class Phase(StrEnum):
    """What a capability's tiers are doing."""

    NOBODY = "nobody"
    SETTLED = "settled"
    RETURNING = "returning"
    LAST_RESORT = "last_resort"


MOVES: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.NOBODY: frozenset({Phase.NOBODY, Phase.SETTLED, Phase.LAST_RESORT}),
    Phase.SETTLED: frozenset(Phase),
    Phase.RETURNING: frozenset(Phase),
    Phase.LAST_RESORT: frozenset({Phase.NOBODY, Phase.SETTLED, Phase.LAST_RESORT}),
}
"""From phase to phase. Only what is served by a healthy tier can be returned from gradually."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Which tiers are in use now.

    Attributes:
        phase: What is going on.
        shares: (priority, share of the calls) of each tier in use, best first; shares add up to 1.
        tiers: Every tier that there is, best first: a tier's place in it is its `degrade_level`.
        next_at: When the shares change by themselves; None where they do not.
    """

    phase: Phase
    shares: tuple[tuple[int, float], ...] = ()
    tiers: tuple[int, ...] = ()
    next_at: float | None = None

    def level(self, priority: int) -> int:
        """Give how many tiers were fallen to reach this one: the reply's `degrade_level`."""
        return sum(1 for tier in self.tiers if tier < priority)

    def tier(self, pick: float) -> int | None:
        """Give the tier of one call, with `pick` uniform in [0, 1); None when nobody is there."""
        for priority, share in self.shares:
            pick -= share
            if pick < 0:
                return priority
        return self.shares[-1][0] if self.shares else None


def usable_tiers(offers: Iterable[Offer]) -> tuple[int, ...]:
    """Give the priorities with a lane that takes calls, best first."""
    return tuple(sorted({offer.priority for offer in offers if offer.bar is None}))


def last_resort(offers: Iterable[Offer]) -> int | None:
    """Give the best tier of which only a breaker keeps calls away; None when there is none.

    Neither what an operator holds open nor what is empty, full or unfit is a resort.
    """
    return min((offer.priority for offer in offers if offer.bar is Bar.BREAKER), default=None)


def may_use_last_resort(priority: str) -> bool:
    """Whether a call of this priority may try a lane whose breaker is open: `core` alone (BREAK-5)."""
    return priority == "core"


class Ladder:
    """The tiers of one capability over time.

    Args:
        ramp: What part of the calls a tier that is back gets, by the seconds since it came back.
    """

    __slots__ = ("_better", "_failed", "_phase", "_ramp", "_seen", "_since", "_tier")

    def __init__(self, *, ramp: Ramp = WARM_UP) -> None:
        self._ramp = ramp
        self._phase = Phase.NOBODY
        self._tier: int | None = None  # That serves; while one returns: that stands in.
        self._better: int | None = None  # That returns.
        self._since = 0.0
        self._seen: set[int] = set()  # Tiers that took calls at some time,
        self._failed: set[int] = set()  # and those of them that do no more, or that a breaker barred.

    @property
    def phase(self) -> Phase:
        """What is going on, as of the last look."""
        return self._phase

    def copy(self) -> Ladder:
        """Give another one that stands where this one does."""
        twin = Ladder(ramp=self._ramp)
        twin._phase, twin._tier, twin._better, twin._since = (
            self._phase,
            self._tier,
            self._better,
            self._since,
        )
        twin._seen, twin._failed = set(self._seen), set(self._failed)
        return twin

    def unsee(self, priority: int) -> None:
        """Take it that a tier was not there: who was believed to be in it never answered."""
        self._seen.discard(priority)

    def resume(self, shares: Sequence[tuple[int, float]], *, now: float, failed: Iterable[int] = ()) -> None:
        """Take over the tiers in use from the table, best first, as (priority, share): for a new leader.

        A return goes on from the beginning of the step that it had reached. What the table calls its last
        resort, and a table without tiers, is nothing to go on from. `failed` are the better tiers that it names: they
        come back gradually.

        Raises:
            ValueError: this ladder has looked already, or there are more than two tiers in use.
        """
        if self._phase is not Phase.NOBODY or len(shares) > 2:  # noqa: PLR2004 - one serves, one may return
            raise ValueError(f"a new ladder resumes at most two tiers, not {len(shares)} when {self._phase}")
        if not shares:
            return
        self._failed.update(failed)
        (best, part), (tier, _) = shares[0], shares[-1]
        self._go(Phase.SETTLED, tier)
        if best != tier:
            self._go(Phase.RETURNING, tier, better=best)
            self._since = now - self._ramp.age_s(part)

    def look(self, offers: Iterable[Offer], *, now: float) -> Standing:
        """Judge the tiers anew: when an offer changed, and at the last standing's `next_at`."""
        known = tuple(offers)
        usable = usable_tiers(known)
        self._note(known, usable)
        if usable:
            self._follow(usable, now)
        else:
            resort = last_resort(known)
            self._go(Phase.NOBODY if resort is None else Phase.LAST_RESORT, resort)
        return self._standing(tuple(sorted({offer.priority for offer in known})), now)

    def _note(self, offers: tuple[Offer, ...], usable: tuple[int, ...]) -> None:
        """Note which tiers have failed: those that took calls and do no more, and those that a breaker bars."""
        barred = {offer.priority for offer in offers if offer.bar in {Bar.BREAKER, Bar.FORCED}}
        self._failed |= (self._seen | barred) - set(usable)
        self._seen |= set(usable)

    def _follow(self, usable: tuple[int, ...], now: float) -> None:
        """Settle on the best usable tier, or begin or go on returning to it."""
        best, tier = usable[0], self._tier
        healthy = self._phase in {Phase.SETTLED, Phase.RETURNING}
        if self._phase is Phase.RETURNING and self._better is not None and self._better != best:
            if self._better in usable and self._ramp.factor(now - self._since) >= 1 / 2:
                tier = self._better  # It has most of the calls already: the next one returns from there.
            self._better = None
        stands_in = healthy and tier is not None and tier in usable and tier > best
        if not stands_in or (best not in self._failed and self._better is None):
            self._go(Phase.SETTLED, best)
        elif self._better is None:
            self._go(Phase.RETURNING, tier, better=best)
            self._since = now
        if self._phase is Phase.RETURNING and now - self._since >= self._ramp.length_s:
            self._go(Phase.SETTLED, best)

    def _go(self, phase: Phase, tier: int | None, *, better: int | None = None) -> None:
        if phase not in MOVES[self._phase]:
            raise ValueError(f"tiers cannot go from {self._phase} to {phase}")
        if phase is Phase.SETTLED and tier is not None:
            self._failed.discard(tier)
        self._phase, self._tier, self._better = phase, tier, better

    def _standing(self, tiers: tuple[int, ...], now: float) -> Standing:
        if self._tier is None:
            return Standing(self._phase, (), tiers)
        if self._better is None:
            return Standing(self._phase, ((self._tier, 1.0),), tiers)
        age_s = now - self._since
        part = self._ramp.factor(age_s)
        shares = ((self._better, part), (self._tier, 1 - part))
        return Standing(self._phase, shares, tiers, now + self._ramp.next_step_s(age_s))


# -- memberships ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moves:
    """What to change, as tickets by instance: all of `promote` first, and `withdraw` when it is confirmed."""

    promote: dict[str, int]
    withdraw: dict[str, int]


def moves(held: Mapping[str, int], wanted: Mapping[str, int]) -> Moves:
    """Give the changes from the tickets that are held to those that are wanted; who is not named has none."""
    promote = {one: count for one, count in wanted.items() if count > held.get(one, 0)}
    withdraw = {one: wanted.get(one, 0) for one, count in held.items() if count > wanted.get(one, 0)}
    return Moves(promote, withdraw)


def withdrawable(
    held: Mapping[str, int], wanted: Mapping[str, int], *, confirmed: Iterable[str]
) -> dict[str, int]:
    """Give the withdrawals that may be sent now, as tickets by instance.

    All of them, as soon as one instance that stays, or one that confirmed its promotion, holds tickets. Where
    nobody is wanted at all, all of them too: that is what was asked for. Until then none: a subject without a
    responder is worse than one with a bad one.

    Args:
        held: Tickets before the change.
        wanted: Tickets after it.
        confirmed: Instances that confirmed their promotion.
    """
    withdraw = moves(held, wanted).withdraw
    told = frozenset(confirmed)
    wanting = [one for one, count in wanted.items() if count > 0]
    safe = not wanting or any(one in told or held.get(one, 0) > 0 for one in wanting)
    return withdraw if safe else {}


# -- inside a lane --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ejection:
    """Who is thrown out. `panic`: too many looked unhealthy, so health is ignored, which must be shouted."""

    out: frozenset[str]
    panic: bool = False

    def explain(self) -> str:
        """One sentence for people."""
        if self.panic:
            return (
                "most of the lane looks unhealthy: nobody is thrown out, suspect the judgement or the network"
            )
        return f"thrown out: {', '.join(sorted(self.out)) or 'nobody'}"


def eject(lane: Iterable[str], unhealthy: Iterable[str]) -> Ejection:
    """Give who of a lane may be thrown out (panic rule).

    Never more than half of it, rounded up, and never its last instance. Where more look unhealthy, nobody is
    thrown out: partial health would be a guess, and the few left would drown.

    Args:
        lane: Its instances that are there. Those that are known to be gone do not count: they are no judgement.
        unhealthy: Those that should be thrown out; others than the lane's are left out of account.
    """
    there = frozenset(lane)
    bad = there & frozenset(unhealthy)
    most = min((len(there) + 1) // 2, len(there) - 1)
    if not bad:
        return Ejection(frozenset())
    return Ejection(frozenset(), panic=True) if len(bad) > most else Ejection(bad)
