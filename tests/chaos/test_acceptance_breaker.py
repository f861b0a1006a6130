"""One provider of two fails: open for every caller in seconds, five probes for all of them, closed when it is well.

Agents and callers are programs of their own; what was let through is counted by the agent.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from reach.wire.registration import RouteVerb
from tests.chaos.acceptance_rig import Call, Seen, callers, ended, ends, percentile, served, until_s
from tests.chaos.steering_rig import CAPABILITY
from tests.chaos.stress_rig import Peer
from tests.chaos.supervisor_rig import SupervisorRig, opened, tell

CALLERS = 3
LANES = 2
PER_LANE_S = 100.0
EXPOSURE_S = 6.0
SHARE = 0.6
PROBES = 5
CONCURRENT = (17, 17, 16)
"""Fifty callers over three processes."""


@pytest.fixture
async def rig(own_system: Any, tmp_path: Path) -> AsyncIterator[SupervisorRig]:
    """A platform of its own on a server of its own."""
    async with opened(own_system, tmp_path, led=True) as rig:
        yield rig


async def state_in_table(rig: SupervisorRig, provider: str) -> tuple[str, int]:
    """What the table says of a lane's breaker: its state, and how often it opened in a row."""
    entry = await rig.entry(CAPABILITY)
    assert entry is not None
    breaker = next(lane.breaker for lane in entry.lanes if lane.provider == provider)
    return breaker.state, breaker.opened_in_a_row


async def becomes(rig: SupervisorRig, provider: str, state: str, *, within_s: float) -> float:
    """Wait until the table says so; when that was (monotonic s)."""
    async with asyncio.timeout(within_s):
        while (await state_in_table(rig, provider))[0] != state:  # noqa: ASYNC110 - a bucket
            await asyncio.sleep(0.005)
    return monotonic()


def failures(seen: list[Seen], since: float, until: float) -> tuple[list[Call], list[Call]]:
    """The calls that began between two moments, and those of them that failed."""
    calls = [call for one in seen for call in one.calls if since <= call.at < until]
    return calls, [call for call in calls if not call.ok]


async def fails_under_load(rig: SupervisorRig, capability: str, *, after_s: float) -> None:
    """Let 60 % of one of two providers' calls fail, at 100 calls a second a lane; measure who sees what."""
    bad, _ = await served(rig, "bad", "spare")
    three = await callers(rig, CALLERS)
    for one in three:
        await one.ask("steady", capability=capability, per_s=PER_LANE_S * LANES / CALLERS)
    await asyncio.sleep(2.0)
    await bad.ask("take")
    began = (await bad.ask("fail", share=SHARE))["at"]
    await until_s(began + EXPOSURE_S + after_s)
    seen = await ended(*three)
    open_at = [lane_open(one, capability, began) for one in seen]
    exposed = [
        began_at for began_at, _, _ in (await bad.ask("take"))["done"] if began <= began_at < max(open_at)
    ]
    until_open = failures(seen, began, max(open_at))
    afterwards = failures(seen, max(open_at), monotonic())
    tell(
        f"{capability}: open at each caller {', '.join(f'{at - began:.2f} s' for at in open_at)} after the injection; "
        f"until then {len(exposed)} calls to it and {len(until_open[1])} failures of {len(until_open[0])} calls; "
        f"afterwards {len(afterwards[1])} of {len(afterwards[0])} "
        f"({100 * len(afterwards[1]) / len(afterwards[0]):.2f} %): {ends(afterwards[1])}"
    )
    assert max(open_at) - began <= EXPOSURE_S
    assert len(until_open[1]) <= len(exposed) <= PER_LANE_S * EXPOSURE_S
    assert len(afterwards[1]) <= 0.01 * len(afterwards[0])


