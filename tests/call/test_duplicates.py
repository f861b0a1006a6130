"""Answers that were kept of an earlier call: its lane is not judged by them, and nobody pays for them again."""

import asyncio

import reach
from reach.faults import Advice, Executed, Reason
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


DOOMED = """
import os, signal
import reach

agent = reach.Agent("doomed")

async def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

agent.capability("doomed.write")(end)
agent.capability("doomed.put", idempotent=True)(end)
agent.run()
"""


async def test_a_write_that_may_have_been_done_is_not_sent_another_way(fleet: Fleet) -> None:
    """RETRY-2: its instance died and nobody else is there; whoever asked is told to repeat it with its key, only so."""
    await fleet.program(DOOMED, name="doomed")
    bus = await fleet.connect()
    await bus.cards.instances("doomed.write")
    reply = await bus.request("doomed.write", idempotency_key=new_id(), timeout_s=5, fallback="as if done")
    assert reply.error is not None
    assert (Executed.MAYBE, Advice.WAIT, True) == (
        reply.error.executed,
        reply.error.advice,
        reply.error.retryable,
    )
    assert "repeat it later with the same idempotency key" in reply.error.message


async def test_a_read_that_may_have_been_done_may_go_elsewhere(fleet: Fleet) -> None:
    """ERR-4: of what may be done twice the last failure is told, and another way is as good."""
    await fleet.program(DOOMED, name="doomed")
    bus = await fleet.connect()
    await bus.cards.instances("doomed.put")
    reply = await bus.request("doomed.put", idempotency_key=new_id(), timeout_s=5)
    assert reply.error is not None
    assert (Executed.MAYBE, Reason.NO_RESPONDERS, Advice.TRY_OTHER) == (
        reply.error.executed,
        reply.error.reason,
        reply.error.advice,
    )


async def test_who_has_less_time_than_the_first_is_told_that_it_runs(fleet: Fleet) -> None:
    """IDEM-2: a duplicate whose time is short is asked for twice; the first call goes on, and nothing is unknown."""
    agent, key = reach.Agent("ledger"), new_id()
    begun, go_on = asyncio.Event(), asyncio.Event()

    @agent.capability("ledger.close")
    async def close() -> str:
        begun.set()
        await go_on.wait()
        return "closed"

    for _ in range(2):
        await fleet.serve(agent)
    buses = [await fleet.connect() for _ in range(2)]
    for bus in buses:
        await bus.cards.instances("ledger.close")
    first = asyncio.create_task(buses[0].request("ledger.close", idempotency_key=key, timeout_s=20))
    await begun.wait()
    for _ in range(3):
        reply = await buses[1].request("ledger.close", idempotency_key=key, timeout_s=1.0)
        assert reply.error is not None
        assert (Reason.IN_PROGRESS, Executed.MAYBE) == (reply.error.reason, reply.error.executed)
    assert 0 == len(buses[1].unknowns)
    go_on.set()
    assert "closed" == (await first).unwrap()
    again = await buses[1].request("ledger.close", idempotency_key=key)
    assert ("closed", True) == (again.unwrap(), again.duplicate)
