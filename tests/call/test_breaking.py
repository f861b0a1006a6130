"""Breakers in the way of calls: what is refused, what is let through, how it ends (BREAK-1 to BREAK-5, case 17)."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import reach
from reach.call.client import Bus
from reach.call.lanes import Lane
from reach.faults import Advice, Code, Executed, Reason
from reach.ids import new_id
from reach.observe.exposition import exposed
from reach.policy.breaker_settings import BreakerSettings
from reach.policy.breaker_state import State
from reach.wire.reply import Reply
from tests.runtime.fleet import Fleet, eventually

SOON = BreakerSettings(wait_in_open_s=0.3, wait_jitter=0.0)
"""As usual, but open for less time, so that a test may wait for the end of it."""


async def fail() -> None:
    raise ValueError


async def hang() -> None:
    await asyncio.sleep(10)


async def mistake() -> None:
    raise reach.SchemaInvalid("there is no such article")


async def refuse_4xx() -> None:
    raise reach.UpstreamRefusal("no order 17", reason=Reason.NOT_FOUND)


async def busy() -> None:
    raise reach.RateLimited


class Shops:
    """Agents of one capability, each of which does as it is told."""

    def __init__(self, fleet: Fleet, *, idempotent: bool = False) -> None:
        self.fleet = fleet
        self.idempotent = idempotent
        self.does: dict[str, Callable[[], Awaitable[Any]]] = {}
        self.began: Counter[str] = Counter()
        self.now = 0
        self.most = 0

    async def serve(
        self, *names: str, settings: BreakerSettings = SOON, priorities: tuple[int, ...] = ()
    ) -> Bus:
        for name, priority in zip(names, priorities or (10,) * len(names), strict=True):
            await self.fleet.serve(self._agent(name, priority))
        bus = await self.fleet.connect()
        await bus.cards.instances("shop.do")
        bus._core.outbound.lanes._settings = settings
        return bus

    def _agent(self, name: str, priority: int) -> reach.Agent:
        agent = reach.Agent(name)

        @agent.capability("shop.do", idempotent=self.idempotent, priority=priority, max_concurrency=512)
        async def do() -> str:
            self.began[name] += 1
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                await self.does.get(name, _nothing)()
            finally:
                self.now -= 1
            return name

        return agent


async def _nothing() -> None:
    pass


async def asked(bus: Bus, times: int, **options: Any) -> list[Reply]:
    """Call so many times, one after the other, each once."""
    return [
        await bus.request("shop.do", **{"retry": False, "timeout_s": 2.0, **options}) for _ in range(times)
    ]


def lane(bus: Bus, provider: str) -> Lane:
    return bus._core.outbound.lanes.of("shop.do", provider)


async def wait_over(bus: Bus, provider: str) -> None:
    """Wait until the breaker lets probes through."""
    until = lane(bus, provider).breaker.open_until
    await asyncio.sleep(max(0.0, until - asyncio.get_running_loop().time()) + 0.01)


async def test_while_it_is_open_nothing_reaches_the_provider(fleet: Fleet) -> None:
    """BREAK-5, BREAK-1: after ten failures in a row calls are refused here, at once, and told when to come again."""
    shops = Shops(fleet)
    bus = await shops.serve("one")
    shops.does["one"] = fail
    replies = await asked(bus, 30)
    assert {"one": 10} == shops.began
    assert [Reason.HANDLER_ERROR] * 10 + [Reason.BREAKER_OPEN] * 20 == [
        r.error and r.error.reason for r in replies
    ]
    refused = replies[-1].error
    assert refused is not None
    assert (Code.CONN_REFUSED, Executed.NO, Advice.TRY_OTHER, False) == (
        refused.code,
        refused.executed,
        refused.advice,
        refused.retryable,
    )
    assert 0 < (refused.retry_after_ms or 0) <= 301
    assert 'reach_breaker_open{capability="shop.do",provider="one"} 1.0' in exposed(bus.metrics).decode()


async def test_a_provider_that_recovers_gets_its_calls_back(fleet: Fleet) -> None:
    """BREAK-3: one good probe closes it for this caller; the gauge says so."""
    shops = Shops(fleet)
    bus = await shops.serve("one")
    shops.does["one"] = fail
    await asked(bus, 11)
    del shops.does["one"]
    await wait_over(bus, "one")
    assert [True] * 20 == [reply.ok for reply in await asked(bus, 20)]
    assert {} == bus._core.outbound.lanes.troubled
    assert 'reach_breaker_open{capability="shop.do",provider="one"} 0.0' in exposed(bus.metrics).decode()


async def test_a_failed_probe_opens_it_again_for_longer(fleet: Fleet) -> None:
    """BREAK-3: 10 s × times opened in a row (here 0.3 s)."""
    shops = Shops(fleet)
    bus = await shops.serve("one")
    shops.does["one"] = fail
    await asked(bus, 11)
    for times in (2, 3):
        await wait_over(bus, "one")
        before = asyncio.get_running_loop().time()
        await asked(bus, 5)
        assert 10 + times - 1 == shops.began["one"]
        breaker = lane(bus, "one").breaker
        assert (State.OPEN, times) == (breaker.state, breaker.opened_in_a_row)
        assert breaker.open_until >= before + 0.3 * times


async def test_probes_are_let_through_one_at_a_time(fleet: Fleet) -> None:
    """Case 17: of fifty concurrent callers one is the probe; the others are refused, and come in when it succeeds."""
    shops = Shops(fleet)
    bus = await shops.serve("one")
    shops.does["one"] = fail
    await asked(bus, 11)
    go = asyncio.Event()

    async def held() -> None:
        await go.wait()

    shops.does["one"] = held
    await wait_over(bus, "one")
    calls = [asyncio.create_task(bus.request("shop.do", retry=False, timeout_s=5)) for _ in range(50)]
    await eventually(lambda: sum(call.done() for call in calls) == 49 and shops.now == 1)
    assert (11, 1) == (shops.began["one"], shops.now)
    go.set()
    replies = await asyncio.gather(*calls)
    assert 1 == sum(reply.ok for reply in replies)
    assert {Reason.BREAKER_OPEN} == {reply.error.reason for reply in replies if reply.error is not None}
    assert [True] * 50 == [
        reply.ok for reply in await asyncio.gather(*(bus.request("shop.do") for _ in range(50)))
    ]


@pytest.mark.parametrize("end", ["cancelled", "timed out"])
async def test_a_probe_that_ends_without_a_word_does_not_block_the_next(fleet: Fleet, end: str) -> None:
    """Case 17, BREAK-3: each outcome of whatever kind releases its permit."""
    shops = Shops(fleet)
    bus = await shops.serve("one")
    shops.does["one"] = fail
    await asked(bus, 11)
    shops.does["one"] = hang
    await wait_over(bus, "one")
    probe = asyncio.create_task(
        bus.request("shop.do", retry=False, timeout_s=0.2 if end == "timed out" else 5)
    )
    await eventually(lambda: shops.now == 1)
    if end == "cancelled":
        probe.cancel()
    await asyncio.wait({probe})
    del shops.does["one"]
    await wait_over(bus, "one")
    assert [True] == [reply.ok for reply in await asked(bus, 1)]
    assert State.CLOSED is lane(bus, "one").breaker.state


@pytest.mark.parametrize("does", [mistake, refuse_4xx, busy], ids=["wrong parameters", "4xx", "overloaded"])
async def test_what_is_not_its_fault_opens_nothing(fleet: Fleet, does: Any) -> None:
    """BREAK-2, case 17: a storm of the caller's own errors, or of refusals, leaves the lane open to all."""
    shops = Shops(fleet)
    bus = await shops.serve("one")
    shops.does["one"] = does
    for _ in range(5):
        await asyncio.gather(*(asked(bus, 1) for _ in range(40)))
    assert (200, State.CLOSED) == (shops.began["one"], lane(bus, "one").breaker.state)


