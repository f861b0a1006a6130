"""One leads: a killed leader is replaced, a paused one cannot write, and without any the calls go on."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import reach
from reach.bus.keys import Role
from reach.wire import codec
from reach.wire.registration import LEADER_KEY, ROUTES, LeaderEntry, RouteVerb, read_message
from tests.chaos.supervisor_rig import SupervisorRig, agent, card, opened, tell

LEADER = f"$KV.{ROUTES}.{LEADER_KEY}"


@pytest.fixture
async def rig(own_system: Any, tmp_path: Path) -> AsyncIterator[SupervisorRig]:
    """A server with its buckets, and nobody on it yet."""
    async with opened(own_system, tmp_path) as rig:
        yield rig


async def leader(rig: SupervisorRig) -> LeaderEntry | None:
    operator = await rig.connection(Role.OPERATOR)
    data = await operator.request(f"$JS.API.DIRECT.GET.KV_{ROUTES}.{LEADER}", b"", timeout_s=5)
    return read_message(codec.unpack(data), LeaderEntry) if data else None


async def calling(rig: SupervisorRig, until: asyncio.Event) -> tuple[int, list[str]]:
    """Call all the while as a plain NATS client; how many calls, and what failed."""
    caller = await rig.connection(Role.CALLER)
    made, failed = 0, []
    while not until.is_set():
        made += 1
        try:
            data = await caller.request("cap.job.do", codec.pack({"x": 1}), timeout_s=5)
        except reach.ReachError as error:
            failed.append(str(error))
        else:
            assert codec.unpack(data)["ok"]
        await asyncio.sleep(0.005)
    return made, failed


@pytest.mark.alone
async def test_a_killed_leader_is_replaced_within_four_seconds(rig: SupervisorRig) -> None:
    """LIFE-8: kill -9; the follower leads within 4 s, the table is intact, and no call failed by it."""
    first = await rig.platform()
    await rig.led()
    second = await rig.platform()
    assert second.process.returncode is None
    served, _ = await rig.serve(agent("reader"))
    spare, _ = await rig.serve(agent("spare", priority=20))
    await rig.command(RouteVerb.SET, capability="job.do", weights={"reader": 0.5})
    await asyncio.sleep(0.3)
    before = await rig.entry("job.do")
    done = asyncio.Event()
    calls = asyncio.create_task(calling(rig, done))
    first.kill()
    took_s = await rig.led()
    after = await rig.entry("job.do")
    done.set()
    made, failed = await calls
    tell(f"replaced after {took_s:.2f} s; {made} calls meanwhile, {len(failed)} failed")
    assert [] == failed
    assert took_s <= 4.0
    assert before is not None
    assert after is not None
    assert [(lane.provider, lane.weight) for lane in before.lanes] == [
        (lane.provider, lane.weight) for lane in after.lanes
    ]
    assert {served.name, spare.name} == (await rig.rows()).keys()
    assert (1, 0) == (served.membership.tickets("job.do"), spare.membership.tickets("job.do"))


@pytest.mark.alone
async def test_a_leader_that_stops_in_order_hands_over_at_once(rig: SupervisorRig) -> None:
    """It gives the key up, so that a follower leads within a second, not after the key's end."""
    first = await rig.platform()
    await rig.led()
    await rig.platform()
    before = await leader(rig)
    stopping = asyncio.create_task(first.end())
    assert before is not None
    async with asyncio.timeout(3):
        while (found := await leader(rig)) is None or found.supervisor == before.supervisor:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    took_s = await rig.led(within_s=1.0)
    await stopping
    tell(f"handed over; serves {took_s:.2f} s later")


@pytest.mark.alone
async def test_a_restarted_supervisor_serves_within_a_second(rig: SupervisorRig) -> None:
    """LIFE-8: settings, breakers and instances come back from the buckets within a second of its leadership."""
    first = await rig.platform()
    await rig.led()
    served, _ = await rig.serve(agent("reader"))
    await rig.serve(agent("spare"))
    for number in range(200):
        await rig.register(card(number, capability="other.do"))
    await rig.command(RouteVerb.OPEN, capability="job.do", provider="spare")
    await asyncio.sleep(0.3)
    await first.end()
    await rig.platform()
    async with asyncio.timeout(10):
        while await leader(rig) is None:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.005)
    took_s = await rig.led()
    entry = await rig.entry("job.do")
    assert entry is not None
    assert ["closed", "forced_open"] == [lane.breaker.state for lane in entry.lanes]
    assert served.name in await rig.rows()
    tell(f"serves {took_s:.2f} s after it leads, with {len(await rig.rows())} instances")
    assert took_s <= 1.0


