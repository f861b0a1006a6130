"""Start-up and reconnect in every order, as a state machine with the real server.

Instance before supervisor, supervisor before instance, both at once, restarts, crashes, lost links, reconnects after a
withdrawal, a lone worse tier: no membership may be wrong for longer than one registration round trip.
"""

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from reach.runtime.registration import Registration
from reach.wire.registration import RouteVerb
from tests.chaos.acceptance_orders import UNKNOWN, Loop, World, count_rules, timed
from tests.chaos.supervisor_rig import agent, tell

pytestmark = pytest.mark.alone

MOST_AGENTS = 5
MOST_SUPERVISORS = 2
SLACK_S = 0.15
"""Beside a registration's round trip: the supervisor's tick (50 ms), and that all of it shares one busy loop here."""

TIERS = st.sampled_from([10, 20])
NUMBERS = st.integers(min_value=0, max_value=MOST_AGENTS - 1)


class Stage:
    """What the machines of one test share: the server, the loop, and what was measured."""

    def __init__(self, system: Any, folder: Path) -> None:
        self.system = system
        self.folder = folder
        self.loop = Loop()
        self.number = count()
        self.trips: list[float] = []
        self.longest_s: dict[str, tuple[float, str]] = {}
        self.lag_s = 0.0
        self.steps: list[str] = []

    def take(self, world: World) -> None:
        """Keep what a world has measured."""
        self.steps.extend(world.log)
        self.lag_s = max(self.lag_s, world.lag_s)
        for kind, found in world.longest_s.items():
            self.longest_s[kind] = max(self.longest_s.get(kind, (0.0, "")), found)

    @property
    def bound_s(self) -> float:
        """How long a membership may be wrong."""
        return max(self.trips, default=0.0) + SLACK_S

    def report(self) -> None:
        """Print the numbers."""
        trips = sorted(self.trips)
        tell(
            f"{len(self.steps)} steps ({count_rules([step.partition(' ')[0] for step in self.steps])}); "
            f"{len(trips)} registrations, {trips[len(trips) // 2] * 1000:.0f} ms in the middle, {trips[-1] * 1000:.0f} "
            f"ms at most; the loop late by {self.lag_s * 1000:.0f} ms at most"
        )
        for kind, (longest_s, log) in sorted(self.longest_s.items()):
            tell(f"{kind}: {longest_s * 1000:.0f} ms at most, after {log}")


