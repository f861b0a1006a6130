"""Who gets a place at an agent, who waits, who goes first, and that all places come back (GUARD-1, GUARD-2)."""

import asyncio
import random
import threading
from collections import Counter
from typing import Any

import pytest

import reach
from reach.call.client import Bus
from reach.faults import Advice, Code, Executed, Reason
from reach.policy.breaker_settings import BreakerSettings
from reach.runtime.instance import Instance
from reach.wire import codec
from reach.wire.reply import Reply
from tests.runtime.fleet import Fleet, eventually


class Desk:
    """An agent with a few places, a queue, and handlers that end when they are told to; it notes who began."""

    def __init__(self, *, places: int, queue: int, prioritised: bool = False) -> None:
        self.began: list[str] = []
        self.go: dict[str, asyncio.Event] = {}
        self.agent = reach.Agent("desk")

        @self.agent.capability("desk.serve", max_concurrency=places, queue=queue, prioritised=prioritised)
        async def serve(who: str) -> str:
            self.began.append(who)
            await self.go.setdefault(who, asyncio.Event()).wait()
            return who

    def end(self, who: str) -> None:
        """Let one of them finish."""
        self.go.setdefault(who, asyncio.Event()).set()

    def end_all(self, *who: str) -> None:
        for one in who:
            self.end(one)


def call(bus: Bus, who: str, priority: Any = "normal", **options: Any) -> "asyncio.Task[Reply]":
    """Make a call that is tried once."""
    return asyncio.create_task(
        bus.request("desk.serve", {"who": who}, priority=priority, retry=False, **options)
    )


def waiting(instance: Instance) -> int:
    return instance.served[0].places.queued


def held(instance: Instance) -> tuple[int, int, int]:
    """Requests, places and waiters: all zero when nothing is under way."""
    return instance.inflight, instance.served[0].running, waiting(instance)


def refusal(reply: Reply) -> tuple[Any, ...]:
    assert reply.error is not None
    return reply.error.code, reply.error.reason, reply.error.executed, reply.error.advice


OVERLOADED = (Code.RATE_LIMITED, Reason.OVERLOADED, Executed.NO, Advice.WAIT)


async def test_what_is_over_the_limit_waits_in_a_bounded_queue(fleet: Fleet) -> None:
    """GUARD-1: two work, two wait in order of their age, the fifth is refused at once and told all of it (ERR-6)."""
    desk = Desk(places=2, queue=2)
    instance = await fleet.serve(desk.agent)
    bus = await fleet.connect()
    calls = []
    for number, who in enumerate("abcd", start=1):
        calls.append(call(bus, who))
        await eventually(lambda number=number: instance.inflight == number)
    assert (["a", "b"], 2) == (desk.began, waiting(instance))
    fifth = await call(bus, "e")
    assert OVERLOADED == refusal(fifth)
    assert fifth.error is not None
    assert {
        "name": "max_concurrency of desk.serve",
        "owner": "desk",
        "used": 2,
        "allowed": 2,
    } == fifth.error.limit
    assert "desk has 2 of 2 places taken" in fifth.error.message
    assert "2 of 2 wait" in fifth.error.message
    assert 10 <= (fifth.error.retry_after_ms or 0) <= 30_000
    desk.end("a")
    await eventually(lambda: len(desk.began) == 3)
    assert ["a", "b", "c"] == desk.began
    desk.end_all("b", "c", "d")
    assert list("abcd") == [reply.unwrap() for reply in await asyncio.gather(*calls)]
    assert (0, 0, 0) == held(instance)


async def test_core_calls_go_first_and_find_places_kept_for_them(fleet: Fleet) -> None:
    """GUARD-2: of ten places `offline` calls take five, `normal` ones eight, `core` ones all; then rank decides."""
    desk = Desk(places=10, queue=10, prioritised=True)
    instance = await fleet.serve(desk.agent)
    bus = await fleet.connect()
    calls = []
    for kind in ("offline", "normal", "core"):
        for number in range(6):
            calls.append(call(bus, f"{kind}-{number}", kind))
            await eventually(lambda: instance.inflight == len(calls))
    began = Counter(who.partition("-")[0] for who in desk.began)
    assert {"offline": 5, "normal": 3, "core": 2} == began
    assert 8 == waiting(instance)
    desk.end("core-0")  # Of ten taken nine remain: only a `core` call may come in.
    await eventually(lambda: len(desk.began) == 11)
    assert "core-2" == desk.began[-1]
    for kind in ("core", "normal", "offline"):
        desk.end_all(*(f"{kind}-{number}" for number in range(6)))
    assert all(reply.ok for reply in await asyncio.gather(*calls))
    ranks = [who.partition("-")[0] for who in desk.began[10:]]
    assert sorted(ranks, key=["core", "normal", "offline"].index) == ranks
    assert (0, 0, 0) == held(instance)


