"""Callers that are killed while they hold places of all callers together: nothing is held for longer than said."""

import asyncio
from time import monotonic

import reach
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
