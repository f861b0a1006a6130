"""TASK-7: callbacks to receivers that are well, down, slow, redirecting, gone, or where nothing may be sent."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

import reach
from actors.tasks import courier, post
from reach.bus.guard import ALLOW
from reach.wire.task import TaskState
from tests.actors.tasks_rig import Receiver, ask, delivery, looked_after, receiving
from tests.runtime.fleet import Fleet, eventually


@pytest.fixture
async def fleet(system: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Agents and callers on the shared server."""
    fleet = Fleet(system, tmp_path)
    agent = reach.Agent("called")

    @agent.task("called.back")
    async def back(n: int) -> dict[str, int]:
        return {"n": n}

    try:
        await fleet.serve(agent)
        yield fleet
    finally:
        await fleet.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A receiver of callbacks on this machine."""
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let callbacks go to this machine, as an operator would."""
    monkeypatch.setenv(ALLOW, "127.0.0.0/8")


async def called_back(fleet: Fleet, url: str) -> reach.Task:
    bus = await fleet.connect()
    task = await bus.submit("called.back", {"n": 7}, callback=url)
    await task.end(timeout_s=10)
    return task


@pytest.mark.usefixtures("_allowed")
async def test_a_callback_is_a_signed_cloud_event(system: Any, fleet: Fleet, receiver: Receiver) -> None:
    """The end of a task is posted once, as a CloudEvent, and its signature is what Standard Webhooks verifies."""
    async with looked_after(system):
        secret = (await ask(system, "secret"))["secret"]
        task = await called_back(fleet, receiver.url("/hook?to=me"))
        told = await delivery(system, task.id, until=lambda hook: hook["standing"] == "delivered")
    (got,) = receiver.posts
    event = Webhook(secret).verify(got.body, got.headers)

    assert ("reach.task.completed", task.id, {"n": 7}) == (
        event["type"],
        event["subject"],
        event["data"]["data"],
    )
    assert event["id"] == got.headers["webhook-id"] == told["id"]
    assert [204] == [one["status"] for one in told["tries"]]


@pytest.mark.usefixtures("_allowed")
async def test_a_callback_is_told_of_the_states_that_were_asked_for(
    system: Any, fleet: Fleet, receiver: Receiver
) -> None:
    """Each event of such a state is posted, under its own id; the end is not, where it was not asked for."""
    bus = await fleet.connect()
    async with looked_after(system):
        task = await bus.submit(
            "called.back", {"n": 1}, callback=receiver.url(), callback_states=["running", TaskState.QUEUED]
        )
        await task.end(timeout_s=10)
        await eventually(lambda: len(receiver.posts) == 2)
        await ask(system, "show", task_id=task.id)  # All events up to here have been read.
        history = await task.history()

    told = {post.event["type"].rpartition(".")[2]: post.event["id"] for post in receiver.posts}
    assert {"queued": history[0].event_id, "running": history[1].event_id} == told
    with pytest.raises(TypeError, match="address"):
        await bus.submit("called.back", {}, callback_states=["running"])


@pytest.mark.usefixtures("_allowed")
async def test_a_callback_is_owed_across_restarts_and_paid_once(
    system: Any, fleet: Fleet, receiver: Receiver
) -> None:
    """A task that ended while no platform ran is told of when one does; the next one does not tell it again."""
    task = await called_back(fleet, receiver.url())
    for _ in range(2):
        async with looked_after(system):
            await delivery(system, task.id, until=lambda hook: hook["standing"] == "delivered")

    assert [task.id] == [got.event["subject"] for got in receiver.posts]


