"""A second request beside a slow first one: when, where, at whose cost, and what becomes of the loser (RETRY-8)."""

import asyncio
from collections import Counter
from time import monotonic
from typing import Any

import pytest

import reach
from reach.call.client import Bus
from reach.ids import new_id
from reach.policy.breaker_settings import BreakerSettings
from reach.wire.record import ReachRecord
from tests.runtime.fleet import Fleet, eventually

USUAL_S = 0.04
"""Longer than an agent takes to say that it has a call, so that the second request knows whom to avoid."""


class Pair:
    """Two agents of one capability that take 40 ms; chosen ones hang, or fail after that time."""

    def __init__(self, fleet: Fleet, *, idempotent: bool = True) -> None:
        self.fleet = fleet
        self.idempotent = idempotent
        self.slow: set[str] = set()
        self.takes_s: dict[str, float] = {}
        self.failing: set[str] = set()
        self.began: Counter[str] = Counter()
        self.cancelled: Counter[str] = Counter()

    def agent(self, name: str) -> reach.Agent:
        agent = reach.Agent(name)

        @agent.capability("pair.do", idempotent=self.idempotent, max_concurrency=256)
        async def do() -> str:
            self.began[name] += 1
            try:
                await asyncio.sleep(self.takes_s.get(name, 10.0 if name in self.slow else USUAL_S))
            except asyncio.CancelledError:
                self.cancelled[name] += 1
                raise
            if name in self.failing:
                raise reach.NotExecuted
            return name

        return agent

    async def serve(self, *names: str) -> Bus:
        """Serve, and give a caller that has made enough calls to know what is usual."""
        for name in names:
            await self.fleet.serve(self.agent(name))
        bus = await self.fleet.connect()
        await bus.cards.instances("pair.do")
        # What is looked at here is not when a busy machine's pause opens a breaker.
        bus._core.outbound.lanes._settings = BreakerSettings(slow_ms=60_000)
        for _ in range(5):
            await asyncio.gather(*(bus.request("pair.do") for _ in range(60)))
        self.began.clear()
        return bus

    async def record(self, reach_id: str) -> ReachRecord:
        """Give the record of a call."""
        found: list[ReachRecord] = []
        await eventually(
            lambda: found.extend(one for one in self.fleet.records if one.reach_id == reach_id) or found
        )
        return found[0]

    async def hedged(self, bus: Bus, **options: Any) -> tuple[reach.Reply, ReachRecord, float]:
        """Make calls until one was sent to the slow one first."""
        while True:
            began = monotonic()
            reply = await bus.request("pair.do", hedge=True, **{"timeout_s": 5, **options})
            took_s = monotonic() - began
            record = await self.record(reply.reach_id)
            if self.slow & {attempt.provider for attempt in record.attempts}:
                return reply, record, took_s


def resting(bus: Bus) -> bool:
    lanes = bus._core.outbound.lanes.known("pair.do")
    return (bus.pending, bus._core.outbound.open_calls, sum(lane.open for lane in lanes)) == (0, 0, 0)


async def test_the_second_request_wins_and_the_first_is_cancelled(fleet: Fleet) -> None:
    """RETRY-8: after the P95 another instance is asked; the slow one's handler is ended; the record shows both."""
    pair = Pair(fleet)
    bus = await pair.serve("left", "right")
    pair.slow = {"left"}
    reply, record, took_s = await pair.hedged(bus)
    assert ("right", 2) == (reply.unwrap(), reply.attempt)
    assert took_s < 2.0
    assert [("left", "hedge_lost"), ("right", "done")] == [
        (attempt.provider, attempt.decision) for attempt in record.attempts
    ]
    assert USUAL_S * 1000 <= record.attempts[1].started_ms
    await eventually(lambda: pair.cancelled["left"] == pair.began["left"] and resting(bus))


async def test_a_first_request_that_is_quicker_than_usual_has_no_second(fleet: Fleet) -> None:
    """RETRY-8: about one call in twenty is slower than the P95; most calls are asked once."""
    pair = Pair(fleet)
    bus = await pair.serve("left", "right")
    asked = Counter([(await bus.request("pair.do", hedge=True)).attempt for _ in range(20)])
    print(f"  ▸ 20 calls, of which {asked[2]} were asked twice")  # noqa: T201 - what it is read for
    assert asked[1] >= 10
    await eventually(lambda: resting(bus))


