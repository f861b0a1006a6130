"""Lanes on a real server: digests open breakers for everybody, permits are counted, tiers take over without a gap."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import reach
from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.policy.sketch import Sketch
from reach.wire import codec, subjects
from reach.wire.outcomes import InstanceOutcomes, LaneOutcomes, LatencySketch, Outcomes
from reach.wire.registration import PermitAnswer, PermitAsk, PermitOutcome, RouteVerb, read_answer
from reach.wire.route import Lane
from tests.chaos.supervisor_rig import SupervisorRig, agent, opened, tell


@pytest.fixture
async def rig(own_system: Any, tmp_path: Path) -> AsyncIterator[SupervisorRig]:
    """A server with its buckets, and nobody on it yet."""
    async with opened(own_system, tmp_path) as rig:
        yield rig


class Teller:
    """A caller that tells how its calls ended, as ours do once a second."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._seq = 0

    def tell(self, provider: str, *, ok: int = 0, failed: int = 0, ms: float = 5.0, **fields: Any) -> None:
        """Publish a digest of one lane."""
        self._seq += 1
        sketch = Sketch()
        for _ in range(ok):
            sketch.add(ms)
        lane = LaneOutcomes(
            provider=provider,
            capability="job.do",
            ok=ok,
            failed=failed,
            latency=LatencySketch(**sketch.to_map()),
            **fields,
        )
        told = Outcomes(client="teller", boot=1, seq=self._seq, at=1, span_ms=1000, lanes=(lane,))
        self._connection.publish(subjects.outcomes("teller"), codec.pack(told.model_dump(mode="json")))


async def lane_of(rig: SupervisorRig, provider: str) -> Lane:
    entry = await rig.entry("job.do")
    assert entry is not None
    return next(lane for lane in entry.lanes if lane.provider == provider)


async def breaker_is(rig: SupervisorRig, provider: str, state: str, *, within_s: float) -> float:
    began = time.monotonic()
    async with asyncio.timeout(within_s):
        while (await lane_of(rig, provider)).breaker.state != state:  # noqa: ASYNC110 - a bucket
            await asyncio.sleep(0.01)
    return time.monotonic() - began


async def permit(connection: Connection) -> PermitAnswer:
    ask = PermitAsk(
        client=connection.client_id,
        provider="best",
        capability="job.do",
        expires_at=int(time.time() * 1000) + 5000,
    )
    data = codec.pack(ask.model_dump())
    return read_answer(
        await connection.request(subjects.permit("best", "job.do"), data, timeout_s=5), PermitAnswer
    )


@pytest.mark.alone
async def test_what_callers_saw_opens_a_breaker_for_everybody(rig: SupervisorRig) -> None:
    """BREAK-4, case 29: digests that tell of 60 % failures open the lane in the table within a second of the third."""
    async with rig.supervisor():
        best, _ = await rig.serve(agent("best"))
        spare, _ = await rig.serve(agent("spare", priority=20))
        teller = Teller(await rig.connection(Role.CALLER))
        for _ in range(2):
            teller.tell("best", ok=40, failed=60)
        took_s = await breaker_is(rig, "best", "open", within_s=2)
        tell(f"open in the table {took_s:.3f} s after the digests")
        assert took_s <= 1.0
        async with asyncio.timeout(2):
            while (best.membership.tickets("job.do"), spare.membership.tickets("job.do")) != (0, 1):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        lane = await lane_of(rig, "best")
        assert "failed" in lane.breaker.why
        assert 1 == lane.breaker.opened_in_a_row


async def test_a_tier_takes_over_without_a_moment_of_nobody(rig: SupervisorRig) -> None:
    """ROUTE-1: while the top tier is taken out and comes back, sampled at 1 kHz, somebody always answers."""
    async with rig.supervisor():
        await rig.serve(agent("best"))
        await rig.serve(agent("spare", priority=20))
        caller = await rig.connection(Role.CALLER)
        seen: Counter[str] = Counter()
        calls: set[asyncio.Task[None]] = set()
        done = asyncio.Event()

        async def one() -> None:
            try:
                data = await caller.request("cap.job.do", codec.pack({"x": 1}), timeout_s=5)
                seen[codec.unpack(data)["provider"]] += 1
            except reach.ReachError as error:
                seen[str(error)] += 1

        async def sample() -> None:
            while not done.is_set():
                task = asyncio.create_task(one())
                calls.add(task)
                task.add_done_callback(calls.discard)
                await asyncio.sleep(0.001)

        sampling = asyncio.create_task(sample())
        for verb in (RouteVerb.OPEN, RouteVerb.CLOSE) * 3:
            await rig.command(verb, capability="job.do", provider="best")
            await asyncio.sleep(0.3)
        done.set()
        await sampling
        await asyncio.gather(*calls)
        tell(f"{sum(seen.values())} samples: {dict(seen)}")
        assert {"best", "spare"} == seen.keys()


