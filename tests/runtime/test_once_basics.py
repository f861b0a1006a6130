"""Never twice, at real agents on a real server: duplicates, waiters, other parameters, large results (IDEM)."""

import asyncio
from typing import Any

import reach
from tests.runtime.fleet import Fleet


async def test_a_key_is_done_once(fleet: Fleet) -> None:
    """IDEM-1, IDEM-2: of many calls with one key at two instances one is executed; all have its reply."""
    agent = reach.Agent("books")
    done: list[str] = []

    @agent.capability("once.book")
    async def book(number: str, ctx: reach.Context) -> dict[str, Any]:
        done.append(ctx.instance)
        await asyncio.sleep(0.2)
        return {"booked": number}

    await fleet.serve(agent)
    await fleet.serve(agent)
    bus = await fleet.connect()
    calls = [bus.request("once.book", {"number": "R-1"}, idempotency_key="book-R-1") for _ in range(20)]
    replies = await asyncio.gather(*calls)
    assert 1 == len(done)
    assert [{"booked": "R-1"}] * 20 == [reply.unwrap() for reply in replies]
    assert [False] + [True] * 19 == sorted(reply.duplicate for reply in replies)
    assert all(reply.durable for reply in replies)
