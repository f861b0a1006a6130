"""Three instances under load, of which some die or stop in order: the others' work goes on (cases 5, 8, 9)."""

import asyncio
from collections import Counter
from itertools import count
from time import monotonic

import pytest

from reach.call.client import Bus
from reach.wire.reply import Reply
from tests.chaos.stress_rig import NOTHING, Rig, eventually, faults_of, left_of, tell


class Load:
    """So many calls at any time, half of them writes, until it is over."""

    def __init__(self, bus: Bus, *, lanes: int) -> None:
        self.bus = bus
        self.replies: dict[str, Reply] = {}
        self.over = False
        self._lanes = lanes
        self._numbers = count()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for lane in range(self._lanes):
                group.create_task(self._lane("write" if lane % 2 else "read"))

    async def _lane(self, kind: str) -> None:
        while not self.over:
            key = f"{kind}-{next(self._numbers)}"
            self.replies[key] = await self.bus.request(
                f"stress.{kind}", {"key": key, "seconds": 0.05}, timeout_s=20
            )


@pytest.mark.alone
async def test_a_broadcast_reaches_every_instance(rig: Rig) -> None:
    """Case 8, ROUTE-8: many broadcasts at once, under load, are answered by all three, after a kill by two."""
    peers = await rig.agents(3)
    bus = await rig.bus()
    load = Load(bus, lanes=32)
    running = asyncio.create_task(load.run())

    async def everybody(number: int) -> Counter[str | None]:
        replies = [
            reply async for reply in bus.broadcast("stress.read", {"key": f"all-{number}"}, timeout_s=5)
        ]
        assert {None} == {reply.error for reply in replies}
        return Counter(reply.instance for reply in replies)

    answered = await asyncio.gather(*(everybody(number) for number in range(20)))
    assert [Counter(peer.name for peer in peers)] * 20 == answered
    load.over = True
    await running
    peers[0].kill()
    await peers[0].ended()
    began = monotonic()
    assert Counter(peer.name for peer in peers[1:]) == await everybody(20)
    assert monotonic() - began < 1.5
    assert {} == faults_of(load.replies)
    assert {3} == {rig.effects.begun("read")[f"all-{number}"] for number in range(20)}
    await eventually(lambda: left_of(bus) == NOTHING)


@pytest.mark.parametrize("stopped", [2, pytest.param(1, marks=pytest.mark.chaos_long)])
async def test_stopping_under_load_fails_no_call(rig: Rig, stopped: int) -> None:
    """Case 9, LIFE-7: SIGTERM of one, and of two at once, of three, beside a sentinel: no failure, none twice."""
    peers = await rig.agents(3)
    await rig.platform()
    bus = await rig.bus()
    await bus.cards.instances("stress.write")
    load = Load(bus, lanes=64)
    running = asyncio.create_task(load.run())
    await eventually(lambda: len(load.replies) > 200)
    for peer in peers[:stopped]:
        peer.terminate()
    assert [0] * stopped == [await peer.ended() for peer in peers[:stopped]]
    await asyncio.sleep(1.5)
    load.over = True
    await running
    tell(f"{len(load.replies)} calls, {len(faults_of(load.replies))} failed")
    assert {} == faults_of(load.replies)
    assert {1} == set(rig.effects.begun("write").values()) == set(rig.effects.begun("read").values())
    assert {1} == {reply.attempt for reply in load.replies.values()}
    assert NOTHING == left_of(bus)


async def test_stopping_lets_streams_end(rig: Rig) -> None:
    """LIFE-7: streams that are open when SIGTERM comes are sent to their end."""
    peer = await rig.agent()
    bus = await rig.bus()
    got: list[int] = []

    async def read() -> None:
        seen = 0
        params = {"key": "whole", "count": 50, "size": 20_000}
        async for part in bus.stream("stress.blocks", params, timeout_s=20):
            seen += len(part)
            await asyncio.sleep(0.02)
        got.append(seen)

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(read())
        await eventually(lambda: len(rig.effects.of("begin", "blocks")) == 20)
        await asyncio.sleep(0.2)
        peer.terminate()
    assert [50 * 20_000] * 20 == got
    assert 0 == await peer.ended()
    assert NOTHING == left_of(bus)
