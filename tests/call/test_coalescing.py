"""Identical reads under way share one call, and nothing else (GUARD-5)."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

import reach
from reach.bus.keys import Role
from reach.call.client import Bus
from reach.call.flight import Flight, Waiter
from reach.faults import Executed, Reason
from reach.wire.record import ReachRecord
from tests.runtime.fleet import Fleet, eventually


class Desk:
    """An agent that counts what it is asked, and answers when it is let."""

    def __init__(self, **card: Any) -> None:
        self.agent = reach.Agent("desk")
        self.asked: list[dict[str, Any]] = []
        self.cancelled = 0
        self.answers = asyncio.Event()
        self.failing: Exception | None = None
        options: dict[str, Any] = {"reads": True, **card}

        @self.agent.capability("desk.look", **options)
        async def look(ctx: reach.Context, page: int, wait_s: float = 0.0) -> dict[str, Any]:
            envelope = ctx._job.envelope
            self.asked.append(
                {
                    "page": page,
                    "source": envelope.source,
                    "tenant": envelope.tenant,
                    "session": envelope.session_id,
                    "task": envelope.task_id,
                    "trigger": envelope.trigger,
                    "priority": envelope.priority,
                    "trace": None if envelope.trace is None else envelope.trace.trace_id,
                }
            )
            number = len(self.asked)
            try:
                if wait_s:
                    await asyncio.sleep(wait_s)
                else:
                    await self.answers.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            if self.failing is not None:
                raise self.failing
            return {"page": page, "number": number, "lines": [1, 2]}


@pytest.fixture
async def desk(fleet: Fleet) -> Desk:
    """The desk, served."""
    desk = Desk()
    await fleet.serve(desk.agent)
    return desk


@pytest.fixture
async def bus(fleet: Fleet, desk: Desk) -> Bus:
    """A caller that knows the desk."""
    bus = await fleet.connect()
    await bus.cards.instances("desk.look")
    return bus


@pytest.fixture(autouse=True)
async def nothing_left(fleet: Fleet) -> AsyncIterator[None]:
    """Whatever a test does, no flight and no task of one is left of it."""
    yield
    for bus in fleet.buses:
        sharing = bus._core.outbound.thrift.sharing
        await eventually(lambda sharing=sharing: not sharing._tasks)
        assert (0, {}) == (len(sharing), sharing.batches._open)


def begin(bus: Bus, count: int = 1, page: int = 1, **options: Any) -> list[asyncio.Task[reach.Reply]]:
    """Make calls that run on."""
    return [asyncio.create_task(bus.request("desk.look", {"page": page}, **options)) for _ in range(count)]


async def record_of(fleet: Fleet, reach_id: str | None) -> ReachRecord:
    """Give the one record of a call."""
    await eventually(lambda: any(one.reach_id == reach_id for one in fleet.records))
    (found,) = (one for one in fleet.records if one.reach_id == reach_id)
    return found


async def test_equal_reads_share_one_call(fleet: Fleet, desk: Desk, bus: Bus) -> None:
    """GUARD-5: twenty equal reads are one execution, and twenty replies of their own."""
    calls = begin(bus, 20)
    await eventually(lambda: desk.asked)
    desk.answers.set()
    replies = await asyncio.gather(*calls)
    assert 1 == len(desk.asked)
    assert [{"page": 1, "number": 1, "lines": [1, 2]}] * 20 == [reply.data for reply in replies]
    assert 20 == len({reply.reach_id for reply in replies})
    assert 20 == len({reply.message_id for reply in replies})
    assert {"desk"} == {reply.provider for reply in replies}
    assert all(reply.instance and reply.attempt == 1 and reply.latency_ms > 0 for reply in replies)
    replies[0].data["lines"].append(3)
    assert [1, 2] == replies[1].data["lines"]


async def test_each_has_a_record_that_names_the_shared_call(fleet: Fleet, desk: Desk, bus: Bus) -> None:
    """GUARD-5, SEE-3: each waiter's record links to the one call, which has a trace of its own."""
    calls = begin(bus, 3)
    await eventually(lambda: desk.asked)
    desk.answers.set()
    replies = await asyncio.gather(*calls)
    records = [await record_of(fleet, reply.reach_id) for reply in replies]
    (shared_id,) = {record.coalesced_with for record in records}
    shared = await record_of(fleet, shared_id)
    assert (3, 1, "desk") == (shared.waiters, len(shared.attempts), shared.provider)
    assert [[]] * 3 == [record.attempts for record in records]
    assert ["desk"] * 3 == [record.provider for record in records]
    traces = {record.trace_id for record in records}
    assert 3 == len(traces)
    assert shared.trace_id not in traces
    assert {shared.trace_id} == {asked["trace"] for asked in desk.asked}