def lane_open(seen: Seen, capability: str, since: float) -> float:
    """When a caller went to the bad lane for the last time before its breaker opened, or its breaker opened."""
    if capability == CAPABILITY:
        at = seen.became("bad", "open", "forced_open", since=since)
        assert at is not None, "its breaker never opened"
        return at
    calls = [call.at for call in seen.calls if call.by == "bad" and call.at < since + EXPOSURE_S + 1]
    return max(calls)


@pytest.mark.chaos_long
@pytest.mark.parametrize("capability", [CAPABILITY, "job.post"])
async def test_a_provider_that_fails_is_open_for_everybody(rig: SupervisorRig, capability: str) -> None:
    """BREAK-4: 60 % failures: open at each of three callers ≤ 6 s; failures ≤ the exposure, then ≤ 1 % for 25 s."""
    await fails_under_load(rig, capability, after_s=19.0)


class Rounds:
    """What the agent counted of one half-open round: the calls that it began until the fifth of them had ended."""

    def __init__(self, done: list[list[Any]]) -> None:
        self.done = sorted(done, key=lambda one: one[1])

    @property
    def probes(self) -> list[list[Any]]:
        """The calls that can only have been probes: the breaker closes on the fifth outcome."""
        if len(self.done) < PROBES:
            return self.done
        fifth = self.done[PROBES - 1][1]
        return [one for one in self.done if one[0] < fifth]


@pytest.mark.chaos_long
@pytest.mark.timeout(180)
async def test_half_open_lets_exactly_five_through(rig: SupervisorRig) -> None:
    """BREAK-3, case 17: 50 concurrent callers in 3 processes: 5 probes at most while it is ill, 5 when it is well."""
    bad, _ = await served(rig, "bad", "spare", WORK_S="0.1")
    three = await callers(rig, CALLERS)
    for one, workers in zip(three, CONCURRENT, strict=True):
        await one.ask("wide", capability=CAPABILITY, workers=workers)
    await asyncio.sleep(3.0)
    await bad.ask("fail", share=1.0)
    opened_at = await becomes(rig, "bad", "open", within_s=10)
    await asyncio.sleep(1.0)  # What was under way.
    await bad.ask("take")
    half_open_at = await becomes(rig, "bad", "half_open", within_s=15)
    again_at = await becomes(rig, "bad", "open", within_s=5)
    await asyncio.sleep(0.5)
    ill = (await bad.ask("take"))["done"]
    await bad.ask("fail", share=0.0)
    second_at = await becomes(rig, "bad", "half_open", within_s=30)
    closed_at = await becomes(rig, "bad", "closed", within_s=10)
    await asyncio.sleep(1.0)
    took = await bad.ask("take")
    well = Rounds(took["done"])
    seen = await ended(*three)
    closed = [one.became("bad", "closed", since=second_at - 1) for one in seen]
    back = [one for one in took["done"] if one not in well.probes]
    tell(
        f"half open {half_open_at - opened_at:.1f} s after it opened: {len(ill)} probes, all failed, open again "
        f"{(again_at - half_open_at) * 1000:.0f} ms later; the second time {second_at - again_at:.1f} s later: "
        f"{len(well.probes)} probes; closed after {(closed_at - second_at) * 1000:.0f} ms, at the callers "
        f"{', '.join('never' if at is None else f'{(at - closed_at) * 1000:+.0f} ms' for at in closed)}; "
        f"{len(back)} calls in the second after that"
    )
    late = [call for one in seen for call in one.calls if not call.ok and call.at > opened_at + 1]
    tell(f"{len(late)} failures after it opened, by {len(ill)} failed probes")
    assert len(ill) <= PROBES
    assert PROBES == len(well.probes)
    assert all(at is not None and at - closed_at <= 1.0 for at in closed)
    assert len(back) > CONCURRENT[0]
    assert len(late) <= len(ill)


# -- switching providers ------------------------------------------------------------------------------------


