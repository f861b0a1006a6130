"""How much a failing lane is asked again, and what the record says of each attempt (RETRY-5 to RETRY-7)."""

import asyncio
from collections import Counter
from time import monotonic
from typing import Any

import reach
from reach.call.client import Bus
from reach.faults import Reason
from reach.policy.breaker_settings import BreakerSettings
from tests.runtime.fleet import Fleet, eventually

NEVER_OPENS = BreakerSettings(failure_rate_threshold=1.0, consecutive_failures=1_000_000)


async def served(fleet: Fleet, share: float, *, name: str = "shop") -> tuple[Bus, Counter[str]]:
    """Give a caller of an agent that refuses this share of its requests, and the count of what the agent saw."""
    agent = reach.Agent(name)
    seen: Counter[str] = Counter()

    @agent.capability("shop.do", max_concurrency=512)
    async def do() -> None:
        seen["all"] += 1
        if seen["all"] % 100 < share * 100:
            raise reach.NotExecuted

    await fleet.serve(agent)
    bus = await fleet.connect()
    await bus.cards.instances("shop.do")
    bus._core.outbound.lanes._settings = NEVER_OPENS
    return bus, seen


async def test_a_lane_that_fails_everything_is_asked_a_fifth_more(fleet: Fleet) -> None:
    """RETRY-6: of 2 000 calls that all fail, at most 20 % (and 3 a second) are made again, and the reason is kept."""
    bus, seen = await served(fleet, 1.0)
    began = monotonic()
    for _ in range(40):
        await asyncio.gather(*(bus.request("shop.do") for _ in range(50)))
    seconds = monotonic() - began
    extra = seen["all"] - 2_000
    print(f"  ▸ 2 000 failing calls in {seconds:.1f} s: {extra} retries ({extra / 20:.1f} %)")  # noqa: T201
    assert 0.1 * 2_000 <= extra <= 0.2 * 2_000 + 3 * (seconds + 1)
    await eventually(lambda: len(fleet.records) == 2_000)
    words = Counter(record.attempts[-1].decision for record in fleet.records)
    assert {"give_up:retry_budget", "give_up:attempts"} == words.keys()
    # Whatever ran is an attempt of some record; an instance that had stood still refuses what it has not begun.
    tried = [attempt for record in fleet.records for attempt in record.attempts]
    assert seen["all"] == sum(attempt.reason is Reason.HANDLER_ERROR for attempt in tried)
    assert words["give_up:retry_budget"] == bus.metrics.retries_refused.value("shop.do", "retry_budget")


async def test_a_quiet_lane_may_be_asked_again_all_the_same(fleet: Fleet) -> None:
    """RETRY-6: 20 % of nothing would forbid every retry; three a second are allowed."""
    bus, seen = await served(fleet, 1.0)
    await bus.request("shop.do")
    await bus.request("shop.do")
    assert 4 == seen["all"]


async def test_few_failures_are_all_made_good(fleet: Fleet) -> None:
    """RETRY-6: a lane that fails one call in ten stays within its budget: its callers see none of it."""
    bus, _ = await served(fleet, 0.10)
    replies = []
    for _ in range(20):
        replies += await asyncio.gather(*(bus.request("shop.do") for _ in range(20)))
    assert sum(reply.attempt == 2 for reply in replies) >= 20
    assert 390 <= sum(reply.ok for reply in replies)


async def test_each_lane_has_a_budget_of_its_own(fleet: Fleet) -> None:
    """RETRY-6: for each lane and caller: another caller's failures do not use it up."""
    one, seen = await served(fleet, 1.0)
    two = await fleet.connect()
    await two.cards.instances("shop.do")
    await asyncio.gather(*(one.request("shop.do") for _ in range(20)))
    before = seen["all"]
    reply = await two.request("shop.do")
    assert (2, 2) == (seen["all"] - before, reply.attempt)


async def test_where_nobody_is_there_nobody_is_asked_again(fleet: Fleet) -> None:
    """CALL-13, RETRY-6: a capability that was known, and that nobody serves now, costs one message a call."""
    agent = reach.Agent("gone")

    @agent.capability("gone.do")
    async def do() -> None:
        pass

    instance = await fleet.serve(agent)
    bus = await fleet.connect()
    await bus.cards.instances("gone.do")
    await fleet.stop(instance)
    replies = await asyncio.gather(*(bus.request("gone.do") for _ in range(100)))
    assert {Reason.NO_RESPONDERS} == {reply.error.reason for reply in replies if reply.error is not None}
    assert {1} == {reply.attempt for reply in replies}


async def test_a_caller_that_leaves_during_the_pause_is_recorded_as_such(fleet: Fleet) -> None:
    """ERR-6: the attempt says that another was decided, and that nobody waited for it."""
    bus, seen = await served(fleet, 1.0)
    call: asyncio.Task[Any] = asyncio.create_task(bus.request("shop.do"))
    await eventually(lambda: seen["all"] == 1 and not bus.pending)
    call.cancel()
    await asyncio.wait({call})
    await eventually(lambda: fleet.records)
    record = fleet.records[0]
    assert ("cancelled", ["retry_elsewhere cancelled"]) == (
        record.outcome,
        [one.decision for one in record.attempts],
    )
    assert 1 == seen["all"]
