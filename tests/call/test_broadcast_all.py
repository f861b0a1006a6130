"""Calls to everybody, and events to whoever is there (ROUTE-8, design: the public face)."""

import asyncio
import logging
from time import monotonic
from typing import Any

import pytest

import reach
from reach.faults import Reason
from tests.runtime.fleet import Fleet, eventually


def cache_agent(
    name: str = "cache", *, heard: list[Any] | None = None, after: asyncio.Event | None = None
) -> reach.Agent:
    agent = reach.Agent(name)

    @agent.capability("cache.purge")
    async def purge(ctx: reach.Context, seconds: float = 0.0, fail: bool = False) -> str:
        if heard is not None:
            heard.append(ctx.instance)
        await asyncio.sleep(seconds)
        if after is not None:
            await after.wait()
        if fail:
            raise ValueError
        return ctx.instance

    return agent


async def all_of(replies: Any) -> list[reach.Reply]:
    return [reply async for reply in replies]


async def test_a_broadcast_reaches_every_instance_and_returns_each_reply(fleet: Fleet) -> None:
    """ROUTE-8, case 8: three instances of one agent, three replies, each once; one record."""
    agent = cache_agent()
    instances = [await fleet.serve(agent) for _ in range(3)]
    bus = await fleet.connect()
    replies = await all_of(bus.broadcast("cache.purge"))
    assert sorted(one.name for one in instances) == sorted(reply.unwrap() for reply in replies)
    assert {record.reach_id for record in fleet.records} == {reply.reach_id for reply in replies}
    assert [("broadcast", "ok")] == [(record.kind, record.outcome) for record in fleet.records]


async def test_a_broadcast_ends_when_all_have_answered(fleet: Fleet) -> None:
    """ROUTE-8: with all answers in it does not wait for its deadline."""
    for _ in range(3):
        await fleet.serve(cache_agent())
    bus = await fleet.connect()
    began = monotonic()
    replies = await all_of(bus.broadcast("cache.purge", {"seconds": 0.1}, timeout_s=30))
    assert monotonic() - began < 5.0
    assert 3 == len(replies)


async def test_a_broadcast_is_bounded_by_its_deadline(fleet: Fleet) -> None:
    """ROUTE-8: who has not answered by then is not waited for, and the handlers end too."""
    await fleet.serve(cache_agent(), drain_s=0.2)
    bus = await fleet.connect()
    began = monotonic()
    replies = await all_of(bus.broadcast("cache.purge", {"seconds": 30.0}, timeout_s=0.8))
    assert monotonic() - began < 2.0
    # The agent answers that its time was up, or nobody answers at all: a failure either way.
    assert [False] == [reply.ok for reply in replies]
    await eventually(lambda: fleet.instances[0].inflight == 0)


async def test_failures_of_some_are_replies_beside_those_of_others(fleet: Fleet) -> None:
    """A broadcast never raises for a failed instance: its failure is its reply."""
    await fleet.serve(cache_agent("good"))
    bad = reach.Agent("bad")

    @bad.capability("cache.purge")
    async def purge() -> None:
        raise ValueError

    await fleet.serve(bad)
    bus = await fleet.connect()
    replies = {reply.provider: reply for reply in await all_of(bus.broadcast("cache.purge"))}
    assert {"good", "bad"} == replies.keys()
    assert replies["good"].ok
    error = replies["bad"].error
    assert error is not None
    assert Reason.HANDLER_ERROR is error.reason


async def test_a_broadcast_to_nobody_is_one_failed_reply(fleet: Fleet) -> None:
    """CALL-13: nobody serves it: one reply that says so, at once."""
    bus = await fleet.connect()
    began = monotonic()
    replies = await all_of(bus.broadcast("cache.purge", timeout_s=30))
    assert monotonic() - began < 3.0
    assert [Reason.NO_RESPONDERS] == [reply.error.reason for reply in replies if reply.error is not None]
    assert [("failed", "NO_RESPONDERS")] == [(record.outcome, record.reason) for record in fleet.records]


async def test_leaving_a_broadcast_early_is_a_cancellation(fleet: Fleet) -> None:
    """One record, nothing left waiting."""
    for _ in range(2):
        await fleet.serve(cache_agent())
    bus = await fleet.connect()
    replies = bus.broadcast("cache.purge")
    await anext(replies)
    await replies.aclose()
    assert ["cancelled"] == [record.outcome for record in fleet.records]
    assert 0 == bus.pending


async def test_an_event_is_served_once_and_nobody_answers(fleet: Fleet) -> None:
    """Fire and forget: one of the instances takes it; `publish` does not wait for it."""
    heard: list[Any] = []
    over = asyncio.Event()
    for _ in range(3):
        await fleet.serve(cache_agent(heard=heard, after=over))
    bus = await fleet.connect()
    await bus.publish("cache.purge")
    await eventually(lambda: len(heard) == 1)
    assert 1 == sum(one.inflight for one in fleet.instances)
    over.set()
    await eventually(lambda: all(one.inflight == 0 for one in fleet.instances))
    assert (1, 0) == (len(heard), bus.unheard)
    await eventually(lambda: len(fleet.records) == 1)
    assert [("publish", "ok")] == [(record.kind, record.outcome) for record in fleet.records]


async def test_an_event_that_nobody_heard_is_counted_and_logged(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """Design: unheard events are counted and logged; the publisher is not failed."""
    bus = await fleet.connect()
    with caplog.at_level(logging.WARNING, logger="reach.call"):
        await bus.publish("cache.nobody")
        await eventually(lambda: bus.unheard == 1)
    await eventually(lambda: len(fleet.records) == 1)
    record = fleet.records[0]
    assert ("publish", "failed", "NO_RESPONDERS") == (record.kind, record.outcome, record.reason)
    assert record.reach_id in caplog.text
    assert "cache.nobody" in caplog.text


async def test_an_event_published_just_before_closing_is_heard(fleet: Fleet) -> None:
    """A script that publishes and ends: its event arrives, and is recorded as heard."""
    heard: list[Any] = []
    await fleet.serve(cache_agent(heard=heard))
    async with reach.connect(
        settings=fleet.system.settings(reach.Role.CALLER), recorder=fleet.recorder(fleet.sink)
    ) as bus:
        await bus.publish("cache.purge")
        await bus.publish("cache.nobody")
    assert 1 == bus.unheard
    await eventually(lambda: len(heard) == 1)
    assert ["failed", "ok"] == sorted(record.outcome for record in fleet.records)


async def test_an_event_with_wrong_parameters_is_refused(fleet: Fleet) -> None:
    """`publish` raises only when the event could not even be sent."""
    await fleet.serve(cache_agent())
    bus = await fleet.connect()
    with pytest.raises(reach.SchemaInvalid):
        await bus.publish("cache.purge", {"secs": 1})
    assert [("failed", "SCHEMA")] == [(record.outcome, record.reason) for record in fleet.records]


async def test_a_broadcast_takes_no_key(fleet: Fleet) -> None:
    """IDEM-1: everybody is asked, so a key could only be passed over; it is refused, and nobody is asked."""
    heard: list[str] = []
    await fleet.serve(cache_agent(heard=heard))
    bus = await fleet.connect()
    with pytest.raises(ValueError, match="a broadcast takes no idempotency_key"):
        await all_of(bus.broadcast("cache.purge", idempotency_key="once"))
    envelope = reach.Envelope(idempotency_key="once")
    with pytest.raises(ValueError, match="or call `request`"):
        await all_of(bus.broadcast("cache.purge", envelope))
    assert not heard
