"""What arrives of one stream: order, clocks, credit, one end."""

import asyncio

import pytest

from reach.call.inflow import Inflow, StreamClocks
from reach.faults import Reason
from reach.wire.frame import Frame
from reach.wire.reply import Failure, Reply


def make(*, whole_s: float = 100, **clocks: float) -> tuple[Inflow, list[int]]:
    """A fresh inflow, and the credit it granted."""
    granted: list[int] = []
    deadline = asyncio.get_running_loop().time() + whole_s
    return Inflow(clocks=StreamClocks(**clocks), deadline=deadline, grant=granted.append), granted


def data(seq: int, value: object = None) -> Frame:
    """A data frame."""
    return Frame("s", seq, "data", value)


async def test_data_comes_in_order_and_ends_once() -> None:
    """STREAM-2: frames in order, then exactly one end."""
    inflow, _ = make()
    for frame in (data(1, "a"), data(2, "b"), Frame("s", 3, "end", {"latency_ms": 4.0}), data(4, "late")):
        inflow.put(frame, 1)
    assert [await inflow.next_data() for _ in range(2)] == [(True, "a"), (True, "b")]
    more, reply = await inflow.next_data()
    assert (more, reply.ok, reply.latency_ms) == (False, True, 4.0)
    assert (await inflow.next_data())[0] is False


@pytest.mark.parametrize("frames", [[data(2)], [data(1), data(3)], [data(1), Frame("s", 3, "end", {})]])
async def test_a_gap_is_a_cut_stream(frames) -> None:
    """STREAM-2: a missing frame is an error, never a clean end."""
    inflow, _ = make()
    for frame in frames:
        inflow.put(frame, 1)
    more, item = True, None
    while more:
        more, item = await inflow.next_data()
    assert isinstance(item, Failure)
    assert item.reason == Reason.STREAM_CUT


@pytest.mark.parametrize(
    ("clocks", "whole_s", "first", "reason"),
    [
        ({"first_byte_s": 0.01}, 100, [], Reason.FIRST_BYTE),
        ({"idle_s": 0.01}, 100, [data(1)], Reason.IDLE_STREAM),
        ({}, 0.01, [data(1)], Reason.DEADLINE),
    ],
)
async def test_each_clock_ends_the_stream(clocks, whole_s, first, reason) -> None:
    """STREAM-1: first byte, idle and whole each have their own failure."""
    inflow, _ = make(whole_s=whole_s, **clocks)
    for frame in first:
        inflow.put(frame, 1)
        await inflow.next_data()
    more, failure = await inflow.next_data()
    assert (more, failure.reason) == (False, reason)


async def test_pings_are_not_data() -> None:
    """STREAM-1, case 23: pings reset no clock."""
    inflow, _ = make(idle_s=0.05)
    inflow.put(data(1), 1)
    await inflow.next_data()

    async def ping() -> None:
        while True:
            inflow.put(Frame("s", 1, "ping"), 1)
            await asyncio.sleep(0.01)

    pinging = asyncio.create_task(ping())
    more, failure = await inflow.next_data()
    pinging.cancel()
    assert (more, failure.reason) == (False, Reason.IDLE_STREAM)


async def test_credit_is_given_back_as_data_is_consumed() -> None:
    """STREAM-3: what was taken out is granted again, in steps of a quarter of the initial credit."""
    inflow, granted = make()
    for seq in range(1, 5):
        inflow.put(data(seq), 40_000)
    assert granted == []
    for _ in range(4):
        await inflow.next_data()
    assert granted == [80_000, 80_000]


async def test_a_plain_reply_is_a_stream_of_one() -> None:
    """A capability that answers in one piece can be read as a stream."""
    inflow, _ = make()
    inflow.settle(Reply(ok=True, data=7))
    assert await inflow.next_data() == (True, 7)
    assert (await inflow.next_data())[0] is False


async def test_a_lost_instance_ends_a_stream_that_has_begun() -> None:
    """STREAM-2: an upstream that vanishes is an error."""
    inflow, _ = make()
    inflow.put(data(1), 1)
    await inflow.next_data()
    inflow.settle(Failure.of(Reason.INSTANCE_GONE))
    more, failure = await inflow.next_data()
    assert (more, failure.reason) == (False, Reason.INSTANCE_GONE)
