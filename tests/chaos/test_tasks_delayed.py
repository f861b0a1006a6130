"""TASK-6: many delayed tasks of one capability all fire in their time, also across the death of the server."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import reach
from reach.wire.task import TaskState
from tests.runtime.fleet import Fleet

TASKS = 500
SLACK_S = 2.0
"""What is promised: within two seconds of its time."""


@pytest.fixture
async def own_fleet(own_system: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Agents and callers on a server of this test's own."""
    await asyncio.to_thread(own_system.provision)
    fleet = Fleet(own_system, tmp_path)
    try:
        yield fleet
    finally:
        await fleet.close()


async def firings(fleet: Fleet, *, delay_s: float, over_s: float, kill: bool) -> dict[str, list[float]]:
    """Submit tasks that come due after a delay, one after the other; how late each was begun, in seconds.

    The delay counts from each submission: how long all of them take is nobody's promise.
    """
    agent = reach.Agent("later")

    @agent.task("later.work", max_concurrency=64)
    async def work() -> None:
        return None

    await fleet.serve(agent)
    bus, watcher = await fleet.connect(), await fleet.connect()
    due: dict[str, int] = {}
    late: dict[str, list[float]] = {}

    async def watch() -> None:
        async for event in watcher.task_events(state=["running"], capability="later.work", since="start"):
            late.setdefault(event.task_id, []).append((event.at - due[event.task_id]) / 1000)
            if len(late) == TASKS:
                return

    for number in range(TASKS):
        at_ms = bus.connection.broker_time.now_ms() + int(1000 * (delay_s + over_s * number / TASKS))
        left_s = (at_ms - bus.connection.broker_time.now_ms()) / 1000
        task = await bus.submit("later.work", {}, delay_s=left_s)
        due[task.id] = at_ms
    async with asyncio.timeout(60):
        watching = asyncio.create_task(watch())
        if kill:
            os.kill(fleet.system.server.info.pid, signal.SIGKILL)
            await asyncio.to_thread(fleet.system.restart)
        await watching
    times = [time for each in late.values() for time in each]
    print(f"\nlate by at most {max(times):.3f} s")  # noqa: T201 - the acceptance asks for figures; pytest -s shows them
    return late


@pytest.mark.alone
async def test_all_fire_in_time(own_fleet: Fleet) -> None:
    """500 delayed tasks of one capability are begun once each, within two seconds of their time, and not before."""
    late = await firings(own_fleet, delay_s=2.0, over_s=2.0, kill=False)
    times = [time for each in late.values() for time in each]
    assert (TASKS, TASKS) == (len(late), len(times))
    assert min(times) >= -0.05  # Both clocks are the broker's; a stamp is cut to milliseconds.
    assert max(times) <= SLACK_S


@pytest.mark.alone
async def test_all_fire_though_the_server_was_killed(own_fleet: Fleet) -> None:
    """The same when the server is killed after the submissions and comes back before most of them are due."""
    late = await firings(own_fleet, delay_s=4.0, over_s=2.0, kill=True)
    times = [time for each in late.values() for time in each]
    assert (TASKS, TASKS) == (len(late), len(times))
    assert min(times) >= -0.05
    assert max(times) <= SLACK_S


async def test_a_schedule_outlives_nothing_that_was_cancelled(own_fleet: Fleet) -> None:
    """A task that was cancelled while it was scheduled is not begun when its time comes."""
    agent = reach.Agent("never")
    begun: list[str] = []

    @agent.task("never.work")
    async def work(ctx: reach.TaskContext) -> None:
        begun.append(ctx.task_id)

    await own_fleet.serve(agent)
    bus = await own_fleet.connect()
    unwanted = await bus.submit("never.work", {}, delay_s=0.5)
    wanted = await bus.submit("never.work", {}, delay_s=1.0)
    assert TaskState.CANCELLED == await unwanted.cancel()
    await wanted.result(timeout_s=10)
    assert [wanted.id] == begun
    assert TaskState.CANCELLED == (await unwanted.last()).state
