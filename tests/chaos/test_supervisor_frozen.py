"""Instances that hang: steered around in seconds, cut off after ten, and warmed up when they are back."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from reach.bus.framing import Delivery
from reach.bus.keys import Role
from reach.errors import ReachError
from reach.wire import codec, subjects
from reach.wire.life import Suspicion
from tests.chaos.stress_rig import Peer, Rig
from tests.chaos.supervisor_rig import SupervisorRig, card, opened, tell

CAPABILITY = "stress.read"


@pytest.fixture
async def rig(own_system: Any, tmp_path: Path) -> AsyncIterator[SupervisorRig]:
    """A platform of its own on a server of its own."""
    async with opened(own_system, tmp_path, led=True) as rig:
        yield rig


async def state_of(rig: SupervisorRig, peer: Peer) -> str:
    """What callers read of an instance in the table."""
    entry = await rig.entry(CAPABILITY)
    assert entry is not None
    return next(
        (one.state for lane in entry.lanes for one in lane.exceptions if one.instance == peer.name), ""
    )


async def waited_for(rig: SupervisorRig, peer: Peer, wanted: set[str], *, within_s: float) -> float:
    began = monotonic()
    async with asyncio.timeout(within_s):
        while await state_of(rig, peer) not in wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return monotonic() - began


async def suspecting(rig: SupervisorRig, until: asyncio.Event) -> None:
    """Tell, as a caller that is left waiting does, twice a second."""
    caller = await rig.connection(Role.CALLER)
    body = Suspicion(capability=CAPABILITY, subject=subjects.cap(CAPABILITY), waited_ms=150)
    while not until.is_set():
        caller.publish(subjects.suspect(CAPABILITY), codec.pack(body.model_dump()))
        await asyncio.sleep(0.5)


@pytest.mark.alone
async def test_a_stopped_instance_is_steered_around_fenced_and_warmed_up(
    rig: SupervisorRig, own_rig: Rig
) -> None:
    """LIFE-4: steered ≤ 1.5 s after the first suspicion, cut off after 10 s, back with a warm-up and nothing stale."""
    peers = await own_rig.agents(3)
    hung = peers[0]
    await rig.register(
        card(1, agent_id="stress", capability=CAPABILITY)
    )  # Long warm: others are measured by it.
    platform = await rig.connection(Role.PLATFORM)
    gone: list[Delivery] = []
    platform.subscribe(subjects.GONE_ALL, gone.append)
    await platform.flush()
    hung.freeze()
    done = asyncio.Event()
    telling = asyncio.create_task(suspecting(rig, done))
    began = monotonic()
    await waited_for(rig, hung, {"steered"}, within_s=3)
    steered_s = monotonic() - began
    async with asyncio.timeout(14):
        while not any(hung.name in delivery.subject for delivery in gone):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    fenced_s = monotonic() - began
    done.set()
    await telling
    caller = await rig.connection(Role.CALLER)
    for number in range(30):  # Plain clients are safe from now on: nobody waits for the hung one.
        data = {"key": f"plain-{number}"}
        answer = await caller.request(subjects.cap(CAPABILITY), codec.pack(data), timeout_s=2)
        assert codec.unpack(answer)["ok"]
    hung.thaw()
    back_s = await waited_for(rig, hung, {"warmup"}, within_s=5)
    status = await hung.ask("reach")
    tell(
        f"steered {steered_s:.2f} s, fenced {fenced_s:.2f} s after the first suspicion; back {back_s:.2f} s later"
    )
    assert steered_s <= 1.5
    assert 9.5 <= fenced_s <= 13
    assert status["epoch"] >= 2
    others = [(await peer.status()) for peer in peers[1:]]
    assert others


async def test_a_blocked_loop_is_steered_around_and_comes_back(rig: SupervisorRig, own_rig: Rig) -> None:
    """LIFE-4: an instance whose loop computes for 4 s gets no calls meanwhile, and is back by itself."""
    peers = await own_rig.agents(3)
    hung = peers[0]
    done = asyncio.Event()
    telling = asyncio.create_task(suspecting(rig, done))
    caller = await rig.connection(Role.CALLER)
    caller.publish(subjects.inst(hung.name, "stress.block"), codec.pack({"key": "block", "seconds": 4.0}))
    await waited_for(rig, hung, {"steered"}, within_s=10)
    await waited_for(rig, hung, {"warmup", ""}, within_s=20)
    done.set()
    await telling


@pytest.mark.alone
async def test_when_all_hang_nobody_is_thrown_out(rig: SupervisorRig, own_rig: Rig) -> None:
    """Cases 8 and 28: with most of a lane silent it is the judgement that is ill; that is told, and health ignored."""
    peers = await own_rig.agents(3)
    operator = await rig.connection(Role.OPERATOR)
    alerts: list[Delivery] = []
    operator.subscribe("reach.alert.panic", alerts.append)
    await operator.flush()
    done = asyncio.Event()
    for peer in peers:
        peer.freeze()
    telling = asyncio.create_task(suspecting(rig, done))
    async with asyncio.timeout(20):
        while not alerts:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    entry = await rig.entry(CAPABILITY)
    assert entry is not None
    assert 3 == entry.lanes[0].instances
    for peer in peers:
        peer.thaw()
    done.set()
    await telling


@pytest.mark.alone
async def test_a_suspicion_of_a_healthy_lane_changes_nothing(rig: SupervisorRig, own_rig: Rig) -> None:
    """A slow call is no crime: who answers the ping keeps its share."""
    await own_rig.agents(2)
    before = await rig.entry(CAPABILITY)
    done = asyncio.Event()
    telling = asyncio.create_task(suspecting(rig, done))
    await asyncio.sleep(2)
    done.set()
    await telling
    after = await rig.entry(CAPABILITY)
    assert before is not None
    assert after is not None
    assert [lane.exceptions for lane in before.lanes] == [lane.exceptions for lane in after.lanes]


async def test_a_caller_cannot_make_the_platform_give_orders(rig: SupervisorRig, own_rig: Rig) -> None:
    """A request whose reply subject is a control subject is served and not answered there."""
    (peer,) = await own_rig.agents(1)
    caller = await rig.connection(Role.CALLER)
    ask = {"client": "me", "provider": "stress", "capability": CAPABILITY, "expires_at": 1}
    caller.publish(
        subjects.permit("stress", CAPABILITY), codec.pack(ask), reply=subjects.ctl(peer.name, "membership")
    )
    await caller.flush()
    with pytest.raises(ReachError):
        await caller.request(subjects.ctl(peer.name, "membership"), codec.pack({}), timeout_s=0.3)
    assert (await peer.status())["inflight"] == 0
