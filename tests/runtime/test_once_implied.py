"""Keys that calls have by themselves inside a task (IDEM-4)."""

from typing import Any

import pytest

import reach
from reach.ids import new_id
from reach.policy.dedupe import NOTICE_EN, NOTICE_ZH
from tests.runtime.fleet import Fleet


@pytest.fixture
def done() -> list[Any]:
    return []


@pytest.fixture
def agent(done: list[Any]) -> reach.Agent:
    agent = reach.Agent("clerk")

    @agent.capability("clerk.write")
    async def write(number: str, note: Any = None) -> int:
        done.append((number, note))
        return len(done)

    @agent.capability("clerk.append", dedupe=False)
    async def append(number: str) -> int:
        done.append(number)
        return len(done)

    @agent.capability("clerk.put", idempotent=True)
    async def put(number: str) -> int:
        done.append(number)
        return len(done)

    @agent.capability("clerk.drip")
    async def drip(number: str) -> Any:
        done.append(number)
        yield len(done)

    return agent


async def test_a_task_that_repeats_a_write_gets_the_first_result(
    fleet: Fleet, agent: reach.Agent, done: list[Any]
) -> None:
    """IDEM-4: the same write again in the same task is not done; its result is marked, with a notice."""
    await fleet.serve(agent)
    bus = await fleet.connect()
    with reach.context(task_id=new_id(), session_id="s-1"):
        first = await bus.request("clerk.write", {"number": "R-1", "note": {"a": 1, "b": 2}})
        again = await bus.request("clerk.write", {"note": {"b": 2, "a": 1}, "number": "R-1"})
        other = await bus.request("clerk.write", {"number": "R-2"})
        zh = await bus.request("clerk.write", {"number": "R-2"}, prefer={"lang": "zh"})
    with reach.context(task_id=new_id(), session_id="s-1"):
        elsewhere = await bus.request("clerk.write", {"number": "R-1", "note": {"a": 1, "b": 2}})
    assert [1, 1, 2, 2, 3] == [one.unwrap() for one in (first, again, other, zh, elsewhere)]
    assert [False, True, False, True, False] == [
        one.duplicate for one in (first, again, other, zh, elsewhere)
    ]
    assert [None, NOTICE_EN, NOTICE_ZH] == [one.notice for one in (first, again, zh)]


@pytest.mark.parametrize("capability", ["clerk.append", "clerk.put"])
async def test_what_may_be_repeated_is_done_again(
    fleet: Fleet, agent: reach.Agent, done: list[Any], capability: str
) -> None:
    """IDEM-4: a capability that is idempotent, or says `dedupe=False`, is done each time."""
    await fleet.serve(agent)
    bus = await fleet.connect()
    with reach.context(task_id=new_id()):
        replies = [await bus.request(capability, {"number": "R-1"}) for _ in range(2)]
    assert [1, 2] == [one.unwrap() for one in replies]
    assert not any(one.duplicate for one in replies)


async def test_a_call_that_means_it_is_done_again(fleet: Fleet, agent: reach.Agent, done: list[Any]) -> None:
    """IDEM-4: `dedupe=False` on a call lets a task repeat a write; so does no task at all."""
    await fleet.serve(agent)
    bus = await fleet.connect()
    with reach.context(task_id=new_id()):
        await bus.request("clerk.write", {"number": "R-1"})
        meant = await bus.request("clerk.write", {"number": "R-1"}, dedupe=False)
    for _ in range(2):
        await bus.request("clerk.write", {"number": "R-1"})
    assert (2, False) == (meant.unwrap(), meant.duplicate)
    assert 4 == len(done)


async def test_broadcasts_and_streams_have_no_key_by_themselves(
    fleet: Fleet, agent: reach.Agent, done: list[Any]
) -> None:
    """IDEM-4: a broadcast asks each instance for itself, and what a stream sent is not kept."""
    await fleet.serve(agent)
    await fleet.serve(agent)
    bus = await fleet.connect()
    with reach.context(task_id=new_id()):
        for _ in range(2):
            told = [reply async for reply in bus.broadcast("clerk.write", {"number": "R-1"}, timeout_s=0.5)]
            assert [False, False] == [reply.duplicate for reply in told]
        assert 4 == len(done)
        for _ in range(2):
            _ = [part async for part in bus.stream("clerk.drip", {"number": "R-1"})]
    assert 6 == len(done)


async def test_calls_of_a_task_s_handler_have_keys(fleet: Fleet, agent: reach.Agent, done: list[Any]) -> None:
    """IDEM-4: what a task's handler calls belongs to the task, so that a task which is tried again repeats no write."""
    worker = reach.Agent("worker")
    tried: list[int] = []

    @worker.task("worker.close", idempotent=True)
    async def close(ctx: reach.TaskContext) -> int:
        result: int = (await ctx.bus.request("clerk.write", {"number": "R-1"})).unwrap()
        tried.append(ctx.attempt)
        if len(tried) == 1:
            raise RuntimeError("after the write")
        return result

    await fleet.serve(agent)
    await fleet.serve(worker)
    bus = await fleet.connect()
    task = await bus.submit("worker.close", {})
    assert 1 == await task.result(timeout_s=20)
    assert ([1, 2], [("R-1", None)]) == (tried, done)