async def test_a_tier_that_is_back_returns_gradually(rig: SupervisorRig) -> None:
    """ROUTE-1: after its breaker was closed the better tier begins with a fifth of the calls: 1 ticket to 4."""
    async with rig.supervisor():
        best, _ = await rig.serve(agent("best"))
        spare, _ = await rig.serve(agent("spare", priority=20))
        await rig.command(RouteVerb.OPEN, capability="job.do", provider="best")
        await rig.command(RouteVerb.CLOSE, capability="job.do", provider="best")
        async with asyncio.timeout(10):
            while (best.membership.tickets("job.do"), spare.membership.tickets("job.do")) != (1, 4):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        entry = await rig.entry("job.do")
        assert entry is not None
        assert [(10, 0.2), (20, 0.8)] == [(one.priority, round(one.share, 3)) for one in entry.tiers]


async def test_half_open_lets_five_probes_through_for_all_callers_together(rig: SupervisorRig) -> None:
    """BREAK-3, case 17: 50 asks of three callers get exactly five permits, whose good outcomes close it."""
    async with rig.supervisor():
        await rig.serve(agent("best"))
        await rig.serve(agent("spare", priority=20))
        teller = Teller(await rig.connection(Role.CALLER))
        for _ in range(2):
            teller.tell("best", failed=50, failed_in_a_row=50)
        await breaker_is(rig, "best", "open", within_s=10)
        waited_s = await breaker_is(rig, "best", "half_open", within_s=20)
        callers = [await rig.system_connection(Role.CALLER) for _ in range(3)]
        answers = await asyncio.gather(*(permit(callers[number % 3]) for number in range(50)))
        granted = [answer for answer in answers if answer.permit is not None]
        assert 5 == len(granted)
        assert {"half_open"} == {answer.breaker.state for answer in answers}
        assert all(answer.retry_after_ms is not None for answer in answers if answer.permit is None)
        for answer in granted:
            told = PermitOutcome(
                client="c", provider="best", capability="job.do", permit=answer.permit or "", failed=False
            )
            callers[0].publish(subjects.permit("best", "job.do"), codec.pack(told.model_dump()))
        took_s = await breaker_is(rig, "best", "closed", within_s=10)
        tell(f"half open {waited_s:.1f} s after it opened; closed {took_s:.3f} s after the last probe")
        assert 7 <= waited_s <= 13


async def test_a_bad_instance_is_isolated_and_its_lane_stays_open(rig: SupervisorRig) -> None:
    """Case 8: one bad worker of three keeps a tenth of its share; the breaker of its provider stays closed."""
    async with rig.supervisor():
        served = [(await rig.serve(agent("best")))[0] for _ in range(3)]
        bad = served[0]
        teller = Teller(await rig.connection(Role.CALLER))
        for _ in range(4):
            told = tuple(
                InstanceOutcomes(instance=one.name, calls=30, failed=30 if one is bad else 0)
                for one in served
            )
            teller.tell("best", ok=60, failed=30, instances=told)
            await asyncio.sleep(0.1)
        async with asyncio.timeout(10):
            while bad.membership.tickets("job.do") * 10 != served[1].membership.tickets("job.do"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        lane = await lane_of(rig, "best")
        assert "closed" == lane.breaker.state
        assert [(bad.name, "degraded", 0.1)] == [
            (one.instance, one.state, round(one.factor, 3)) for one in lane.exceptions
        ]


async def test_a_digest_that_comes_twice_counts_once(rig: SupervisorRig) -> None:
    """A digest is numbered by its client: delivered again it changes no figure."""
    async with rig.supervisor():
        await rig.serve(agent("best"))
        connection = await rig.connection(Role.CALLER)
        lane = LaneOutcomes(provider="best", capability="job.do", ok=30)
        told = Outcomes(client="twice", boot=1, seq=1, at=1, span_ms=1000, lanes=(lane,))
        data = codec.pack(told.model_dump(mode="json"))
        for _ in range(3):
            connection.publish(subjects.outcomes("twice"), data)
        Teller(connection).tell("best", ok=1)
        calls, weight = 0, 1.0
        async with asyncio.timeout(10):
            while calls < 31:
                weight += 0.01  # A change is written at once, and with it the figures.
                await rig.command(RouteVerb.SET, capability="job.do", weights={"best": weight})
                calls = (await lane_of(rig, "best")).figures.calls
        assert 31 == calls


async def test_the_shares_of_plain_clients_are_the_weights(rig: SupervisorRig) -> None:
    """ROUTE-2: 3 000 calls of a plain NATS client over weights 5 : 3 : 2 are within 3 points of them."""
    async with rig.supervisor():
        a, b, c = [(await rig.serve(agent(name)))[0].membership for name in ("a", "b", "c")]
        await rig.command(RouteVerb.SET, capability="job.do", weights={"b": 0.6, "c": 0.4})
        async with asyncio.timeout(10):
            while (5, 3, 2) != tuple(one.tickets("job.do") for one in (a, b, c)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        caller = await rig.connection(Role.CALLER)
        seen: Counter[str] = Counter()

        async def some(number: int) -> None:
            for _ in range(number):
                data = await caller.request("cap.job.do", codec.pack({"x": 1}), timeout_s=5)
                seen[codec.unpack(data)["provider"]] += 1

        await asyncio.gather(*(some(60) for _ in range(50)))
        shares = {name: round(count / 30, 1) for name, count in sorted(seen.items())}
        tell(f"shares {shares}")
        assert 3000 == sum(seen.values())
        assert all(abs(shares[name] - wanted) <= 3 for name, wanted in (("a", 50), ("b", 30), ("c", 20)))
