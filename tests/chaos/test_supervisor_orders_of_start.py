"""Start-up and reconnect in every order, on a real server: memberships are right once things have settled.

A seeded walk starts and ends agents of two tiers, starts and kills supervisors, cuts links. After each step every
instance must hold what its tier is due; and all the while somebody answers, unless nobody is there.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import reach
from reach.bus.keys import Role
from reach.runtime.instance import Instance
from reach.wire import codec
from reach.wire.registration import RouteVerb
from tests.chaos.supervisor_rig import Platform, SupervisorRig, agent, opened, tell

SETTLE_S = 20.0
"""Registration is tried again within 7.5 s where nobody led, a killed leader's key ends within 3: what is not right
after twice that never will be."""


@pytest.fixture
async def rig(own_system: Any, tmp_path: Path) -> AsyncIterator[SupervisorRig]:
    """A server with its buckets, and nobody on it yet."""
    async with opened(own_system, tmp_path) as rig:
        yield rig


class Walk:
    """What there is, and what may be done next."""

    def __init__(self, rig: SupervisorRig, random: Random) -> None:
        self.rig = rig
        self.random = random
        self.served: dict[Instance, tuple[int, Callable[[], Any]]] = {}
        self.platforms: list[Platform] = []
        self.log: list[str] = []

    async def step(self) -> None:
        """Do one thing."""
        choices = [self.start_best, self.start_spare, self.start_supervisor]
        if self.served:
            choices += [self.stop_one, self.cut_one]
        if self.platforms:
            choices += [self.kill_supervisor, self.stop_supervisor]
        chosen = self.random.choice(choices)
        self.log.append(chosen.__name__)
        await chosen()
        await self.settled()

    async def start_best(self) -> None:
        await self._serve(10)

    async def start_spare(self) -> None:
        await self._serve(20)

    async def _serve(self, priority: int) -> None:
        if len(self.served) < 5:
            instance, end = await self.rig.serve(agent(f"tier-{priority}", priority=priority))
            self.served[instance] = (priority, end)

    async def start_supervisor(self) -> None:
        if len(self.platforms) < 2:
            self.platforms.append(await self.rig.platform())

    async def stop_one(self) -> None:
        instance = self.random.choice(list(self.served))
        _, end = self.served.pop(instance)
        await end()

    async def cut_one(self) -> None:
        link = self.random.choice(list(self.served)).connection.link
        if link is not None:
            link.abort()

    async def kill_supervisor(self) -> None:
        platform = self.platforms.pop(self.random.randrange(len(self.platforms)))
        platform.kill()
        await platform.process.wait()

    async def stop_supervisor(self) -> None:
        await self.platforms.pop(self.random.randrange(len(self.platforms))).end()

    async def settled(self) -> None:
        """Wait until memberships are right: with a supervisor exactly, without one nobody's calls are lost."""
        try:
            async with asyncio.timeout(SETTLE_S):
                while not await self._right():  # noqa: ASYNC110 - several processes
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"after {self.log}: {self.held()}; {await self._told()}") from None

    async def _told(self) -> str:
        """What there is to say about a walk that went wrong."""
        alive = [platform.process.returncode is None for platform in self.platforms]
        try:
            rows = [(row.instance, row.state, row.why) for row in (await self.rig.rows()).values()]
        except reach.ReachError as error:
            return f"supervisors that run: {alive}; who leads answers {error!r}"
        return f"supervisors that run: {alive}; instances: {rows}"

    def held(self) -> dict[str, int]:
        return {one.name: one.membership.tickets("job.do") for one in self.served}

    async def _right(self) -> bool:
        tiers = sorted({priority for priority, _ in self.served.values()})
        if not all(one.connection.connected for one in self.served):
            return False
        if not tiers:
            return True
        best = [
            one.membership.tickets("job.do") for one, (tier, _) in self.served.items() if tier == tiers[0]
        ]
        if not self.platforms:
            return any(self.held().values()) or not self.had_supervisor
        try:
            rows = (await self.rig.command(RouteVerb.INSTANCES)).instances
        except reach.ReachError:
            return False
        there = {row.instance for row in rows if row.state not in {"unavailable", "draining", "left"}}
        return there == {one.name for one in self.served} and all(best)

    @property
    def had_supervisor(self) -> bool:
        """Whether the tier in use may be one that a leader chose, and left."""
        return any("supervisor" in word for word in self.log)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_memberships_are_right_in_every_order(rig: SupervisorRig, seed: int) -> None:
    """Instance before supervisor, supervisor restart, both, reconnects, a lone worse tier: right after each step."""
    walk = Walk(rig, Random(seed))
    for _ in range(14):
        await walk.step()
    tell(f"{' '.join(walk.log)}")


async def test_a_canary_that_starts_never_gets_more_than_its_part(rig: SupervisorRig) -> None:
    """A canary instance starting: at no moment does it hold more than its percent, sampled each millisecond."""
    platform = await rig.platform()
    await rig.led()
    await rig.serve(agent("reader"))
    await rig.serve(agent("reader"))
    canary = {"version": "2.0.0", "percent": 10.0}
    await rig.command(RouteVerb.CANARY, capability="job.do", canary=canary)
    new, _ = await rig.serve(agent("reader", version="2.0.0"))
    operator = await rig.connection(Role.OPERATOR)
    assert operator.connected

    async def share() -> float:
        total = sum(
            one.tickets.get("job.do", 0) for one in (await rig.command(RouteVerb.INSTANCES)).instances
        )
        return new.membership.tickets("job.do") / total if total else 0.0

    async with asyncio.timeout(20):
        while not 0 < await share() <= 0.11:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
    await platform.end()
    link = new.connection.link
    assert link is not None
    link.abort()  # It comes back while nobody leads.
    async with asyncio.timeout(10):
        while new.connection.epoch < 2 or not new.connection.connected:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    for _ in range(500):
        assert 0 == new.membership.tickets("job.do")
        await asyncio.sleep(0.001)
    caller = await rig.connection(Role.CALLER)
    data = await caller.request("cap.job.do", codec.pack({"x": 1}), timeout_s=5)
    assert codec.unpack(data)["ok"]
