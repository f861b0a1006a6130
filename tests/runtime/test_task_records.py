"""What remains of attempts of tasks beside their events: records, and counts (SEE-2, SEE-3)."""

import asyncio

import reach
from reach.observe.exposition import exposed
from tests.runtime.fleet import Fleet, eventually


async def test_each_attempt_leaves_one_record(fleet: Fleet) -> None:
    """SEE-3: one record an attempt, with its task, who asked, what followed and how long it waited and worked."""
    agent = reach.Agent("recorded")

    @agent.task("recorded.work", idempotent=True, max_attempts=2)
    async def work(ctx: reach.TaskContext) -> str:
        await asyncio.sleep(0.01)
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return "done"

    instance = await fleet.serve(agent)
    bus = await fleet.connect()
    task = await bus.submit("recorded.work", {}, session_id="s1")
    assert "done" == await task.result(timeout_s=10)
    await eventually(lambda: len(fleet.agent_records) == 2)
    first, second = fleet.agent_records
    for number, record in enumerate((first, second), 1):
        assert ("task", "recorded.work", task.id, "s1") == (
            record.kind,
            record.capability,
            record.task_id,
            record.session_id,
        )
        assert ("recorded", instance.name, bus.connection.who) == (
            record.provider,
            record.instance,
            record.caller,
        )
        assert [number] == [attempt.n for attempt in record.attempts]
        assert 10 <= record.phases["handler_ms"] <= record.latency_ms
    assert ("failed", "HANDLER_ERROR", "retrying") == (
        first.outcome,
        first.reason,
        first.attempts[0].decision,
    )
    assert ("ok", None, "completed") == (second.outcome, second.reason, second.attempts[0].decision)
    assert {task.reach_id} == {first.reach_id, second.reach_id}
    assert ("queue_ms" in first.phases, "queue_ms" in second.phases) == (True, False)


async def test_a_cancelled_attempt_and_one_that_is_put_back(fleet: Fleet) -> None:
    """SEE-3: an attempt that was cancelled, or interrupted by a stop, leaves its record as well."""
    agent = reach.Agent("stopped")

    @agent.task("stopped.work", idempotent=True)
    async def work() -> None:
        await asyncio.sleep(60)

    instance = await fleet.serve(agent, drain_s=0.2)
    bus = await fleet.connect()
    unwanted, unlucky = await bus.submit("stopped.work", {}), await bus.submit("stopped.work", {})
    async with asyncio.timeout(10):
        for task in (unwanted, unlucky):
            async for event in task.events():
                if event.state is reach.TaskState.RUNNING:
                    break
    await unwanted.cancel()
    await fleet.stop(instance)
    await eventually(lambda: len(fleet.agent_records) == 2)
    cancelled, interrupted = fleet.agent_records
    assert (unwanted.id, "cancelled", "CANCELLED", "cancelled") == (
        cancelled.task_id,
        cancelled.outcome,
        cancelled.reason,
        cancelled.attempts[0].decision,
    )
    assert (unlucky.id, "failed", "INSTANCE_GONE", "interrupted") == (
        interrupted.task_id,
        interrupted.outcome,
        interrupted.reason,
        interrupted.attempts[0].decision,
    )


async def test_a_lost_attempt_is_recorded_by_who_finds_it(fleet: Fleet) -> None:
    """SEE-3: a killed worker cannot record its attempt; the one that takes the task over does."""
    source = """
import asyncio, reach
agent = reach.Agent("lost")
@agent.task("lost.work", idempotent=True, ack_wait_s=1.0)
async def work() -> str:
    await asyncio.sleep(60)
agent.run()
"""
    program = await fleet.program(source)
    bus = await fleet.connect()
    task = await bus.submit("lost.work", {})
    async with asyncio.timeout(10):
        async for event in task.events():
            if event.state is reach.TaskState.RUNNING:
                break
    program.kill()
    agent = reach.Agent("lost")

    @agent.task("lost.work", idempotent=True, ack_wait_s=1.0)
    async def work() -> str:
        return "done"

    await fleet.serve(agent)
    assert "done" == await task.result(timeout_s=20)
    await eventually(lambda: len(fleet.agent_records) == 2)
    lost, done = fleet.agent_records
    assert ("failed", "WORKER_LOST", "lost", program.instances[0]) == (
        lost.outcome,
        lost.reason,
        lost.attempts[0].decision,
        lost.instance,
    )
    assert ("ok", 1) == (done.outcome, done.attempts[0].n)


async def test_a_worker_counts_its_attempts(fleet: Fleet) -> None:
    """SEE-2: attempts by result, what is in work, and how long attempts take."""
    agent = reach.Agent("counted")
    go_on = asyncio.Event()

    @agent.task("counted.work")
    async def work(good: bool) -> None:
        if not good:
            raise ValueError("bad")
        await go_on.wait()

    instance = await fleet.serve(agent)
    bus = await fleet.connect()
    good, bad = (
        await bus.submit("counted.work", {"good": True}),
        await bus.submit("counted.work", {"good": False}),
    )
    await bad.end(timeout_s=10)

    def counted() -> list[str]:
        return [
            line
            for line in exposed(instance.bus.metrics).decode().splitlines()
            if line.startswith(
                ("reach_task_attempts_total", "reach_tasks_running", "reach_task_seconds_count")
            )
        ]

    await eventually(lambda: 'reach_tasks_running{capability="counted.work"} 1.0' in counted())
    go_on.set()
    await good.end(timeout_s=10)
    await eventually(lambda: 'reach_tasks_running{capability="counted.work"} 0.0' in counted())
    assert [
        'reach_task_attempts_total{capability="counted.work",result="UPSTREAM_5XX"} 1.0',
        'reach_task_attempts_total{capability="counted.work",result="ok"} 1.0',
        'reach_task_seconds_count{capability="counted.work"} 2.0',
        'reach_tasks_running{capability="counted.work"} 0.0',
    ] == sorted(counted())