@pytest.mark.usefixtures("_allowed")
async def test_a_receiver_that_is_down_gets_it_again(
    system: Any, fleet: Fleet, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer of 503 is no acknowledgement: the same id comes again, after the first pause."""
    monkeypatch.setattr("actors.tasks.hooks.AGAIN_S", (0.1, 60.0))
    answers = [(503, ""), (200, "")]
    receiver.answer = lambda _: answers.pop(0)
    async with looked_after(system):
        task = await called_back(fleet, receiver.url())
        told = await delivery(system, task.id, until=lambda hook: hook["standing"] == "delivered")

    assert [503, 200] == [one["status"] for one in told["tries"]]
    assert 1 == len({got.headers["webhook-id"] for got in receiver.posts})


@pytest.mark.usefixtures("_allowed")
async def test_a_redirect_is_a_failure(system: Any, fleet: Fleet, receiver: Receiver) -> None:
    """3xx is not followed, wherever it leads, and is tried again like any failure: after 5 s, then 5 min."""
    receiver.answer = lambda _: (302, "http://169.254.169.254/latest/meta-data")
    async with looked_after(system):
        task = await called_back(fleet, receiver.url())
        told = await delivery(system, task.id, until=lambda hook: bool(hook.get("tries")))

    assert ("pending", [302]) == (told["standing"], [one["status"] for one in told["tries"]])
    assert 5000 == told["next_at"] - told["tries"][0]["at"] - told["tries"][0].get("took_ms", 0)


@pytest.mark.usefixtures("_allowed")
async def test_410_turns_an_address_off(system: Any, fleet: Fleet, receiver: Receiver) -> None:
    """Who answers 410 gets nothing more, of later tasks either, until an operator replays one: then it is on again."""
    answers = [(410, ""), (200, ""), (200, "")]
    receiver.answer = lambda _: answers.pop(0)
    async with looked_after(system):
        first = await called_back(fleet, receiver.url("/gone"))
        await delivery(system, first.id, until=lambda hook: hook["standing"] == "disabled")
        second = await called_back(fleet, receiver.url("/gone"))
        await delivery(system, second.id, until=lambda hook: hook["standing"] == "disabled")
        assert 1 == len(receiver.posts)
        replayed = await ask(system, "replay", id=second.id)
        await delivery(system, second.id, until=lambda hook: hook["standing"] == "delivered")
        third = await called_back(fleet, receiver.url("/gone"))
        await delivery(system, third.id, until=lambda hook: hook["standing"] == "delivered")

    assert 1 == len(replayed["replayed"])
    assert [first.id, second.id, third.id] == [got.event["subject"] for got in receiver.posts]


@pytest.mark.usefixtures("_allowed")
async def test_a_slow_receiver_holds_up_nobody_else(
    system: Any, fleet: Fleet, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence is a failure after the time for one try, and meanwhile others get theirs, however many wait."""
    monkeypatch.setattr(post.Post.__init__, "__kwdefaults__", {"timeout_s": 1.0})
    receiver.answer = lambda _: None
    async with looked_after(system), receiving() as well:
        slow = [await called_back(fleet, receiver.url()) for _ in range(courier.FOR_ONE_HOST + 2)]
        quick = await called_back(fleet, well.url())
        await delivery(system, quick.id, until=lambda hook: hook["standing"] == "delivered")
        assert len(receiver.posts) <= courier.FOR_ONE_HOST
        told = await delivery(system, slow[0].id, until=lambda hook: bool(hook.get("tries")))

    assert "no answer within 1 s" == told["tries"][0]["error"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "[::1]", "[::ffff:127.0.0.1]"])
async def test_nothing_is_sent_inwards(system: Any, fleet: Fleet, receiver: Receiver, host: str) -> None:
    """An address of this machine, however it is written or named, gets nothing, and the ledger says why."""
    async with looked_after(system):
        task = await called_back(fleet, receiver.url(host=host))
        told = await delivery(system, task.id, until=lambda hook: hook["standing"] == "refused")

    assert [] == receiver.posts
    assert "not public" in told["tries"][0]["error"]
    assert told["count"] == 1


@pytest.mark.usefixtures("_allowed")
async def test_two_platforms_deliver_once(
    system: Any, fleet: Fleet, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many platforms run, a callback is tried by one of them at a time, and delivered once."""
    monkeypatch.setattr("actors.tasks.hooks.AGAIN_S", (0.1, 60.0))
    failed: set[str] = set()

    def answer(path: str) -> tuple[int, str]:
        again = path in failed
        failed.add(path)
        return (200 if again else 503), ""

    receiver.answer = answer
    async with looked_after(system), looked_after(system):
        tasks = [await called_back(fleet, receiver.url(f"/{number}")) for number in range(10)]
        for task in tasks:
            await delivery(system, task.id, until=lambda hook: hook["standing"] == "delivered")

    got = Counter(post.event["subject"] for post in receiver.posts)
    assert dict.fromkeys((task.id for task in tasks), 2) == dict(got)
