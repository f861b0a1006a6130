"""Tasks across the end of the server and of the link: nothing is lost or done twice, nobody misses an event."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import reach
from reach.bus.keys import Role
from reach.wire.task import TERMINAL, TaskEvent, TaskState
from tests.runtime.fleet import Fleet, eventually


@pytest.fixture
async def own_fleet(own_system: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Agents and callers on a server of this test's own."""
    await asyncio.to_thread(own_system.provision)
    fleet = Fleet(own_system, tmp_path)
    try:
        yield fleet
    finally:
        await fleet.close()


async def restart(fleet: Fleet) -> None:
    await asyncio.to_thread(fleet.system.restart)


async def test_tasks_flow_on_after_a_restart(own_fleet: Fleet) -> None:
    """Case 3: across a restart of the server running tasks end, queued ones are done, new ones are taken in 10 s."""
    agent = reach.Agent("flow")
    starts: list[int] = []

    @agent.task("flow.work", max_concurrency=2)
    async def work(n: int) -> int:
        starts.append(n)
        await asyncio.sleep(0.3)
        return n

    await own_fleet.serve(agent)
    bus = await own_fleet.connect()
    tasks = [await bus.submit("flow.work", {"n": n}) for n in range(8)]
    await eventually(lambda: len(starts) >= 2)
    await restart(own_fleet)
    tasks.append(await bus.submit("flow.work", {"n": 8}))
    results = await asyncio.gather(*(task.result(timeout_s=10) for task in tasks))

    assert list(range(9)) == results
    assert list(range(9)) == sorted(starts)
    for task in tasks:
        kept = [event.state async for event in task.events()]
        assert 1 == sum(state in TERMINAL for state in kept)


async def test_a_live_subscriber_misses_nothing(own_fleet: Fleet) -> None:
    """TASK-8: who follows events live sees each once, in order, across a restart; who comes late sees the same."""
    agent = reach.Agent("live")

    @agent.task("live.work")
    async def work(n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    await own_fleet.serve(agent)
    bus, watcher = await own_fleet.connect(), await own_fleet.connect()
    feed = watcher.task_events(capability="live.*", since="start")
    seen: list[TaskEvent] = []

    async def follow() -> None:
        async for event in feed:
            seen.append(event)  # noqa: PERF401 - it never ends, and is looked at meanwhile

    following = asyncio.create_task(follow())
    tasks = [await bus.submit("live.work", {"n": n}) for n in range(30)]
    await eventually(lambda: seen)
    assert feed.alive
    await restart(own_fleet)
    tasks += [await bus.submit("live.work", {"n": n}) for n in range(30, 60)]
    await asyncio.gather(*(task.result(timeout_s=10) for task in tasks))
    await eventually(lambda: sum(event.state is TaskState.COMPLETED for event in seen) == 60)
    following.cancel()
    late: list[tuple[int | None, str]] = []
    async for event in watcher.task_events(since="start"):
        late.append((event.sequence, event.event_id))
        if len(late) == len(seen):
            break

    sequences = [event.sequence for event in seen]
    assert sorted({sequence for sequence in sequences if sequence}) == sequences
    assert late == [(event.sequence, event.event_id) for event in seen]
    assert 180 == len(seen)


async def test_many_delayed_tasks_of_one_capability_fire(own_fleet: Fleet) -> None:
    """TASK-6: a hundred delayed tasks of one capability all begin within 2 s of their time, across a restart."""
    agent = reach.Agent("alarm")
    late: list[float] = []

    @agent.task("alarm.ring")
    async def ring(due_ms: float, ctx: reach.TaskContext) -> None:
        late.append(ctx._run.worker.stream.now_ms() - due_ms)

    await own_fleet.serve(agent)
    bus = await own_fleet.connect()
    now = bus._core.tasks.stream.now_ms()
    tasks = await asyncio.gather(
        *(bus.submit("alarm.ring", {"due_ms": now + 2000 + 10 * n}, delay_s=2 + n / 100) for n in range(100))
    )
    await restart(own_fleet)
    await asyncio.gather(*(task.result(timeout_s=15) for task in tasks))

    assert 100 == len(late)
    assert max(late) < 2000
    assert min(late) > -200


async def test_a_worker_waits_for_the_streams(own_system: Any, tmp_path: Path) -> None:
    """A worker that is there before the streams are begins when they have been made; submitters are told."""
    fleet = Fleet(own_system, tmp_path)
    try:
        agent = reach.Agent("early")

        @agent.task("early.work")
        async def work() -> str:
            return "done"

        await fleet.serve(agent)
        bus = await fleet.connect()
        with pytest.raises(reach.Unreachable, match="no stream takes"):
            await bus.submit("early.work", {})
        with pytest.raises(reach.Unreachable, match="cannot be read"):
            await anext(aiter(bus.task_events()))
        await asyncio.to_thread(own_system.provision)
        task = await bus.submit("early.work", {})

        assert "done" == await task.result(timeout_s=10)
    finally:
        await fleet.close()


async def test_a_consumer_that_was_removed_comes_back(own_fleet: Fleet) -> None:
    """An operator removes a worker's consumer: it is made again, and nothing of the queue is lost."""
    agent = reach.Agent("gone")

    @agent.task("gone.work")
    async def work(n: int) -> int:
        return n

    await own_fleet.serve(agent)
    bus = await own_fleet.connect()
    assert 1 == await (await bus.submit("gone.work", {"n": 1})).result(timeout_s=5)
    operator = await own_fleet.stranger(Role.PLATFORM)
    await operator.jetstream().delete_consumer("REACH_TASKS", "gone=work")

    assert 2 == await (await bus.submit("gone.work", {"n": 2})).result(timeout_s=10)


async def test_the_queue_is_empty_when_all_is_done(own_fleet: Fleet) -> None:
    """What has ended is taken out of the queue; no message is left to be handed out again."""
    agent = reach.Agent("clean")

    @agent.task("clean.work")
    async def work(n: int) -> int:
        return n

    await own_fleet.serve(agent)
    bus = await own_fleet.connect()
    tasks = [await bus.submit("clean.work", {"n": n}) for n in range(50)]
    await asyncio.gather(*(task.result(timeout_s=10) for task in tasks))
    operator = await own_fleet.stranger(Role.PLATFORM)

    async def left() -> int:
        return int((await operator.jetstream().stream_info("REACH_TASKS")).state.messages)

    async with asyncio.timeout(5):
        while await left():  # noqa: ASYNC110 - the queue has no event to offer
            await asyncio.sleep(0.01)