async def test_cancellations_open_nothing(fleet: Fleet) -> None:
    """BREAK-2, case 17: callers that leave say nothing of the lane."""
    shops = Shops(fleet)
    bus = await shops.serve("one")
    shops.does["one"] = hang
    for _ in range(5):
        calls = [asyncio.create_task(bus.request("shop.do")) for _ in range(40)]
        await eventually(lambda: shops.now == 40)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        await eventually(lambda: shops.now == 0)
    assert State.CLOSED is lane(bus, "one").breaker.state


@pytest.mark.parametrize("idempotent", [True, False])
async def test_with_two_providers_the_calls_go_to_the_good_one(fleet: Fleet, idempotent: bool) -> None:
    """BREAK-1, ROUTE-1: after ten failures no call meets the bad one, nor is any marked."""
    shops = Shops(fleet, idempotent=idempotent)
    bus = await shops.serve("good", "bad", settings=BreakerSettings())
    shops.does["bad"] = fail
    while lane(bus, "bad").breaker.closed:
        await asked(bus, 1)
    seen = shops.began["bad"]
    replies = await asyncio.gather(*(bus.request("shop.do") for _ in range(200)))
    assert ({"good"}, seen) == ({reply.unwrap() for reply in replies}, shops.began["bad"])
    assert not any(reply.degraded for reply in replies)


