"""Instances that hang, and callers that read in the table to go around them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.call.client import Bus
from reach.wire import codec, subjects
from tests.chaos.stress_rig import Peer, Rig
from tests.chaos.supervisor_rig import SupervisorRig, opened, tell

PER_S = 300.0
FROZEN_S = 4.0
"""Half as long again as callers may need to go around; long before it is cut off."""

pytestmark = pytest.mark.alone


@pytest.fixture
async def rig(own_system: Any, tmp_path: Path) -> AsyncIterator[SupervisorRig]:
    """A platform of its own on a server of its own."""
    async with opened(own_system, tmp_path, led=True) as rig:
        yield rig


class Load:
    """Calls at a steady rate: when each was made, how long it took, how it ended."""

    def __init__(self, bus: Bus, capability: str, *, per_s: float = PER_S) -> None:
        self.calls: list[tuple[float, float, bool, str | None]] = []
        self._bus, self._capability, self._per_s = bus, capability, per_s
        self._over = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        began, number = monotonic(), 0
        async with asyncio.TaskGroup() as group:
            while not self._over.is_set():
                group.create_task(self._one(number))
                number += 1
                ahead_s = number / self._per_s - (monotonic() - began)
                if ahead_s > 0:
                    await asyncio.sleep(ahead_s)

    async def _one(self, number: int) -> None:
        at = monotonic()
        reply = await self._bus.request(self._capability, {"key": f"k{number}"}, timeout_s=10)
        reason = None if reply.error is None else reply.error.reason.value
        self.calls.append((at, (monotonic() - at) * 1000, reply.ok, reason))

    async def end(self) -> None:
        """Make no more, and wait for those under way."""
        self._over.set()
        await self._task


async def suspected(caller: Connection) -> list[float]:
    """Note when somebody was suspected."""
    heard: list[float] = []
    caller.subscribe("reach.suspect.>", lambda _: heard.append(monotonic()))
    await caller.flush()
    return heard


async def victims_until(load: Load, since: float) -> float:
    """When the last call began that met the hung instance: it took longer than a suspicion does."""
    slow = [at for at, ms, _, _ in load.calls if at >= since - 0.5 and ms > 150]
    return max(slow, default=since) - since


async def frozen_under_load(
    rig: SupervisorRig, own_rig: Rig, capability: str, freeze: Any
) -> tuple[Load, list[Peer], float, float]:
    """Load three agents, hang one; gives load, peers, when it hung, and the first suspicion after that."""
    peers = await own_rig.agents(3)
    bus = await own_rig.bus()
    await bus.request(capability, {"key": "first"})
    assert await bus._core.outbound.routes.ready(5)
    await bus.cards.instances(capability)
    platform = await rig.connection(Role.PLATFORM)
    heard = await suspected(platform)
    load = Load(bus, capability)
    await asyncio.sleep(1.0)
    heard.clear()
    began = monotonic()
    freeze(peers[0])
    await asyncio.sleep(FROZEN_S)
    first = min(heard) - began
    return load, peers, began, first


@pytest.mark.chaos_long  # The acceptance runs show the same, and more, in every run.
async def test_callers_go_around_a_stopped_instance(rig: SupervisorRig, own_rig: Rig) -> None:
    """LIFE-4: SIGSTOP at 300 calls/s: steered around ≤ 1.5 s after the first suspicion, ≤ 2.5 s after the stop."""
    load, peers, began, first = await frozen_under_load(rig, own_rig, "stress.read", Peer.freeze)
    peers[0].thaw()
    await asyncio.sleep(1.0)
    await load.end()
    around_s = await victims_until(load, began)
    took = sorted(ms for _, ms, _, _ in load.calls)
    p99 = took[int(len(took) * 0.99)]
    bad = [reason for _, _, ok, reason in load.calls if not ok]
    tell(
        f"first suspicion {first:.2f} s, last victim {around_s:.2f} s after the stop; P99 {p99:.0f} ms of "
        f"{len(took)} calls; failures {bad}"
    )
    assert around_s <= 2.5
    assert around_s - first <= 1.5
    assert [] == bad


async def test_writes_are_done_once_while_an_instance_is_stopped(rig: SupervisorRig, own_rig: Rig) -> None:
    """LIFE-4 and RETRY-2: the same with calls that must not be repeated: nothing is begun twice."""
    load, peers, began, first = await frozen_under_load(rig, own_rig, "stress.write", Peer.freeze)
    peers[0].thaw()
    await asyncio.sleep(1.0)
    await load.end()
    around_s = await victims_until(load, began)
    tell(f"first suspicion {first:.2f} s, last victim {around_s:.2f} s after the stop")
    assert around_s <= 2.5
    assert [] == [key for key, count in own_rig.effects.begun("write").items() if count > 1]


@pytest.mark.chaos_long  # The acceptance runs show the same, and more, in every run.
async def test_callers_go_around_a_blocked_loop(rig: SupervisorRig, own_rig: Rig) -> None:
    """LIFE-4: an instance that computes for 4 s in its loop is steered around like one that is stopped."""
    caller = await rig.connection(Role.CALLER)

    def block(peer: Peer) -> None:
        caller.publish(
            subjects.inst(peer.name, "stress.block"), codec.pack({"key": "block", "seconds": FROZEN_S})
        )

    load, _, began, first = await frozen_under_load(rig, own_rig, "stress.read", block)
    await asyncio.sleep(1.0)
    await load.end()
    around_s = await victims_until(load, began)
    bad = [reason for _, _, ok, reason in load.calls if not ok]
    tell(f"first suspicion {first:.2f} s, last victim {around_s:.2f} s after the block; failures {bad}")
    assert around_s <= 2.5
    assert [] == bad
