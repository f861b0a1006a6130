"""The submitter's side of tasks: filters, beginnings, times, and the feed of all tasks."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import reach
from reach.bus.feed import Begin
from reach.call.taskfeed import Filter, begin_of
from reach.call.tasks import due_ms
from reach.wire.task import TaskEvent
from tests.runtime.fleet import Fleet


@pytest.mark.parametrize(
    ("given", "subjects"),
    [
        ({}, ("task.event.*.*.*.>",)),
        ({"state": "completed"}, ("task.event.completed.*.*.>",)),
        ({"state": ["failed", "dead"]}, ("task.event.failed.*.*.>", "task.event.dead.*.*.>")),
        ({"capability": "ledger.*"}, ("task.event.*.*.*.ledger.>",)),
        ({"capability": "cap.ledger.>"}, ("task.event.*.*.*.ledger.>",)),
        ({"capability": "cap.ledger.close"}, ("task.event.*.*.*.ledger.close",)),
        ({"tenant": "north", "task_id": "t1"}, ("task.event.*.north.t1.>",)),
    ],
)
def test_a_filter_is_subjects(given: dict[str, Any], subjects: tuple[str, ...]) -> None:
    """State, capability, tenant and task each narrow what the server sends."""
    assert subjects == Filter.of(**given).subjects


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"state": "dancing"}, ValueError),
        ({"tenant": "a.b"}, reach.NameRefused),
        ({"task_id": "*"}, reach.NameRefused),
        ({"capability": "*.x"}, reach.NameRefused),
        ({"capability": ".*"}, reach.NameRefused),
    ],
)
def test_a_filter_that_cannot_be(given: dict[str, Any], error: type[Exception]) -> None:
    """What would match something else than was meant is refused before it reaches a subject."""
    with pytest.raises(error):
        Filter.of(**given)


def test_where_to_begin() -> None:
    """Now, the start, a sequence, a time; nothing else."""
    when = datetime(2030, 1, 1, tzinfo=UTC)
    assert [Begin(), Begin(), Begin(sequence=1), Begin(sequence=7), Begin(time_ms=1893456000000)] == [
        begin_of(since) for since in (None, "now", "start", 7, when)
    ]
    for wrong, error in (("later", ValueError), (True, TypeError), (datetime(2030, 1, 1), ValueError)):  # noqa: DTZ001
        with pytest.raises(error):
            begin_of(wrong)


def test_when_a_task_may_begin() -> None:
    """A delay or a time ahead is milliseconds of the broker's clock; what has passed is at once."""
    now = datetime.now(UTC)
    now_ms = int(now.timestamp() * 1000)

    assert [None, None, None, now_ms + 1500] == [
        due_ms(now_ms, delay, at)
        for delay, at in ((None, None), (0, None), (None, now - timedelta(days=1)), (1.5, None))
    ]
    ahead = due_ms(now_ms, None, now + timedelta(seconds=2))
    assert ahead is not None
    assert abs(ahead - now_ms - 2000) <= 1


async def test_events_of_all_tasks_are_filtered(fleet: Fleet) -> None:
    """A watcher gets the ends of one family of capabilities, and of one tenant, and nothing else."""
    agent = reach.Agent("filters")

    @agent.task("filters.a.one")
    async def one() -> int:
        return 1

    @agent.task("filters.b")
    async def two() -> int:
        return 2

    await fleet.serve(agent)
    bus = await fleet.connect()
    begin = (await bus.submit("filters.b", {})).sequence
    tasks = [
        await bus.submit("filters.a.one", {}),
        await bus.submit("filters.b", {}, tenant="north"),
        await bus.submit("filters.a.one", {}, tenant="north"),
    ]
    for task in tasks:
        await task.result(timeout_s=5)

    async def first(count: int, **wanted: Any) -> list[TaskEvent]:
        found: list[TaskEvent] = []
        async with asyncio.timeout(5):
            async for event in bus.task_events(since=begin, **wanted):
                found.append(event)
                if len(found) == count:
                    break
        return found

    assert [tasks[0].id, tasks[2].id] == sorted(
        (event.task_id for event in await first(2, state="completed", capability="filters.a.*")),
        key=[task.id for task in tasks].index,
    )
    assert {tasks[1].id, tasks[2].id} == {
        event.task_id for event in await first(2, state="completed", tenant="north")
    }
    assert ["queued", "running", "completed"] == [
        event.state.value for event in await first(3, task_id=tasks[1].id)
    ]


async def test_a_callback_travels_with_the_task(fleet: Fleet) -> None:
    """Who is to be told of the end stands in the first event, for whoever delivers it."""
    bus = await fleet.connect()
    task = await bus.submit("callback.work", {}, callback="https://desk.example/hooks/1")

    assert "https://desk.example/hooks/1" == (await task.last()).callback


@pytest.mark.parametrize(
    "callback", ["ftp://desk.example/", "desk.example", "", "http://[::1", "http://a b/"]
)
async def test_a_callback_to_nowhere_is_refused_at_once(fleet: Fleet, callback: str) -> None:
    """What nothing could ever be sent to is refused by the submission; nothing was submitted."""
    bus = await fleet.connect()
    with pytest.raises(reach.SchemaInvalid, match="callback"):
        await bus.submit("callback.work", {}, callback=callback)


async def test_defaults_of_a_view_count_for_tasks(fleet: Fleet) -> None:
    """`with_options` gives submissions their tenant, session and time."""
    bus = (await fleet.connect()).with_options(tenant="north", session_id="s-1", timeout_s=60)
    task = await bus.submit("view.work", {})
    first = (await task.last()).envelope

    assert first is not None
    assert ("north", "north", "s-1") == (task.tenant, first.tenant, first.session_id)
    assert first.expires_at is not None
    assert 55_000 < first.expires_at - (await task.last()).at <= 60_000
    assert task.id == bus.task(task.id).id
    assert (await bus.task(task.id).last()).state is reach.TaskState.QUEUED
