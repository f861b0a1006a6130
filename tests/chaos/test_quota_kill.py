"""Callers, and a server, that are killed while limits of all callers together are in use: nothing leaks or is lost."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
import pytest

import reach
from reach.bus.counters import DOWN_S
from reach.bus.embedded import EmbeddedServer
from reach.policy.rate import LEASE_MS, RENEW_MS
from tests.chaos.quota_rig import Target, order, racers
from tests.runtime.fleet import Fleet, eventually

PLACES = 6
SLACK_S = 2.5
"""A crowded machine, and a quarter of a second between two tries."""


async def test_a_killed_caller_holds_up_others_for_its_lease_only(fleet: Fleet) -> None:
    """GUARD-3: three callers with all places are killed; when their leases end all places are free, and not before."""
    target = Target()
    target.go.clear()
    lane = target.offer("held.hit", reach.Rate(concurrent=PLACES))
    await fleet.serve(target.agent)
    programs = await racers(fleet, 3)
    bus = await fleet.connect()
    holding = [
        asyncio.ensure_future(
            order(bus, racer, "race", capability=lane, calls=PLACES // 3, at=0.0, task_id=None)
        )
        for racer in range(3)
    ]
    await eventually(lambda: target.reached[lane] == PLACES)
    await bus.cards.instances(lane)
    refused = await bus.request(lane)
    assert refused.error is not None
    assert refused.error.limit is not None
    assert (PLACES, PLACES) == (refused.error.limit["used"], refused.error.limit["allowed"])

    for program in programs:
        program.kill()
    killed = monotonic()
    for one in holding:
        one.cancel()
    await asyncio.gather(*holding, return_exceptions=True)
    target.go.set()
    while not (await bus.request(lane)).ok:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.25)
    took_s = monotonic() - killed
    print(f"places of killed callers were free after {took_s:.1f} s")  # noqa: T201 - what was measured
    assert LEASE_MS / 1000 - RENEW_MS / 1000 - 0.5 < took_s
    assert took_s < LEASE_MS / 1000 + SLACK_S

    target.go.clear()
    before = target.reached[lane]
    again = [asyncio.ensure_future(bus.request(lane)) for _ in range(PLACES + 3)]
    await eventually(lambda: target.reached[lane] == before + PLACES)
    target.go.set()
    assert PLACES == sum(reply.ok for reply in await asyncio.gather(*again))


@pytest.fixture
async def own_fleet(own_system: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Agents and callers on a server of the test's own, with the platform's buckets and streams."""
    await asyncio.to_thread(own_system.provision)
    fleet = Fleet(own_system, tmp_path)
    try:
        yield fleet
    finally:
        await fleet.close()


async def test_a_killed_server_knows_what_was_taken(
    own_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GUARD-3, GUARD-4: after kill -9 of the server and its return, a limit and a budget go on where they were."""
    monkeypatch.setenv("REACH_TASK_BUDGET_CALLS", "50")
    fleet, target = own_fleet, Target()
    lane = target.offer("kept.hit", reach.Rate(calls=50, per_s=600))
    spent = target.offer("kept.spent", None)
    await fleet.serve(target.agent)
    bus = await fleet.connect()

    async def burst(number: int, capability: str, **options: Any) -> int:
        replies = (bus.request(capability, timeout_s=10, **options) for _ in range(number))
        return sum(reply.ok for reply in await asyncio.gather(*replies))

    assert 30 == await burst(30, lane)
    assert 30 == await burst(30, spent, task_id="kept-1")
    port = fleet.system.server.info.port
    os.kill(fleet.system.server.info.pid, signal.SIGKILL)
    await anyio.to_thread.run_sync(fleet.system.server.stop)
    fleet.system.server = await anyio.to_thread.run_sync(
        lambda: EmbeddedServer.start(fleet.system.home, port=port)
    )
    await eventually(lambda: bus.connection.connected)
    await asyncio.sleep(DOWN_S)

    assert 20 == await burst(40, lane)
    assert 20 == await burst(40, spent, task_id="kept-1")
