"""Events and questions that nobody sensible sends: one task may suffer by them, the watch over all others does not."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import reach
from actors.tasks import courier
from reach.bus.connection import Connection
from reach.bus.guard import ALLOW
from reach.bus.keys import Role
from reach.wire import codec, subjects
from reach.wire.cloudevent import to_cloud_event
from tests.actors.tasks_rig import Receiver, ask, delivery, looked_after, receiving
from tests.runtime.fleet import Fleet

TIMES = (-1, 2**63 - 1, 2**64 - 1, 253_402_300_800_000, "x", 1.5)
ASKED = (b"", b"null", b"[]", b"\xc1", b"[" * 100_000, b'{"attempt":-1}', b'{"attempt":99999999999999999999}')


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A receiver of callbacks on this machine."""
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let callbacks go to this machine, as an operator would."""
    monkeypatch.setenv(ALLOW, "127.0.0.0/8")


@pytest.fixture
async def agent_of(own_system: Any) -> AsyncIterator[Connection]:
    """A connection that may write events, on a server of its own: they are kept."""
    await asyncio.to_thread(own_system.provision)
    connection = await Connection.open(own_system.settings(Role.AGENT), role="agent")
    yield connection
    await connection.close()


async def test_events_that_cannot_be_are_read_again_at_each_start_and_end_nothing(
    own_system: Any, agent_of: Connection
) -> None:
    """Absurd times in events with a callback: those are left out, what is sensible is listed, also by the next."""
    names = [f"odd-{number}" for number in range(len(TIMES) * 2)]
    for number, name in enumerate(names):
        field, value = ("at", "due")[number % 2], TIMES[number // 2]
        event: dict[str, Any] = {
            "event_id": name,
            "task_id": name,
            "state": "completed",
            "capability": "job.do",
        }
        event |= {"callback": "http://127.0.0.1:9/", field: value}
        agent_of.publish(subjects.task_event("completed", "default", name, "job.do"), codec.pack(event))
    good = {"event_id": "good", "task_id": "good", "state": "queued", "capability": "job.do", "at": 1}
    agent_of.publish(subjects.task_event("queued", "default", "good", "job.do"), codec.pack(good))
    await agent_of.flush()
    for _ in range(2):
        async with looked_after(own_system):
            listed = {row["task_id"] for row in (await ask(own_system, "list"))["tasks"]}
            assert {"good"} == listed & {"good", *names}
            for data in ASKED:
                for subject in ("task.cancel.default.none", "task.input.default.none"):
                    told = codec.unpack(await agent_of.request(subject, data, timeout_s=5))
                    assert (False, True) == (told["ok"], bool(told["error"]["message"]))


@pytest.mark.usefixtures("_allowed")
async def test_a_result_that_json_has_no_form_of_is_left_out_of_its_callback(
    system: Any, tmp_path: Path, receiver: Receiver
) -> None:
    """NaN crosses in msgpack and not in a CloudEvent: the end is told all the same, without the result."""
    fleet = Fleet(system, tmp_path)
    agent = reach.Agent("measures")

    @agent.task("measure.ratio")
    async def ratio() -> dict[str, float]:
        return {"ratio": float("nan")}

    try:
        await fleet.serve(agent)
        async with looked_after(system):
            bus = await fleet.connect()
            task = await bus.submit("measure.ratio", {}, callback=receiver.url())
            await task.end(timeout_s=10)
            await delivery(system, task.id, until=lambda hook: hook["standing"] == "delivered")
    finally:
        await fleet.close()
    (got,) = receiver.posts
    assert ("reach.task.completed", {}) == (got.event["type"], got.event["data"])


@pytest.mark.usefixtures("_allowed")
async def test_a_callback_that_nobody_foresaw_does_not_hold_up_the_next(
    system: Any, tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is wrong with one callback, the others are delivered, and operators may ask about both."""
    odd: list[str] = []

    def make(event: Any) -> dict[str, Any]:
        odd[:] = odd or [event.task_id]
        return {"an": object()} if event.task_id == odd[0] else to_cloud_event(event)

    monkeypatch.setattr(courier, "to_cloud_event", make)
    fleet = Fleet(system, tmp_path)
    agent = reach.Agent("called")

    @agent.task("called.twice")
    async def twice() -> int:
        return 2

    try:
        await fleet.serve(agent)
        async with looked_after(system):
            bus = await fleet.connect()
            first = await bus.submit("called.twice", {}, callback=receiver.url("/first"))
            await first.end(timeout_s=10)
            await delivery(system, first.id, until=lambda _: bool(odd))
            second = await bus.submit("called.twice", {}, callback=receiver.url("/second"))
            await second.end(timeout_s=10)
            await delivery(system, second.id, until=lambda hook: hook["standing"] == "delivered")
    finally:
        await fleet.close()
    assert [second.id] == [post.event["subject"] for post in receiver.posts]
