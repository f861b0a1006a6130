"""Breakers and tiers through the table, seen by callers in processes of their own; and calls without a supervisor."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic, time
from typing import Any

import pytest

import reach
from reach.bus.framing import Delivery
from reach.bus.keys import Role
from reach.faults import Reason
from reach.wire import codec
from reach.wire.registration import ROUTES, RouteVerb, read_message, route_key
from reach.wire.route import RouteEntry
from tests.chaos.steering_rig import (
    CAPABILITY,
    CallerProgram,
    caller_program,
    connected,
    counted,
    spread,
    told,
)
from tests.chaos.supervisor_rig import SupervisorRig, agent, opened, tell


@pytest.fixture
async def rig(own_system: Any, tmp_path: Path) -> AsyncIterator[SupervisorRig]:
    """A server with its buckets, and nobody on it yet."""
    async with opened(own_system, tmp_path) as rig:
        yield rig


class Failing:
    """An agent whose share of failures can be set while it runs, and that notes when calls began (epoch s)."""

    def __init__(self, name: str, *, seed: int = 1, **options: Any) -> None:
        self.share = 0.0
        self.begun: list[float] = []
        self.agent = reach.Agent(name)
        self._at = seed / 7

        @self.agent.capability(CAPABILITY, idempotent=True, **options)
        async def do(params: dict) -> dict:  # type: ignore[type-arg]
            self.begun.append(time())
            self._at = (self._at + 0.6180339887) % 1.0  # Evenly: a share of n % is that within a few calls.
            if self._at < self.share:
                raise reach.UpstreamFailure(reason=Reason.REMOTE_5XX)
            return {"by": name}

    @property
    def calls(self) -> int:
        return len(self.begun)


async def three_callers(rig: SupervisorRig, *, per_s: float) -> list[CallerProgram]:
    return await asyncio.gather(*(caller_program(rig, per_s=per_s) for _ in range(3)))


async def opened_everywhere(callers: list[CallerProgram], provider: str, *, within_s: float) -> list[float]:
    """Wait until each caller's breaker of a lane is open; when each was (monotonic s)."""
    heard = await asyncio.gather(
        *(
            caller.heard(
                lambda line: line.get("provider") == provider and line["state"] in {"open", "forced_open"},
                within_s=within_s,
            )
            for caller in callers
        )
    )
    return [line["at"] for line in heard]


@pytest.mark.alone
async def test_what_an_operator_opens_is_open_for_every_caller_within_a_second(rig: SupervisorRig) -> None:
    """BREAK-4: force-open reaches three caller processes in ≤ 1 s; no call goes there; close lets them back."""
    async with rig.supervisor():
        bad, spare = Failing("bad"), Failing("spare")
        for one in (bad, spare):
            await rig.serve(one.agent)
        callers = await three_callers(rig, per_s=40)
        await asyncio.sleep(0.5)
        began = monotonic()
        await rig.command(RouteVerb.OPEN, capability=CAPABILITY, provider="bad")
        took = [at - began for at in await opened_everywhere(callers, "bad", within_s=3)]
        await asyncio.sleep(0.2)
        before = bad.calls
        await asyncio.sleep(1.0)
        tell(f"open for all three callers after {', '.join(f'{s * 1000:.0f} ms' for s in took)}")
        assert max(took) <= 1.0
        assert before == bad.calls
        await rig.command(RouteVerb.CLOSE, capability=CAPABILITY, provider="bad")
        async with asyncio.timeout(2):
            while bad.calls == before:  # noqa: ASYNC110 - counted in an agent
                await asyncio.sleep(0.01)
        lines = [line for caller in callers for line in await caller.end() if "ok" in line]
        assert {True} == {line["ok"] for line in lines}