@pytest.fixture
def stage(own_system: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A server with its buckets, and a loop beside the test's."""
    own_system.provision()
    stage = Stage(own_system, tmp_path)
    monkeypatch.setattr(Registration, "_take_part", timed(stage.trips))
    yield stage
    stage.loop.close()


class Orders(RuleBasedStateMachine):
    """Agents and supervisors come and go."""

    stage: ClassVar[Stage]

    def __init__(self) -> None:
        super().__init__()
        stage = self.stage
        self.world = World(stage.system, stage.folder, capability=f"order.n{next(stage.number)}")
        stage.loop.run(self.world.open())

    def _do(self, name: str, *arguments: int) -> None:
        self.world.log.append(" ".join([name, *map(str, arguments)]).replace(" ", "-", 1))
        self.stage.loop.run(getattr(self.world, name)(*arguments))
        self.stage.loop.run(self.world.settled())

    @initialize(tier=TIERS, first=st.sampled_from(["agent", "supervisor", "both"]))
    def begin(self, tier: int, first: str) -> None:
        """Begin with one, the other, or both at once."""
        match first:
            case "agent":
                self._do("start", tier)
            case "supervisor":
                self._do("lead")
            case _:
                self._do("both", tier)

    @precondition(lambda self: len(self.world.served) < MOST_AGENTS)
    @rule(tier=TIERS)
    def start(self, tier: int) -> None:
        """An agent starts."""
        self._do("start", tier)

    @precondition(lambda self: self.world.served)
    @rule(number=NUMBERS)
    def stop(self, number: int) -> None:
        """An agent ends in order."""
        self._do("stop", number)

    @precondition(lambda self: self.world.served)
    @rule(number=NUMBERS)
    def cut(self, number: int) -> None:
        """A link is lost."""
        self._do("cut", number)

    @precondition(lambda self: len(self.world.seats) < MOST_SUPERVISORS)
    @rule()
    def lead(self) -> None:
        """A supervisor starts."""
        self._do("lead")

    @precondition(lambda self: self.world.seats)
    @rule(number=NUMBERS)
    def end_lead(self, number: int) -> None:
        """A supervisor ends in order."""
        self._do("end_lead", number)

    @precondition(lambda self: self.world.seats)
    @rule(number=NUMBERS)
    def crash(self, number: int) -> None:
        """A supervisor ends without a word."""
        self._do("crash", number)

    @precondition(
        lambda self: len(self.world.seats) < MOST_SUPERVISORS and len(self.world.served) < MOST_AGENTS
    )
    @rule(tier=TIERS)
    def both(self, tier: int) -> None:
        """A supervisor and an agent start at once."""
        self._do("both", tier)

    @precondition(lambda self: self.world.governor is not None and 10 in _tiers(self.world))
    @rule()
    def bar(self) -> None:
        """An operator takes the best tier out, or lets it back."""
        self._do("unbar" if 10 in self.world.barred else "bar", 10)

    @invariant()
    def right(self) -> None:
        """No membership was wrong for longer than a registration takes."""
        for kind, (longest_s, log) in self.world.longest_s.items():
            assert kind == UNKNOWN or longest_s <= self.stage.bound_s, (
                f"{kind} for {longest_s * 1000:.0f} ms after {log}"
            )

    def teardown(self) -> None:
        """End everything."""
        self.stage.take(self.world)
        self.stage.loop.run(self.world.close())


def _tiers(world: World) -> set[int]:
    return {tier for tier, _ in world.served.values()}


def walk(stage: Stage, *, examples: int, steps: int) -> None:
    """Let the machine run. What it finds is told as it is: a run takes seconds, so nothing is shrunk."""
    run_state_machine_as_test(
        type("Orders", (Orders,), {"stage": stage}),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=examples < 10,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_memberships_are_right_in_some_orders(stage: Stage) -> None:
    """Design 5: a few orders, always the same ones: never wrong for longer than one registration round trip."""
    try:
        walk(stage, examples=3, steps=6)
    finally:
        stage.report()


@pytest.mark.chaos_long
@pytest.mark.timeout(900)
def test_memberships_are_right_in_every_order(stage: Stage) -> None:
    """Design 5: many orders, other ones each time: never wrong for longer than one registration round trip."""
    try:
        walk(stage, examples=25, steps=15)
    finally:
        stage.report()


async def _before(world: World, *, alone_s: float) -> None:
    """Start both tiers while nobody leads, the worse one first: both hold a ticket. Then somebody leads."""
    await world.open()
    await world.start(20)
    await world.start(10)
    await asyncio.sleep(alone_s)
    world.longest_s.clear()
    world.log.append("lead")
    await world.lead()
    await world.settled()
    await asyncio.sleep(1.0)


@pytest.mark.parametrize("alone_s", [0.2, pytest.param(12.0, marks=pytest.mark.chaos_long)])
def test_who_came_before_the_supervisor_is_put_right(stage: Stage, alone_s: float) -> None:
    """Design 5: two tiers that both took part alone: with a leader the worse one is withdrawn, and soon."""
    world = World(stage.system, stage.folder, capability="order.before")
    stage.loop.run(_before(world, alone_s=alone_s))
    stage.loop.run(world.close())
    found = {kind: f"{longest_s * 1000:.0f} ms" for kind, (longest_s, _) in world.longest_s.items()}
    tell(f"{alone_s} s alone, then a leader: {found}")
    assert world.longest_s.get("surplus", (0.0, ""))[0] <= stage.bound_s


def test_a_canary_that_starts_never_holds_more_than_its_part(stage: Stage) -> None:
    """ROUTE-6: a canary at 10 % beside two others, watched each millisecond from before its start to after its link."""
    world = World(stage.system, stage.folder, capability="order.canary")
    over_s, least, settled = stage.loop.run(_canary(world))
    stage.loop.run(world.close())
    tell(
        f"over its part for {over_s * 1000:.0f} ms at most; {settled:.1%} of the tickets when settled; least {least}"
    )
    assert over_s <= stage.bound_s
    assert abs(settled - 0.1) <= 0.01


async def _canary(world: World) -> tuple[float, int, float]:
    await world.lead()
    await world.start(10)
    await world.start(10)
    await world.settled()
    canary = {"version": "2.0.0", "percent": 10.0}
    await world.rig.command(RouteVerb.CANARY, capability=world.capability, canary=canary)
    held: dict[str, int] = {}
    longest = 0.0
    done = asyncio.Event()
    new: list[Any] = []

    async def watch() -> None:
        nonlocal longest
        since = None
        while not done.is_set():
            mine = sum(world.held(one) for one in new)
            total = mine + sum(world.held(one) for one in world.served)
            over = total > 0 and mine / total > 0.11
            since = (since or monotonic()) if over else None
            if since is not None:
                longest = max(longest, monotonic() - since)
            held["least"] = min(held.get("least", 99), total)
            await asyncio.sleep(0.001)

    watching = asyncio.create_task(watch())
    made = agent("order-canary-10", world.capability, version="2.0.0")
    instance, _ = await world.rig.serve(made)
    new.append(instance)
    await asyncio.sleep(1.0)
    settled = world.held(instance) / (world.held(instance) + sum(world.held(one) for one in world.served))
    for _ in range(3):
        link = instance.connection.link
        if link is not None:
            link.abort()
        await asyncio.sleep(0.7)
    done.set()
    await watching
    return longest, held["least"], settled