class Switch:
    """Two providers under load, and what can happen to one of them."""

    def __init__(self, rig: SupervisorRig, peers: list[Peer]) -> None:
        self._rig = rig
        self.one, self.other = peers

    async def dies(self) -> None:
        """End without a word; later another one starts."""
        self.one.kill()

    async def dies_back(self) -> None:
        """Start another one in its place."""
        (self.one,) = await served(self._rig, "one")

    async def dies_with_a_weight(self) -> None:
        """The same where the lanes' weights differ, so that callers of ours choose the lane themselves."""
        self.one.kill()

    dies_with_a_weight_back = dies_back

    async def restarts(self) -> None:
        """End in order, and start at once."""
        self.one.terminate()
        await self.one.ended()
        (self.one,) = await served(self._rig, "one")

    async def restarts_back(self) -> None:
        """Let the other one do the same."""
        self.other.terminate()
        await self.other.ended()
        (self.other,) = await served(self._rig, "other")

    async def closed_by_an_operator(self) -> None:
        """Take it out."""
        await self._rig.command(RouteVerb.OPEN, capability=CAPABILITY, provider="one")

    async def closed_by_an_operator_back(self) -> None:
        """Let it back in."""
        await self._rig.command(RouteVerb.CLOSE, capability=CAPABILITY, provider="one")

    async def fails(self) -> None:
        """Answer every call with a failure that another provider can mend (as 503)."""
        await self.one.ask("fail", share=1.0, retryable=True)

    async def fails_partly(self) -> None:
        """Answer most calls so."""
        await self.one.ask("fail", share=SHARE, retryable=True)

    async def fails_back(self) -> None:
        """Be well again."""
        await self.one.ask("fail", share=0.0)

    fails_partly_back = fails_back


SWITCHES = ["dies", "dies_with_a_weight", "restarts", "closed_by_an_operator", "fails", "fails_partly"]


async def switched(
    rig: SupervisorRig, how: str, *, calls: int, per_s: float
) -> tuple[list[Call], list[Call]]:
    """Make so many idempotent calls over two providers while one is switched away from, and back to."""
    switch = Switch(rig, await served(rig, "one", "other"))
    if how == "dies_with_a_weight":
        await rig.command(RouteVerb.SET, capability=CAPABILITY, weights={"other": 0.8})
    three = await callers(rig, CALLERS)
    began = monotonic()
    for peer in three:
        await peer.ask("steady", capability=CAPABILITY, per_s=per_s / CALLERS)
    length_s = calls / per_s
    await until_s(began + length_s / 4)
    await getattr(switch, how)()
    await until_s(began + length_s * 5 / 8)
    await getattr(switch, f"{how}_back")()
    await until_s(began + length_s + 0.2)
    made = [call for seen in await ended(*three) for call in seen.calls]
    failed = [call for call in made if not call.ok]
    repeated = sum(call.attempt > 1 for call in made)
    tell(
        f"{how}: {len(failed)} of {len(made)} calls failed ({100 * len(failed) / len(made):.3f} %): {ends(failed)}; "
        f"{repeated} made again; P99 {percentile((call.ms for call in made), 0.99):.0f} ms, slowest "
        f"{max(call.ms for call in made):.0f} ms; failed at "
        f"{[round(call.at - began, 2) for call in failed[:10]]}"
    )
    return made, failed


@pytest.mark.parametrize("how", ["dies", "dies_with_a_weight", "closed_by_an_operator"])
async def test_a_switch_in_short_is_not_seen(rig: SupervisorRig, how: str) -> None:
    """Reads over two providers, one of which goes: no error in 1 500 calls."""
    _, failed = await switched(rig, how, calls=1500, per_s=300)
    assert [] == failed


@pytest.mark.chaos_long
@pytest.mark.parametrize("how", SWITCHES)
async def test_a_switch_of_providers_is_hardly_seen(rig: SupervisorRig, how: str) -> None:
    """Idempotent reads over two providers: one goes and comes back within 20 000 calls: at most 0.04 % fail."""
    made, failed = await switched(rig, how, calls=20_000, per_s=720)
    assert len(made) >= 20_000
    assert len(failed) <= 0.0004 * len(made)