async def test_a_paused_leader_that_wakes_cannot_write(rig: SupervisorRig) -> None:
    """LIFE-8: each write of a former leader is refused, also of keys that the new one has not touched."""
    platform = await rig.connection(Role.PLATFORM)
    former = await rig.platform()
    await rig.led()
    await rig.serve(agent("reader"))
    old = await leader(rig)
    assert old is not None
    held = await sequence(rig)
    former.freeze()
    await rig.platform()
    await rig.led()
    new = await leader(rig)
    assert new is not None
    assert old.supervisor != new.supervisor
    refused = []
    for key in ("cap.job.do", "cap.never.touched", "cap.another"):
        headers = {
            "Nats-Expected-Last-Subject-Sequence": str(held),
            "Nats-Expected-Last-Subject-Sequence-Subject": LEADER,
        }
        answer = await platform.request(f"$KV.{ROUTES}.{key}", b"old", timeout_s=5, headers=headers)
        refused.append(json.loads(answer).get("error", {}).get("err_code"))
    assert [10071] * 3 == refused
    former.thaw()
    await asyncio.sleep(1.5)
    still = await leader(rig)
    assert still is not None
    assert new.supervisor == still.supervisor
    entry = await rig.entry("job.do")
    assert entry is not None
    assert entry.term >= old.term
    assert 1 == len(await rig.rows())


async def test_a_leader_that_wakes_in_a_burst_changes_nothing(rig: SupervisorRig) -> None:
    """Frozen while a burst of changes is under way, it wakes with writes to send: the table stays the new one's."""
    former = await rig.platform()
    await rig.led()
    await rig.serve(agent("heavy"))
    await rig.serve(agent("light"))
    old = await leader(rig)
    assert old is not None

    async def burst(lowest: float) -> None:
        for step in range(40):
            try:
                weights = {"light": lowest + step / 100}
                await rig.command(RouteVerb.SET, capability="job.do", weights=weights, timeout_s=1)
            except reach.ReachError:
                return

    bursting = asyncio.create_task(burst(0.1))
    await asyncio.sleep(0.05)
    former.freeze()
    await rig.platform()
    await bursting
    await rig.led()
    await rig.command(RouteVerb.SET, capability="job.do", weights={"light": 0.9})
    waking = asyncio.create_task(burst(0.9))
    former.thaw()
    await waking
    await asyncio.sleep(1.0)
    entry, now = await rig.entry("job.do"), await leader(rig)
    assert entry is not None
    assert now is not None
    assert now.supervisor != old.supervisor
    assert entry.term > old.term
    assert 0.9 <= entry.lanes[1].terms.traffic


async def test_without_any_supervisor_calls_go_on(rig: SupervisorRig) -> None:
    """With the platform killed for good, calls go on, instances come and go, and a reconnect rejoins."""
    platform = await rig.platform()
    await rig.led()
    served, _ = await rig.serve(agent("reader"))
    await rig.serve(agent("spare", priority=20))
    done = asyncio.Event()
    calls = asyncio.create_task(calling(rig, done))
    platform.kill()
    await asyncio.sleep(3)
    later, end = await rig.serve(agent("reader"))
    standby, _ = await rig.serve(agent("spare", priority=20))
    assert (1, 0) == (later.membership.tickets("job.do"), standby.membership.tickets("job.do"))
    await end()
    link = served.connection.link
    assert link is not None
    await asyncio.sleep(1)
    done.set()
    made, failed = await calls
    tell(f"{made} calls without a supervisor, {len(failed)} failed")
    assert [] == failed
    link.abort()
    async with asyncio.timeout(10):
        while served.connection.epoch < 2 or served.membership.tickets("job.do") != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def sequence(rig: SupervisorRig) -> int:
    """Give the sequence of the last write to the leader's key."""
    operator = await rig.connection(Role.OPERATOR)
    heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def take(delivery: Any) -> None:
        if not heard.done():
            heard.set_result((delivery.headers or {}).get("Nats-Sequence", "0"))

    inbox = f"{operator.inbox}.sequence.1"
    subscription = operator.subscribe(inbox, take)
    operator.publish(f"$JS.API.DIRECT.GET.KV_{ROUTES}.{LEADER}", b"", reply=inbox)
    async with asyncio.timeout(10):
        found = await heard
    subscription.drop()
    return int(found)
