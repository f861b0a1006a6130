"""Who pays for a call that several share: whoever came first and can. Hits and shared answers are free (GUARD-4)."""

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

import reach
from reach.call.client import Bus
from reach.faults import Reason
from tests.runtime.fleet import Fleet, eventually

_numbers: Iterator[int] = count()


class Till:
    """An agent whose reads can be held back, and cost something."""

    def __init__(self, **card: Any) -> None:
        # A limit is everybody's on this server: each test has names of its own.
        self.name = f"till{next(_numbers)}.look"
        self.agent = reach.Agent(self.name.partition(".")[0])
        self.asked = 0
        self.let = asyncio.Event()

        @self.agent.capability(self.name, reads=True, **card)
        async def look(ctx: reach.Context, page: int) -> int:
            self.asked += 1
            ctx.cost(0.5)
            await self.let.wait()
            return page

    async def called_by(self, fleet: Fleet) -> Bus:
        """Serve it; give a caller that knows it."""
        await fleet.serve(self.agent)
        bus = await fleet.connect()
        await bus.cards.instances(self.name)
        return bus


async def within(budget: reach.Budget, bus: Bus, name: str, *pages: int) -> tuple[list[reach.Reply], Any]:
    """Ask one after the other within a budget; the replies, and what is left."""
    async with reach.round(budget=budget) as this:
        replies = [await bus.request(name, {"page": page}) for page in pages]
        return replies, this.left


async def test_a_hit_costs_nothing(fleet: Fleet) -> None:
    """GUARD-4, GUARD-5: of five equal calls in a round with a budget of one, four come from the cache."""
    till = Till(cache=reach.Cache(ttl_s=60))
    till.let.set()
    bus = await till.called_by(fleet)
    replies, left = await within(reach.Budget(calls=1), bus, till.name, 1, 1, 1, 1, 1)
    assert [True] * 5 == [reply.ok for reply in replies]
    assert (0, 1) == (left.calls, till.asked)


async def test_a_shared_answer_costs_its_first_waiter(fleet: Fleet) -> None:
    """GUARD-4, GUARD-5: two rounds share one call: one pays for it, in calls and in cost, the other nothing."""
    till = Till()
    bus = await till.called_by(fleet)
    budget = reach.Budget(calls=1, cost=10)
    calls = [asyncio.create_task(within(budget, bus, till.name, 1)) for _ in range(2)]
    await eventually(lambda: till.asked)
    till.let.set()
    (first, first_left), (second, second_left) = await asyncio.gather(*calls)
    assert (True, True, 1) == (first[0].ok, second[0].ok, till.asked)
    assert ((0, 9.5), (1, 10.0)) == (
        (first_left.calls, first_left.cost),
        (second_left.calls, second_left.cost),
    )
    assert (0.5, None) == (first[0].cost, second[0].cost)


async def test_a_spent_budget_is_its_owners_alone(fleet: Fleet) -> None:
    """GUARD-5: the shared call is under nobody's budget alone: who cannot pay is refused, and the next one pays."""
    till = Till()
    till.let.set()
    bus = await till.called_by(fleet)

    async def spent() -> reach.Reply:
        async with reach.round(budget=reach.Budget(calls=1)):
            await bus.request(till.name, {"page": 1})
            ready.set()
            return await bus.request(till.name, {"page": 2})

    async def able() -> reach.Reply:
        await ready.wait()
        async with reach.round(budget=reach.Budget(calls=5)):
            return await bus.request(till.name, {"page": 2})

    ready = asyncio.Event()
    refused, good = await asyncio.gather(spent(), able())
    assert refused.error is not None
    assert (Reason.BUDGET_EXHAUSTED, True, 2) == (refused.error.reason, good.ok, till.asked)


async def test_equal_calls_take_one_token(fleet: Fleet) -> None:
    """GUARD-3, GUARD-5: what is shared was made once, and counts once; a refusal is told to all who wait."""
    till = Till(rate=reach.Rate(calls=1, per_s=60))
    bus = await till.called_by(fleet)
    calls = [asyncio.create_task(bus.request(till.name, {"page": 1})) for _ in range(10)]
    await eventually(lambda: till.asked)
    till.let.set()
    assert [True] * 10 == [reply.ok for reply in await asyncio.gather(*calls)]
    refused = await asyncio.gather(*(bus.request(till.name, {"page": 2}) for _ in range(3)))
    assert [Reason.QUOTA_EXCEEDED] * 3 == [reply.error.reason for reply in refused if reply.error is not None]
    assert 1 == till.asked
    assert 3 == len({id(reply.error) for reply in refused})


async def test_a_place_is_held_as_long_as_the_shared_call(fleet: Fleet) -> None:
    """GUARD-3: it is given back when the call ends, not when the one leaves who paid for it."""
    till = Till(rate=reach.Rate(concurrent=1))
    bus = await till.called_by(fleet)
    calls = [asyncio.create_task(bus.request(till.name, {"page": 1})) for _ in range(2)]
    await eventually(lambda: till.asked)
    calls[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await calls[0]
    assert not (await bus.request(till.name, {"page": 2})).ok
    till.let.set()
    assert (await calls[1]).ok
    assert (await bus.request(till.name, {"page": 2}, queue=True)).ok
