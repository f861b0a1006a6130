"""A task from its submission to its end: events, results, failures, retries, questions, checkpoints."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

import reach
from reach.bus.keys import Role
from reach.wire import codec
from reach.wire.task import TaskEvent, TaskState
from tests.runtime.fleet import Fleet


def nothing() -> None:
    """Do nothing."""


async def history(task: reach.Task) -> list[TaskEvent]:
    return [event async for event in task.events()]


async def states(task: reach.Task) -> list[str]:
    return [event.state.value for event in await history(task)]


async def test_a_task_is_done(fleet: Fleet) -> None:
    """TASK-1, TASK-2: submit gives a handle at once; the task runs, tells its progress, and completes."""
    agent = reach.Agent("basics")

    @agent.task("basics.add")
    async def add(a: int, b: int, ctx: reach.TaskContext) -> dict[str, int]:
        await ctx.progress(0.5, "half")
        return {"sum": a + b}

    await fleet.serve(agent)
    bus = await fleet.connect()
    task = await bus.submit("cap.basics.add", {"a": 1, "b": 2}, session_id="s-1")

    assert {"sum": 3} == await task.result(timeout_s=5)
    events = await history(task)
    assert ["queued", "running", "progress", "completed"] == [event.state.value for event in events]
    assert [0, 1, 1, 1] == [event.attempt for event in events]
    assert {"fraction": 0.5, "message": "half"} == events[2].data
    first = events[0].envelope
    assert first is not None
    assert ({"a": 1, "b": 2}, "s-1", "task") == (first.payload, first.session_id, first.type)
    assert sorted(event.sequence for event in events) == [event.sequence for event in events]
    assert {task.id} == {event.task_id for event in events}


async def test_a_handler_in_a_thread(fleet: Fleet) -> None:
    """A plain function works in a thread, and tells by `ctx.from_thread`."""
    agent = reach.Agent("threads")

    @agent.task("threads.count")
    def count(n: int, ctx: reach.TaskContext) -> int:
        ctx.from_thread(ctx.progress(0.25))
        return n + 1

    await fleet.serve(agent)
    bus = await fleet.connect()
    task = await bus.submit("threads.count", {"n": 1})

    assert 2 == await task.result(timeout_s=5)
    assert ["queued", "running", "progress", "completed"] == await states(task)


async def test_a_submission_waits_for_a_worker(fleet: Fleet) -> None:
    """TASK-2: submitting needs no worker; the one that comes later does it."""
    bus = await fleet.connect()
    task = await bus.submit("later.work", {})
    agent = reach.Agent("later")

    @agent.task("later.work")
    async def work() -> str:
        return "done"

    await fleet.serve(agent)

    assert "done" == await task.result(timeout_s=5)


async def test_a_failure_that_may_have_been_done_is_not_repeated(fleet: Fleet) -> None:
    """RETRY-1: a task that is not idempotent fails by its handler's error, once."""
    agent = reach.Agent("fails")
    calls = []

    @agent.task("fails.post")
    async def post() -> None:
        calls.append(1)
        raise RuntimeError("ledger is closed")

    await fleet.serve(agent)
    bus = await fleet.connect()
    task = await bus.submit("fails.post", {})

    with pytest.raises(reach.UpstreamFailure) as failed:
        await task.result(timeout_s=5)
    assert (reach.Reason.HANDLER_ERROR, reach.Executed.YES) == (failed.value.reason, failed.value.executed)
    assert ["queued", "running", "failed"] == await states(task)
    assert [1] == calls