async def test_calls_are_counted_once(fleet: Fleet, desk: Desk, bus: Bus) -> None:
    """SEE-2: metrics count the callers' calls, the one attempt, and what was saved."""
    calls = begin(bus, 5)
    await eventually(lambda: desk.asked)
    desk.answers.set()
    await asyncio.gather(*calls)
    assert 5 == bus.metrics.calls.value("desk.look", "desk", "ok")
    assert 1 == bus.metrics.attempts.value("desk.look", "desk", "ok")
    assert 4 == bus.metrics.coalesced.value("desk.look")


async def test_other_parameters_are_another_question(fleet: Fleet, desk: Desk, bus: Bus) -> None:
    """GUARD-5: what differs in a parameter is not shared; the order of parameters is no difference."""
    desk.answers.set()
    calls = begin(bus, 2, page=1) + begin(bus, 2, page=2)
    assert [1, 1, 2, 2] == [reply.data["page"] for reply in await asyncio.gather(*calls)]
    first = bus.request("desk.look", {"page": 3, "wait_s": 0.1})
    second = bus.request("desk.look", {"wait_s": 0.1, "page": 3})
    await asyncio.gather(first, second)
    assert [1, 2, 3] == sorted(asked["page"] for asked in desk.asked)


async def test_tenants_and_principals_never_share(fleet: Fleet, desk: Desk, bus: Bus) -> None:
    """GUARD-5, DOOR-3: two tenants, two agents of one process: nobody gets what was made for another."""
    calls = begin(bus, 2, tenant="acme") + begin(bus, 2, tenant="zenith") + begin(bus, 2)
    with reach.context(agent_id="planner"):
        calls += begin(bus, 2)
    with reach.context(agent_id="writer"):
        calls += begin(bus, 2)
    await eventually(lambda: len(desk.asked) == 5)
    desk.answers.set()
    await asyncio.gather(*calls)
    assert [
        ("acme", bus.connection.who),
        ("zenith", bus.connection.who),
        (None, bus.connection.who),
        (None, "planner"),
        (None, "writer"),
    ] == [(asked["tenant"], asked["source"]) for asked in desk.asked]


async def test_a_shared_read_carries_nothing_but_its_question(fleet: Fleet, desk: Desk, bus: Bus) -> None:
    """GUARD-5: no session, task or trigger goes with it, so no answer can depend on one; records have them."""
    desk.answers.set()
    reply = await bus.request(
        "desk.look", {"page": 1}, session_id="s1", task_id="t1", trigger={"turn": 1, "tool": "look"}
    )
    (asked,) = desk.asked
    assert (None, None, None) == (asked["session"], asked["task"], asked["trigger"])
    record = await record_of(fleet, reply.reach_id)
    assert ("s1", "t1") == (record.session_id, record.task_id)


