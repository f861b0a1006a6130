"""Breakers and tiers through the table, seen by callers in processes of their own; and calls without a supervisor."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import reach
from reach.faults import Reason
from reach.wire.registration import RouteVerb
from tests.chaos.steering_rig import (
    CAPABILITY,
    CallerProgram,
    caller_program,
    connected,
    counted,
    spread,
    told,
)
from tests.chaos.supervisor_rig import SupervisorRig, agent, tell


@pytest.fixture
async def rig(own_system: Any, tmp_path: Path) -> AsyncIterator[SupervisorRig]:
    """A server with its buckets, and nobody on it yet."""
    await asyncio.to_thread(own_system.provision)
    rig = SupervisorRig(own_system, tmp_path)
    try:
        yield rig
    finally:
        await rig.close()


class Failing:
    """An agent whose share of failures can be set while it runs."""

    def __init__(self, name: str, *, seed: int = 1, **options: Any) -> None:
        self.share = 0.0
        self.calls = 0
        self.agent = reach.Agent(name)
        self._at = seed / 7

        @self.agent.capability(CAPABILITY, idempotent=True, **options)
        async def do(params: dict) -> dict:  # type: ignore[type-arg]
            self.calls += 1
            self._at = (self._at + 0.6180339887) % 1.0  # Evenly: a share of n % is that within a few calls.
            if self._at < self.share:
                raise reach.UpstreamFailure(reason=Reason.REMOTE_5XX)
            return {"by": name}


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


async def test_what_an_operator_opens_is_open_for_every_caller_within_a_second(rig: SupervisorRig) -> None:
    """BREAK-4: force-open reaches three caller processes in ≤ 1 s; no call goes there; close lets them back."""
    async with rig.supervisor():
        bad, spare = Failing("bad"), Failing("spare")
        for one in (bad, spare):
            await rig.serve(one.agent)
        callers = [await caller_program(rig, per_s=40) for _ in range(3)]
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


async def test_one_provider_of_two_that_fails_is_open_for_everybody(rig: SupervisorRig) -> None:
    """BREAK-4, case 29: 60 % failures at 100 calls/s: open for each of three callers ≤ 6 s; then ≤ 1 % failures."""
    async with rig.supervisor():
        bad, spare = Failing("bad"), Failing("spare")
        for one in (bad, spare):
            await rig.serve(one.agent)
        callers = [await caller_program(rig, per_s=66) for _ in range(3)]
        await asyncio.sleep(1.0)
        began, before = monotonic(), bad.calls
        bad.share = 0.6
        took = [at - began for at in await opened_everywhere(callers, "bad", within_s=10)]
        exposed = bad.calls - before
        await asyncio.sleep(5.0)
        lines = [line for caller in callers for line in await caller.end() if "ok" in line]
        after = [line for line in lines if line["at"] - began > max(took) + 0.5]
        failed = [line for line in after if not line["ok"]]
        tell(
            f"open for all after {max(took):.1f} s and {exposed} calls to it; afterwards {len(failed)} of "
            f"{len(after)} calls failed"
        )
        assert max(took) <= 6.0
        assert len(failed) <= 0.01 * len(after)


async def breaker_states(
    rig: SupervisorRig, provider: str, *wanted: str, within_s: float
) -> dict[str, float]:
    """Wait until the table has said these of a lane's breaker, one after the other; when each was (monotonic s)."""
    seen: dict[str, float] = {}
    async with asyncio.timeout(within_s):
        for state in wanted:
            while state not in seen:
                entry = await rig.entry(CAPABILITY)
                assert entry is not None
                if state == next(lane.breaker.state for lane in entry.lanes if lane.provider == provider):
                    seen[state] = monotonic()
                await asyncio.sleep(0.002)
    return seen


async def test_a_lane_comes_back_by_five_probes_of_all_callers_together(rig: SupervisorRig) -> None:
    """BREAK-3, case 17: opened by everybody's failures; half open five calls in all are let through; then it closes."""
    async with rig.supervisor():
        bad, spare = Failing("bad"), Failing("spare")
        for one in (bad, spare):
            await rig.serve(one.agent)
        callers = [await caller_program(rig, per_s=66) for _ in range(3)]
        bad.share = 1.0
        opened = await breaker_states(rig, "bad", "open", within_s=5)
        bad.share = 0.0
        await asyncio.sleep(1.0)  # What was under way.
        before = bad.calls
        states = await breaker_states(rig, "bad", "half_open", "closed", within_s=20)
        probes = bad.calls - before
        await asyncio.sleep(1.0)
        back = bad.calls - before - probes
        for caller in callers:
            await caller.end()
        tell(
            f"half open {states['half_open'] - opened['open']:.1f} s after it opened; {probes} calls until it closed "
            f"{(states['closed'] - states['half_open']) * 1000:.0f} ms later; {back} calls in the second after that"
        )
        # The five, and what was let in between the write of the table and our reading of it.
        assert 5 <= probes <= 12
        assert back > 20


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
    await asyncio.sleep(1.6)
    shares = counted(after, lambda reply: reply.provider)
    age_s = bus.metrics.table_age.value()
    tell(f"after the kill: shares {shares}, age of the table {age_s:.1f} s")
    assert Counter({True: 5000}) == Counter(reply.ok for reply in (*during, *after))
    assert abs(shares["b"] - 20) <= 1.5
    assert age_s > 1.0
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
