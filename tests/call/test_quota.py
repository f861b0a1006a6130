"""How often, and how many at once, all callers together may call: exactly, and told in full (GUARD-3, ERR-6)."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import reach
from reach.bus.counters import STREAM, SharedCounts
from reach.bus.keys import Role
from reach.call.client import Bus
from reach.faults import Executed, Reason
from reach.policy.rate import RateLimit
from tests.runtime.fleet import Fleet, eventually

_numbers = count()


class Desk:
    """An agent whose calls last until they are let go; its capabilities, and so their limits, are its own."""

    def __init__(self, **rate: Any) -> None:
        number = next(_numbers)
        self.stamp, self.read = f"desk{number}.stamp", f"desk{number}.read"
        self.begun = 0
        self.go = asyncio.Event()
        self.go.set()
        self.agent = reach.Agent("desk")

        @self.agent.capability(self.stamp, rate=reach.Rate(**rate))
        async def stamp() -> str:
            self.begun += 1
            await self.go.wait()
            return "stamped"

        @self.agent.capability(self.read, rate=reach.Rate(**rate))
        async def read() -> Any:
            self.begun += 1
            yield 1
            await self.go.wait()
            yield 2


async def burst(bus: Bus, desk: Desk, number: int, **options: Any) -> list[reach.Reply]:
    return await asyncio.gather(*(bus.request(desk.stamp, **options) for _ in range(number)))


def good(replies: list[reach.Reply]) -> int:
    return sum(reply.ok for reply in replies)


async def test_exactly_the_limit_is_admitted(fleet: Fleet) -> None:
    """GUARD-3: of 120 calls of two callers at once 50 are made; the agent sees no other."""
    desk = Desk(calls=50, per_s=60)
    await fleet.serve(desk.agent)
    buses = [await fleet.connect(), await fleet.connect()]
    one, other = await asyncio.gather(*(burst(bus, desk, 60) for bus in buses))

    assert 50 == good(one) + good(other) == desk.begun


async def test_a_refusal_says_everything(fleet: Fleet) -> None:
    """ERR-6: which limit, whose, how much is used, when it resets; and nothing was done."""
    desk = Desk(calls=2, per_s=60)
    await fleet.serve(desk.agent)
    bus = await fleet.connect()
    error = (await burst(bus, desk, 3))[2].error

    assert error is not None
    assert (Reason.QUOTA_EXCEEDED, Executed.NO, True) == (error.reason, error.executed, error.retryable)
    assert error.limit is not None
    assert error.retry_after_ms is not None
    assert 0 < error.retry_after_ms == error.limit["resets_in_ms"] < 65_000
    assert {
        "name": f"calls of {desk.stamp} in 60 s",
        "owner": "all callers together",
        "used": 2,
        "allowed": 2,
        "resets_in_ms": error.retry_after_ms,
    } == error.limit
    assert f"2 of 2 calls of {desk.stamp} within 60 s are taken (all callers together)" == error.message
    assert 1 == bus.metrics.quota_refused.value(desk.stamp, "calls")


async def test_who_queues_gets_its_turn(fleet: Fleet) -> None:
    """GUARD-3: `queue=True` waits for room within the deadline; who could not be served by it is refused at once."""
    desk = Desk(calls=2, per_s=0.4)
    await fleet.serve(desk.agent)
    bus = await fleet.connect()
    began = asyncio.get_running_loop().time()
    replies = await burst(bus, desk, 4, queue=True, timeout_s=5)
    took_s = asyncio.get_running_loop().time() - began
    hopeless = await bus.request(desk.stamp, queue=True, timeout_s=0.2)

    assert 4 == good(replies)
    assert took_s >= 0.4
    assert hopeless.error is not None
    assert Reason.QUOTA_EXCEEDED == hopeless.error.reason


async def test_so_many_at_once(fleet: Fleet) -> None:
    """GUARD-3: `concurrent` bounds the calls of all callers that are under way; each end makes room."""
    desk = Desk(concurrent=3)
    desk.go.clear()
    await fleet.serve(desk.agent)
    one, other = await fleet.connect(), await fleet.connect()
    first = [asyncio.ensure_future(one.request(desk.stamp)) for _ in range(2)]
    await eventually(lambda: desk.begun == 2)
    second = [asyncio.ensure_future(other.request(desk.stamp, queue=index > 1)) for index in range(3)]
    refused = await second[1]

    assert refused.error is not None
    assert refused.error.limit is not None
    assert (f"calls of {desk.stamp} at once", 3, 3) == tuple(
        refused.error.limit[key] for key in ("name", "used", "allowed")
    )
    desk.go.set()
    assert 2 == good(await asyncio.gather(*first))
    assert [True, True] == [(await call).ok for call in (second[0], second[2])]


async def test_a_stream_holds_its_place_until_it_ends(fleet: Fleet) -> None:
    """GUARD-3: a stream counts as long as it is open, and not longer."""
    desk = Desk(concurrent=1)
    desk.go.clear()
    await fleet.serve(desk.agent)
    bus = await fleet.connect()
    stream = bus.stream(desk.read)
    assert 1 == await anext(stream)
    with pytest.raises(reach.RateLimited):
        async for _ in bus.stream(desk.read):
            pass
    await stream.aclose()
    desk.go.set()
    assert [1, 2] == [item async for item in bus.with_options(queue=True).stream(desk.read)]


async def test_each_tenant_has_its_own(fleet: Fleet) -> None:
    """GUARD-3: `per="tenant"` gives each tenant the whole limit."""
    desk = Desk(calls=2, per_s=60, per="tenant")
    await fleet.serve(desk.agent)
    bus = await fleet.connect()
    replies = {tenant: await burst(bus, desk, 3, tenant=tenant) for tenant in ("north", "south")}

    assert {"north": 2, "south": 2} == {tenant: good(found) for tenant, found in replies.items()}
    error = replies["south"][2].error
    assert error is not None
    assert error.limit is not None
    assert "tenant south, all callers together" == error.limit["owner"]


async def test_a_call_that_leaves_before_it_is_sent_costs_nothing(fleet: Fleet) -> None:
    """Case 33: who is cancelled while it waits, or is refused, has taken no unit."""
    desk = Desk(calls=3, per_s=60)
    await fleet.serve(desk.agent)
    bus = await fleet.connect()
    await bus.cards.instances(desk.stamp)
    for _ in range(20):
        leaving = asyncio.ensure_future(bus.request(desk.stamp))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)

    assert 0 == desk.begun
    assert 3 == good(await burst(bus, desk, 5))


@pytest.fixture
async def own_fleet(own_system: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Agents and callers on a server that the test may take parts away from."""
    await asyncio.to_thread(own_system.provision)
    fleet = Fleet(own_system, tmp_path)
    try:
        yield fleet
    finally:
        await fleet.close()