@pytest.mark.parametrize(
    ("idempotent", "options"),
    [(False, {}), (True, {"keyed": True}), (True, {"hedge": False})],
    ids=["not idempotent", "keyed", "not asked for"],
)
async def test_what_must_not_be_done_twice_is_not(
    fleet: Fleet, idempotent: bool, options: dict[str, Any]
) -> None:
    """RETRY-8: idempotent capabilities only, never with an idempotency key, and only when asked for."""
    pair = Pair(fleet, idempotent=idempotent)
    bus = await pair.serve("left", "right")
    pair.slow = {"left", "right"}
    keyed = bool(options.get("keyed"))
    calls = [
        bus.request(
            "pair.do",
            retry=False,
            timeout_s=0.4,
            **({"idempotency_key": new_id()} if keyed else {}),
            hedge=options.get("hedge", True),
        )
        for _ in range(4)
    ]
    replies = await asyncio.gather(*calls)
    assert 4 == pair.began.total()
    assert {1} == {reply.attempt for reply in replies}


async def test_two_requests_that_both_fail_are_the_calls_two_attempts(fleet: Fleet) -> None:
    """RETRY-4: a hedge is an attempt: no third request follows."""
    pair = Pair(fleet)
    bus = await pair.serve("left", "right")
    pair.failing = {"left", "right"}
    # Slower than ever, so that a second request follows each first one.
    for lane in bus._core.outbound.lanes.known("pair.do"):
        lane.breaker._pace.p95_ms = 30.0
    reply = await bus.request("pair.do", hedge=True, timeout_s=5)
    assert (False, 2, 2) == (reply.ok, reply.attempt, pair.began.total())
    record = await pair.record(reply.reach_id)
    assert {"hedge_lost", "give_up:attempts"} == {attempt.decision for attempt in record.attempts}
    assert resting(bus)


async def test_second_requests_stay_within_the_retry_budget(fleet: Fleet) -> None:
    """RETRY-6, RETRY-8: when everything has become slow, at most a fifth of the calls is asked twice, or 3 a second."""
    pair = Pair(fleet)
    bus = await pair.serve("left", "right")
    pair.slow = {"left", "right"}
    began = monotonic()
    for lane in bus._core.outbound.lanes.known("pair.do"):
        lane.breaker.disable()  # It would keep the later ones away.
    for _ in range(4):  # Not all in one moment: agents that share this loop would take it for a stall.
        await asyncio.gather(
            *(bus.request("pair.do", hedge=True, retry=False, timeout_s=0.5) for _ in range(50))
        )
    seconds = monotonic() - began
    extra = pair.began.total() - 200
    print(f"  ▸ 200 slow calls in {seconds:.1f} s, {extra} second requests")  # noqa: T201 - what it is read for
    # 300 calls went before, within the ten seconds that the budgets look at, one for each lane.
    assert 0 < extra <= 0.2 * 500 + 3 * 2 * (seconds + 1)
    await eventually(lambda: resting(bus))


async def test_a_caller_that_leaves_ends_both(fleet: Fleet) -> None:
    """CALL-5: a hedged call that is cancelled is cancelled at both instances."""
    pair = Pair(fleet)
    bus = await pair.serve("left", "right")
    pair.slow = {"left", "right"}
    call = asyncio.create_task(bus.request("pair.do", hedge=True, timeout_s=5))
    await eventually(lambda: pair.began.total() == 2)
    call.cancel()
    await asyncio.wait({call})
    await eventually(lambda: pair.cancelled.total() == 2 and resting(bus))
    await eventually(lambda: fleet.records[-1].outcome == "cancelled")
    attempts = sorted(fleet.records[-1].attempts, key=lambda attempt: attempt.n)
    assert [(1, "cancelled"), (2, "cancelled")] == [(attempt.n, attempt.decision) for attempt in attempts]
    assert attempts[0].instance is not None


async def test_a_probe_that_is_not_waited_for_gives_its_place_back(fleet: Fleet) -> None:
    """BREAK-3, RETRY-8: the second request is a probe of its lane, and the first one is the answer."""
    pair = Pair(fleet)
    bus = await pair.serve("left", "right")
    pair.takes_s = {"left": 0.4}
    pair.slow = {"right"}
    breaker = bus._core.outbound.lanes.of("pair.do", "right").breaker
    now = monotonic()
    breaker.trip(now, why="it is told so", jitter=0.5)
    bus._core.outbound.lanes.moved(bus._core.outbound.lanes.of("pair.do", "right"))
    breaker.open_until = (
        now + 0.02
    )  # Open when the first request is sent, to be probed when the second one is.
    reply = await bus.request("pair.do", hedge=True, timeout_s=5)
    assert ("left", {"left": 1, "right": 1}) == (reply.unwrap(), dict(pair.began))
    assert breaker._round is not None
    assert (0, 0) == (breaker._round.held(monotonic()), breaker._round.judged)
    await eventually(lambda: pair.cancelled["right"] == 1 and resting(bus))
