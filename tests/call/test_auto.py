"""`mode="auto"`: what takes longer than half a minute becomes a task, done once either way (CALL-11)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import reach
from reach.call import auto
from reach.call.options import NO_OPTIONS
from reach.faults import Reason
from reach.wire.task import TaskState
from tests.runtime.fleet import Fleet, eventually


@pytest.fixture
async def fleet(system: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Agents and callers on the shared server."""
    fleet = Fleet(system, tmp_path)
    try:
        yield fleet
    finally:
        await fleet.close()


class Builder:
    """An agent that serves the same work as a capability and as a task, and says how often it did which."""

    def __init__(self, name: str, *, idempotent: bool = False) -> None:
        self.agent = reach.Agent(name)
        self.called = 0
        self.worked = 0

        @self.agent.capability(f"{name}.build", idempotent=idempotent, timeout_s=60)
        @self.agent.task(f"{name}.build", idempotent=idempotent)
        async def build(seconds: float, ctx: reach.Context | reach.TaskContext) -> str:
            if isinstance(ctx, reach.TaskContext):
                self.worked += 1
            else:
                self.called += 1
            await asyncio.sleep(seconds)
            return ctx.message_id


async def test_what_is_only_a_task_is_submitted_and_waited_for(fleet: Fleet) -> None:
    """Its result is in the reply when it is there in time, with all that a reply says always, and the handle."""
    agent = reach.Agent("ledger")

    @agent.task("ledger.close")
    async def close(month: str) -> str:
        return f"{month} is closed"

    instance = await fleet.serve(agent)
    bus = await fleet.connect()
    reply = await bus.request("ledger.close", {"month": "May"}, mode="auto")
    assert ("May is closed", "ledger", instance.name, 1) == (
        reply.unwrap(),
        reply.provider,
        reply.instance,
        reply.attempt,
    )
    assert TaskState.COMPLETED == (await reply.task.last()).state
    await eventually(lambda: [reply.reach_id] == [record.reach_id for record in fleet.agent_records])


async def test_a_call_that_is_seen_to_be_long_becomes_a_task(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After half a minute the reply comes with the handle of what goes on; nothing is done a second time."""
    monkeypatch.setattr(auto, "LONG_S", 0.2)
    builder = Builder("long")
    await fleet.serve(builder.agent)
    bus = await fleet.connect()
    reply = await bus.request("long.build", {"seconds": 0.6}, mode="auto")
    assert (True, None) == (reply.ok, reply.data)
    with pytest.raises(reach.CallTimeout, match=reply.task.id):
        reply.unwrap()
    assert isinstance(await reply.task.result(timeout_s=10), str)
    assert (0, 1) == (builder.called, builder.worked)


async def test_what_is_known_to_be_quick_is_called(fleet: Fleet) -> None:
    """Once a few were seen to be quick they are calls: no task, and nothing written to the stream."""
    builder = Builder("quick")
    await fleet.serve(builder.agent)
    bus = await fleet.connect()
    replies = [await bus.request("quick.build", {"seconds": 0}, mode="auto") for _ in range(auto.LEAST + 2)]
    assert [True] * len(replies) == [reply.ok for reply in replies]
    assert [False] * auto.LEAST + [True] * 2 == [reply.task is None for reply in replies]
    assert (2, auto.LEAST) == (builder.called, builder.worked)


async def test_what_is_expected_to_be_long_is_not_waited_for(fleet: Fleet) -> None:
    """Where three times the P95 is over half a minute the handle comes at once."""
    builder = Builder("slow")
    await fleet.serve(builder.agent)
    bus = await fleet.connect()
    for _ in range(auto.LEAST):
        bus._core.auto._note("slow.build", 11_000)
    began = monotonic()
    reply = await bus.request("slow.build", {"seconds": 10}, mode="auto")
    assert monotonic() - began < 5.0
    assert TaskState.CANCELLED == await reply.task.cancel()


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_call_that_was_cut_becomes_a_task_where_that_is_safe(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, idempotent: bool
) -> None:
    """RETRY-1: what was called as quick, and is not, is submitted if it may be done again; else nobody knows."""
    builder = Builder(f"cut-{idempotent}".lower(), idempotent=idempotent)
    name = f"cut-{idempotent}.build".lower()
    await fleet.serve(builder.agent)
    bus = await fleet.connect()
    for _ in range(auto.LEAST):
        await bus.request(name, {"seconds": 0}, mode="auto")
    monkeypatch.setattr(auto, "LONG_S", 0.4)
    reply = await bus.request(name, {"seconds": 0.6}, mode="auto", retry=False)
    if idempotent:
        assert isinstance(await reply.task.result(timeout_s=10), str)
        assert (1, auto.LEAST + 1) == (builder.called, builder.worked)
    else:
        assert reply.error is not None
        assert (None, Reason.OUTCOME_UNKNOWN) == (reply.task, reply.error.reason)
        assert (1, auto.LEAST) == (builder.called, builder.worked)


async def test_a_capability_that_is_no_task_is_called(fleet: Fleet) -> None:
    """Nothing becomes a task that nobody offers as one."""
    agent = reach.Agent("plain")

    @agent.capability("plain.do")
    async def do() -> str:
        return "done"

    await fleet.serve(agent)
    bus = (await fleet.connect()).with_options(mode="auto")
    reply = await bus.request("plain.do", {})
    assert ("done", None) == (reply.unwrap(), reply.task)


async def test_a_task_that_failed_is_a_reply_that_failed(fleet: Fleet) -> None:
    """`request` returns failures as replies, whichever way they went."""
    agent = reach.Agent("failing")

    @agent.task("failing.do")
    async def do() -> str:
        raise ValueError("no")

    await fleet.serve(agent)
    bus = await fleet.connect()
    reply = await bus.request("failing.do", {}, mode="auto")
    assert reply.error is not None
    assert (False, Reason.HANDLER_ERROR) == (reply.ok, reply.error.reason)


async def test_a_caller_that_leaves_takes_its_task_along(fleet: Fleet) -> None:
    """CALL-5: who is cancelled while it waits has no handle, so nobody wants the task: it is cancelled."""
    builder = Builder("left")
    await fleet.serve(builder.agent)
    bus = await fleet.connect()
    call = asyncio.create_task(bus.request("left.build", {"seconds": 60}, mode="auto"))
    await eventually(lambda: builder.worked == 1)
    call.cancel()
    await asyncio.wait({call})
    async with asyncio.timeout(10):
        async for event in bus.task_events(capability="left.build", since="start"):
            if event.state.is_terminal:
                break
    assert TaskState.CANCELLED == event.state


def test_a_mode_that_there_is_not() -> None:
    """A mistake of the program is told at once."""
    with pytest.raises(ValueError, match="call, auto"):
        NO_OPTIONS.merged({"mode": "later"})  # type: ignore[typeddict-item]
