"""A lane that is full is passed over: the next lane, then the next tier, marked (ROUTE-1, ROUTE-9, GUARD-1)."""

import asyncio
from collections import Counter
from typing import Any

import pytest

import reach
from reach.call.client import Bus
from reach.faults import Code, Executed, Reason
from reach.wire.reply import Reply
from tests.runtime.fleet import Fleet, eventually


class House:
    """Agents of one capability, each with limits for a caller, whose handlers hold until they are let go."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.go = asyncio.Event()
        self.began: Counter[str] = Counter()

    async def serve(self, name: str, *, priority: int = 10, limit: int | None = None, **facts: Any) -> None:
        agent = reach.Agent(name)
        limits = None if limit is None else reach.Limits(max_concurrency=limit)

        @agent.capability("house.do", priority=priority, limits=facts.pop("limits", limits), **facts)
        async def do() -> str:
            self.began[name] += 1
            await self.go.wait()
            return name

        await self.fleet.serve(agent)

    async def caller(self) -> Bus:
        """Connect a caller that knows them all."""
        bus = await self.fleet.connect()
        await bus.cards.instances("house.do")
        return bus

    async def calls(self, bus: Bus, number: int) -> "list[asyncio.Task[Reply]]":
        """Begin so many, one after the other."""
        before = self.began.total()
        tasks = []
        for _ in range(number):
            tasks.append(asyncio.create_task(bus.request("house.do", retry=False, timeout_s=10)))
            await eventually(lambda: self.began.total() == before + len(tasks) or tasks[-1].done())
        return tasks


def places(bus: Bus) -> dict[str, int]:
    return {lane.provider: lane.open for lane in bus._core.outbound.lanes.known("house.do") if lane.open}


async def test_a_full_lane_sends_to_the_next_one_then_to_the_next_tier(fleet: Fleet) -> None:
    """ROUTE-9: own first, two lanes of two; what is over goes to the external tier, degraded; all places come back."""
    house = House(fleet)
    await house.serve("own-a", limit=2)
    await house.serve("own-b", limit=2)
    await house.serve("outside", priority=20)
    bus = await house.caller()
    calls = await house.calls(bus, 7)
    assert {"own-a": 2, "own-b": 2, "outside": 3} == house.began
    house.go.set()
    replies = await asyncio.gather(*calls)
    assert [(False, 0)] * 4 + [(True, 1)] * 3 == [(reply.degraded, reply.degrade_level) for reply in replies]
    assert [0] * 4 + [1] * 3 == [record.degrade_level for record in sorted(fleet.records, key=lambda r: r.at)]
    assert {} == places(bus)
    assert "own" in (await bus.request("house.do")).unwrap()


async def test_when_all_are_full_the_caller_is_told_whose_limit_it_is(fleet: Fleet) -> None:
    """GUARD-1, ERR-6: refused here and at once, nothing sent, with the limit, its owner and its use."""
    house = House(fleet)
    await house.serve("only", limit=1)
    bus = await house.caller()
    (first,) = await house.calls(bus, 1)
    reply = await bus.request("house.do", retry=False)
    assert reply.error is not None
    assert (Code.RATE_LIMITED, Reason.OVERLOADED, Executed.NO, 100) == (
        reply.error.code,
        reply.error.reason,
        reply.error.executed,
        reply.error.retry_after_ms,
    )
    assert {
        "name": "calls of house.do at only",
        "owner": "this process",
        "used": 1,
        "allowed": 1,
    } == reply.error.limit
    assert 1 == house.began.total()
    house.go.set()
    assert (await first).ok
    assert {} == places(bus)


@pytest.mark.parametrize(
    ("limits", "allowed"), [(reach.Limits(tested_concurrency=6), 3), (reach.Limits(), None)]
)
async def test_a_tested_concurrency_is_used_to_two_thirds(
    fleet: Fleet, limits: reach.Limits, allowed: int | None
) -> None:
    """GUARD-1: 65 % of what an agent was tested with; an agent that says nothing has no limit here."""
    house = House(fleet)
    await house.serve("only", limits=limits)
    bus = await house.caller()
    calls = await house.calls(bus, 6)
    assert (allowed or 6) == house.began.total()
    house.go.set()
    assert (allowed or 6) == sum(reply.ok for reply in await asyncio.gather(*calls))
    assert {} == places(bus)


async def test_the_limit_is_each_callers_own(fleet: Fleet) -> None:
    """GUARD-1: another process has places of its own."""
    house = House(fleet)
    await house.serve("only", limit=1)
    one, two = await house.caller(), await house.caller()
    calls = await house.calls(one, 2) + await house.calls(two, 2)
    assert 2 == house.began.total()
    house.go.set()
    assert [True, False, True, False] == [reply.ok for reply in await asyncio.gather(*calls)]


async def test_a_place_comes_back_however_a_call_ends(fleet: Fleet) -> None:
    """GUARD-1, case 33: cancelled, timed out, failed, streamed: the lane has its place again at once."""
    agent = reach.Agent("ends")

    @agent.capability("house.do", limits=reach.Limits(max_concurrency=1))
    async def do(how: str) -> str:
        if how == "error":
            raise ValueError
        if how == "slow":
            await asyncio.sleep(5)
        return how

    @agent.capability("house.parts", limits=reach.Limits(max_concurrency=1))
    async def parts(count: int) -> Any:
        for number in range(count):
            yield number

    await fleet.serve(agent)
    bus = await fleet.connect()
    await bus.cards.instances("house.do")
    for _ in range(3):
        assert (await bus.request("house.do", {"how": "good"})).ok
        assert not (await bus.request("house.do", {"how": "error"})).ok
        assert not (await bus.request("house.do", {"how": "slow"}, timeout_s=0.1)).ok
        left = asyncio.create_task(bus.request("house.do", {"how": "slow"}))
        await eventually(lambda: places(bus) == {"ends": 1})
        left.cancel()
        await asyncio.wait({left})
        assert {} == places(bus)
        assert [0, 1] == [part async for part in bus.stream("house.parts", {"count": 2})]
        async for _part in bus.stream("house.parts", {"count": 1000}):
            break
    await eventually(lambda: not any(lane.open for lane in bus._core.outbound.lanes.known("house.parts")))


async def test_what_fails_on_one_tier_goes_to_the_next(fleet: Fleet) -> None:
    """ROUTE-1, RETRY-4: the second attempt leaves a tier whose every instance has failed this call; it is degraded."""
    good, bad = reach.Agent("second"), reach.Agent("first")

    @bad.capability("house.do", priority=10)
    async def refuse() -> str:
        raise reach.NotExecuted

    @good.capability("house.do", priority=20)
    async def do() -> str:
        return "second"

    await fleet.serve(bad)
    await fleet.serve(good)
    bus = await fleet.connect()
    await bus.cards.instances("house.do")
    reply = await bus.request("house.do")
    assert ("second", 2, True, 1) == (reply.unwrap(), reply.attempt, reply.degraded, reply.degrade_level)
    assert ["retry_elsewhere", "done"] == [one.decision for one in fleet.records[-1].attempts]