async def test_an_idempotent_task_is_tried_again_until_it_is_dead(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TASK-5, cases 14, 15: attempts are counted, delays honoured, and when they are used up the task is dead."""
    monkeypatch.setattr("reach.policy.tasklife.RETRY_BASE_S", 0.2)
    agent = reach.Agent("dies")
    starts: list[float] = []

    @agent.task("dies.sync", idempotent=True)
    async def sync(params: dict[str, Any], ctx: reach.TaskContext) -> None:
        starts.append(asyncio.get_running_loop().time())
        raise RuntimeError(f"attempt {ctx.attempt}")

    await fleet.serve(agent)
    bus = await fleet.connect()
    task = await bus.submit("dies.sync", {"ledger": "north"})
    end = await task.end(timeout_s=10)
    events = await history(task)

    assert TaskState.DEAD == end.state
    assert end.error is not None
    assert reach.Reason.HANDLER_ERROR == end.error.reason
    assert ["queued", "running", "retrying", "running", "retrying", "running", "dead"] == [
        event.state.value for event in events
    ]
    assert [1, 2, 3] == [event.attempt for event in events if event.state is TaskState.RUNNING]
    assert events[0].envelope is not None
    assert {"ledger": "north"} == events[0].envelope.payload
    assert starts[1] - starts[0] >= 0.1
    assert starts[2] - starts[1] >= 0.2


async def test_not_executed_is_tried_again(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """RETRY-1: what says that nothing was done is safe to try again, idempotent or not."""
    monkeypatch.setattr("reach.policy.tasklife.RETRY_BASE_S", 0.02)
    agent = reach.Agent("busy")

    @agent.task("busy.post")
    async def post(params: dict[str, Any], ctx: reach.TaskContext) -> int:
        if ctx.attempt == 1:
            raise reach.NotExecuted
        return ctx.attempt

    await fleet.serve(agent)
    bus = await fleet.connect()
    task = await bus.submit("busy.post", {})

    assert 2 == await task.result(timeout_s=5)
    assert ["queued", "running", "retrying", "running", "completed"] == await states(task)


async def test_wrong_parameters_fail_before_anything_is_done(fleet: Fleet) -> None:
    """Parameters that do not fit end the task as failed, not done, whatever it allows else."""
    agent = reach.Agent("strict")

    @agent.task("strict.add", idempotent=True)
    async def add(a: int) -> int:
        return a

    await fleet.serve(agent)
    bus = await fleet.connect()
    task = await bus.submit("strict.add", {"a": "many"})

    with pytest.raises(reach.SchemaInvalid) as refused:
        await task.result(timeout_s=5)
    assert reach.Executed.NO == refused.value.executed


async def test_parameters_that_a_known_card_refuses_are_not_submitted(fleet: Fleet) -> None:
    """Where the card is known, parameters of the wrong structure cost no task."""
    agent = reach.Agent("carded")

    @agent.task("carded.add")
    async def add(a: int) -> int:
        return a

    await fleet.serve(agent)
    bus = await fleet.connect()
    await bus.cards.card_for("carded.add")

    with pytest.raises(reach.SchemaInvalid, match=r"carded\.add"):
        await bus.submit("carded.add", {})


async def test_a_result_that_cannot_cross_is_told(fleet: Fleet) -> None:
    """A result of a kind that has no form ends the task as failed, done, with the place."""
    agent = reach.Agent("odd")

    @agent.task("odd.make")
    async def make() -> Any:
        return {"handle": object()}

    await fleet.serve(agent)
    bus = await fleet.connect()
    task = await bus.submit("odd.make", {})

    with pytest.raises(reach.UpstreamFailure, match="handle") as failed:
        await task.result(timeout_s=5)
    assert reach.Reason.BAD_RESULT == failed.value.reason


async def test_its_time_is_up(fleet: Fleet) -> None:
    """A task that outlives its time is stopped, and ends as timed out; nobody knows whether it was done."""
    agent = reach.Agent("slow")

    @agent.task("slow.work")
    async def work() -> None:
        await asyncio.sleep(30)

    await fleet.serve(agent)
    bus = await fleet.connect()
    task = await bus.submit("slow.work", {}, timeout_s=0.3)
    end = await task.end(timeout_s=5)

    assert TaskState.TIMED_OUT == end.state
    assert end.error is not None
    assert (reach.Reason.DEADLINE, reach.Executed.MAYBE) == (end.error.reason, end.error.executed)


async def test_a_question_is_answered(fleet: Fleet) -> None:
    """A handler asks; an answer that does not fit is refused and the question stays; the right one lets it go on."""
    agent = reach.Agent("asks")

    @agent.task("asks.release")
    async def release(order: int, ctx: reach.TaskContext) -> str:
        said = await ctx.ask(f"release order {order}?", schema=Literal["yes", "no"])
        return f"{order}: {said}"

    await fleet.serve(agent)
    bus = await fleet.connect()
    other = await fleet.connect()
    task = await bus.submit("asks.release", {"order": 17})
    async for event in task.events():
        if event.state is TaskState.INPUT_REQUIRED:
            assert {
                "question": "release order 17?",
                "schema": {"enum": ["yes", "no"], "type": "string"},
                "n": 1,
            } == event.data
            someone = other.task(task.id)
            with pytest.raises(reach.SchemaInvalid):
                await someone.answer("perhaps")
            with pytest.raises(reach.UpstreamRefusal):
                await someone.answer("yes", question="another")
            await someone.answer("yes", question=event.event_id)
            with pytest.raises(reach.UpstreamRefusal):
                await someone.answer("no")

    assert "17: yes" == await task.result()
    assert ["queued", "running", "input_required", "input_received", "completed"] == await states(task)


async def test_a_question_that_nobody_answers(fleet: Fleet) -> None:
    """`timeout_s` bounds a question, and the handler decides what follows."""
    agent = reach.Agent("alone")

    @agent.task("alone.ask")
    async def ask(params: dict[str, Any], ctx: reach.TaskContext) -> str:
        try:
            return str(await ctx.ask("anybody?", timeout_s=0.1))
        except TimeoutError:
            return "nobody"

    await fleet.serve(agent)
    bus = await fleet.connect()

    assert "nobody" == await (await bus.submit("alone.ask", {})).result(timeout_s=5)


async def test_a_checkpoint_is_there_at_the_next_attempt(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is kept when it is given, and a task that is begun anew goes on from it; answers are kept too."""
    monkeypatch.setattr("reach.policy.tasklife.RETRY_BASE_S", 0.02)
    agent = reach.Agent("points")

    @agent.task("points.walk", idempotent=True)
    async def walk(params: dict[str, Any], ctx: reach.TaskContext) -> list[Any]:
        first = ctx.restored
        said = await ctx.ask("which way?")
        await ctx.checkpoint({"page": ctx.attempt, "raw": b"\x00"})
        if ctx.attempt < 3:
            raise RuntimeError("again")
        return [first, said]

    await fleet.serve(agent)
    bus = await fleet.connect()
    task = await bus.submit("points.walk", {})
    async for event in task.events():
        if event.state is TaskState.INPUT_REQUIRED:
            await task.answer("north")

    assert [{"page": 2, "raw": b"\x00"}, "north"] == await task.result()
    assert 1 == (await states(task)).count("input_required")


async def test_progress_is_thinned_and_the_latest_is_kept(fleet: Fleet) -> None:
    """Of progress that comes too fast the latest is written before the end."""
    agent = reach.Agent("eager")

    @agent.task("eager.loop")
    async def loop(params: dict[str, Any], ctx: reach.TaskContext) -> None:
        for n in range(200):
            await ctx.progress((n + 1) / 200)
        with pytest.raises(ValueError, match="0 to 1"):
            await ctx.progress(2)

    await fleet.serve(agent)
    bus = await fleet.connect()
    task = await bus.submit("eager.loop", {})
    await task.result(timeout_s=5)
    told = [event.data["fraction"] for event in await history(task) if event.state is TaskState.PROGRESS]

    assert 1.0 == told[-1]
    assert len(told) <= 5


async def test_large_parameters_and_results_cross(fleet: Fleet) -> None:
    """CALL-7: what does not fit one message waits in the blob store, both ways, and checkpoints too."""
    agent = reach.Agent("large")

    @agent.task("large.echo", idempotent=True)
    async def echo(text: str, ctx: reach.TaskContext) -> str:
        await ctx.checkpoint(text)
        return text[::-1]

    await fleet.serve(agent)
    bus = await fleet.connect()
    text = "0123456789" * 200_000
    task = await bus.submit("large.echo", {"text": text})

    assert text[::-1] == await task.result(timeout_s=20)


async def test_a_key_names_one_task(fleet: Fleet) -> None:
    """IDEM: the same key gives the same task, whoever submits it; with other parameters it is refused."""
    bus, other = await fleet.connect(), await fleet.connect()
    task = await bus.submit("keyed.post", {"a": 1}, idempotency_key="k-1")
    same = await other.submit("keyed.post", {"a": 1}, idempotency_key="k-1")

    assert (task.id, False, True) == (same.id, task.is_duplicate, same.is_duplicate)
    with pytest.raises(reach.SchemaInvalid) as refused:
        await bus.submit("keyed.post", {"a": 2}, idempotency_key="k-1")
    assert reach.Reason.KEY_REUSED == refused.value.reason
    assert ["queued"] == [
        event.event.state for event in await bus._core.tasks.stream.since("default", task.id, 0)
    ]


async def test_a_script_submits_plainly(fleet: Fleet) -> None:
    """A bare NATS client publishes parameters; its task is named by its sequence, and keeps what was submitted."""
    agent = reach.Agent("plain")

    @agent.task("plain.add")
    async def add(a: int) -> int:
        return a + 1

    await fleet.serve(agent)
    bus = await fleet.connect()
    script = await fleet.stranger()
    ack = await script.jetstream().publish("task.submit.plain.add", b'{"a": 41}')
    task = bus.task(f"q{ack.seq}")
    chosen = bus.task("close-2025-01")
    await script.jetstream().publish("task.event.queued.default.close-2025-01.plain.add", b'{"a": 1}')

    async with asyncio.timeout(5):
        while True:
            try:
                assert 42 == await task.result()
                break
            except reach.UpstreamRefusal:
                await asyncio.sleep(0.01)
    events = await history(task)
    assert ["running", "completed"] == [event.state.value for event in events]
    assert events[0].envelope is not None
    assert {"a": 41} == events[0].envelope.payload
    assert 2 == await chosen.result(timeout_s=5)


async def test_a_number_that_was_used_before_names_no_other_task(fleet: Fleet) -> None:
    """A queue that was made anew counts from one again: what it numbers is not taken for a task of long ago."""
    agent = reach.Agent("recount")
    seen: list[str] = []

    @agent.task("recount.add")
    async def add(a: int, ctx: reach.TaskContext) -> int:
        seen.append(ctx.task_id)
        return a

    script = await fleet.stranger(Role.PLATFORM)
    jetstream = script.jetstream()
    first = await jetstream.publish("task.submit.recount.other", b"{}")
    old = TaskEvent(task_id=f"q{first.seq + 1}", state=TaskState.COMPLETED, capability="recount.add", at=1000)
    await jetstream.publish(old.subject, old.pack())
    ack = await jetstream.publish("task.submit.recount.add", b'{"a": 1}')
    assert first.seq + 1 == ack.seq
    await fleet.serve(agent)
    bus = await fleet.connect()
    async with asyncio.timeout(5):
        while not seen:  # noqa: ASYNC110 - the handler has no event to offer
            await asyncio.sleep(0.01)

    assert seen[0].startswith(f"q{ack.seq}-")
    assert 1 == await bus.task(seen[0]).result(timeout_s=5)


async def test_work_that_cannot_be_read_is_taken_out(fleet: Fleet) -> None:
    """What a script published that is no map of parameters does not stay in the queue for ever."""
    agent = reach.Agent("broken")

    @agent.task("broken.add")
    async def add() -> None:
        return None

    await fleet.serve(agent)
    script = await fleet.stranger(Role.PLATFORM)
    await script.jetstream().publish("task.submit.broken.add", b"\xc1")

    async def left() -> Any:
        found = await script.jetstream().stream_info("REACH_TASKS", subjects_filter="task.submit.broken.add")
        return found.state.subjects

    async with asyncio.timeout(5):
        while await left():  # noqa: ASYNC110 - the queue has no event to offer
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"delay_s": -1}, ValueError),
        ({"delay_s": 1e9}, ValueError),
        ({"at": datetime(2030, 1, 1)}, ValueError),  # noqa: DTZ001 - what is refused
        ({"at": datetime(2030, 1, 1, tzinfo=UTC), "delay_s": 1}, TypeError),
        ({"timeout": 1}, TypeError),
    ],
)
async def test_mistakes_of_the_program_raise(
    fleet: Fleet, wrong: dict[str, Any], error: type[Exception]
) -> None:
    """Options that cannot be are told before anything is submitted."""
    bus = await fleet.connect()
    with pytest.raises(error):
        await bus.submit("any.thing", {}, **wrong)


