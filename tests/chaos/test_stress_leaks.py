"""What calls leave behind when they are left, time out, or lose their far end: nothing (SPEED-5, case 10)."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import pytest

from reach.errors import ReachError
from reach.faults import Reason
from tests.chaos.stress_orders import resident_bytes
from tests.chaos.stress_rig import NOTHING, Peer, Rig, eventually, left_of, tell

MIB = 1024 * 1024
FLAT_BYTES = 6 * MIB
"""What a process may grow, however much it does: allocators do not give back all, deadlines are kept until due."""

SETTLED_S = 15.0

TABLES = (
    *("pending", "open", "accepted", "orphans", "untold", "due"),
    *("running", "inflight", "by_message", "young", "elder", "faults"),
)
"""What `status` of a caller and of an agent counts besides memory and tasks: all of it ends with its calls."""

SLOW_BYTES_PER_S = 20e6
STREAM_ROOM_BYTES = 16 * MIB
"""What a stream may hold at either end: some times its credit of 256 KiB, and what the allocator makes of it."""


async def _settled(peers: list[Peer], *, tasks: int | None = None) -> list[dict[str, Any]]:
    """What both hold once everything has ended; what was left before it was accepted is remembered for 5 s.

    `tasks` is how many the first of them had before: one more may be about to end.
    """

    def waits(held: list[dict[str, Any]]) -> bool:
        taken = any(state[table] for state in held for table in TABLES if table in state)
        return taken or (tasks is not None and held[0]["tasks"] > tasks)

    held = [await peer.status() for peer in peers]
    until = monotonic() + SETTLED_S
    while waits(held) and monotonic() < until:
        await asyncio.sleep(0.1)
        held = [await peer.status() for peer in peers]
    return held


async def leave_behind(rig: Rig, do: Callable[[Peer, int], Awaitable[dict[str, Any]]], number: int) -> None:
    """Do it a fifth as often to warm up, then so often, and compare."""
    agent = await rig.agent()
    caller = await rig.caller()
    assert {"wrong": 0} == await do(caller, number // 5)
    before = await _settled([caller, agent])
    assert {"wrong": 0} == await do(caller, number)
    after = await _settled([caller, agent], tasks=before[0]["tasks"])
    grown = [now["rss"] - then["rss"] for then, now in zip(before, after, strict=True)]
    tell(
        f"{number} times: the caller grew by {grown[0] / MIB:.1f} MiB, the agent by {grown[1] / MIB:.1f} MiB"
    )
    assert {} == {table: state[table] for state in after for table in TABLES if state.get(table)}
    assert before[0]["tasks"] >= after[0]["tasks"]
    assert max(grown) < FLAT_BYTES


@pytest.mark.parametrize("number", [1000, pytest.param(10_000, marks=pytest.mark.chaos_long)])
async def test_abandoned_streams_leave_nothing_behind(rig: Rig, number: int) -> None:
    """SPEED-5, case 10: streams that are left early, closed in order or not: memory and tables flat."""
    await leave_behind(rig, lambda caller, times: caller.ask("abandon", streams=times, answer_s=300), number)
    begun = rig.effects.begun("blocks")["left"]
    assert number // 5 + number == begun
    assert begun == sum(one.event.startswith("gave-") for one in rig.effects.all() if one.key == "left")


@pytest.mark.parametrize("number", [1000, pytest.param(10_000, marks=pytest.mark.chaos_long)])
async def test_timed_out_calls_leave_nothing_behind(rig: Rig, number: int) -> None:
    """SPEED-5, GUARD-1: calls whose time runs out: memory and tables flat, every handler's scope ended."""
    await leave_behind(rig, lambda caller, times: caller.ask("time_out", calls=times, answer_s=300), number)
    assert sum(rig.effects.begun("write").values()) == len(rig.effects.of("cancelled", "write"))


async def read_slowly(rig: Rig, mebibytes: int) -> None:
    """Read a stream at 20 MB/s from a producer that would be ten times as fast, and watch the memory of both."""
    agent = await rig.agent()
    caller = await rig.caller()
    await caller.ask("read", mebibytes=2, bytes_per_s=1e9)
    peers = (caller, agent)
    before = [(await peer.status())["rss"] for peer in peers]
    most = list(before)
    order = asyncio.create_task(
        caller.ask("read", mebibytes=mebibytes, bytes_per_s=SLOW_BYTES_PER_S, answer_s=600)
    )
    while not order.done():
        most = [max(held, resident_bytes(peer.pid)) for held, peer in zip(most, peers, strict=True)]
        await asyncio.sleep(0.01)
    read = await order
    grown = [peak - then for then, peak in zip(before, most, strict=True)]
    rate = read["got"] / read["seconds"]
    tell(
        f"{mebibytes} MiB at {rate / 1e6:.1f} MB/s: the caller held {grown[0] / MIB:.1f} MiB more, "
        f"the agent {grown[1] / MIB:.1f} MiB"
    )
    assert mebibytes * MIB == read["got"]
    assert rate < SLOW_BYTES_PER_S * 1.05
    assert max(grown) < STREAM_ROOM_BYTES


async def test_a_slow_reader_slows_the_producer(rig: Rig) -> None:
    """STREAM-3: 64 MB at 20 MB/s: the producer is slowed, and both ends hold a few of its 64 MB."""
    await read_slowly(rig, 64)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_slow_reader_of_a_gigabyte(rig: Rig) -> None:
    """STREAM-3: the same with 1 GB, through the same few megabytes."""
    await read_slowly(rig, 1000)


async def test_streams_of_a_caller_that_died_end_at_their_deadline(rig: Rig) -> None:
    """Case 10, STREAM-1: kill -9 of a caller with 200 open streams: each handler's scope ends by its deadline."""
    agent = await rig.agent()
    caller = await rig.caller()
    assert {"open": 200} == await caller.ask("hold", streams=200, timeout_s=4.0)
    assert 200 == len(rig.effects.of("begin", "blocks"))
    caller.kill()
    assert _gave(rig) < 200
    await eventually(lambda: _gave(rig) == 200)
    status = await agent.status()
    assert (0, 0, 0) == (status["running"], status["inflight"], status["faults"])


@pytest.mark.alone
async def test_streams_of_an_agent_that_died_end_at_once(rig: Rig) -> None:
    """Case 10, LIFE-4: kill -9 of an agent with 300 open streams: each reader is told within 1.5 s, tables empty."""
    agent = await rig.agent()
    await rig.platform()
    bus = await rig.bus()
    ends: list[tuple[float, object]] = []
    loop = asyncio.get_running_loop()
    reading = 0

    async def read() -> None:
        nonlocal reading
        try:
            async for _ in bus.stream(
                "stress.blocks", {"key": "cut", "count": 1_000_000, "size": 60_000}, timeout_s=60
            ):
                if not reading:
                    await asyncio.sleep(0)
                reading += 1
                await asyncio.sleep(0.2)
        except ReachError as error:
            ends.append((loop.time(), error.reason))

    async with asyncio.TaskGroup() as group:
        for _ in range(300):
            group.create_task(read())
        await eventually(lambda: reading > 600)
        agent.kill()
        killed = loop.time()
    took_s = max(at for at, _ in ends) - killed
    tell(f"the last of {len(ends)} readers was told after {took_s:.2f} s")
    assert {Reason.INSTANCE_GONE} == {reason for _, reason in ends}
    assert 300 == len(ends)
    assert took_s < 1.5 + 0.5  # A reader looks again when it has worked on what it has.
    assert NOTHING == left_of(bus)


def _gave(rig: Rig) -> int:
    return sum(one.event.startswith("gave-") for one in rig.effects.all())