@pytest.mark.alone
async def test_one_provider_of_two_that_fails_is_open_for_everybody(rig: SupervisorRig) -> None:
    """BREAK-4, case 29: 60 % failures at 100 calls/s: open for each of three callers ≤ 6 s; then ≤ 1 % failures."""
    async with rig.supervisor():
        bad, spare = Failing("bad"), Failing("spare")
        for one in (bad, spare):
            await rig.serve(one.agent)
        callers = await three_callers(rig, per_s=66)
        await asyncio.sleep(1.0)
        began, before = monotonic(), bad.calls
        bad.share = 0.6
        took = [at - began for at in await opened_everywhere(callers, "bad", within_s=10)]
        exposed = bad.calls - before
        await asyncio.sleep(3.0)
        lines = [line for caller in callers for line in await caller.end() if "ok" in line]
        after = [line for line in lines if line["at"] - began > max(took) + 0.5]
        failed = [line for line in after if not line["ok"]]
        tell(
            f"open for all after {max(took):.1f} s and {exposed} calls to it; afterwards {len(failed)} of "
            f"{len(after)} calls failed"
        )
        assert max(took) <= 6.0
        assert len(failed) <= 0.01 * len(after)


class Written:
    """What the table says of a lane's breaker, write by write: the state, and when it was written (epoch s)."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._moves: list[tuple[str, float]] = []

    @classmethod
    async def watching(cls, rig: SupervisorRig, provider: str) -> "Written":
        """Learn of every write from now on."""
        written = cls(provider)
        platform = await rig.connection(Role.PLATFORM)
        platform.subscribe(f"$KV.{ROUTES}.{route_key(CAPABILITY)}", written._take)
        await platform.flush()
        return written

    def _take(self, delivery: Delivery) -> None:
        entry = read_message(codec.unpack(delivery.data), RouteEntry)
        state = next(lane.breaker.state for lane in entry.lanes if lane.provider == self._provider)
        self._moves.append((state, entry.at / 1000))

    async def next(self, state: str, *, within_s: float) -> float:
        """Wait for a write with this state, after those that were waited for before; when it was."""
        async with asyncio.timeout(within_s):
            while True:
                while self._moves:
                    found, at = self._moves.pop(0)
                    if found == state:
                        return at
                await asyncio.sleep(0.002)


async def test_a_lane_comes_back_by_five_probes_of_all_callers_together(rig: SupervisorRig) -> None:
    """BREAK-3, case 17: opened by everybody's failures; half open five calls in all are let through; then it closes."""
    async with rig.supervisor():
        bad, spare = Failing("bad"), Failing("spare")
        for one in (bad, spare):
            await rig.serve(one.agent)
        callers = await three_callers(rig, per_s=66)
        written = await Written.watching(rig, "bad")
        bad.share = 1.0
        opened = await written.next("open", within_s=10)
        bad.share = 0.0
        half_open = await written.next("half_open", within_s=30)
        closed = await written.next("closed", within_s=10)
        # What was under way when it opened has long begun; the first probe may begin before "half open" is written.
        probes = sum(opened + 1 <= at <= closed for at in bad.begun)
        async with asyncio.timeout(10):
            while sum(at > closed for at in bad.begun) < 20:  # noqa: ASYNC110 - counted in an agent
                await asyncio.sleep(0.01)
        for caller in callers:
            await caller.end()
        tell(
            f"half open {half_open - opened:.1f} s after it opened; {probes} calls until it closed "
            f"{(closed - half_open) * 1000:.0f} ms later"
        )
        assert 5 == probes


