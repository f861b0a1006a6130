"""A stream read in order: from anywhere, past slow readers and ended links, without a gap or a duplicate."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from reach.bus.connection import Connection
from reach.bus.feed import Arrived, Begin, Feed, position
from reach.bus.jetstream import JetStream
from reach.bus.keys import Role
from reach.errors import Unreachable
from reach.ids import new_id

STREAM = "REACH_TASK_EVENTS"


@pytest.fixture
async def caller(system: Any) -> AsyncIterator[Connection]:
    async with system.connection(Role.CALLER) as connection:
        yield connection


@pytest.fixture
async def jetstream(caller: Connection) -> AsyncIterator[JetStream]:
    jetstream = JetStream(caller)
    yield jetstream
    jetstream.close()


async def put(jetstream: JetStream, task: str, count: int, size: int = 10) -> list[int]:
    return [
        await jetstream.publish(f"task.event.queued.default.{task}.feed.tests", bytes(size))
        for _ in range(count)
    ]


async def take(feed: Feed, count: int) -> list[Arrived]:
    found: list[Arrived] = []
    async with asyncio.timeout(15):
        async for arrived in feed:
            found.append(arrived)
            if len(found) == count:
                break
    return found


def of(caller: Connection, jetstream: JetStream, task: str, begin: Begin) -> Feed:
    return Feed(caller, jetstream, STREAM, [f"task.event.*.default.{task}.>"], begin)


async def test_a_late_reader_gets_everything_in_order(caller: Connection, jetstream: JetStream) -> None:
    """TASK-8: from the start the whole history comes, each with its sequence and time, and then what is new."""
    task = new_id()
    sequences = await put(jetstream, task, 5)
    feed = of(caller, jetstream, task, Begin(sequence=1))
    await feed.open()
    found = await take(feed, 5)
    sequences += await put(jetstream, task, 1)
    found += await take(feed, 1)

    assert sequences == [one.position.stream_seq for one in found]
    assert all(one.position.stored_ms > 1_700_000_000_000 for one in found)
    assert feed.alive
    feed.close()


async def test_from_a_sequence_from_now_and_from_a_time(caller: Connection, jetstream: JetStream) -> None:
    """A reader begins where it says: at a sequence (that one included), with what is new, or at a time."""
    task = new_id()
    sequences = await put(jetstream, task, 3)
    part = of(caller, jetstream, task, Begin(sequence=sequences[1]))
    now = of(caller, jetstream, task, Begin())
    ever = of(caller, jetstream, task, Begin(time_ms=1000))
    for feed in (part, now, ever):
        await feed.open()
    sequences += await put(jetstream, task, 1)

    assert sequences[1:] == [one.position.stream_seq for one in await take(part, 3)]
    assert sequences[3:] == [one.position.stream_seq for one in await take(now, 1)]
    assert sequences == [one.position.stream_seq for one in await take(ever, 4)]
    for feed in (part, now, ever):
        feed.close()


async def test_an_ended_link_costs_nothing(caller: Connection, jetstream: JetStream) -> None:
    """Links that end in the middle: what was handed on is not handed on again, what came meanwhile is not missed."""
    task = new_id()
    feed = of(caller, jetstream, task, Begin())
    await feed.open()
    sequences = await put(jetstream, task, 3)
    found = await take(feed, 2)
    for _ in range(3):
        assert caller.link is not None
        caller.link.abort()
        await caller.wait_connected(5)
        await asyncio.sleep(0.05)
        sequences += await put(jetstream, task, 3)
    found += await take(feed, len(sequences) - 2)

    assert sequences == [one.position.stream_seq for one in found]
    feed.close()


async def test_a_slow_reader_gets_everything(caller: Connection, jetstream: JetStream) -> None:
    """Flow control: ten megabytes wait at the server for a reader that is slow, and all come in order."""
    task = new_id()
    sequences = await put(jetstream, task, 200, size=50_000)
    feed = of(caller, jetstream, task, Begin(sequence=1))
    await feed.open()
    await asyncio.sleep(0.3)
    line = feed._line
    assert line is not None
    assert line._arrived.qsize() < 200

    assert sequences == [one.position.stream_seq for one in await take(feed, 200)]
    feed.close()


async def test_a_gap_is_read_again(caller: Connection, jetstream: JetStream) -> None:
    """A delivery that is lost on the way is noticed by the next one's number, and read again."""
    task = new_id()
    feed = of(caller, jetstream, task, Begin())
    await feed.open()
    line = feed._line
    assert line is not None
    real, dropped = line._on_delivery, []

    def dropping(delivery: Any) -> None:
        if not dropped and position(delivery.raw_reply.decode()) is not None:
            dropped.append(delivery)
            return
        real(delivery)

    assert caller.link is not None
    caller.link._direct[b"%d" % line._subscription.sid] = dropping
    sequences = await put(jetstream, task, 3)

    assert sequences == [one.position.stream_seq for one in await take(feed, 3)]
    assert 1 == len(dropped)
    feed.close()


async def test_a_feed_without_beats_is_not_alive(
    caller: Connection, jetstream: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TASK-8: whoever watches sees whether silence means that nothing happens."""
    feed = of(caller, jetstream, new_id(), Begin())
    assert not feed.alive
    await feed.open()
    assert feed.alive
    assert feed._line is not None
    feed._line.heard -= 60

    assert not feed.alive
    feed.close()


async def test_a_stream_that_is_not_there(caller: Connection, jetstream: JetStream) -> None:
    """Opening a stream that was never made is refused at once, with what would be right."""
    feed = Feed(caller, jetstream, "REACH_STREAMS", ["stream.>"], Begin())
    with pytest.raises(Unreachable, match="REACH_STREAMS cannot be read"):
        await feed.open()


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("$JS.ACK.S.c.1.22.3.1796043707704665646.4", (22, 3, 1796043707704, 4, 1)),
        ("$JS.ACK.dom.hash.S.c.2.22.3.1796043707704665646.0.token", (22, 3, 1796043707704, 0, 2)),
        ("$JS.ACK.S.c.one.22.3.5.4", None),
        ("$JS.FC.S.c.1", None),
        ("reply.a.b", None),
    ],
)
def test_where_a_delivery_stands(reply: str, expected: tuple[int, ...] | None) -> None:
    """The reply subject says it, with and without a domain."""
    found = position(reply)

    assert expected == (
        None
        if found is None
        else (found.stream_seq, found.consumer_seq, found.stored_ms, found.pending, found.delivered)
    )