async def test_the_newest_offline_waiter_is_shed_first(fleet: Fleet) -> None:
    """GUARD-2: a full queue makes room for somebody better, at the cost of the newest of the worst."""
    desk = Desk(places=1, queue=3, prioritised=True)
    instance = await fleet.serve(desk.agent)
    bus = await fleet.connect()
    calls = {}
    for number, (who, kind) in enumerate(
        [("busy", "core"), ("old", "offline"), ("new", "offline"), ("mid", "normal")], start=1
    ):
        calls[who] = call(bus, who, kind)
        await eventually(lambda number=number: instance.inflight == number)
    calls["best"] = call(bus, "best", "core")
    shed = await calls.pop("new")
    assert OVERLOADED == refusal(shed)
    assert shed.error is not None
    assert "offline calls may use" not in shed.error.message  # Of one place everybody may use one.
    assert 3 == waiting(instance)
    # Nobody worse waits for its sake: a second normal call is refused, as the queue holds its like.
    calls["best-2"] = call(bus, "best-2", "core")
    assert OVERLOADED == refusal(await calls.pop("old"))
    assert OVERLOADED == refusal(await call(bus, "mid-2", "normal"))
    desk.end_all("busy", "mid", "best", "best-2")
    assert all(reply.ok for reply in await asyncio.gather(*calls.values()))
    assert ["busy", "best", "best-2", "mid"] == desk.began
    assert (0, 0, 0) == held(instance)


async def test_without_priorities_all_share_all(fleet: Fleet) -> None:
    """GUARD-2: a capability that did not ask for priorities serves its queue by age alone."""
    desk = Desk(places=1, queue=2)
    instance = await fleet.serve(desk.agent)
    bus = await fleet.connect()
    calls = []
    for number, (who, kind) in enumerate([("a", "offline"), ("b", "offline"), ("c", "core")], start=1):
        calls.append(call(bus, who, kind))
        await eventually(lambda number=number: instance.inflight == number)
    desk.end_all("a", "b", "c")
    assert ["a", "b", "c"] == [reply.unwrap() for reply in await asyncio.gather(*calls)]
    assert ["a", "b", "c"] == desk.began


@pytest.mark.parametrize("timeout_ms", [60, 300], ids=["soon", "later"])
async def test_a_request_whose_time_ends_in_the_queue_was_not_executed(fleet: Fleet, timeout_ms: int) -> None:
    """CALL-2, GUARD-1: it is told so at its deadline, and its place in the queue is free again."""
    desk = Desk(places=1, queue=1)
    instance = await fleet.serve(desk.agent)
    bus = await fleet.connect()
    busy = call(bus, "busy")
    await eventually(lambda: desk.began == ["busy"])
    client = await fleet.stranger()
    late = reach.Envelope(payload={"who": "late"}, timeout_ms=timeout_ms)
    answer = await client.request("cap.desk.serve", late.pack(), timeout=5)
    error = codec.unpack(answer.data)["error"]
    assert ("TIMEOUT", "DEADLINE", "no") == (error["code"], error["reason"], error["executed"])
    assert (1, 1, 0) == held(instance)
    desk.end("busy")
    assert (await busy).ok
    assert ["busy"] == desk.began


async def test_a_caller_that_leaves_the_queue_frees_its_place_there(fleet: Fleet) -> None:
    """CALL-5, GUARD-1: a queued request ends when its caller goes; nothing of it is ever run."""
    desk = Desk(places=1, queue=1)
    instance = await fleet.serve(desk.agent)
    bus = await fleet.connect()
    busy, left = call(bus, "busy"), call(bus, "left")
    await eventually(lambda: waiting(instance) == 1)
    left.cancel()
    await asyncio.wait({left})
    await eventually(lambda: waiting(instance) == 0)
    next_one = call(bus, "next")
    await eventually(lambda: waiting(instance) == 1)
    desk.end_all("busy", "next")
    assert ["busy", "next"] == [(await busy).unwrap(), (await next_one).unwrap()]
    assert ["busy", "next"] == desk.began
    assert (0, 0, 0) == held(instance)


@pytest.mark.parametrize("prioritised", [True, False])
async def test_a_call_nested_in_itself_never_queues(fleet: Fleet, prioritised: bool) -> None:
    """CALL-4: it would wait for the place of its own caller; so it is refused, and costs no waiter its place."""
    agent = reach.Agent("loop")
    inner: list[Reply] = []
    go = asyncio.Event()

    @agent.capability("loop.run", max_concurrency=1, queue=1, prioritised=prioritised)
    async def run(depth: int, ctx: reach.Context) -> str:
        if depth:
            await go.wait()
            inner.append(await ctx.bus.request("loop.run", {"depth": 0}, priority="core", retry=False))
        return "done"

    instance = await fleet.serve(agent)
    bus = await fleet.connect()
    outer = asyncio.create_task(bus.request("loop.run", {"depth": 1}, timeout_s=10))
    await eventually(lambda: instance.served[0].running == 1)
    other = asyncio.create_task(bus.request("loop.run", {"depth": 0}, priority="offline", timeout_s=10))
    await eventually(lambda: waiting(instance) == 1)
    go.set()
    assert "done" == (await outer).unwrap()
    assert "done" == (await other).unwrap()
    assert [OVERLOADED] == [refusal(reply) for reply in inner]
    assert (0, 0, 0) == held(instance)


