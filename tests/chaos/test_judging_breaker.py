"""How soon a caller's breaker opens, by faults injected under 100 calls a second, and how it closes (BREAK).

The bounds are the promised ones (2 s, 6 s, 10 s); `SLACK_S` is for a machine that is shared. So is the floor of what
counts as slow: it is 150 ms, which such a machine may stand still for; here it is half a second, which is harder.
"""

import asyncio
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from reach.call.client import Bus
from reach.call.lanes import Lane
from reach.ids import new_id
from reach.policy.breaker_settings import BreakerSettings
from tests.chaos.judging_rig import Lanes, Load, judge_by, reasons, tell
from tests.runtime.fleet import Fleet, eventually

PER_S = 100
SLACK_S = 0.5
PATIENT = BreakerSettings(slow_floor_ms=500)
PROBE_S = 2.0
"""What the first call after the wait may take; it takes some 15 ms."""
WELL_S = 2.5
"""For so long all is well first, so that the lane's usual pace is known, and a good past speaks for it."""


def lane_of(bus: Bus, name: str) -> Lane:
    return bus._core.outbound.lanes.of("lane.work", name)


def loaded(bus: Bus, *, per_s: float = PER_S, keyed: bool = False, **options: Any) -> Load:
    def call(_: int) -> Any:
        key = {"idempotency_key": new_id()} if keyed else {}
        return bus.request("lane.work", timeout_s=5, **key, **options)

    return Load(call, per_s=per_s)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("how", "within_s"),
    [
        ({"share": 1.0, "fault": "5xx"}, 2.0),
        ({"share": 0.6, "fault": "5xx"}, 6.0),
        ({"takes_s": 1.0}, 10.0),
    ],
    ids=["total failure", "60 % failure", "slow only"],
)
async def test_a_fault_opens_the_breaker_in_time(
    fleet: Fleet, tmp_path: Path, how: dict[str, Any], within_s: float
) -> None:
    """BREAK-1, BREAK-5: at 100 calls/s it opens within its time, and then no call reaches the provider."""
    lanes = Lanes(fleet, tmp_path)
    bus = await lanes.serve("one")
    judge_by(bus, PATIENT)
    load = loaded(bus)
    await asyncio.sleep(WELL_S)
    assert {"ok"} == reasons(load.calls).keys()
    lane = lane_of(bus, "one")
    lanes.behave("one", **how)
    injected = monotonic()
    await eventually(lambda: not lane.breaker.closed, within_s=within_s + SLACK_S)
    took_s = monotonic() - injected
    tell(
        f"{how}: open after {took_s:.2f} s ({lane.breaker.why}), for {lane.breaker.open_until - monotonic():.1f} s"
    )
    await asyncio.sleep(0.5)  # What was under way when it opened has begun.
    seen = lanes.begun("one")
    refused = len(load.calls)
    await asyncio.sleep(1.0)
    assert seen == lanes.begun("one")
    assert len(load.calls) - refused >= PER_S * 0.5
    tell(f"ends: {dict(reasons(await load.end()))}")


async def test_recovery_closes_it_after_the_usual_wait(fleet: Fleet, tmp_path: Path) -> None:
    """BREAK-3: 10 s ± 20 % after it opened one call finds out; from then on all are answered."""
    lanes = Lanes(fleet, tmp_path)
    bus = await lanes.serve("one")
    judge_by(bus, PATIENT)
    lane = lane_of(bus, "one")
    lanes.behave("one", share=1.0, fault="5xx")
    load = loaded(bus)
    await eventually(lambda: not lane.breaker.closed)
    opened, until = monotonic(), lane.breaker.open_until
    lanes.behave("one")
    await eventually(lambda: lane.breaker.closed, within_s=30)
    closed, now = monotonic(), load.now
    await asyncio.sleep(1.0)
    after = [one for one in await load.end() if one.began > now + 0.1]
    tell(f"closed {closed - opened:.2f} s after it opened; then {dict(reasons(after))}")
    assert 8.0 - SLACK_S <= until - opened <= 12.0
    assert until <= closed <= until + PROBE_S
    assert {"ok"} == reasons(after).keys()


async def test_storms_of_the_callers_own_making_open_nothing(fleet: Fleet, tmp_path: Path) -> None:
    """BREAK-2, case 17: 4xx, wrong parameters, cancellations, each for two seconds at 100 a second."""
    lanes = Lanes(fleet, tmp_path)
    bus = await lanes.serve("one")
    judge_by(bus, PATIENT)
    lane = lane_of(bus, "one")
    opened = []
    bus._core.outbound.lanes.moved = opened.append  # type: ignore[method-assign]  # to hear of any move
    for fault in ("4xx", "params"):
        lanes.behave("one", share=1.0, fault=fault)
        load = loaded(bus)
        await asyncio.sleep(2.0)
        tell(f"{fault}: {dict(reasons(await load.end()))}")
    lanes.behave("one", takes_s=5.0)
    left = 0
    until = monotonic() + 2.0
    while monotonic() < until:
        call = asyncio.create_task(bus.request("lane.work"))
        await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait({call})
        left += 1
    tell(f"cancelled: {left}")
    assert ([], None) == (opened, lane.breaker.why)


@pytest.mark.alone
async def test_of_two_providers_the_good_one_has_the_calls(fleet: Fleet, tmp_path: Path) -> None:
    """BREAK-1, BREAK-3, case 17: once open the bad one sees its probes only, one at a time, each lost to its caller."""
    lanes = Lanes(fleet, tmp_path)
    bus = await lanes.serve("good", "bad")
    judge_by(bus, BreakerSettings(wait_in_open_s=0.4))
    load = loaded(bus, per_s=2 * PER_S, keyed=True, retry=False)
    await asyncio.sleep(1.0)
    lanes.behave("bad", share=1.0, fault="5xx", takes_s=0.1)
    bad = lane_of(bus, "bad")
    await eventually(lambda: not bad.breaker.closed)
    await asyncio.sleep(0.3)  # What was under way when it opened.
    opened, since, seen = load.now, monotonic(), lanes.begun("bad")
    await asyncio.sleep(4.0)
    probes, most = lanes.begun("bad") - seen, lanes.most_at_once("bad", since=since)
    times = bad.breaker.opened_in_a_row
    lanes.behave("bad")
    calls = [one for one in await load.end() if one.began > opened]
    failed = [one for one in calls if not one.reply.ok]
    tell(
        f"{len(calls)} calls in 4 s, {len(failed)} failed; {probes} probes, {most} at once, opened {times} times"
    )
    assert {"good"} == {one.reply.provider for one in calls if one.reply.ok} - {"bad"}
    assert 1 <= probes <= times
    assert 1 == most
    assert len(failed) <= probes
