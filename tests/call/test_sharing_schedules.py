"""Drawn schedules of reads that share, batch, fail, leave and run out of time: every answer right, nothing left."""

import asyncio
import random
from typing import Any

import pytest

import reach
from reach.call.client import Bus
from reach.faults import Reason
from tests.runtime.fleet import Fleet, eventually

CALLS = 200
SPAN_S = 0.5
LATE_S = 1.0
"""Slack of a deadline on a busy machine."""

MAY_FAIL = {Reason.DEADLINE, Reason.STALE, Reason.HANDLER_ERROR, Reason.OVERLOADED, Reason.BREAKER_OPEN}


class Library:
    """An agent that takes its time, and sometimes fails; its answers follow from what is asked."""

    def __init__(self, dice: random.Random) -> None:
        self.agent = reach.Agent("library")
        self.executed = 0
        self._dice = dice
        kept = reach.Cache(ttl_s=0.05, stale_if_error_s=0.1)
        rule = reach.Batch(by="book", into="library.books", many="books", window_ms=10, max=5)

        @self.agent.capability("library.page", reads=True, cache=kept)
        async def page(ctx: reach.Context, book: int) -> list[Any]:
            await self._work()
            return [book, ctx.source]

        @self.agent.capability("library.book", reads=True, batch=rule)
        async def one(ctx: reach.Context, book: int) -> list[Any]:
            await self._work()
            return [book, ctx.source]

        @self.agent.capability("library.books", reads=True)
        async def many(ctx: reach.Context, books: list[int]) -> dict[str, list[Any]]:
            await self._work()
            return {str(book): [book, ctx.source] for book in books}

    async def _work(self) -> None:
        self.executed += 1
        await asyncio.sleep(self._dice.choice((0, 0.01, 0.05, 0.3)))
        if self._dice.random() < 0.1:
            raise reach.NotExecuted("closed")


async def ask(bus: Bus, dice: random.Random) -> bool:
    """Make one call of the schedule, and check what it is told; whether it was answered well."""
    name, book, who = dice.choice(("library.page", "library.book")), dice.randrange(6), dice.choice("ab")
    timeout_s = dice.choice((0.03, 0.15, 0.6, 5.0))
    options: dict[str, Any] = {
        "timeout_s": timeout_s,
        "priority": dice.choice(("core", "normal", "normal", "offline")),
        "retry": dice.random() < 0.8,
        "cache": dice.random() < 0.9,
    }
    leaves_s = dice.random() * 0.2 if dice.random() < 0.25 else None
    await asyncio.sleep(dice.random() * SPAN_S)
    with reach.context(agent_id=who):
        call = asyncio.ensure_future(bus.request(name, {"book": book}, **options))
    if leaves_s is not None:
        await asyncio.sleep(leaves_s)
        call.cancel()
    try:
        reply = await call
    except asyncio.CancelledError:
        return False
    assert reply.latency_ms / 1000 < timeout_s + LATE_S
    if reply.error is None:
        assert [book, who] == reply.data
    else:
        assert reply.error.reason in MAY_FAIL, reply.error
    return reply.ok


@pytest.mark.parametrize("seed", range(4))
async def test_every_answer_is_its_own_whatever_the_schedule(fleet: Fleet, seed: int) -> None:
    """GUARD-5, GUARD-6: nobody is given another's answer, waits past its deadline, leaves a slot or a flight."""
    library = Library(random.Random(f"library/{seed}"))
    await fleet.serve(library.agent)
    bus = await fleet.connect()
    await bus.cards.instances("library.page")
    dice = random.Random(seed)
    answered = await asyncio.gather(*(ask(bus, random.Random(dice.random())) for _ in range(CALLS)))
    sharing = bus._core.outbound.thrift.sharing
    await eventually(lambda: not sharing._tasks)
    assert (0, {}, 0) == (len(sharing), sharing.batches._open, bus._core.outbound.open_calls)
    assert sum(answered) > CALLS / 4
    assert library.executed < CALLS
    made = [one for one in fleet.records if not (one.cached or one.coalesced_with or one.batched_with)]
    assert len({one.reach_id for one in fleet.records}) == len(fleet.records)
    assert CALLS == len(fleet.records) - sum(one.waiters > 0 for one in made)
