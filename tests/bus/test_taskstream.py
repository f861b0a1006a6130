"""Events of tasks on the real stream: guarded, found again after a lost acknowledgement, read back in order."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from reach.bus.connection import Connection
from reach.bus.jetstream import GuardRefused, JetStream, Unacknowledged
from reach.bus.keys import Role
from reach.bus.taskstream import Outrun, TaskStream
from reach.errors import CallTimeout, Unreachable, UpstreamRefusal
from reach.faults import Executed
from reach.ids import new_id
from reach.policy.tasklife import NOTHING_YET
from reach.wire.envelope import Envelope
from reach.wire.task import TaskEvent, TaskState


@pytest.fixture
async def agent(system: Any) -> AsyncIterator[Connection]:
    async with system.connection(Role.AGENT) as connection:
        yield connection


@pytest.fixture
async def stream(agent: Connection) -> AsyncIterator[TaskStream]:
    stream = TaskStream(agent)
    yield stream
    stream.close()


def event(task_id: str, state: TaskState = TaskState.QUEUED, **facts: Any) -> TaskEvent:
    return TaskEvent(task_id=task_id, state=state, capability="bus.tests", **facts)


async def test_an_event_follows_the_one_before(stream: TaskStream) -> None:
    """Each event is written behind the last one of its task, and read back with its place."""
    task = new_id()
    first = await stream.append(event(task, envelope=Envelope(payload={"a": b"\x00"})), after=0)
    second = await stream.append(event(task, TaskState.RUNNING, attempt=1), after=first)
    last = await stream.last("default", task)
    entries = await stream.since("default", task, 0)

    assert last is not None
    assert (second, TaskState.RUNNING) == (last.sequence, last.event.state)
    assert [first, second] == [entry.sequence for entry in entries]
    assert entries[0].event.at > 0
    assert [second] == [entry.sequence for entry in await stream.since("default", task, first)]
    assert [first] == [entry.sequence for entry in await stream.since("default", task, 0, state="queued")]
    assert (TaskState.RUNNING, 1, second) == (
        (life := await stream.life("default", task)).state,
        life.attempt,
        life.sequence,
    )


async def test_a_task_without_events(stream: TaskStream) -> None:
    """What was never submitted has no last event, and no life."""
    assert await stream.last("default", "never") is None
    assert [] == await stream.since("default", "never", 0)
    assert NOTHING_YET == await stream.life("default", "never")
    assert await stream.at(2**40) is None


async def test_of_many_writers_one_wins(stream: TaskStream) -> None:
    """Racing writers: exactly one event follows, and everybody else is told which."""
    task = new_id()
    first = await stream.append(event(task), after=0)
    racers = [event(task, TaskState.RUNNING, instance=f"w-{n}") for n in range(10)]
    outcomes = await asyncio.gather(
        *(stream.append(one, after=first) for one in racers), return_exceptions=True
    )
    won = [one for one, outcome in zip(racers, outcomes, strict=True) if isinstance(outcome, int)]
    lost = [outcome for outcome in outcomes if isinstance(outcome, Outrun)]

    assert (1, 9) == (len(won), len(lost))
    assert {won[0].instance} == {one.entries[0].event.instance for one in lost}


async def test_a_lost_acknowledgement_is_found_out(
    stream: TaskStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose write was accepted and never acknowledged finds its own event, and had won; it is there once."""
    task = new_id()
    publish = JetStream.publish
    lose = iter([True, False, True, False])

    async def lossy(self: JetStream, *given: Any, **options: Any) -> int:
        stored = await publish(self, *given, **options)
        if next(lose, False):
            raise Unacknowledged
        return stored

    monkeypatch.setattr(JetStream, "publish", lossy)
    first = await stream.append(event(task), after=0)
    second = await stream.append(event(task, TaskState.RUNNING), after=first)
    third = await stream.append(event(task, TaskState.COMPLETED), after=second)

    assert [first, second, third] == [entry.sequence for entry in await stream.since("default", task, 0)]


async def test_a_write_that_never_arrived_is_written_again(
    stream: TaskStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing behind the expected sequence means that the write was lost: it is sent again."""
    task = new_id()
    publish = JetStream.publish
    swallow = iter([True, True])

    async def lossy(self: JetStream, *given: Any, **options: Any) -> int:
        if next(swallow, False):
            raise Unacknowledged
        return await publish(self, *given, **options)

    monkeypatch.setattr(JetStream, "publish", lossy)

    assert 0 < await stream.append(event(task), after=0)
    assert 1 == len(await stream.since("default", task, 0))


async def test_a_history_that_is_gone_is_told(stream: TaskStream) -> None:
    """Where the expected event has ended with its time, the writer is told what there is: nothing."""
    with pytest.raises(Outrun) as gone:
        await stream.append(event(new_id(), TaskState.RUNNING), after=2**40)
    assert [] == gone.value.entries


async def test_what_the_role_may_not_write_is_refused_at_once(system: Any) -> None:
    """A caller cannot complete a task: the broker refuses it, and that is told as such, not by a timeout."""
    async with system.connection(Role.CALLER) as caller:
        stream = TaskStream(caller)
        with pytest.raises(UpstreamRefusal, match=r"task\.event\.completed"):
            await stream.append(event(new_id(), TaskState.COMPLETED), after=0)
        stream.close()


async def test_an_outage_without_an_end_is_a_timeout(agent: Connection) -> None:
    """A write that cannot be settled in its time says whether it may have been done."""
    stream = TaskStream(agent)

    async def never(*_given: Any, **_options: Any) -> int:
        raise Unacknowledged

    stream.jetstream.publish = never  # type: ignore[method-assign]
    with pytest.raises(CallTimeout) as late:
        await stream.append(event(new_id()), after=0, patience_s=0.1)
    assert Executed.MAYBE == late.value.executed
    stream.close()


async def test_no_stream_is_told_in_words(agent: Connection) -> None:
    """A subject that no stream takes fails within moments, and says what would be right."""
    jetstream = JetStream(agent)
    with pytest.raises(Unreachable, match="no stream takes stream"):
        await jetstream.publish("stream.default.none", b"x")
    jetstream.close()


async def test_a_guard_refuses(stream: TaskStream) -> None:
    """The bare write under a guard is refused where the sequence is another."""
    task = new_id()
    first = event(task)
    guard = (f"task.event.*.default.{task}.>", 0)
    await stream.jetstream.publish(first.subject, first.pack(), guard=guard)
    with pytest.raises(GuardRefused):
        await stream.jetstream.publish(first.subject, first.pack(), guard=guard)


async def test_the_end_of_the_link_settles_what_waits(own_system: Any) -> None:
    """A write under way when the link ends is not left waiting: it is told as not known to have arrived."""
    async with own_system.connection(Role.AGENT) as connection:
        jetstream = JetStream(connection)
        waiting = asyncio.create_task(jetstream.publish("task.event.queued.default.x.y", b"{}", timeout_s=30))
        await asyncio.sleep(0)
        connection.link.abort()
        with pytest.raises((Unacknowledged, Unreachable)):
            await asyncio.wait_for(waiting, 5)
        jetstream.close()