async def test_a_delayed_task_comes_due(fleet: Fleet) -> None:
    """TASK-6: `at` and `delay_s` hold a task back, and it begins then."""
    agent = reach.Agent("dawn")

    @agent.task("dawn.work")
    async def work(params: dict[str, Any], ctx: reach.TaskContext) -> float:
        return datetime.now(UTC).timestamp()

    await fleet.serve(agent)
    bus = await fleet.connect()
    due = datetime.now(UTC) + timedelta(seconds=1)
    task = await bus.submit("dawn.work", {}, at=due)
    soon = await bus.submit("dawn.work", {}, at=datetime.now(UTC) - timedelta(seconds=5))

    assert TaskState.SCHEDULED == (await task.last()).state
    await soon.result(timeout_s=5)
    began = await task.result(timeout_s=5)
    assert due.timestamp() - 0.05 <= began <= due.timestamp() + 2
    assert ["queued", "running", "completed"] == await states(task)


async def test_a_task_that_there_is_not(fleet: Fleet) -> None:
    """An unknown id is told at once, by every question about it."""
    bus = await fleet.connect()
    task = bus.task("never-was")
    for question in (task.last(), task.result(timeout_s=1), task.cancel()):
        with pytest.raises(reach.UpstreamRefusal) as refused:
            await question
        assert reach.Reason.NOT_FOUND == refused.value.reason


