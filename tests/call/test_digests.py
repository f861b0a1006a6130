"""Digests as they go over a real bus, and probes' places asked from whoever leads there."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

import reach
from reach.bus.framing import Delivery
from reach.bus.keys import Role
from reach.call.lanes import SharedPermit
from reach.faults import Reason
from reach.policy.sketch import Sketch
from reach.wire import codec
from reach.wire.outcomes import Outcomes
from reach.wire.registration import PermitAnswer, PermitAsk, PermitOutcome, read_message
from reach.wire.route import Breaker
from tests.runtime.fleet import Fleet, eventually


def flaky() -> reach.Agent:
    """An agent that fails where it is told to."""
    agent = reach.Agent("flaky")

    @agent.capability("flaky.do", idempotent=True)
    async def do(fail: bool = False) -> str:
        if fail:
            raise reach.UpstreamFailure(reason=Reason.REMOTE_5XX)
        return "done"

    return agent


async def hear(fleet: Fleet) -> list[Outcomes]:
    """Listen to digests as a supervisor does."""
    platform = await fleet.connection(Role.PLATFORM)
    heard: list[Outcomes] = []
    platform.subscribe(
        "reach.outcomes.*", lambda delivery: heard.append(read_message(codec.unpack(delivery.data), Outcomes))
    )
    await platform.flush()
    return heard


async def test_what_calls_came_to_is_told_within_two_seconds(fleet: Fleet) -> None:
    """BREAK-4: all calls of a second in one numbered message: counts, reasons, latencies, who failed; then silence."""
    instance = await fleet.serve(flaky())
    heard = await hear(fleet)
    bus = await fleet.connect()
    for fail in (False,) * 20 + (True,) * 3:
        await bus.request("flaky.do", {"fail": fail}, retry=False)
    await eventually(lambda: sum(lane.counted for one in heard for lane in one.lanes) == 23, within_s=3.0)
    lanes = [lane for one in heard for lane in one.lanes]
    assert {("flaky", "flaky.do")} == {(lane.provider, lane.capability) for lane in lanes}
    assert (20, 3) == (sum(lane.ok for lane in lanes), sum(lane.failed for lane in lanes))
    assert 3 == lanes[-1].failed_in_a_row
    assert 3 == sum(lane.reasons.get("REMOTE_5XX", 0) for lane in lanes)
    assert 20 == sum(Sketch.from_map(lane.latency.model_dump()).count for lane in lanes if lane.latency)
    assert {instance.name} == {one.instance for lane in lanes for one in lane.instances}
    assert [*range(1, len(heard) + 1)] == [one.seq for one in heard]
    assert {bus.connection.client_id} == {one.client for one in heard}
    count = len(heard)
    await asyncio.sleep(1.3)
    assert count == len(heard)


async def test_what_is_left_is_told_at_the_end(fleet: Fleet) -> None:
    """A client that closes tells of its last calls."""
    await fleet.serve(flaky())
    heard = await hear(fleet)
    async with reach.connect(settings=fleet.system.settings(Role.CALLER)) as bus:
        await bus.request("flaky.do", {})
    await eventually(lambda: sum(lane.ok for one in heard for lane in one.lanes) == 1, within_s=2.0)


async def test_a_table_that_nobody_keeps_is_known_to_be_one(fleet: Fleet) -> None:
    """SEE-2: while nobody hears digests the table's age grows; from the first one that is heard on it is 0 again."""
    await fleet.serve(flaky())
    bus = await fleet.connect()
    routes = bus._core.outbound.routes
    await bus.request("flaky.do", {})
    await eventually(lambda: routes.leaderless, within_s=3.0)
    assert await routes.ready(2)
    await asyncio.sleep(0.05)
    age_s = routes.age_s(monotonic())
    assert age_s is not None
    assert age_s > 0.0
    await hear(fleet)
    async with asyncio.timeout(5):
        while routes.leaderless:
            await bus.request("flaky.do", {})
            await asyncio.sleep(0.1)
    assert 0.0 == routes.age_s(monotonic())


