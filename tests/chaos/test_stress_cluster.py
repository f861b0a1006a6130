"""A server of a cluster that leaves, dies or stands still: clients go on at another one."""

import asyncio
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from reach.bus.connection import LinkState
from reach.bus.keys import Role
from reach.call.client import Bus
from reach.wire.reply import Reply
from tests.chaos.stress_rig import NOTHING, Rig, eventually, faults_of, left_of, tell
from tests.chaos.stress_servers import Cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Two servers that know each other; not started."""
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.stop()


@pytest.fixture
async def clustered(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Rig]:
    """Agents and callers at the first of them."""
    rig = Rig(cluster, tmp_path)
    try:
        yield rig
    finally:
        await rig.close()


class Load:
    """A few calls at any time, half of them writes, until it is over."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.replies: dict[str, Reply] = {}
        self.over = False
        self._numbers = count()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for lane in range(16):
                group.create_task(self._lane("write" if lane % 2 else "read"))

    async def _lane(self, kind: str) -> None:
        while not self.over:
            key = f"{kind}-{next(self._numbers)}"
            self.replies[key] = await self.bus.request(
                f"stress.{kind}", {"key": key, "seconds": 0.02}, timeout_s=20
            )


@pytest.mark.parametrize("joins", ["later", pytest.param("before", marks=pytest.mark.chaos_long)])
async def test_a_server_that_leaves_costs_no_call(clustered: Rig, cluster: Cluster, joins: str) -> None:
    """Lame duck: told that their server leaves, caller and agents move to the other one, and lose nothing.

    The other server may have come to the cluster long after they had connected.
    """
    first, second = cluster.servers
    first.start()
    if joins == "before":
        second.start()
    bus = await clustered.bus()
    peers = await clustered.agents(2)
    await bus.cards.instances("stress.write")
    states: list[LinkState] = []
    bus.connection.on_state(states.append)
    load = Load(bus)
    running = asyncio.create_task(load.run())
    if joins == "later":
        second.start()
    link = bus.connection.link
    assert link is not None
    await eventually(lambda: second.url in link.discovered)
    await asyncio.sleep(0.5)
    first.send(signal.SIGUSR2)
    took_s = await eventually(lambda: bus.connection.renewals == 1)
    for peer in peers:
        await peer.back(epoch=2)
    await asyncio.sleep(1.0)
    load.over = True
    await running
    tell(
        f"{len(load.replies)} calls; the caller had moved {took_s:.2f} s after the server said that it leaves"
    )
    assert {} == faults_of(load.replies)
    assert {1} == {reply.attempt for reply in load.replies.values()}
    assert (
        {1} == set(clustered.effects.begun("write").values()) == set(clustered.effects.begun("read").values())
    )
    assert [] == states
    assert bus.connection.link is not None
    assert second.url == bus.connection.link.address
    assert NOTHING == left_of(bus)


async def test_the_only_server_that_leaves_is_used_until_it_ends(clustered: Rig, cluster: Cluster) -> None:
    """Lame duck with nowhere to go: calls go on over the link that there is."""
    first, _ = cluster.servers
    first.start()
    bus = await clustered.bus()
    await clustered.agent()
    first.send(signal.SIGUSR2)
    await asyncio.sleep(1.5)
    assert (await bus.request("stress.write", {"key": "late"}, timeout_s=5)).ok
    assert (1, 0) == (bus.connection.epoch, bus.connection.renewals)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGKILL, id="killed", marks=pytest.mark.chaos_long),
        pytest.param(signal.SIGSTOP, id="stopped"),
    ],
)
async def test_another_server_is_found(clustered: Rig, cluster: Cluster, how: signal.Signals) -> None:
    """CALL-6: a server that is dead, or takes connections and says nothing, does not keep clients from the other."""
    first, second = cluster.servers
    second.start()
    first.start()
    settings = replace(cluster.settings(Role.CALLER), ping_interval_s=0.5, connect_timeout_s=2.0)
    bus = await clustered.bus(settings=settings)
    peer = await clustered.agent(REACH_URL=second.url)
    assert (await bus.request("stress.write", {"key": "before"}, timeout_s=5)).ok
    link = bus.connection.link
    assert link is not None
    await eventually(lambda: second.url in link.discovered)
    first.send(how)
    call = asyncio.create_task(bus.request("stress.read", {"key": "over"}, timeout_s=20))
    took_s = await eventually(lambda: bus.connection.epoch == 2 and bus.connection.connected)
    assert (await call).ok
    tell(f"at the other server after {took_s:.2f} s")
    assert (await bus.request("stress.write", {"key": "after"}, timeout_s=5)).ok
    assert 1 == (await peer.status())["epoch"]
    assert took_s < 5.0
    assert NOTHING == left_of(bus)