async def test_a_stop_answers_what_is_queued(fleet: Fleet) -> None:
    """LIFE-7: what waits for a place when the agent leaves is still served."""
    desk = Desk(places=1, queue=2)
    instance = await fleet.serve(desk.agent)
    bus = await fleet.connect()
    calls = [call(bus, who) for who in "abc"]
    await eventually(lambda: waiting(instance) == 2)
    leaving = asyncio.create_task(fleet.stop(instance))
    desk.end_all("a", "b", "c")
    assert {"a", "b", "c"} == {reply.unwrap() for reply in await asyncio.gather(*calls)}
    await leaving


async def test_an_agent_that_must_end_tells_those_that_wait(fleet: Fleet) -> None:
    """GUARD-1: whoever still waits when the time to leave is over was not executed, and is told."""
    desk = Desk(places=1, queue=1)
    instance = await fleet.serve(desk.agent, drain_s=0.2)
    bus = await fleet.connect()
    busy, queued = call(bus, "busy"), call(bus, "queued")
    await eventually(lambda: waiting(instance) == 1)
    await fleet.stop(instance)
    error = (await queued).error
    assert error is not None
    assert Executed.NO == error.executed
    assert (await busy).error is not None
    assert ["busy"] == desk.began


def test_a_negative_queue_is_refused_when_it_is_declared() -> None:
    """A mistake of the program is told where it is made."""
    agent = reach.Agent("wrong")
    with pytest.raises(ValueError, match=r"queue of 'a\.b' is 0 or more"):
        agent.capability("a.b", queue=-1)(lambda: None)


NEVER_OPENS = BreakerSettings(
    failure_rate_threshold=1.0, core_failure_rate_threshold=1.0, consecutive_failures=1_000_000
)


class Storm:
    """Calls of all kinds of ends, priorities and timings against few places."""

    ENDS = ("good", "fail", "not executed", "slow", "bad result")

    def __init__(self, kind: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.stop = threading.Event()
        self.agent = reach.Agent("storm")
        handler = self.in_loop if kind == "async" else self.in_thread
        self.agent.capability("storm.any", max_concurrency=3, queue=4, prioritised=True, idempotent=True)(
            handler
        )

    async def in_loop(self, end: str) -> int:
        await asyncio.sleep(5.0 if end == "slow" else 0.002)
        return self.ending(end)

    def in_thread(self, end: str) -> int:
        self.stop.wait(0.05 if end == "slow" else 0.002)
        return self.ending(end)

    def ending(self, end: str) -> int:
        if end == "fail":
            raise ValueError
        if end == "not executed":
            raise reach.NotExecuted
        return "text" if end == "bad result" else 1  # type: ignore[return-value]  # that is the point

    async def caller(self, bus: Bus, calls: int, ends: Counter[str]) -> None:
        """Make calls one after the other, and leave some of them."""
        for _ in range(calls):
            task = asyncio.create_task(
                bus.request(
                    "storm.any",
                    {"end": self.random.choice(self.ENDS)},
                    timeout_s=self.random.choice([0.03, 0.08, 0.3]),
                    priority=self.random.choice(["core", "normal", "offline"]),
                    retry=self.random.random() < 0.5,
                )
            )
            if self.random.random() < 0.2:
                await asyncio.sleep(self.random.random() * 0.02)
                task.cancel()
            await asyncio.wait({task})
            if task.cancelled():
                ends["left"] += 1
            else:
                error = task.result().error
                ends["ok" if error is None else error.reason.value] += 1


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_after_any_storm_every_place_is_free(fleet: Fleet, kind: str) -> None:
    """GUARD-1, case 33: success, failure, timeout, cancel, shed: no place, waiter or permit is left at either side."""
    storm = Storm(kind, seed=4)
    instances = [await fleet.serve(storm.agent) for _ in range(2)]
    bus = await fleet.connect()
    await bus.cards.instances("storm.any")
    bus._core.outbound.lanes._settings = NEVER_OPENS
    ends: Counter[str] = Counter()
    await asyncio.gather(*(storm.caller(bus, 25, ends) for _ in range(24)))
    print(f"  ▸ {kind}: {dict(ends.most_common())}")  # noqa: T201 - numbers are what it is read for
    assert 600 == ends.total()
    assert {"ok", "left", "OVERLOADED"} <= ends.keys()
    for instance in instances:
        await eventually(lambda instance=instance: held(instance) == (0, 0, 0))
        assert 0 == instance.served[0].executor.busy
        assert {} == instance._inbound._by_message
    lanes = bus._core.outbound.lanes
    assert [0] == [lane.open for lane in lanes.known("storm.any")]
    assert (0, 0) == (bus.pending, bus._core.outbound.open_calls)