async def test_without_a_store_a_process_admits_its_own_share(own_fleet: Fleet) -> None:
    """GUARD-3: where callers cannot be counted together each admits a quarter, and says so everywhere."""
    fleet = own_fleet
    desk = Desk(calls=8, per_s=60)
    await fleet.serve(desk.agent)
    platform = await fleet.connect(Role.PLATFORM)
    jetstream = platform.connection
    await jetstream.request(f"$JS.API.STREAM.DELETE.{STREAM}", b"", timeout_s=5)
    bus = await fleet.connect()
    replies = await burst(bus, desk, 5)

    assert 2 == good(replies) == desk.begun
    error = replies[4].error
    assert error is not None
    assert error.limit is not None
    assert (
        "this process alone (1/4 of the limit while callers cannot be counted together)"
        == error.limit["owner"]
    )
    assert 2 == bus.metrics.quota_local.value(desk.stamp)
    await eventually(lambda: len(fleet.records) == 5)
    decisions = [record.attempts[-1].decision for record in fleet.records if record.ok]
    assert ["done local_share"] * 2 == decisions


async def test_a_slow_way_to_the_store_admits_exactly_too(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GUARD-3: where the store answers late, units count from when they are had: never more in any window."""
    write, let_in = SharedCounts.write, []

    async def slow(self: SharedCounts, key: str, data: bytes, **options: Any) -> int:
        await asyncio.sleep(0.15)
        return await write(self, key, data, **options)

    monkeypatch.setattr(SharedCounts, "write", slow)
    desk = Desk(calls=4, per_s=0.5)
    await fleet.serve(desk.agent)
    bus = await fleet.connect()
    gate = bus._core.quota
    pay = gate.pay

    async def watched(call: Any, payer: Any) -> None:
        await pay(call, payer)
        let_in.append(monotonic())

    monkeypatch.setattr(gate, "pay", watched)
    assert 10 == good(await burst(bus, desk, 10, queue=True, timeout_s=10))
    assert all(later - first >= 0.5 for first, later in zip(let_in, let_in[4:], strict=False))


async def test_a_caller_that_leaves_gives_its_places_back(fleet: Fleet) -> None:
    """GUARD-3: who closes its bus with calls under way holds nothing from then on; others need not wait for a lease."""
    desk = Desk(calls=100, per_s=60, concurrent=2)
    desk.go.clear()
    await fleet.serve(desk.agent)
    other = await fleet.connect()
    async with reach.connect(
        settings=fleet.system.settings(Role.CALLER), recorder=fleet.recorder(fleet.sink)
    ) as bus:
        calls = [
            asyncio.ensure_future(bus.request(desk.stamp, task_id="leaving", dedupe=False)) for _ in range(2)
        ]
        await eventually(lambda: desk.begun == 2)
        assert not (await other.request(desk.stamp)).ok
    assert [False, False] == [reply.ok for reply in await asyncio.gather(*calls)]
    desk.go.set()

    assert (await other.request(desk.stamp)).ok
    await asyncio.sleep(0)


async def test_another_card_changes_the_limit(fleet: Fleet) -> None:
    """What was let in under one limit is given back under another: nothing is counted twice, or below nothing."""
    desk = Desk(calls=5, per_s=60)
    desk.go.clear()
    await fleet.serve(desk.agent)
    bus = await fleet.connect()
    under_way = asyncio.ensure_future(bus.request(desk.stamp))
    await eventually(lambda: desk.begun == 1)
    gate = bus._core.quota._gates[desk.stamp, ""]
    gate.limit = RateLimit(5, 60_000, 2)
    desk.go.set()
    await under_way

    assert 0 == gate.holding
    gate.limit = RateLimit(5, 60_000, None)
    assert 4 == good(await burst(bus, desk, 6))
    assert 0 == gate.holding


async def test_a_call_does_not_wait_for_itself(fleet: Fleet) -> None:
    """CALL-4, GUARD-3: a nested call of the same capability finds the place taken by itself, and is refused at once."""
    agent, name = reach.Agent("desk"), f"desk{next(_numbers)}.more"

    @agent.capability(name, rate=reach.Rate(concurrent=1))
    async def more(ctx: reach.Context, deep: bool = True) -> Any:
        if not deep:
            return "done"
        began = monotonic()
        reply = await ctx.bus.request(name, {"deep": False}, queue=True)
        return [reply.error and reply.error.reason, monotonic() - began < 2.0]

    await fleet.serve(agent)
    bus = await fleet.connect()
    await bus.cards.instances(name)
    reply = await bus.request(name, timeout_s=8)
    assert [Reason.QUOTA_EXCEEDED, True] == reply.unwrap()
    assert ["done"] * 3 == [
        reply.data
        for reply in await asyncio.gather(
            *(bus.request(name, {"deep": False}, queue=True, timeout_s=8) for _ in range(3))
        )
    ]