async def test_one_that_leaves_leaves_the_others(fleet: Fleet, desk: Desk, bus: Bus) -> None:
    """GUARD-5: the first one's cancellation, too, is its own alone."""
    calls = begin(bus, 3)
    await eventually(lambda: desk.asked)
    calls[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await calls[0]
    desk.answers.set()
    replies = await asyncio.gather(*calls[1:])
    assert [True, True] == [reply.ok for reply in replies]
    assert (1, 0) == (len(desk.asked), desk.cancelled)
    assert ["cancelled", "ok", "ok"] == [
        record.outcome for record in fleet.records if record.capability == "desk.look" and not record.waiters
    ]


async def test_with_the_last_one_the_call_is_cancelled_at_its_agent(
    fleet: Fleet, desk: Desk, bus: Bus
) -> None:
    """GUARD-5, CALL-5: nobody waits any more, so nobody works; who asks again begins anew."""
    calls = begin(bus, 2)
    await eventually(lambda: desk.asked)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    again = begin(bus)
    await eventually(lambda: desk.cancelled == 1)
    desk.answers.set()
    assert 2 == (await again[0]).unwrap()["number"]


async def test_each_has_its_own_deadline(fleet: Fleet, desk: Desk, bus: Bus) -> None:
    """GUARD-5: the shared call goes on for the longest, and the shorter one fails by its own time alone."""
    long = begin(bus, timeout_s=5.0)
    short = begin(bus, timeout_s=0.2)
    reply = await short[0]
    assert reply.error is not None
    assert (Reason.DEADLINE, Executed.MAYBE) == (reply.error.reason, reply.error.executed)
    assert reply.latency_ms < 1200
    desk.answers.set()
    assert (await long[0]).ok
    assert (1, 0) == (len(desk.asked), desk.cancelled)


async def test_a_longer_deadline_is_not_cut_by_a_shorter_one(fleet: Fleet, desk: Desk, bus: Bus) -> None:
    """GUARD-5: who comes later with more time gets an answer, though the call was begun with less."""
    slow = {"page": 1, "wait_s": 0.5}
    short = asyncio.create_task(bus.request("desk.look", slow, timeout_s=0.25))
    await eventually(lambda: desk.asked)
    long = asyncio.create_task(bus.request("desk.look", slow, timeout_s=5.0))
    first, second = await short, await long
    assert (False, True) == (first.ok, second.ok)


async def test_a_longer_one_without_retries_begins_anew(fleet: Fleet, desk: Desk, bus: Bus) -> None:
    """GUARD-5: where the shared call ended by a shorter time and may not be tried again, it is made anew."""
    slow = {"page": 1, "wait_s": 0.5}
    short = asyncio.create_task(bus.request("desk.look", slow, timeout_s=0.25, retry=False))
    await eventually(lambda: desk.asked)
    long = asyncio.create_task(bus.request("desk.look", slow, timeout_s=5.0, retry=False))
    first, second = await short, await long
    assert (False, True) == (first.ok, second.ok)
    assert 2 == len(desk.asked)


async def test_the_end_of_a_round_ends_its_calls_only(fleet: Fleet, desk: Desk, bus: Bus) -> None:
    """CALL-1: who waits within a round is told at its end; who waits outside goes on."""
    outside = begin(bus)
    await eventually(lambda: desk.asked)
    async with reach.round():
        inside = begin(bus)
        await asyncio.sleep(0.05)
    reply = await inside[0]
    assert reply.error is not None
    assert Reason.CANCELLED is reply.error.reason
    desk.answers.set()
    assert (await outside[0]).ok
    assert 1 == len(desk.asked)


async def test_a_failure_is_told_to_all_after_one_retry(fleet: Fleet, desk: Desk, bus: Bus) -> None:
    """GUARD-5: retries happen in the shared call; each waiter has a failure of its own."""
    desk.failing = reach.NotExecuted("closed today")
    calls = begin(bus, 3)
    await eventually(lambda: desk.asked)
    desk.answers.set()
    replies = await asyncio.gather(*calls)
    assert 2 == len(desk.asked)
    assert [(False, 2, True)] * 3 == [(reply.ok, reply.attempt, reply.retried) for reply in replies]
    assert 3 == len({id(reply.error) for reply in replies})


async def test_each_has_its_own_fallback(fleet: Fleet, desk: Desk, bus: Bus) -> None:
    """BREAK-6: what takes the failure's place is the caller's own."""
    desk.failing = reach.NotExecuted("closed today")
    desk.answers.set()
    calls = begin(bus, 1, fallback="a") + begin(bus, 1, fallback="b") + begin(bus, 1)
    replies = await asyncio.gather(*calls)
    assert ["a", "b", None] == [reply.data for reply in replies]
    assert [True, True, False] == [reply.ok for reply in replies]
    assert [True, True, False] == [reply.degraded for reply in replies]


async def test_a_higher_priority_does_not_wait_behind_a_lower(fleet: Fleet, desk: Desk, bus: Bus) -> None:
    """GUARD-2, GUARD-5: a core call does not share an offline one; an offline one shares the core one."""
    calls = begin(bus, priority="offline")
    await eventually(lambda: len(desk.asked) == 1)
    calls += begin(bus, priority="core")
    await eventually(lambda: len(desk.asked) == 2)
    calls += begin(bus, priority="offline") + begin(bus)
    await asyncio.sleep(0.05)
    desk.answers.set()
    replies = await asyncio.gather(*calls)
    assert ["offline", "core"] == [asked["priority"] for asked in desk.asked]
    assert [1, 2, 2, 2] == [reply.data["number"] for reply in replies]


@pytest.mark.parametrize("options", [{"cache": False}, {"trace": True}, {"idempotency_key": "k"}], ids=str)
async def test_a_call_of_its_own_is_never_shared(
    fleet: Fleet, desk: Desk, bus: Bus, options: dict[str, Any]
) -> None:
    """GUARD-5: who does not want a shared answer, wants its own hops, or has a key of its own, is served alone."""
    calls = begin(bus) + begin(bus, **options)
    await eventually(lambda: len(desk.asked) == 2)
    desk.answers.set()
    replies = await asyncio.gather(*calls)
    assert [True, True] == [reply.ok for reply in replies]
    record = await record_of(fleet, replies[1].reach_id)
    assert (None, 1) == (record.coalesced_with, len(record.attempts))


async def test_what_is_not_declared_a_read_is_never_shared(fleet: Fleet) -> None:
    """GUARD-5: idempotent is not enough."""
    desk = Desk(reads=False, idempotent=True)
    await fleet.serve(desk.agent)
    bus = await fleet.connect()
    calls = begin(bus, 3)
    await eventually(lambda: len(desk.asked) == 3)
    desk.answers.set()
    assert 3 == len({reply.data["number"] for reply in await asyncio.gather(*calls)})


async def test_the_first_calls_of_all_share_too(fleet: Fleet, desk: Desk) -> None:
    """GUARD-5: also where nobody knew the capability yet."""
    bus = await fleet.connect()
    calls = begin(bus, 5)
    await eventually(lambda: desk.asked)
    desk.answers.set()
    await asyncio.gather(*calls)
    assert 1 == len(desk.asked)


async def test_a_mistake_in_a_parameter_is_its_callers_alone(fleet: Fleet, desk: Desk, bus: Bus) -> None:
    """GUARD-5: structure is checked before anything is shared."""
    reply = await bus.request("desk.look", {"page": "one"})
    assert reply.error is not None
    assert (Reason.SCHEMA, 0, 0) == (
        reply.error.reason,
        len(desk.asked),
        len(bus._core.outbound.thrift.sharing),
    )


async def test_closing_the_bus_tells_who_waits(fleet: Fleet, desk: Desk) -> None:
    """CALL-5: no call is left waiting, and nothing runs on at the agent."""
    async with reach.connect(
        settings=fleet.system.settings(Role.CALLER), recorder=fleet.recorder(fleet.sink)
    ) as bus:
        await bus.cards.instances("desk.look")
        calls = begin(bus, 2)
        await eventually(lambda: desk.asked)
    replies = await asyncio.gather(*calls)
    assert [Reason.DISCONNECTED] * 2 == [reply.error.reason for reply in replies if reply.error is not None]
    await eventually(lambda: desk.cancelled == 1)


async def test_a_shared_call_inherits_from_nobody(fleet: Fleet, desk: Desk, bus: Bus) -> None:
    """GUARD-5: an anyio scope around one of them ends that one only."""
    scope = anyio.CancelScope()

    async def within() -> None:
        with scope:
            await bus.request("desk.look", {"page": 1})

    first = asyncio.create_task(within())
    await eventually(lambda: desk.asked)
    second = begin(bus)
    scope.cancel()
    await first
    desk.answers.set()
    assert (await second[0]).ok
    assert (True, 1) == (scope.cancelled_caught, len(desk.asked))


async def test_a_retry_inside_is_known_to_all_who_wait(fleet: Fleet, desk: Desk) -> None:
    """RETRY-7: a handler that waits for a shared call which is made again says so; its caller does not repeat it."""
    outer = reach.Agent("outer")
    runs: list[int] = []

    @outer.capability("outer.ask", idempotent=True)
    async def ask(ctx: reach.Context, number: int) -> None:
        runs.append(number)
        (await ctx.bus.request("desk.look", {"page": 1})).unwrap()

    await fleet.serve(outer)
    bus = await fleet.connect()
    desk.failing = reach.NotExecuted("closed today")
    desk.answers.set()
    replies = await asyncio.gather(*(bus.request("outer.ask", {"number": number}) for number in range(2)))
    assert [(False, True), (False, True)] == [(reply.ok, reply.retried) for reply in replies]
    assert ([0, 1], 2) == (sorted(runs), len(desk.asked))


async def test_flights_are_not_kept_in_memory(fleet: Fleet, desk: Desk, bus: Bus) -> None:
    """SPEED-5: however calls end (answered, cancelled, out of time), nothing of their flights is left."""
    ends = [
        asyncio.create_task(bus.request("desk.look", {"page": page}, timeout_s=0.1)) for page in range(20)
    ]
    ends += [asyncio.create_task(bus.request("desk.look", {"page": page})) for page in range(20, 40)]
    await eventually(lambda: len(desk.asked) >= 40)
    assert 10 == sum(call.cancel() for call in ends[20:30])
    await asyncio.gather(*ends[:30], return_exceptions=True)
    desk.answers.set()
    await asyncio.gather(*ends[30:])
    ends.clear()
    await eventually(lambda: not bus._core.outbound.thrift.sharing._tasks)
    gc.collect()
    assert [] == [one for one in gc.get_objects() if isinstance(one, Flight | Waiter)]


@pytest.mark.parametrize("failing", [reach.NotExecuted(), reach.RateLimited(), ValueError()], ids=type)
async def test_each_is_told_what_is_known_of_execution(
    fleet: Fleet, desk: Desk, bus: Bus, failing: Exception
) -> None:
    """ERR-6, RETRY-1: a shared call that was refused was done for nobody, and each who waited for it is told so."""
    desk.failing = failing
    desk.answers.set()
    alone = await bus.request("desk.look", {"page": 1}, cache=False)
    replies = await asyncio.gather(*begin(bus, 3))
    assert alone.error is not None
    assert [alone.error.executed] * 3 == [
        reply.error.executed for reply in replies if reply.error is not None
    ]
