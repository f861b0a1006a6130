"""How many calls an agent works on, what it tells the others, and that every slot comes back (GUARD-1, case 2)."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from time import monotonic
from typing import Any, cast

import pytest

import reach
from reach.faults import Advice, Code, Executed, Reason
from reach.wire import codec
from reach.wire.reply import Reply
from tests.runtime.fleet import Fleet, eventually


def refusals(replies: list[Reply]) -> list[reach.Failure]:
    return [reply.error for reply in replies if reply.error is not None]


async def test_three_calls_of_a_second_take_about_a_second(fleet: Fleet) -> None:
    """Case 2: an agent serves concurrently; three 1 s requests take about 1 s, not 3."""
    agent = reach.Agent("slow")

    @agent.capability("slow.second")
    async def second() -> None:
        await asyncio.sleep(1.0)

    await fleet.serve(agent)
    bus = await fleet.connect()
    began = monotonic()
    replies = await asyncio.gather(*(bus.request("slow.second") for _ in range(3)))
    took = monotonic() - began
    assert [True] * 3 == [reply.ok for reply in replies]
    assert 1.0 <= took < 2.9  # In a row it would be 3 s.


async def test_three_calls_that_block_their_threads_take_as_long_as_one(fleet: Fleet) -> None:
    """Case 2: plain functions run in threads, side by side too."""
    agent = reach.Agent("slow")
    met = threading.Barrier(3)

    @agent.capability("slow.meet")
    def meet() -> int:
        return met.wait(timeout=5)

    await fleet.serve(agent)
    bus = await fleet.connect()
    replies = await asyncio.gather(*(bus.request("slow.meet") for _ in range(3)))
    assert [0, 1, 2] == sorted(reply.unwrap() for reply in replies)


async def test_what_is_over_the_limit_is_refused_at_once(fleet: Fleet) -> None:
    """Case 2, ERR-6: of 500 at once against 64 slots, 64 run and the rest are OVERLOADED at once, each told why."""
    agent = reach.Agent("full")
    go = asyncio.Event()

    @agent.capability("full.wait")
    async def wait() -> str:
        await go.wait()
        return "done"

    instance = await fleet.serve(agent)
    bus = await fleet.connect()
    await bus.cards.card_for("full.wait")
    refused_at: list[float] = []
    began = monotonic()

    async def call() -> Reply:
        reply = await bus.request("full.wait", retry=False)
        if not reply.ok:
            refused_at.append(monotonic() - began)
        return reply

    calls = [asyncio.create_task(call()) for _ in range(500)]
    await eventually(lambda: len(refused_at) == 436)
    assert max(refused_at) < 2.0
    assert 64 == instance.inflight
    go.set()
    replies = await asyncio.gather(*calls)
    assert ["done"] * 64 == [reply.data for reply in replies if reply.ok]
    failures = refusals(replies)
    assert {(Code.RATE_LIMITED, Reason.OVERLOADED, Executed.NO, True, Advice.WAIT)} == {
        (one.code, one.reason, one.executed, one.retryable, one.advice) for one in failures
    }
    limits = [one.limit or {} for one in failures]
    assert {("max_concurrency of full.wait", "full", 64, 64)} == {
        (limit["name"], limit["owner"], limit["used"], limit["allowed"]) for limit in limits
    }
    assert all(one.retry_after_ms is not None and 10 <= one.retry_after_ms <= 1000 for one in failures)
    assert (0, 0) == (instance.inflight, instance.served[0].running)


async def test_an_overloaded_call_is_retried_when_asked_to_come_back(fleet: Fleet) -> None:
    """RETRY-1: OVERLOADED is executed=no, so a write is tried again too, after the wait that was asked for."""
    agent = reach.Agent("busy")
    done: list[int] = []

    @agent.capability("busy.write", max_concurrency=1)
    async def write(n: int) -> int:
        await asyncio.sleep(0.03)
        done.append(n)
        return n

    await fleet.serve(agent)
    bus = await fleet.connect()
    replies = await asyncio.gather(*(bus.request("busy.write", {"n": n}) for n in range(2)))
    assert [0, 1] == sorted(done)
    assert [1, 2] == sorted(reply.attempt for reply in replies)
    assert [False, True] == sorted(reply.retried for reply in replies)


class Slots:
    """An agent whose one capability ends in the way that its caller asks for, in one kind of executor."""

    def __init__(self, kind: str) -> None:
        self.go = threading.Event()
        self.began: list[None] = []
        self.agent = reach.Agent("slots")
        handlers: dict[str, Any] = {
            "async": self.in_loop,
            "thread": self.in_thread,
            "stream": self.parts_in_loop,
            "thread stream": self.parts_in_thread,
        }
        self.agent.capability("slots.use", max_concurrency=2)(handlers[kind])

    async def in_loop(self, how: str) -> int:
        self.began.append(None)
        if how in {"timeout", "cancel"}:
            await asyncio.sleep(5.0)
        return self.ending(how)

    def in_thread(self, how: str) -> int:
        self.began.append(None)
        if how in {"timeout", "cancel"}:
            self.go.wait(5.0)
        return self.ending(how)

    async def parts_in_loop(self, how: str) -> AsyncIterator[int]:
        yield await self.in_loop(how)

    def parts_in_thread(self, how: str) -> Iterator[int]:
        yield self.in_thread(how)

    def ending(self, how: str) -> int:
        if how == "error":
            raise ValueError
        return cast("int", "text" if how == "bad result" else 1)


@pytest.mark.parametrize("how", ["success", "error", "timeout", "cancel", "bad result", "bad parameters"])
@pytest.mark.parametrize("kind", ["async", "thread", "stream", "thread stream"])
async def test_every_slot_comes_back_whatever_ended_the_call(fleet: Fleet, kind: str, how: str) -> None:
    """GUARD-1, case 33: after each kind of end, in each kind of executor, all slots are free again."""
    slots = Slots(kind)
    instance = await fleet.serve(slots.agent)
    served = instance.served[0]
    bus = await fleet.connect()
    if how == "bad parameters":
        client = await fleet.stranger()
        await client.request("cap.slots.use", b'{"hoe": 1}', timeout=5)
    for _ in range(3):
        timeout_s = 0.15 if how == "timeout" else 5.0
        call = asyncio.create_task(bus.request("slots.use", {"how": how}, timeout_s=timeout_s, retry=False))
        if how == "cancel":
            await eventually(lambda: slots.began)
            call.cancel()
        await asyncio.wait({call})
        slots.go.set()
        await eventually(lambda: served.running == 0)
        slots.go.clear()
        slots.began.clear()
    assert (0, 0, 0) == (instance.inflight, served.running, served.executor.busy)


async def test_a_thread_that_outlives_its_deadline_keeps_its_slot(fleet: Fleet) -> None:
    """CALL-4: a thread cannot be stopped: its caller is told `maybe` in time, its slot stays taken until it returns."""
    agent = reach.Agent("stubborn")
    go = threading.Event()

    @agent.capability("stubborn.work", max_concurrency=1)
    def work() -> str:
        go.wait(10.0)
        return "late"

    instance = await fleet.serve(agent)
    bus = await fleet.connect()
    client = await fleet.stranger()
    late = reach.Envelope(payload={}, timeout_ms=100)
    message = await client.request("cap.stubborn.work", late.pack(), timeout=5)
    error = codec.unpack(message.data)["error"]
    assert ("TIMEOUT", "DEADLINE", "maybe") == (error["code"], error["reason"], error["executed"])
    assert 1 == instance.served[0].running
    refused = await bus.request("stubborn.work", retry=False)
    assert [Reason.OVERLOADED] == [failure.reason for failure in refusals([refused])]
    go.set()
    await eventually(lambda: instance.served[0].running == 0)
    assert "late" == (await bus.request("stubborn.work")).unwrap()


async def test_each_capability_has_slots_of_its_own(fleet: Fleet) -> None:
    """GUARD-1: one capability that is full takes nothing from its neighbour."""
    agent = reach.Agent("two")
    go = asyncio.Event()

    @agent.capability("two.slow", max_concurrency=1)
    async def slow() -> None:
        await go.wait()

    @agent.capability("two.quick", max_concurrency=1)
    async def quick() -> str:
        return "quick"

    instance = await fleet.serve(agent)
    bus = await fleet.connect()
    holding = asyncio.create_task(bus.request("two.slow"))
    await eventually(lambda: instance.inflight == 1)
    assert "quick" == (await bus.request("two.quick")).unwrap()
    go.set()
    assert (await holding).ok


async def test_one_instance_that_is_full_sends_its_calls_to_another(fleet: Fleet) -> None:
    """RETRY-5: what one instance refuses goes to another one that has room, the write too."""
    agents = [reach.Agent(name) for name in ("left", "right")]
    go = asyncio.Event()
    for agent in agents:

        @agent.capability("pair.hold", max_concurrency=1)
        async def hold() -> None:
            await go.wait()

    instances = [await fleet.serve(agent) for agent in agents]
    bus = await fleet.connect()
    await bus.cards.instances("pair.hold")
    first = asyncio.create_task(bus.request("pair.hold", target="left"))
    await eventually(lambda: instances[0].inflight == 1)
    second = asyncio.create_task(bus.request("pair.hold"))
    await eventually(lambda: instances[1].inflight == 1)
    go.set()
    assert {"left", "right"} == {(await first).provider, (await second).provider}