@pytest.mark.alone
async def test_a_tier_falls_and_comes_back(rig: SupervisorRig) -> None:
    """ROUTE-1: the top tier opened → all on the second, `degraded` 1; back gradually; then nothing is degraded."""
    async with rig.supervisor():
        for name, priority in (("best", 10), ("spare", 20)):
            await rig.serve(agent(name, priority=priority))
        bus = await connected(rig)
        at_first = await spread(bus, 200)
        await rig.command(RouteVerb.OPEN, capability=CAPABILITY, provider="best")
        await told(bus, lambda entry: [20] == [tier.priority for tier in entry.tiers])
        fallen = await spread(bus, 500)
        await rig.command(RouteVerb.CLOSE, capability=CAPABILITY, provider="best")
        await told(bus, lambda entry: len(entry.tiers) == 2)
        returning = await spread(bus, 1000)
        saw = [
            counted(replies, lambda reply: (reply.provider, reply.degrade_level, reply.degraded))
            for replies in (at_first, fallen, returning)
        ]
        tell(f"at first {saw[0]}; fallen {saw[1]}; returning {saw[2]}")
        assert {("best", 0, False): 100.0} == saw[0]
        assert {("spare", 1, True): 100.0} == saw[1]
        assert abs(saw[2]["best", 0, False] - 20) <= 2
        assert abs(saw[2]["spare", 1, True] - 80) <= 2


@pytest.mark.alone
async def test_the_last_lane_that_a_breaker_keeps_is_for_core_calls(rig: SupervisorRig) -> None:
    """BREAK-5: with its only lane opened by everybody's failures `normal` is refused at once, `core` may try."""
    async with rig.supervisor():
        only = Failing("only")
        await rig.serve(only.agent)
        other, bus = await connected(rig), await connected(rig)
        only.share = 1.0
        for _ in range(12):
            await other.request(CAPABILITY, {}, retry=False)
        await told(bus, lambda entry: entry.lanes[0].breaker.state == "open")
        only.share = 0.0
        refused = await bus.request(CAPABILITY, {})
        core = await bus.request(CAPABILITY, {}, priority="core")
        assert refused.error is not None
        assert (Reason.BREAKER_OPEN, True) == (refused.error.reason, core.ok)
        assert refused.latency_ms < 100


async def test_calls_go_on_when_the_supervisor_is_gone(rig: SupervisorRig) -> None:
    """LIFE-8, fail-static: killed, the last table holds: weights as before, no call failed; and its age grows."""
    platform = await rig.platform()
    await rig.led()
    for name in ("a", "b"):
        await rig.serve(agent(name))
    bus = await connected(rig)
    await rig.command(RouteVerb.SET, capability=CAPABILITY, weights={"b": 0.25})
    await told(bus, lambda entry: 0.25 in {lane.terms.traffic for lane in entry.lanes})
    running = asyncio.create_task(spread(bus, 3000, width=10))
    await asyncio.sleep(0.2)
    platform.kill()
    during = await running
    await asyncio.sleep(2.5)
    after = await spread(bus, 2000, width=10)
    shares = counted(after, lambda reply: reply.provider)
    async with asyncio.timeout(10):
        while (age_s := bus.metrics.table_age.value()) <= 1.0:  # noqa: ASYNC110 - a figure
            await asyncio.sleep(0.05)
    tell(f"after the kill: shares {shares}, age of the table {age_s:.1f} s")
    assert Counter({True: 5000}) == Counter(reply.ok for reply in (*during, *after))
    assert abs(shares["b"] - 20) <= 1.5
    unknown = await bus.request("job.doo", {})
    assert unknown.error is not None
    assert Reason.NO_RESPONDERS is unknown.error.reason


async def test_a_name_that_nobody_ever_registered_is_refused_with_near_ones(rig: SupervisorRig) -> None:
    """CALL-13: NOT_FOUND with the nearest names where the table is known; who only is away is NO_RESPONDERS."""
    async with rig.supervisor():
        _, end = await rig.serve(agent("best"))
        bus = await connected(rig)
        unknown = await bus.request("job.doo", {})
        await end()
        away = await bus.request(CAPABILITY, {})
        assert unknown.error is not None
        assert away.error is not None
        assert (Reason.NOT_FOUND, "job.do") == (
            unknown.error.reason,
            unknown.error.message.split(": ")[-1].rstrip("."),
        )
        assert Reason.NO_RESPONDERS is away.error.reason