async def test_nested_calls_belong_to_the_task(fleet: Fleet) -> None:
    """CALL-4: what a handler calls inherits its task, session and tenant."""
    agent = reach.Agent("nest")

    @agent.capability("nest.who")
    async def who(params: dict[str, Any], ctx: reach.Context) -> list[Any]:
        return [ctx.task_id, ctx.session_id, ctx.tenant, ctx.source]

    @agent.task("nest.outer")
    async def outer(params: dict[str, Any], ctx: reach.TaskContext) -> list[Any]:
        return list((await ctx.bus.request("nest.who", {})).unwrap())

    await fleet.serve(agent)
    bus = await fleet.connect()
    task = await bus.submit("nest.outer", {}, session_id="s-9", tenant="north")

    assert [task.id, "s-9", "north", "nest"] == await task.result(timeout_s=5)
    assert "north" == task.tenant


def test_what_cannot_be_a_task_is_refused_at_decoration() -> None:
    """Generators, times and names that cannot be are told where they stand."""
    agent = reach.Agent("strict")
    with pytest.raises(TypeError, match="a task has one result"):

        @agent.task("strict.stream")
        async def stream():
            yield 1

    for wrong in ({"timeout_s": 0}, {"max_attempts": 0}, {"ack_wait_s": 0.2}, {"max_concurrency": 0}):
        with pytest.raises(ValueError, match=r"strict\.task"):
            agent.task("strict.task", **wrong)(nothing)
    agent.capability("strict.taken")(nothing)
    agent.task("strict.taken")(nothing)  # Both ways is no mistake (CALL-11); the same way twice is one.
    assert ("strict.taken",) == agent.capabilities
    agent.capability("strict.half", idempotent=True)(nothing)
    with pytest.raises(ValueError, match="of both, or of neither"):
        agent.task("strict.half")(nothing)
    with pytest.raises(ValueError, match="already serves"):
        agent.task("strict.taken")(nothing)
    with pytest.raises(ValueError, match="already serves"):
        agent.capability("strict.taken")(nothing)