async def test_a_write_is_no_probe_while_there_is_another_lane(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BREAK-3: a call that may not be repeated goes to the good lane; but who is never asked never recovers."""
    shops = Shops(fleet)
    bus = await shops.serve("good", "bad")
    shops.does["bad"] = fail
    while lane(bus, "bad").breaker.closed:
        await asked(bus, 1)
    await wait_over(bus, "bad")
    assert {"good"} == {reply.unwrap() for reply in await asked(bus, 20)}
    del shops.does["bad"]
    monkeypatch.setattr("reach.call.choose.PATIENCE_S", 0.0)
    assert "bad" == (await asked(bus, 1))[0].unwrap()
    assert {} == bus._core.outbound.lanes.troubled


async def test_a_keyed_write_may_be_the_probe(fleet: Fleet) -> None:
    """BREAK-3, RETRY-1: what carries an idempotency key may be repeated, so it may find out."""
    shops = Shops(fleet)
    bus = await shops.serve("good", "bad")
    shops.does["bad"] = fail
    while lane(bus, "bad").breaker.closed:
        await asked(bus, 1)
    del shops.does["bad"]
    await wait_over(bus, "bad")
    assert "bad" == (await asked(bus, 1, idempotency_key=new_id()))[0].unwrap()


async def test_when_a_tier_is_broken_the_next_one_answers(fleet: Fleet) -> None:
    """BREAK-6, ROUTE-1: the next tier takes over, degraded, and gives back when the first one is well."""
    shops = Shops(fleet)
    bus = await shops.serve("own", "outside", priorities=(10, 20))
    shops.does["own"] = fail
    await asked(bus, 10)
    replies = await asked(bus, 5)
    assert [("outside", True, 1)] * 5 == [(r.unwrap(), r.degraded, r.degrade_level) for r in replies]
    del shops.does["own"]
    await wait_over(bus, "own")
    # A call that may be repeated finds out.
    assert "own" == (await asked(bus, 1, idempotency_key=new_id()))[0].unwrap()
    assert [("own", False)] * 5 == [(r.unwrap(), r.degraded) for r in await asked(bus, 5)]


async def test_core_calls_may_use_the_last_lane_there_is(fleet: Fleet) -> None:
    """BREAK-5: `core` calls are let through to a lane that is open when there is no other; `normal` ones are not."""
    shops = Shops(fleet)
    bus = await shops.serve("one", settings=BreakerSettings())
    shops.does["one"] = fail
    await asked(bus, 11, priority="core")
    assert not lane(bus, "one").breaker_of("core").closed
    del shops.does["one"]
    assert [True] * 5 == [reply.ok for reply in await asked(bus, 5, priority="core")]
    assert [Reason.BREAKER_OPEN] == [r.error and r.error.reason for r in await asked(bus, 1)]
    assert [7] == [reply.data for reply in await asked(bus, 1, fallback=7)]


async def test_a_retry_that_finds_every_lane_closed_off_says_so(fleet: Fleet) -> None:
    """ERR-6: the record of the attempt says that another was decided, and why it was not sent."""
    shops = Shops(fleet)
    bus = await shops.serve("one")

    async def refuse() -> None:
        await asyncio.sleep(0.02)
        raise reach.NotExecuted

    shops.does["one"] = refuse
    replies = await asyncio.gather(*(bus.request("shop.do", timeout_s=2) for _ in range(12)))
    assert {Executed.NO} == {reply.error.executed for reply in replies if reply.error is not None}
    await eventually(lambda: len(fleet.records) == 12)
    decisions = Counter(record.attempts[0].decision for record in fleet.records)
    assert "retry_elsewhere not_sent:BREAKER_OPEN" in decisions
    assert {"retry_elsewhere not_sent:BREAKER_OPEN", "give_up:retry_budget"} >= decisions.keys()


async def test_a_call_by_name_asks_the_breaker_too(fleet: Fleet) -> None:
    """BREAK-5: `target` names the lane that is closed off: the call is refused, not sent elsewhere."""
    shops = Shops(fleet)
    bus = await shops.serve("good", "bad")
    shops.does["bad"] = fail
    await asked(bus, 10, target="bad")
    (reply,) = await asked(bus, 1, target="bad")
    assert reply.error is not None
    assert Reason.BREAKER_OPEN is reply.error.reason
    assert "good" == (await asked(bus, 1))[0].unwrap()
