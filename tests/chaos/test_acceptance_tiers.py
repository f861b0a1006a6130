"""The best tier fails, dies, leaves or is taken out: who calls lands on the second, and nobody finds nobody.

A bare NATS client in a process of its own asks a thousand times a second all the while.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from reach.wire.registration import RouteVerb
from tests.chaos.acceptance_rig import (
    Call,
    Seen,
    callers,
    ended,
    ends,
    plain_caller,
    served,
    shares_of,
    taken,
)
from tests.chaos.steering_rig import CAPABILITY
from tests.chaos.stress_rig import Peer
from tests.chaos.supervisor_rig import SupervisorRig, opened, tell

SAMPLES_S = 1000.0
SLOWLY_S = 200.0
"""Where shares are looked at for minutes: a thousand a second keep two cores busy."""

OURS_S = 100.0


@pytest.fixture
async def rig(own_system: Any, tmp_path: Path) -> AsyncIterator[SupervisorRig]:
    """A platform of its own on a server of its own."""
    async with opened(own_system, tmp_path, led=True) as rig:
        yield rig


class Tiers:
    """An agent of the best tier and one of the second, a caller of ours, and a bare client that samples."""

    def __init__(self, rig: SupervisorRig) -> None:
        self.rig = rig
        self.best: Peer
        self.spare: Peer
        self.ours: Peer
        self.plain: Peer

    async def open(self) -> None:
        """Start all of them, and call."""
        (self.best,) = await served(self.rig, "best")
        (self.spare,) = await served(self.rig, "spare", PRIORITY="20")
        (self.ours,) = await callers(self.rig)
        self.plain = await plain_caller(self.rig)
        await self.ours.ask("steady", capability=CAPABILITY, per_s=OURS_S)
        await self.plain.ask("steady", capability=CAPABILITY, per_s=SAMPLES_S)
        await asyncio.sleep(1.0)

    async def sample(self, per_s: float) -> None:
        """Sample at another rate from now on."""
        await self.plain.ask("stop")
        await self.plain.ask("steady", capability=CAPABILITY, per_s=per_s)

    async def seen(self) -> tuple[Seen, Seen]:
        """What our caller and the bare client saw since the last time."""
        return await taken(self.ours), await taken(self.plain)

    async def tiers(self, *wanted: int, within_s: float = 5.0) -> float:
        """Wait until these tiers are in use; when that was (monotonic s)."""
        async with asyncio.timeout(within_s):
            while True:
                entry = await self.rig.entry(CAPABILITY)
                assert entry is not None
                if list(wanted) == [tier.priority for tier in entry.tiers]:
                    return monotonic()
                await asyncio.sleep(0.005)

    async def end(self) -> tuple[Seen, Seen]:
        """Call no more."""
        ours, plain = await ended(self.ours, self.plain)
        return ours, plain


def nobody(calls: list[Call]) -> list[Call]:
    """The samples that found nobody, or were left without an answer."""
    return [call for call in calls if call.end in {"NOBODY", "SILENCE"}]


def rate_of(calls: list[Call]) -> float:
    """How many samples a second were really taken."""
    return len(calls) / (max(call.at for call in calls) - min(call.at for call in calls))


def longest_s(calls: list[Call]) -> float:
    """How long nobody was found at a stretch."""
    longest = begun = 0.0
    for call in sorted(calls, key=lambda one: one.at):
        if call.end == "ok":
            begun = 0.0
        else:
            begun = begun or call.at
            longest = max(longest, call.at - begun)
    return longest


async def test_promotion_comes_before_withdrawal(rig: SupervisorRig) -> None:
    """ROUTE-1: taken out and let back five times: at 1 kHz no sample finds nobody; shares and flags are right."""
    tiers = Tiers(rig)
    await tiers.open()
    for _ in range(5):
        await rig.command(RouteVerb.OPEN, capability=CAPABILITY, provider="best")
        await tiers.tiers(20)
        await asyncio.sleep(0.2)
        await rig.command(RouteVerb.CLOSE, capability=CAPABILITY, provider="best")
        await tiers.tiers(10, 20)
        await asyncio.sleep(0.2)
    ours, plain = await tiers.end()
    tell(
        f"{len(plain.calls)} samples at {rate_of(plain.calls):.0f}/s: {ends(plain.calls)} by "
        f"{shares_of(call.by for call in plain.calls)}; ours {ends(ours.calls)}"
    )
    assert [] == nobody(plain.calls)
    assert {"ok"} == set(ends(plain.calls)) == set(ends(ours.calls))
    assert rate_of(plain.calls) > 0.8 * SAMPLES_S
    assert {"best": {0}, "spare": {1}} == {
        name: {call.level for call in ours.calls if call.by == name} for name in ("best", "spare")
    }


@pytest.mark.chaos_long
@pytest.mark.timeout(300)
async def test_a_tier_that_fails_falls_and_returns_gradually(rig: SupervisorRig) -> None:
    """ROUTE-1: all calls fail: all land on the second, flagged; well again a fifth returns, then half, then all."""
    tiers = Tiers(rig)
    await tiers.open()
    await tiers.seen()
    began = (await tiers.best.ask("fail", share=1.0))["at"]
    fell_at = await tiers.tiers(20, within_s=6)
    falling = await tiers.seen()
    await tiers.sample(SLOWLY_S)
    await tiers.best.ask("fail", share=0.0)
    await asyncio.sleep(3.0)
    fallen = await tiers.seen()
    # Nobody knows that it is well until a probe has found that out: ten seconds after it opened at the earliest.
    back_at = await tiers.tiers(10, 20, within_s=20)
    waiting = await tiers.seen()
    await asyncio.sleep(1.0)
    await tiers.seen()
    await asyncio.sleep(20.0)
    fifth = await tiers.seen()
    await asyncio.sleep(max(0.0, back_at + 62 - monotonic()))
    await tiers.seen()
    await asyncio.sleep(20.0)
    half = await tiers.seen()
    await asyncio.sleep(max(0.0, back_at + 122 - monotonic()))
    await tiers.seen()
    await asyncio.sleep(5.0)
    entry, status = await rig.entry(CAPABILITY), await tiers.ours.ask("status")
    whole = await tiers.end()
    tell(
        f"fallen {fell_at - began:.2f} s after the first failure; meanwhile ours {ends(falling[0].calls)}, plain "
        f"{ends(falling[1].calls)}; back {back_at - fell_at:.1f} s later"
    )
    assert entry is not None
    told = [(lane.provider, lane.breaker.state, lane.breaker.why) for lane in entry.lanes]
    tell(
        f"in the end the table says {[(t.priority, t.share) for t in entry.tiers]} {told}, our caller {status}"
    )
    parts = {"fallen": fallen, "waiting": waiting, "a fifth": fifth, "half": half, "whole": whole}
    for name, seen in parts.items():
        tell(
            f"{name}: ours {shares_of((c.by, c.level) for c in seen[0].calls)}, plain "
            f"{shares_of(c.by for c in seen[1].calls)}; ends {ends(seen[0].calls)} {ends(seen[1].calls)}"
        )
    for name in ("fallen", "a fifth", "half", "whole"):
        assert [{"ok"}] * 2 == [set(ends(one.calls)) for one in parts[name]], name
    assert [] == [call for seen in (falling, *parts.values()) for call in nobody(seen[1].calls)]
    for name, wanted in (("fallen", 0.0), ("a fifth", 20.0), ("half", 50.0), ("whole", 100.0)):
        ours, plain = (shares_of(call.by for call in seen.calls).get("best", 0.0) for seen in parts[name])
        assert abs(ours - wanted) <= 3, name
        assert abs(plain - wanted) <= 3, name
    assert {("best", 0), ("spare", 1)} == {
        (call.by, call.level) for seen in parts.values() for call in seen[0].calls
    }


async def test_a_tier_that_leaves_in_order_is_missed_by_nobody(rig: SupervisorRig) -> None:
    """LIFE-7, ROUTE-1: SIGTERM to the only instance of the best tier: at 1 kHz no sample finds nobody."""
    tiers = Tiers(rig)
    await tiers.open()
    tiers.best.terminate()
    await tiers.best.ended()
    await tiers.tiers(20)
    await asyncio.sleep(0.3)
    ours, plain = await tiers.end()
    tell(
        f"{len(plain.calls)} samples at {rate_of(plain.calls):.0f}/s: {ends(plain.calls)}; ours {ends(ours.calls)}"
    )
    assert {"ok"} == set(ends(plain.calls)) == set(ends(ours.calls))
    assert {("best", 0), ("spare", 1)} == {(call.by, call.level) for call in ours.calls}


async def test_a_tier_that_dies_is_replaced_within_a_second(rig: SupervisorRig) -> None:
    """LIFE-4, ROUTE-1: kill -9 of the only instance of the best tier: all calls are the second's in < 1 s."""
    tiers = Tiers(rig)
    await tiers.open()
    killed_at = tiers.best.kill()
    fell_at = await tiers.tiers(20)
    await asyncio.sleep(0.5)
    ours, plain = await tiers.end()
    tell(
        f"fallen {fell_at - killed_at:.2f} s after the kill; {len(plain.calls)} samples: {ends(plain.calls)}, nobody "
        f"for {longest_s(plain.calls) * 1000:.0f} ms; ours {ends(ours.calls)}, "
        f"{shares_of((call.by, call.level) for call in ours.calls)}"
    )
    assert longest_s(plain.calls) < 1.0
    assert {"ok"} == set(ends(ours.calls))
    assert {("best", 0), ("spare", 1)} == {(call.by, call.level) for call in ours.calls}


async def test_without_a_supervisor_callers_of_ours_fall_by_themselves(
    own_system: Any, tmp_path: Path
) -> None:
    """ROUTE-1: nobody leads, and nothing was ever written: kill -9 of the best tier, and ours go to who stands by."""
    await asyncio.to_thread(own_system.provision)
    rig = SupervisorRig(own_system, tmp_path)
    try:
        (best,) = await served(rig, "best")
        (spare,) = await served(rig, "spare", PRIORITY="20")
        assert {"job.do": 0, "job.post": 0} == (await spare.ask("status"))["tickets"]
        (ours,) = await callers(rig)
        await ours.ask("steady", capability="job.post", per_s=OURS_S)
        await asyncio.sleep(0.5)
        at = best.kill()
        await asyncio.sleep(1.0)
        (seen,) = await ended(ours)
        after = [call for call in seen.calls if call.at > at + 0.02]
        tell(f"{ends(seen.calls)}; after the kill {shares_of((call.by, call.level) for call in after)}")
        assert {"ok"} == set(ends(after))
        assert {("spare", 1)} == {(call.by, call.level) for call in after}
    finally:
        await rig.close()
