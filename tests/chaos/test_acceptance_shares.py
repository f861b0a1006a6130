"""Shares over ten thousand calls, through ours and through a bare NATS client; and keys that stay where they are.

The callers are programs of their own; the bare one knows NATS and nothing else.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from reach.wire.registration import RouteVerb
from tests.chaos.acceptance_rig import Call, callers, ends, plain_caller, served, shares_of, taken
from tests.chaos.steering_rig import CAPABILITY
from tests.chaos.stress_rig import Peer
from tests.chaos.supervisor_rig import SupervisorRig, opened, tell

CALLS = 10_000
WORKERS = 25
KEYS = 1500


@pytest.fixture
async def rig(own_system: Any, tmp_path: Path) -> AsyncIterator[SupervisorRig]:
    """A platform of its own on a server of its own."""
    async with opened(own_system, tmp_path, led=True) as rig:
        yield rig


async def ten_thousand(rig: SupervisorRig) -> tuple[list[Call], list[Call]]:
    """Make that many calls through ours, then as many as a bare client."""
    (ours,), plain = await callers(rig), await plain_caller(rig)
    await asyncio.sleep(0.5)
    made = []
    for peer in (ours, plain):
        await taken(peer)
        await peer.ask("number", capability=CAPABILITY, calls=CALLS, workers=WORKERS)
        made.append((await taken(peer)).calls)
    assert [CALLS, CALLS] == [len(calls) for calls in made]
    assert [{"ok": CALLS}] * 2 == [ends(calls) for calls in made]
    return made[0], made[1]


@pytest.mark.chaos_long
async def test_shares_are_the_weights(rig: SupervisorRig) -> None:
    """ROUTE-2: three lanes at 5 : 3 : 2: within 1.5 points through ours, within 3 through a bare client."""
    await served(rig, "a", "b", "c")
    await rig.command(RouteVerb.SET, capability=CAPABILITY, weights={"b": 0.6, "c": 0.4})
    ours, plain = (shares_of(call.by for call in calls) for calls in await ten_thousand(rig))
    wanted = {"a": 50.0, "b": 30.0, "c": 20.0}
    tell(f"5 : 3 : 2, {CALLS} calls each: ours {ours}, plain {plain}")
    assert all(abs(ours[name] - share) <= 1.5 for name, share in wanted.items())
    assert all(abs(plain[name] - share) <= 3 for name, share in wanted.items())


@pytest.mark.chaos_long
async def test_a_canary_gets_its_five_percent(rig: SupervisorRig) -> None:
    """ROUTE-6: a version at 5 %: ± 1 through ours, and ± 1 through a bare client too."""
    await served(rig, "best", "best")
    (new,) = await served(rig, "best", VERSION="2.0.0")
    canary = {"version": "2.0.0", "percent": 5.0}
    await rig.command(RouteVerb.CANARY, capability=CAPABILITY, canary=canary)
    ours, plain = (shares_of(call.instance for call in calls) for calls in await ten_thousand(rig))
    tell(f"a canary at 5 %, {CALLS} calls each: ours {ours[new.name]:.2f} %, plain {plain[new.name]:.2f} %")
    assert abs(ours[new.name] - 5) <= 1
    assert abs(plain[new.name] - 5) <= 1


async def owners(caller: Peer) -> dict[str, str | None]:
    """Which instance each key goes to."""
    await taken(caller)
    await caller.ask(
        "keys", capability=CAPABILITY, keys=[f"k{number}" for number in range(KEYS)], workers=WORKERS
    )
    calls = (await taken(caller)).calls
    assert {"ok": KEYS} == ends(calls)
    return {call.key: call.instance for call in calls}


async def lose_one(
    rig: SupervisorRig, peers: list[Peer], lost: Peer
) -> tuple[dict[str, str | None], list[str]]:
    """Kill one of the instances; gives who had each key before, and the keys that went to another one then."""
    strategy = {"name": "consistent_hash", "key": "key"}
    await rig.command(RouteVerb.SET, capability=CAPABILITY, strategy=strategy)
    first, second = await callers(rig, 2)
    await asyncio.sleep(0.5)
    before, elsewhere = await owners(first), await owners(second)
    assert before == elsewhere
    lost.kill()
    async with asyncio.timeout(5):
        while (row := (await rig.rows()).get(lost.name)) is not None and row.state != "unavailable":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    after = await owners(first)
    assert lost.name not in after.values()
    moved = [key for key in before if before[key] != after[key]]
    count = len(peers)
    tell(
        f"{len(moved)} of {KEYS} keys moved when 1 of {count} instances was lost: {len(moved) / KEYS * count:.2f}/n; "
        f"percent of the keys before {[round(part, 1) for part in shares_of(before.values()).values()]}, after "
        f"{[round(part, 1) for part in shares_of(after.values()).values()]}"
    )
    return before, moved


async def test_a_lost_instance_moves_its_keys_alone(rig: SupervisorRig) -> None:
    """ROUTE-5: consistent_hash over five instances, one killed: ≤ 1.3/5 of 1 500 keys move, its own and no others."""
    peers = await served(rig, *["best"] * 5)
    before, moved = await lose_one(rig, peers, peers[1])
    assert {peers[1].name} == {before[key] for key in moved}
    assert len(moved) <= 1.3 / len(peers) * KEYS


@pytest.mark.chaos_long
async def test_a_lost_instance_of_one_lane_of_two_moves_few_keys(rig: SupervisorRig) -> None:
    """ROUTE-5: the same over two lanes, which keep their weights: its own keys move, ≤ 1.3/5 of all, and no others."""
    peers = await served(rig, "best", "best", "best", "other", "other")
    await rig.command(RouteVerb.SET, capability=CAPABILITY, weights={"other": 2 / 3})
    before, moved = await lose_one(rig, peers, peers[1])
    assert {peers[1].name} == {before[key] for key in moved}
    assert len(moved) <= 1.3 / len(peers) * KEYS