async def test_who_knows_the_cards_already_follows_the_table_too(fleet: Fleet) -> None:
    """The first call begins to read and to tell, also where nobody has to be asked who serves it."""
    await fleet.serve(flaky())
    heard = await hear(fleet)
    bus = await fleet.connect()
    await bus.cards.instances("flaky.do")
    await bus.request("flaky.do", {})
    await eventually(lambda: heard, within_s=3.0)
    assert await bus._core.outbound.routes.ready(2)


class Leader:
    """Answers asks for probes' places, and notes what is told of them."""

    def __init__(self, answer: Callable[[PermitAsk], PermitAnswer]) -> None:
        self.asked: list[PermitAsk] = []
        self.told: list[PermitOutcome] = []
        self._answer = answer

    async def lead(self, fleet: Fleet) -> None:
        """Begin to listen."""
        self._platform = await fleet.connection(Role.PLATFORM)
        self._platform.subscribe("reach.permit.>", self._hear)
        await self._platform.flush()

    def _hear(self, delivery: Delivery) -> None:
        body = codec.unpack(delivery.data)
        if not delivery.reply:
            self.told.append(read_message(body, PermitOutcome))
            return
        self.asked.append(read_message(body, PermitAsk))
        answer = self._answer(self.asked[-1])
        self._platform.publish(delivery.reply, codec.pack(answer.model_dump(mode="json")))


async def waiting_lane(fleet: Fleet) -> tuple[Any, Any]:
    """Give a bus whose only lane the supervisor is said to probe."""
    bus = await fleet.connect()
    await bus.request("flaky.do", {})
    lane = bus._core.outbound.lanes.of("flaky.do", "flaky")
    bus._core.outbound.lanes.tell(lane, "half_open", monotonic())
    return bus, lane


async def test_a_place_is_asked_for_with_the_calls_deadline_and_given_back_once(fleet: Fleet) -> None:
    """BREAK-3: the ask carries the deadline; each outcome, also one that says nothing, gives the place back once."""
    await fleet.serve(flaky())
    leader = Leader(lambda ask: PermitAnswer(permit="p1", expires_at=ask.expires_at))
    await leader.lead(fleet)
    bus, lane = await waiting_lane(fleet)
    out = bus._core.outbound
    permit = await out.guidance.permits.ask(lane, deadline=monotonic() + 2.0)
    assert isinstance(permit, SharedPermit)
    now_ms = bus.connection.broker_time.about_ms(monotonic())
    assert abs(leader.asked[0].expires_at - now_ms - 2000) <= 200
    out.lanes.good(lane, monotonic(), 7.0, permit, first=True)
    out.lanes.left(lane, monotonic(), permit)
    await eventually(lambda: leader.told)
    assert [("p1", False, 7.0)] == [(one.permit, one.failed, one.latency_ms) for one in leader.told]


async def test_a_no_is_heeded_and_says_what_the_lane_is(fleet: Fleet) -> None:
    """BREAK-3: without a place the lane is left alone for as long as the leader says; a closed one takes calls."""
    await fleet.serve(flaky())
    answers = [
        PermitAnswer(retry_after_ms=400, breaker=Breaker(state="half_open")),
        PermitAnswer(breaker=Breaker()),
    ]
    leader = Leader(lambda _: answers.pop(0))
    await leader.lead(fleet)
    bus, lane = await waiting_lane(fleet)
    began = monotonic()
    assert await bus._core.outbound.guidance.permits.ask(lane, deadline=began + 2.0) is None
    assert lane.ask_at - began >= 0.4
    assert ("half_open", "open") == (lane.told, lane.breaker.state)
    assert await bus._core.outbound.guidance.permits.ask(lane, deadline=began + 2.0) is None
    assert ("closed", "closed") == (lane.told, lane.breaker.state)


async def test_where_nobody_leads_the_lane_is_this_callers_to_probe(fleet: Fleet) -> None:
    """BREAK-3: no leader: one place for each caller process, at once, and its good outcome closes the lane here."""
    await fleet.serve(flaky())
    bus, lane = await waiting_lane(fleet)
    began = monotonic()
    assert await bus._core.outbound.guidance.permits.ask(lane, deadline=began + 2.0) is None
    assert monotonic() - began < 0.2
    assert ("closed", "open") == (lane.told, lane.breaker.state)
    reply = await bus.request("flaky.do", {})
    assert (True, "closed") == (reply.ok, lane.breaker.state)
