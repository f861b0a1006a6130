"""Limits of all callers together under races of processes: exactly so many, in any window (GUARD-3, GUARD-4)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import reach
from reach.bus.counters import DOWN_S
from reach.bus.provision import provision
from tests.chaos.quota_rig import Target, order, racers
from tests.runtime.fleet import Fleet

BURSTS = 20
PROCESSES = 5
EACH = 40
LIMIT = 50


def most_in_a_window(moments: list[float], window_s: float) -> int:
    """Give the most moments that any window of that length has, its end left out."""
    moments, first, most = sorted(moments), 0, 0
    for number, moment in enumerate(moments):
        while moment - moments[first] >= window_s:
            first += 1
        most = max(most, number - first + 1)
    return most


async def together(bus: reach.Bus, what: str, racing: int, **params: Any) -> list[dict[str, Any]]:
    return await asyncio.gather(*(order(bus, racer, what, **params) for racer in range(racing)))


async def test_two_hundred_racers_take_exactly_fifty(fleet: Fleet) -> None:
    """GUARD-3: 200 calls of five processes at once on a limit of 50, twenty times: exactly 50 each time."""
    target = Target()
    lanes = [
        target.offer(f"burst{number}.hit", reach.Rate(calls=LIMIT, per_s=600)) for number in range(BURSTS)
    ]
    await fleet.serve(target.agent)
    await racers(fleet, PROCESSES)
    bus = await fleet.connect()
    admitted = []
    for lane in lanes:
        told = await together(
            bus, "race", PROCESSES, capability=lane, calls=EACH, at=monotonic() + 0.1, task_id=None
        )
        admitted.append(sum(one["good"] for one in told))
        assert {"QUOTA_EXCEEDED"} == {reason for one in told for reason in one["reasons"]}
    print("admitted:", *admitted)  # noqa: T201 - what was measured

    assert [LIMIT] * BURSTS == admitted
    assert [LIMIT] * BURSTS == [target.reached[lane] for lane in lanes]


async def test_no_window_has_more_than_the_limit(fleet: Fleet) -> None:
    """GUARD-3: three processes that never stop asking are let in 10 times in any half second, wherever it begins."""
    target = Target()
    lane = target.offer("edges.hit", reach.Rate(calls=10, per_s=0.5))
    await fleet.serve(target.agent)
    await racers(fleet, 3)
    bus = await fleet.connect()
    told = await together(bus, "hammer", 3, capability=lane, seconds=6.0, hands=6, pause_s=0.003)
    let_in = [moment for one in told for moment in one["let_in"]]
    most = most_in_a_window(let_in, 0.5)
    print(f"let in: {len(let_in)} in 6 s, at most {most} in any 0.5 s")  # noqa: T201 - what was measured

    assert 10 == most
    assert sum(one["good"] for one in told) == target.reached[lane] == len(let_in)
    assert len(let_in) > 50  # 10 in each 0.62 s would be 97.


@pytest.fixture
async def own_fleet(own_system: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Agents and callers on a server that the test may take parts away from."""
    await asyncio.to_thread(own_system.provision)
    fleet = Fleet(own_system, tmp_path)
    try:
        yield fleet
    finally:
        await fleet.close()


async def test_without_a_store_each_process_admits_its_share(own_fleet: Fleet) -> None:
    """GUARD-3: callers that cannot be counted together admit a quarter each, and say so; later they are exact again."""
    fleet = own_fleet
    target = Target()
    lane = target.offer("alone.hit", reach.Rate(calls=40, per_s=600))
    await fleet.serve(target.agent)
    await racers(fleet, 3)
    platform = await fleet.connect(reach.Role.PLATFORM)
    await platform.connection.request("$JS.API.STREAM.DELETE.KV_reach_quota", b"", timeout_s=5)
    told = await together(platform, "race", 3, capability=lane, calls=20, at=monotonic() + 0.1, task_id=None)

    assert [10, 10, 10] == [one["good"] for one in told] == [one["local"] for one in told]
    assert [["this process alone (1/4 of the limit while callers cannot be counted together)"]] * 3 == [
        one["owners"] for one in told
    ]
    client = await fleet.stranger(reach.Role.PLATFORM)
    await provision(client.jetstream())
    await asyncio.sleep(DOWN_S)
    told = await together(platform, "race", 3, capability=lane, calls=20, at=monotonic() + 0.1, task_id=None)
    assert 40 == sum(one["good"] for one in told)


async def test_a_task_spends_its_budget_over_all_processes(fleet: Fleet) -> None:
    """GUARD-4: five processes make the 300 calls of one task together: all of them, and no more."""
    target = Target()
    lane = target.offer("spent.hit", None)
    await fleet.serve(target.agent)
    await racers(fleet, PROCESSES, REACH_TASK_BUDGET_CALLS="300")
    bus = await fleet.connect()
    good = 0
    for _ in range(3):
        told = await together(
            bus, "race", PROCESSES, capability=lane, calls=EACH, at=monotonic() + 0.1, task_id="spent-1"
        )
        good += sum(one["good"] for one in told)
        await asyncio.sleep(1.2)  # Who makes no call for a second gives back what it holds.

    assert 300 == good == target.reached[lane]
