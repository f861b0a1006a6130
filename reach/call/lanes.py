"""What this caller has learned of the lanes that it uses.

A lane is one provider of one capability. Each has a breaker that reacts at once (behaviour BREAK-4), a retry
budget (RETRY-6), a count of the calls that are under way, what is to be told of it, and its row of the metrics,
together in one object, so that a call looks up one thing. What the supervisor says of a lane, from everybody's calls,
is laid upon its breaker. Instances that just failed are remembered for five seconds (RETRY-5). Lanes that
were not used for a while are forgotten.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Final

from reach.call.account import ALL_COUNT, Account
from reach.chance import random
from reach.policy.blame import counts_against_lane
from reach.policy.breaker import Breaker
from reach.policy.breaker_state import State
from reach.policy.outlier import Outliers
from reach.policy.permits import Permit
from reach.policy.retrybudget import RetryBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from reach.observe.metrics import Metrics, Tally
    from reach.policy.breaker_settings import BreakerSettings
    from reach.wire.envelope import Priority
    from reach.wire.reply import Failure
    from reach.wire.route import BreakerState

_log = logging.getLogger("reach.call")

SHUN_S: Final = 5.0
"""For so long an instance that failed is avoided where another one is known (RETRY-5)."""

MAX_LANES: Final = 10_000
"""Lanes that are kept; the ones that rest are forgotten first."""

NOBODY: Final = ""
"""Stands for the provider of an attempt of which nobody knows who had it: such calls share one retry budget."""

_OPERATED: Final = frozenset({State.FORCED_OPEN, State.DISABLED})

_NOW_S: Final = 1.0  # A permit that is given back in the next line: any time to come will do.


class SharedPermit:
    """A probe's place that the leading supervisor gave; its outcome is the supervisor's to judge (BREAK-3)."""

    __slots__ = ("number", "spent")

    def __init__(self, number: str) -> None:
        self.number = number
        self.spent = False


AnyPermit = Permit | SharedPermit


class Lane:
    """One provider of one capability, as this caller knows it.

    `open` counts its calls that are under way here and were sent to it by name; `limit` is how many there may be,
    None where its card does not say (GUARD-1). `core` calls bear more failures, so they have a breaker of their
    own, from the first of them on (BREAK-1).

    `told` is what the supervisor says of it where that keeps calls away, or lets all of them pass; `ask_at` is when
    (loop seconds) it may be asked again for a probe.
    """

    __slots__ = (
        "account",
        "ask_at",
        "breaker",
        "budget",
        "capability",
        "core",
        "limit",
        "open",
        "outliers",
        "provider",
        "settings",
        "tally",
        "told",
    )

    def __init__(
        self, capability: str, provider: str, *, tally: Tally, settings: BreakerSettings | None = None
    ) -> None:
        self.capability = capability
        self.provider = provider
        self.tally = tally
        self.settings = settings
        self.breaker = Breaker(settings)
        self.core: Breaker | None = None
        self.budget = RetryBudget()
        self.outliers = Outliers()
        self.open = 0
        self.limit: int | None = None
        self.account = Account()
        self.told: BreakerState = "closed"
        self.ask_at = 0.0

    @property
    def full(self) -> bool:
        """Whether no more calls may be sent to it now (ROUTE-9)."""
        return self.limit is not None and self.open >= self.limit

    @property
    def well(self) -> bool:
        """Whether every call may go to it without asking."""
        return self.breaker.closed and (self.core is None or self.core.closed)

    def breaker_of(self, priority: Priority) -> Breaker:
        """Give the breaker that judges calls of a priority."""
        if priority != "core":
            return self.breaker
        if self.core is None:
            self.core = Breaker(self.settings, core=True)
        return self.core


class Lanes:
    """All lanes of one client."""

    def __init__(self, metrics: Metrics, *, settings: BreakerSettings | None = None) -> None:
        self._metrics = metrics
        self._settings = settings
        self._by_capability: dict[str, dict[str, Lane]] = {}
        self._count = 0
        self.troubled: dict[str, set[str]] = {}
        """Providers whose breaker is not closed, by capability: most of the time there are none."""
        self.shunned: dict[str, dict[str, float]] = {}
        """Until when (loop seconds) which instances are avoided, by capability."""
        self.moves = 0
        """Grows whenever other lanes or instances may be used than before, by what this caller knows."""
        self.held: dict[str, int] = {}
        """Calls that are under way here and were sent to an instance by name."""
        self.probed: Callable[[Lane, SharedPermit, bool | None, float], None] | None = None
        """Told of a shared permit's outcome: whether it failed, and its latency in milliseconds."""

    def __len__(self) -> int:
        return self._count

    def of(self, capability: str, provider: str) -> Lane:
        """Give a lane, made on first use."""
        lanes = self._by_capability.get(capability)
        if lanes is None:
            lanes = self._by_capability[capability] = {}
        lane = lanes.get(provider)
        if lane is None:
            if self._count >= MAX_LANES:
                self._forget()
            tally = self._metrics.tally(capability, provider)
            lane = lanes[provider] = Lane(capability, provider, tally=tally, settings=self._settings)
            self._by_capability[capability] = lanes
            self._count += 1
        return lane

    def enter(self, lane: Lane, instance: str | None) -> None:
        """Count a call that goes to a lane by name, and to an instance where one is named."""
        lane.open += 1
        if instance is not None:
            self.held[instance] = self.held.get(instance, 0) + 1

    def leave(self, lane: Lane, instance: str | None) -> None:
        """Count its end."""
        lane.open -= 1
        if instance is not None:
            held = self.held.get(instance, 0) - 1
            if held > 0:
                self.held[instance] = held
            else:
                self.held.pop(instance, None)

    def load(self, instance: str) -> int:
        """Give the calls under way at an instance that were sent to it by name."""
        return self.held.get(instance, 0)

    def known(self, capability: str) -> Iterable[Lane]:
        """Give the lanes of a capability that were used."""
        return [lane for lane in self._by_capability.get(capability, {}).values() if lane.provider != NOBODY]

    def __iter__(self) -> Iterator[Lane]:
        return (lane for lanes in self._by_capability.values() for lane in lanes.values())

    def good(
        self, lane: Lane, now: float, latency_ms: float, permit: AnyPermit | None, *, first: bool
    ) -> None:
        """Take in an answer that counts for its lane; `latency_ms` is the time that the far end needed.

        `first` says that it was the call's first attempt; only those are calls to the retry budget.
        """
        if first:
            lane.budget.call(now)
        account = lane.account
        account.ok = calls = account.ok + 1
        if calls <= ALL_COUNT or not calls & 7:
            account.sketch.add(latency_ms)
        breaker = lane.breaker
        if permit is None and lane.core is None and breaker.closed:
            breaker.good(now, latency_ms)
            if not lane.well:
                self.moved(lane)
            return
        self._judge(lane, now, failed=False, latency_ms=latency_ms, permit=permit)

    def bad(
        self,
        lane: Lane,
        now: float,
        failure: Failure,
        *,
        waited_ms: float,
        permit: AnyPermit | None,
        first: bool,
        instance: str | None = None,
    ) -> bool | None:
        """Take in a failed attempt; what is not the far end's fault counts for nothing (BREAK-2).

        Gives what `counts_against_lane` says of it.
        """
        if first:
            lane.budget.call(now)
        counts = counts_against_lane(failure, waited_ms=waited_ms, usual_ms=lane.breaker.patience_ms)
        lane.account.bad(now, failure.reason.value, counts=counts, instance=instance)
        self._judge(lane, now, failed=counts, latency_ms=waited_ms, permit=permit)
        return counts

    def _judge(
        self, lane: Lane, now: float, *, failed: bool | None, latency_ms: float, permit: AnyPermit | None
    ) -> None:
        """Let both breakers of a lane judge an outcome: what the one let through is a probe of the other as well.

        Else the one for `core` calls would stay open for ever where no `core` call comes any more.
        """
        if isinstance(permit, SharedPermit):
            self._give_back(lane, permit, failed=failed, latency_ms=latency_ms)
            return
        was_well = lane.well
        for breaker in (lane.breaker, lane.core):
            if breaker is None:
                continue
            unspent = permit is not None and not permit.spent
            breaker.record(now, failed=failed, latency_ms=latency_ms, jitter=random(), permit=permit)
            if breaker.closed or failed is None or (unspent and permit is not None and permit.spent):
                continue
            if now - latency_ms / 1000 >= breaker.open_until:
                verdict = breaker.admit(now, expires_at=now + _NOW_S)
                if isinstance(verdict, Permit):
                    breaker.record(now, failed=failed, latency_ms=latency_ms, jitter=random(), permit=verdict)
        if lane.well is not was_well:
            self.moved(lane)

    def _give_back(self, lane: Lane, permit: SharedPermit, *, failed: bool | None, latency_ms: float) -> None:
        """Tell a shared probe's outcome, once."""
        if not permit.spent and self.probed is not None:
            permit.spent = True
            self.probed(lane, permit, failed, latency_ms)

    def left(self, lane: Lane, now: float, permit: AnyPermit) -> None:
        """Give the permit of a call back whose outcome says nothing."""
        self._judge(lane, now, failed=None, latency_ms=0.0, permit=permit)

    def tell(
        self, lane: Lane, state: BreakerState, now: float, *, why: str = "", open_s: float = 0.0
    ) -> None:
        """Lay the supervisor's word upon a lane: everybody's outcomes, or an operator (BREAK-4).

        `open_s` is how long an open one still waits. That it is closed ends only what the supervisor itself had said:
        what this caller found out by itself holds on.
        """
        before, was_well = lane.told, lane.well
        lane.told = state
        if state == before and state not in {"open", "half_open"}:
            return
        for breaker in (lane.breaker, lane.core):
            if breaker is None:
                continue
            if breaker.state in _OPERATED and state not in {"forced_open", "disabled"}:
                breaker.enable(now)
            if state == "forced_open":
                breaker.force_open(why=why or "an operator opened it")
            elif state == "disabled":
                breaker.disable()
            elif state in {"closed", "forced_closed"}:
                if not breaker.closed:
                    breaker.force_close(now)
            elif state == "open":
                breaker.trip(now, why=why or "the supervisor opened it", jitter=0.5, until=now + open_s)
            elif breaker.state is State.CLOSED:
                breaker.trip(now, why="the supervisor probes it", jitter=0.5, until=now)
        if lane.well is not was_well:
            self.moved(lane)

    def shun(self, capability: str, instance: str, now: float, *, of: int) -> None:
        """Avoid an instance for a while, unless more than half of the `of` that are known would then be avoided."""
        if (
            instance in self.avoided(capability, now)
            or len(self.avoided(capability, now)) + 1 <= (of + 1) // 2 < of
        ):
            self.shunned.setdefault(capability, {})[instance] = now + SHUN_S
            self.moves += 1

    def avoided(self, capability: str, now: float) -> frozenset[str]:
        """Give the instances of a capability that are to be avoided now."""
        shunned = self.shunned.get(capability)
        if shunned is None:
            return frozenset()
        for instance in [instance for instance, until in shunned.items() if until <= now]:
            del shunned[instance]
        if not shunned:
            del self.shunned[capability]
        return frozenset(shunned)

    def moved(self, lane: Lane) -> None:
        """Note that a breaker opened or closed."""
        self.moves += 1
        troubled = self.troubled.setdefault(lane.capability, set())
        if lane.well:
            troubled.discard(lane.provider)
        else:
            troubled.add(lane.provider)
        if not troubled:
            del self.troubled[lane.capability]
        self._metrics.breaker_open.set(0.0 if lane.well else 1.0, lane.capability, lane.provider)
        if lane.well:
            _log.warning("lane %s of %s: takes calls again", lane.provider, lane.capability)
        else:
            why = lane.breaker.why or (lane.core.why if lane.core is not None else None) or "being probed"
            _log.warning("lane %s of %s: its breaker opened (%s)", lane.provider, lane.capability, why)

    def _forget(self) -> None:
        """Drop the lanes that rest: those with nothing open, nothing judged lately, and a closed breaker."""
        now = monotonic()
        for capability, lanes in list(self._by_capability.items()):
            for provider, lane in list(lanes.items()):
                if lane.well and not lane.open and lane.breaker.rest(now):
                    del lanes[provider]
                    self._count -= 1
            if not lanes:
                del self._by_capability[capability]
