"""Answers that were kept of an earlier call: its lane is not judged by them, and nobody pays for them again."""

import asyncio

import reach
from reach.faults import Reason
from reach.ids import new_id
from tests.runtime.fleet import Fleet


def ledger() -> reach.Agent:
    """An agent whose bookings cost something; those of nothing fail."""
    agent = reach.Agent("ledger")

    @agent.capability("ledger.book")
    async def book(ctx: reach.Context, amount: int) -> int:
        ctx.cost(0.5)
        if not amount:
            raise ZeroDivisionError
        await asyncio.sleep(0.02)
        return amount

    return agent


async def test_a_failure_told_again_does_not_open_a_breaker(fleet: Fleet) -> None:
    """BREAK-2, IDEM-5: who asks thirty times for the same failed call keeps nobody else from the capability."""
    await fleet.serve(ledger())
    bus = await fleet.connect()
    key = new_id()
    replies = [await bus.request("ledger.book", {"amount": 0}, idempotency_key=key) for _ in range(30)]
    reasons = [reply.error.reason for reply in replies if reply.error is not None]
    assert [Reason.HANDLER_ERROR] * 30 == reasons
    assert [False] + [True] * 29 == [reply.duplicate for reply in replies]
    assert (await bus.request("ledger.book", {"amount": 1})).ok


async def test_a_duplicate_is_not_paid_again(fleet: Fleet) -> None:
    """GUARD-4, IDEM-2: what a call has cost is taken from a budget once, however often its answer is given."""
    await fleet.serve(ledger())
    bus = await fleet.connect()
    for amount in (1, 0):
        async with reach.round(budget=reach.Budget(cost=5)) as this:
            key = new_id()
            replies = [
                await bus.request("ledger.book", {"amount": amount}, idempotency_key=key) for _ in range(3)
            ]
            assert [False, True, True] == [reply.duplicate for reply in replies]
            assert [0.5] * 3 == [reply.cost for reply in replies]
            assert 4.5 == this.left.cost


async def test_a_duplicate_says_nothing_of_how_fast_a_lane_is(fleet: Fleet) -> None:
    """BREAK-1: what a lane usually takes is learnt from what it does, not from what it remembers."""
    await fleet.serve(ledger())
    bus = await fleet.connect()
    key = new_id()
    for _ in range(20):
        assert (await bus.request("ledger.book", {"amount": 1}, idempotency_key=key)).ok
    (lane,) = bus._core.outbound.lanes.known("ledger.book")
    assert 1 == lane.account.ok