async def test_the_wire_of_an_event_is_plain_msgpack(fleet: Fleet) -> None:
    """Anybody reads the events of the stream with a plain client."""
    bus = await fleet.connect()
    script = await fleet.stranger()
    task = await bus.submit("wire.task", {"a": 1})
    assert task.sequence is not None
    message = await script.jetstream().get_msg("REACH_TASK_EVENTS", task.sequence)

    assert f"task.event.queued.default.{task.id}.wire.task" == message.subject
    assert {"a": 1} == codec.unpack(message.data or b"")["envelope"]["payload"]


def double(n: int) -> int:
    """Compute in a worker process."""
    return n * 2


async def test_a_task_in_a_worker_process(fleet: Fleet) -> None:
    """`executor="process"` works for tasks as for calls; what cannot run there is refused at decoration."""
    agent = reach.Agent("forked")
    agent.task("forked.double", executor="process")(double)
    with pytest.raises(TypeError, match="only parameters cross"):

        @agent.task("forked.told", executor="process")
        def told(n: int, ctx: reach.TaskContext) -> int:
            return n

    await fleet.serve(agent)
    bus = await fleet.connect()

    assert 42 == await (await bus.submit("forked.double", {"n": 21})).result(timeout_s=30)


async def test_what_is_dead_is_submitted_anew(fleet: Fleet) -> None:
    """TASK-5: a task that failed is replayable: same id and parameters, counted from one; another one is not."""
    agent = reach.Agent("lazarus")
    healthy = False

    @agent.task("lazarus.rise", max_attempts=1, idempotent=True)
    async def rise(n: int, ctx: reach.TaskContext) -> list[int]:
        if not healthy:
            raise RuntimeError("not yet")
        return [n, ctx.attempt]

    await fleet.serve(agent)
    bus = await fleet.connect()
    task = await bus.submit("lazarus.rise", {"n": 7})
    assert TaskState.DEAD == (await task.end(timeout_s=5)).state
    healthy = True
    await bus.task(task.id).retry()
    other = bus.task(task.id)

    assert [7, 1] == await other.result(timeout_s=5)
    assert ["queued", "running", "dead", "queued", "running", "completed"] == await states(task)
    assert [1, 1, 1, 2, 2, 2] == [event.run for event in await history(task)]
    with pytest.raises(reach.UpstreamRefusal, match="only what failed"):
        await other.retry()


async def test_an_agent_says_what_it_offers(fleet: Fleet) -> None:
    """Tasks stand in the card, as what they are, beside capabilities."""
    agent = reach.Agent("both")
    agent.capability("both.call")(nothing)
    agent.task("both.work", idempotent=True)(nothing)
    instance = await fleet.serve(agent)

    assert ("both.call", "both.work") == instance.capabilities
    assert [("both.call", "request", False), ("both.work", "task", True)] == [
        (one.tag, one.kind, one.idempotent) for one in agent.card("both-1", 1).capabilities
    ]
