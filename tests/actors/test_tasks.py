"""The tasks actor on a real server: it ends, cancels and lists what no worker is there for."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import reach
from reach.bus.keys import Role
from reach.wire import codec
from reach.wire.task import TaskState
from tests.actors.tasks_rig import ask, learned, looked_after
from tests.runtime.fleet import Fleet, eventually

WORKER = """
import asyncio
import reach

agent = reach.Agent("{name}")


@agent.task("{name}.once", ack_wait_s=60)
async def once() -> None:
    await asyncio.sleep(60)


agent.run()
"""


@pytest.fixture
async def fleet(system: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Agents and callers on the shared server."""
    fleet = Fleet(system, tmp_path)
    try:
        yield fleet
    finally:
        await fleet.close()


async def states(task: reach.Task) -> list[str]:
    return [event.state.value async for event in task.events()]


async def test_what_nobody_has_ends_when_its_time_is_up(system: Any, fleet: Fleet) -> None:
    """A task that no worker takes is `timed_out`, not executed, and whoever waits for it is told at once."""
    bus = await fleet.connect()
    async with looked_after(system):
        task = await bus.submit("nobody.late", {}, timeout_s=0.5)
        end = await task.end(timeout_s=10)

    assert end.error is not None
    assert (TaskState.TIMED_OUT, "no") == (end.state, end.error.executed)
    assert ["queued", "timed_out"] == await states(task)


async def test_a_delayed_task_has_its_time_from_when_it_may_begin(system: Any, fleet: Fleet) -> None:
    """The time of a scheduled task does not run before it comes due; then it ends as any other."""
    bus = await fleet.connect()
    async with looked_after(system):
        task = await bus.submit("nobody.delayed", {}, delay_s=1.0, timeout_s=0.5)
        await task.end(timeout_s=10)

    assert ["queued", "timed_out"] == await states(task)


@pytest.mark.parametrize("delay_s", [None, 60.0])
async def test_a_script_cancels_what_nobody_has(system: Any, fleet: Fleet, delay_s: float | None) -> None:
    """TASK-4: a plain request on `task.cancel` ends a queued or scheduled task, and says so, twice."""
    bus = await fleet.connect()
    async with looked_after(system), system.connection(Role.CALLER) as caller:
        task = await bus.submit("nobody.unwanted", {}, delay_s=delay_s)
        subject = f"task.cancel.default.{task.id}"
        answers = [codec.unpack(await caller.request(subject, b"", timeout_s=5)) for _ in range(2)]

    assert [(True, "cancelled")] * 2 == [(answer["ok"], answer["data"]["state"]) for answer in answers]
    assert TaskState.CANCELLED == (await task.last()).state


async def test_what_a_script_put_into_the_queue_is_cancelled_by_its_place(system: Any, fleet: Fleet) -> None:
    """Work without an event is cancelled under the id that it would have, and is not begun when a worker comes."""
    begun: list[str] = []
    agent = reach.Agent("plain")

    @agent.task("plain.work")
    async def work(ctx: reach.TaskContext) -> None:
        begun.append(ctx.task_id)

    bus = await fleet.connect()
    async with looked_after(system), system.connection(Role.CALLER) as caller:
        first, second = [
            json.loads(await caller.request("task.submit.plain.work", b"{}", timeout_s=5))["seq"]
            for _ in range(2)
        ]
        told = codec.unpack(await caller.request(f"task.cancel.default.q{first}", b"", timeout_s=5))
        await fleet.serve(agent)
        await eventually(lambda: f"q{second}" in begun)
        later = await bus.submit("plain.work", {})  # What stood before it in the queue has been looked at.
        await later.result(timeout_s=10)

    assert (True, "cancelled") == (told["ok"], told["data"]["state"])
    assert [f"q{second}", later.id] == begun


async def test_orders_for_what_there_is_not_are_refused(system: Any, fleet: Fleet) -> None:
    """A cancellation of no task, and an answer to one that asks nothing, are refused at once, and nothing happens."""
    bus = await fleet.connect()
    async with looked_after(system), system.connection(Role.CALLER) as caller:
        task = await bus.submit("nobody.asks", {}, timeout_s=30)
        nothing = codec.unpack(await caller.request("task.cancel.default.nothing", b"", timeout_s=5))
        unasked = codec.unpack(
            await caller.request(f"task.input.default.{task.id}", codec.pack({"data": 1}), timeout_s=5)
        )
        stale = codec.unpack(
            await caller.request(f"task.cancel.default.{task.id}", codec.pack({"attempt": 3}), timeout_s=5)
        )
        assert TaskState.QUEUED == (await task.last()).state
        await task.cancel()

    assert ["NOT_FOUND"] * 3 == [told["error"]["reason"] for told in (nothing, unasked, stale)]


async def test_a_task_whose_only_worker_is_gone_is_ended(system: Any, fleet: Fleet) -> None:
    """The watchdog ends what is not idempotent and lost its worker as unknown, though the queue hands nothing out."""
    bus = await fleet.connect()
    async with looked_after(system, gone_s=1.0):
        lost = await fleet.program(WORKER.format(name="gone"), name="gone")
        task = await bus.submit("gone.once", {}, timeout_s=60)
        async for event in task.events():
            if event.state is TaskState.RUNNING:
                break
        await learned(system, task.id)
        lost.kill()
        end = await task.end(timeout_s=30)

    assert end.error is not None
    assert (TaskState.FAILED, reach.Reason.OUTCOME_UNKNOWN) == (end.state, end.error.reason)
    assert "tasks" == end.source


async def test_tasks_are_listed_and_searched(system: Any, fleet: Fleet) -> None:
    """Operators list tasks by state, capability and text, a page at a time, and count them; callers may not."""
    bus = await fleet.connect()
    async with looked_after(system):
        made = [await bus.submit("listed.work", {}, timeout_s=60) for _ in range(3)]
        await made[0].cancel()
        await asyncio.sleep(0.1)
        queued = await ask(system, "list", capability="listed.*", states=["queued"])
        first = await ask(system, "list", capability="listed.work", limit=2)
        rest = await ask(system, "list", capability="listed.work", limit=2, before=first["before"])
        found = await ask(system, "list", text=made[1].id[4:])
        counts = await ask(system, "counts")
        shown = await ask(system, "show", task_id=made[2].id)
        wrong = await ask(system, "list", states=["lost"])
        for task in made[1:]:
            await task.cancel()

    assert [made[2].id, made[1].id] == [row["task_id"] for row in queued["tasks"]]
    assert [made[0].id, made[2].id, made[1].id] == [
        row["task_id"] for page in (first, rest) for row in page["tasks"]
    ]
    assert [made[1].id] == [row["task_id"] for row in found["tasks"]]
    assert {"queued": 2, "cancelled": 1} == counts["counts"]["listed.work"]
    assert ("queued", 0) == (shown["task"]["state"], shown["task"]["attempt"])
    assert "SCHEMA_INVALID" == wrong["error"]["code"]
