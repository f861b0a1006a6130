"""What choosing a lane costs, by the clock: for ten instances and for ten thousand (behaviour SPEED-3).

No bus: a routing table's entry and the cards of its instances are laid before the very code that a call runs, and
one call chooses again and again, its place at the lane given back each time. `python -m bench.choosing` prints it.
"""

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, perf_counter_ns
from types import SimpleNamespace
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from reach.call.call import Call
from reach.call.context import CallContext
from reach.call.lanes import Lanes
from reach.call.options import Options
from reach.call.outbound import Outbound
from reach.call.steering import Steering
from reach.observe.metrics import Metrics
from reach.wire.card import CapabilityCard, Card, Limits
from reach.wire.envelope import Envelope, Priority
from reach.wire.route import Breaker, Canary, InstanceException, Lane, RouteEntry, Strategy, TierShare

LIMIT_US: Final = 3.0
SIZES: Final = (10, 10_000)

_CAPABILITY: Final = "invoice.read"
_BATCH: Final = 50
_BATCHES: Final = 800


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that makes calls choose: the entry's lanes (given their instances), and what else there is."""

    name: str
    lanes: Callable[[int], tuple[Lane, ...]]
    entry: dict[str, Any] | None = None
    shun: bool = False
    limits: Limits | None = None
    priority: Priority = "normal"


def _two(each: int, first: dict[str, Any], second: dict[str, Any] | None = None) -> tuple[Lane, ...]:
    return (
        Lane(provider="a", instances=each, **first),
        Lane(provider="b", instances=each, **(second or {})),
    )


_OPEN: Final = Breaker(state="open", why="measured", until=4_000_000_000_000)
_STEERED: Final = InstanceException(instance="a-00000001", generation=1, state="steered", factor=0.0)

CASES: Final = (
    Case("nothing speaks against the group", lambda each: _two(each, {})),
    Case("lanes of unequal weight", lambda each: _two(each, {"weight": 0.5})),
    Case("a canary of 5 %", lambda each: _two(each, {}), {"canary": Canary(version="2.0.0", percent=5)}),
    Case("instances are picked: one is steered around", lambda each: _two(each, {"exceptions": (_STEERED,)})),
    Case("a strategy: round robin", lambda each: _two(each, {}), {"strategy": Strategy(name="round_robin")}),
    Case("one lane's breaker is open", lambda each: _two(each, {"breaker": _OPEN})),
    Case(
        "the same, and a canary",
        lambda each: _two(each, {"breaker": _OPEN}),
        {"canary": Canary(version="2.0.0", percent=5)},
    ),
    Case("the same, for core calls", lambda each: _two(each, {"breaker": _OPEN}), priority="core"),
    Case("an instance has just failed this caller", lambda each: _two(each, {}), shun=True),
    Case("a limit of calls in the table", lambda each: _two(each, {"limit": 100})),
    Case("a limit of calls in the cards", lambda each: _two(each, {}), limits=Limits(max_concurrency=100)),
)


class _Table:
    """The routing table and the directory of cards, as far as choosing asks them."""

    def __init__(self, entry: RouteEntry, cards: tuple[Card, ...]) -> None:
        self._entry = entry
        self._cards = cards
        self.changes = 1

    def on_change(self, _follower: Callable[..., None]) -> None:
        """Nothing changes."""

    def on_rule(self, _follower: Callable[[], None]) -> None:
        """Nothing changes."""

    def refresh(self) -> None:
        """Everybody is known."""

    def entry(self, _capability: str) -> RouteEntry:
        """Give the entry."""
        return self._entry

    def cards(self, _capability: str) -> tuple[Card, ...]:
        """Give all cards."""
        return self._cards


class _Caller(Outbound):
    """The calling side, as far as its third step needs it."""

    def __init__(self, table: _Table) -> None:
        self.lanes = Lanes(Metrics())
        stand_in: Any = table
        self.directory = stand_in
        self.steering = Steering(
            stand_in,
            stand_in,
            self.lanes,
            clock=monotonic,
            clock_ms=lambda _now: 1_000,
            suspicion=lambda _capability, _p99_ms: None,
        )
        self.steering.follow(_CAPABILITY)
        self.guidance: Any = SimpleNamespace(follow=lambda _capability: None)
        self._routes = {}


def caller_of(case: Case, instances: int) -> tuple[Outbound, Call]:
    """Set the stage for a case with so many instances, half of them in each of two lanes."""
    each = instances // 2
    cards = tuple(
        Card(
            agent_id=provider,
            instance=f"{provider}-{number:08x}",
            generation=1,
            version="2.0.0" if number % 2 else "1.0.0",
            capabilities=(CapabilityCard(tag=_CAPABILITY, idempotent=True, limits=case.limits),),
        )
        for provider in ("a", "b")
        for number in range(each)
    )
    entry = RouteEntry(
        capability=_CAPABILITY,
        term=1,
        revision=1,
        at=1,
        lanes=case.lanes(each),
        tiers=(TierShare(priority=10),),
        **(case.entry or {}),
    )
    caller = _Caller(_Table(entry, cards))
    if case.shun:
        caller.lanes.shun(_CAPABILITY, "a-00000000", monotonic() + 3600, of=each)
    call = Call(
        capability=_CAPABILITY,
        kind="request",
        envelope=Envelope(priority=case.priority),
        options=Options(),
        around=CallContext(),
        reach_id="rch_bench",
        began=monotonic(),
        began_ms=0,
        deadline=monotonic() + 3600,
        card=cards[0].capabilities[0],
    )
    return caller, call


def cost_us(case: Case, instances: int, *, batches: int = _BATCHES) -> float:
    """Measure one case: microseconds a call, in the fastest tenth of small batches, since others use the machine."""
    caller, call = caller_of(case, instances)
    choose, leave = caller.choose, caller.lanes.leave
    choose(call)  # What is made at first use is made once a change of the table, not once a call.
    found = []
    gc.disable()
    try:
        for _ in range(batches):
            began = perf_counter_ns()
            routes = [choose(call) for _ in range(_BATCH)]
            found.append((perf_counter_ns() - began) / _BATCH / 1000)
            for route in routes:
                if route.lane is not None:
                    leave(route.lane, route.instance)
    finally:
        gc.enable()
    return sorted(found)[len(found) // 10]


def main() -> int:
    """Measure everything and print it; 1 where a bound is missed."""
    table = Table("choosing, µs a call", *(f"{size:,} instances" for size in SIZES), box=None)
    kept = True
    for case in CASES:
        costs = [cost_us(case, size) for size in SIZES]
        kept = kept and max(costs) < LIMIT_US
        table.add_row(case.name, *(f"{cost:.2f}" for cost in costs))
    Console(highlight=False, width=None if sys.stdout.isatty() else 100).print(table)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
