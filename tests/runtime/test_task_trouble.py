"""A task when things go wrong: long work, lost workers, stops, cancellations, a server that goes away."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import reach
from reach.bus.taskstream import Outrun, TaskStream
from reach.wire.task import TERMINAL, TaskEvent, TaskState
from tests.runtime.fleet import Fleet, Program, eventually

WORKER = """
import asyncio, os, sys
import reach

agent = reach.Agent("{name}")


@agent.task("{name}.safe", idempotent=True, ack_wait_s=1.0)
async def safe(params: dict, ctx: reach.TaskContext) -> list:
    with open(params["log"], "a") as log:
        log.write("begun\\n")
    await ctx.checkpoint("half")
    if not os.path.exists(params["go"]):
        await asyncio.sleep(60)
    return [ctx.attempt, ctx.restored]


@agent.task("{name}.once", ack_wait_s=1.0)
async def once(params: dict) -> str:
    with open(params["log"], "a") as log:
        log.write("begun\\n")
    if not os.path.exists(params["go"]):
        await asyncio.sleep(60)
    return "done"


agent.run()
"""


async def history(task: reach.Task) -> list[TaskEvent]:
    return [event async for event in task.events()]


async def states(task: reach.Task) -> list[str]:
    return [event.state.value for event in await history(task)]


async def reached(task: reach.Task, state: TaskState) -> TaskEvent:
    """Follow a task up to a state."""
    async with asyncio.timeout(15):
        async for event in task.events():
            if event.state is state:
                return event
    raise AssertionError(f"never {state}")


class Marks:
    """What the workers of one test leave: a line for each start, and the word to go on."""

    def __init__(self, folder: Path) -> None:
        self.log, self._go = folder / "log", folder / "go"
        self.params = {"log": str(self.log), "go": str(self._go)}

    @property
    def starts(self) -> int:
        return self.log.read_text().count("begun") if self.log.exists() else 0

    def go(self) -> None:
        self._go.touch()


@pytest.fixture
def marks(tmp_path: Path) -> Marks:
    return Marks(tmp_path)


async def worker(fleet: Fleet, name: str) -> Program:
    return await fleet.program(WORKER.format(name=name), name=name)


async def test_long_work_is_done_once(fleet: Fleet) -> None:
    """TASK-3, case 12: a task of three times `ack_wait` runs once, although another worker is idle."""
    starts = []
    for number in range(2):
        agent = reach.Agent(f"long{number}")

        @agent.task("long.work", ack_wait_s=1.0)
        async def work() -> str:
            starts.append(1)
            await asyncio.sleep(3.2)
            return "done"

        await fleet.serve(agent)
    bus = await fleet.connect()
    task = await bus.submit("long.work", {})

    assert "done" == await task.result(timeout_s=10)
    assert [1] == starts
    assert ["queued", "running", "completed"] == await states(task)


async def test_a_lost_worker_is_taken_over(fleet: Fleet, marks: Marks) -> None:
    """An idempotent task whose worker is killed is done by another, from its checkpoint, its attempt unchanged."""
    bus = await fleet.connect()
    first = await worker(fleet, "over")
    task = await bus.submit("over.safe", marks.params)
    await reached(task, TaskState.PROGRESS)
    first.kill()
    marks.go()
    await worker(fleet, "over")

    assert [1, "half"] == await task.result(timeout_s=15)
    running = [event for event in await history(task) if event.state is TaskState.RUNNING]
    assert [(1, 0), (1, 1)] == [(event.attempt, event.lost) for event in running]
    assert running[0].instance != running[1].instance


async def test_what_may_have_been_done_is_not_done_again(fleet: Fleet, marks: Marks) -> None:
    """A task that is not idempotent, and whose worker was killed, ends as unknown, for a person to decide."""
    bus = await fleet.connect()
    first = await worker(fleet, "once")
    task = await bus.submit("once.once", marks.params)
    await eventually(lambda: marks.starts)
    first.kill()
    marks.go()
    await worker(fleet, "once")
    end = await task.end(timeout_s=15)

    assert TaskState.FAILED == end.state
    assert end.error is not None
    assert (reach.Reason.OUTCOME_UNKNOWN, "WORKER_LOST", reach.Advice.ASK_HUMAN) == (
        end.error.reason,
        end.error.cause,
        end.error.advice,
    )
    assert 1 == marks.starts


async def test_a_poison_task_is_dead(fleet: Fleet, marks: Marks) -> None:
    """TASK-5, case 15: a task with which three workers were lost ends as dead, and its payload is kept."""
    bus = await fleet.connect()
    task = await bus.submit("poison.safe", marks.params)
    for lost in range(3):
        program = await worker(fleet, "poison")
        await eventually(lambda lost=lost: marks.starts == lost + 1, within_s=15)
        program.kill()
    await worker(fleet, "poison")
    end = await task.end(timeout_s=15)
    events = await history(task)

    assert TaskState.DEAD == end.state
    assert end.error is not None
    assert reach.Reason.WORKER_LOST == end.error.reason
    assert events[0].envelope is not None
    assert marks.params == events[0].envelope.payload
    assert 1 == sum(event.state in TERMINAL for event in events)


async def test_a_warm_stop_puts_back_what_may_be_begun_again(fleet: Fleet) -> None:
    """TASK-3, case 13: running tasks finish, or are interrupted and taken over at once, attempts unchanged."""
    agent = reach.Agent("warm")
    release = asyncio.Event()

    @agent.task("warm.long", idempotent=True)
    async def long(params: dict[str, Any], ctx: reach.TaskContext) -> int:
        await release.wait()
        return ctx.attempt

    @agent.task("warm.short")
    async def short(params: dict[str, Any], ctx: reach.TaskContext) -> bool:
        while not ctx.stopping:  # noqa: ASYNC110 - asked as a handler would
            await asyncio.sleep(0.01)
        return True

    old = await fleet.serve(agent, drain_s=1.5)
    bus = await fleet.connect()
    long_task, short_task = await bus.submit("warm.long", {}), await bus.submit("warm.short", {})
    await reached(long_task, TaskState.RUNNING)
    await reached(short_task, TaskState.RUNNING)
    await fleet.stop(old)

    assert await short_task.result(timeout_s=1)
    assert TaskState.INTERRUPTED == (await long_task.last()).state
    await fleet.serve(agent)
    await eventually(lambda: True)
    release.set()
    assert 1 == await long_task.result(timeout_s=5)
    assert ["queued", "running", "interrupted", "running", "completed"] == await states(long_task)


async def test_a_warm_stop_does_not_repeat_what_must_not_be(fleet: Fleet) -> None:
    """A task that is not idempotent, and does not end with its worker, is unknown, and not begun again."""
    agent = reach.Agent("cold")

    @agent.task("cold.post")
    async def post() -> None:
        await asyncio.sleep(60)

    @agent.task("cold.tidy")
    async def tidy() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise reach.NotExecuted from None

    old = await fleet.serve(agent, drain_s=0.6)
    bus = await fleet.connect()
    task, undone = await bus.submit("cold.post", {}), await bus.submit("cold.tidy", {})
    await reached(task, TaskState.RUNNING)
    await reached(undone, TaskState.RUNNING)
    await fleet.stop(old)

    with pytest.raises(reach.UnknownFailure) as unknown:
        await task.result(timeout_s=1)
    assert reach.Reason.OUTCOME_UNKNOWN == unknown.value.reason
    assert TaskState.INTERRUPTED == (await undone.last()).state


async def test_a_question_survives_its_worker(fleet: Fleet) -> None:
    """A task that waits for an answer is put back at once when its worker stops, and asks the same elsewhere."""
    agent = reach.Agent("patient")

    @agent.task("patient.ask", idempotent=True)
    async def ask(params: dict[str, Any], ctx: reach.TaskContext) -> str:
        return str(await ctx.ask("go on?"))

    old = await fleet.serve(agent, drain_s=9.0)
    bus = await fleet.connect()
    task = await bus.submit("patient.ask", {})
    await reached(task, TaskState.INPUT_REQUIRED)
    began = asyncio.get_running_loop().time()
    await fleet.stop(old)
    assert asyncio.get_running_loop().time() - began < 2.5
    await fleet.serve(agent)
    await eventually(lambda: True)
    async with asyncio.timeout(5):
        while (await task.last()).state is not TaskState.INPUT_REQUIRED:  # noqa: ASYNC110 - events are read above
            await asyncio.sleep(0.01)
    await task.answer("yes")

    assert "yes" == await task.result(timeout_s=5)


async def test_cancelling_what_nobody_has(fleet: Fleet) -> None:
    """TASK-4: queued and scheduled tasks are cancelled without a worker, and never begin."""
    agent = reach.Agent("idle")
    starts = []

    @agent.task("idle.work")
    async def work() -> None:
        starts.append(1)

    bus = await fleet.connect()
    queued = await bus.submit("idle.work", {})
    scheduled = await bus.submit("idle.work", {}, delay_s=0.5)
    assert [TaskState.CANCELLED] * 2 == [await queued.cancel(), await scheduled.cancel()]
    await fleet.serve(agent)
    last = await bus.submit("idle.work", {}, delay_s=1.0)
    await last.result(timeout_s=5)

    assert [1] == starts
    with pytest.raises(reach.UnknownFailure) as cancelled:
        await queued.result()
    assert (reach.Reason.CANCELLED, reach.Executed.NO) == (cancelled.value.reason, cancelled.value.executed)
    assert ["cancelled"] == await states(scheduled)
    assert TaskState.CANCELLED == (await scheduled.last()).state


async def test_cancelling_on_a_saturated_worker(fleet: Fleet) -> None:
    """TASK-4: a worker whose places are all taken obeys at once; what waits behind is untouched and goes on."""
    agent = reach.Agent("full")
    ended = []

    @agent.task("full.work", max_concurrency=1)
    async def work(n: int) -> int:
        if n:
            return n
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(n)
        return n

    await fleet.serve(agent)
    bus = await fleet.connect()
    task = await bus.submit("full.work", {"n": 0})
    behind = await bus.submit("full.work", {"n": 1})
    await reached(task, TaskState.RUNNING)

    assert TaskState.CANCELLED == await (await fleet.connect()).task(task.id).cancel(reason="changed my mind")
    assert [0] == ended
    assert 1 == await behind.result(timeout_s=5)
    assert ["queued", "running", "cancelled"] == await states(task)


async def test_cancelling_what_waits_for_an_answer(fleet: Fleet) -> None:
    """TASK-4: a task that waits for a person is cancelled too."""
    agent = reach.Agent("asker")

    @agent.task("asker.ask")
    async def ask(params: dict[str, Any], ctx: reach.TaskContext) -> None:
        await ctx.ask("well?")

    await fleet.serve(agent)
    bus = await fleet.connect()
    task = await bus.submit("asker.ask", {})
    await reached(task, TaskState.INPUT_REQUIRED)

    assert TaskState.CANCELLED == await task.cancel()


async def test_a_late_or_stale_cancel_does_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """TASK-4: a cancellation binds to one attempt, and after the end it changes nothing."""
    monkeypatch.setattr("reach.policy.tasklife.RETRY_BASE_S", 0.02)
    agent = reach.Agent("stale")
    release = asyncio.Event()

    @agent.task("stale.work", idempotent=True)
    async def work(params: dict[str, Any], ctx: reach.TaskContext) -> int:
        if ctx.attempt == 1:
            raise RuntimeError("once")
        await release.wait()
        return ctx.attempt

    await fleet.serve(agent)
    bus = await fleet.connect()
    task = await bus.submit("stale.work", {})
    async for event in task.events():
        if event.state is TaskState.RUNNING and event.attempt == 2:
            break
    assert TaskState.RUNNING == await task.cancel(attempt=1)
    raw = await fleet.stranger()
    answer = await raw.request(f"task.cancel.default.{task.id}", b'{"attempt": 1}', timeout=5)
    assert b'"NOT_FOUND"' in answer.data
    release.set()

    assert 2 == await task.result(timeout_s=5)
    assert TaskState.COMPLETED == await task.cancel()


async def test_a_handler_that_will_not_stop_completes(fleet: Fleet) -> None:
    """TASK-4: where the work ends first it wins, and the cancellation is told so."""
    agent = reach.Agent("stubborn")

    @agent.task("stubborn.work")
    async def work() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "done all the same"
        return "unreached"

    await fleet.serve(agent)
    bus = await fleet.connect()
    task = await bus.submit("stubborn.work", {})
    await reached(task, TaskState.RUNNING)

    assert TaskState.COMPLETED == await task.cancel()
    assert "done all the same" == await task.result()


async def test_a_cancellation_races_a_completion(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """TASK-4: in 200 races, some with lost acknowledgements, there is exactly one end, and all are told the same."""
    chance = random.Random(7)
    agent = reach.Agent("race")

    @agent.task("race.work", max_concurrency=16)
    async def work(ms: float) -> str:
        await asyncio.sleep(ms / 1000)
        return "done"

    await fleet.serve(agent)
    bus = await fleet.connect()
    publish = bus._core.tasks.stream.jetstream.__class__.publish

    async def lossy(self: Any, subject: str, *given: Any, **options: Any) -> int:
        stored = await publish(self, subject, *given, **options)
        if chance.random() < 0.2:
            from reach.bus.jetstream import Unacknowledged

            raise Unacknowledged
        return stored

    monkeypatch.setattr("reach.bus.jetstream.JetStream.publish", lossy)

    async def race(places: asyncio.Semaphore) -> tuple[TaskState, TaskState, list[TaskState]]:
        async with places:
            task = await bus.submit("race.work", {"ms": chance.uniform(0, 4)})
            await asyncio.sleep(chance.uniform(0, 0.008))
            said = await task.cancel()
            end = await task.end(timeout_s=10)
            kept = await bus._core.tasks.stream.since("default", task.id, 0)
            return said, end.state, [entry.event.state for entry in kept if entry.event.state in TERMINAL]

    places = asyncio.Semaphore(16)
    races = await asyncio.gather(*(race(places) for _ in range(200)))

    assert [] == [(said, end, ends) for said, end, ends in races if [said] != ends or said is not end]
    assert {TaskState.CANCELLED, TaskState.COMPLETED} == {said for said, _, _ in races}


async def test_a_worker_whose_task_was_taken_away_lets_go(fleet: Fleet) -> None:
    """Somebody ends a running task by an event: its handler is stopped at its next word, and adds nothing."""
    agent = reach.Agent("fence")
    outcome = []

    @agent.task("fence.work")
    async def work(params: dict[str, Any], ctx: reach.TaskContext) -> None:
        try:
            for _ in range(1000):
                await ctx.checkpoint(1)
                await asyncio.sleep(0.01)
        except BaseException as error:
            outcome.append(type(error).__name__)
            raise

    await fleet.serve(agent)
    bus = await fleet.connect()
    task = await bus.submit("fence.work", {})
    await reached(task, TaskState.PROGRESS)
    stream: TaskStream = bus._core.tasks.stream
    while True:
        last = await stream.last("default", task.id)
        assert last is not None
        event = TaskEvent(task_id=task.id, state=TaskState.CANCELLED, capability="fence.work")
        with suppress(Outrun):
            await stream.append(event, after=last.sequence)
            break
    await eventually(lambda: outcome)
    kept = await states(task)

    assert "cancelled" == kept[-1]
    assert 1 == kept.count("cancelled")
