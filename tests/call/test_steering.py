"""Where calls go by the routing table, without a bus: entries and cards in, subjects out."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from reach.call.call import Call
from reach.call.choose import Excluded, Route
from reach.call.context import CallContext
from reach.call.lanes import Lanes
from reach.call.options import Options
from reach.call.permits import AskFirst
from reach.call.steering import Steering
from reach.faults import Reason
from reach.observe.metrics import Metrics
from reach.policy.inherit import Inheritance, Mode
from reach.wire.card import CapabilityCard, Card
from reach.wire.envelope import Envelope
from reach.wire.record import Attempt
from reach.wire.reply import Failure
from reach.wire.route import (
    Breaker,
    Canary,
    Figures,
    InstanceException,
    Lane,
    RouteEntry,
    StaticShare,
    Strategy,
    TierShare,
)

CAP = "a.b"
MINUTE_MS = 60_000


class World:
    """A table of one entry, cards, and a clock."""

    def __init__(self, *lanes: Lane, cards: tuple[Card, ...] = (), region: str = "", **fields: Any) -> None:
        self.now = 100.0
        self.changes = 0
        self.refreshed = 0
        self.suspicions: dict[str, float | None] = {}
        self.known = cards
        self.inheritance = Inheritance(Mode.OFF)
        self.goes: dict[str, str | None] = {}
        self.lanes = Lanes(Metrics())
        self._follower: Callable[[str, RouteEntry | None], None] | None = None
        self._entry: RouteEntry | None = None
        self.steering = Steering(
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self.lanes,
            clock=lambda: self.now,
            clock_ms=lambda now: int(now * 1000),
            suspicion=self.suspicions.__setitem__,
            region=region,
        )
        self._revision = 0
        self.write(*lanes, **fields)
        self.steering.follow(CAP)

    # What stands for the table and the directory.
    def on_change(self, follower: Callable[[str, RouteEntry | None], None]) -> None:
        self._follower = follower

    def entry(self, _capability: str) -> RouteEntry | None:
        return self._entry

    def cards(self, _capability: str) -> tuple[Card, ...]:
        return self.known

    def on_rule(self, follower: Callable[[], None]) -> None:
        self._rule_follower = follower

    def goes_by(self, capability: str, general: str | None) -> None:
        self.goes[capability] = general

    def refresh(self) -> None:
        self.refreshed += 1

    def write(self, *lanes: Lane, **fields: Any) -> None:
        """Have another entry; without `tiers` the best one is in use."""
        self._revision += 1
        tiers = fields.pop("tiers", None) or ((min((one.priority for one in lanes), default=10), 1.0),)
        self._entry = RouteEntry(
            capability=CAP,
            term=1,
            revision=self._revision,
            at=1,
            lanes=lanes,
            tiers=tuple(TierShare(priority=priority, share=share) for priority, share in tiers),
            **fields,
        )
        if self._follower is not None:
            self._follower(CAP, self._entry)

    @property
    def special(self) -> bool:
        """Whether calls have to be decided here."""
        return CAP in self.steering.special

    def choose(self, call: Call | None = None) -> Route | Excluded | Failure:
        """Choose for one call."""
        return self.steering.choose(call or make_call(), self.steering.special[CAP], self.now)

    def subjects(self, calls: int, **envelope: Any) -> dict[str, float]:
        """Give the percentage of calls by subject."""
        found: Counter[str] = Counter()
        for number in range(calls):
            route = self.choose(make_call(payload={"key": number}, **envelope))
            assert isinstance(route, Route)
            found[route.subject] += 1
        return {subject: 100 * count / calls for subject, count in sorted(found.items())}


def make_call(*, idempotent: bool = True, avoid: set[str] | None = None, **envelope: Any) -> Call:
    return Call(
        capability=CAP,
        kind="request",
        envelope=Envelope(**envelope),
        options=Options(),
        around=CallContext(),
        reach_id="rch_x",
        began=100.0,
        began_ms=0,
        deadline=115.0,
        card=CapabilityCard(tag=CAP, idempotent=idempotent),
        avoid=avoid,
    )


def lane(provider: str, instances: int = 2, **fields: Any) -> Lane:
    return Lane(provider=provider, instances=instances, **fields)


def cards(*names: str, **facts: Any) -> tuple[Card, ...]:
    """One card an instance name."""
    return tuple(
        Card(
            agent_id=name.rpartition("-")[0],
            instance=name,
            generation=5,
            capabilities=(CapabilityCard(tag=CAP, idempotent=True),),
            **facts,
        )
        for name in names
    )


def hung(instance: str, state: str = "steered", factor: float = 0.0, **fields: Any) -> InstanceException:
    return InstanceException(instance=instance, generation=5, state=state, factor=factor, **fields)  # type: ignore[arg-type]


def opened(state: str = "open", **fields: Any) -> Breaker:
    return Breaker(state=state, **fields)  # type: ignore[arg-type]


ONE, TWO, THREE = "a-aaaaaaaa", "a-bbbbbbbb", "b-cccccccc"


@pytest.mark.parametrize(
    "lanes",
    [
        (lane("a"),),
        (lane("a"), lane("b")),
        (lane("a", 4, weight=2.0), lane("b", 2)),
        (lane("a", exceptions=(hung(ONE, "warmup", 0.2),)),),
        (lane("a", exceptions=(hung(ONE, "draining"),)),),
        (lane("a"), lane("spare", priority=20)),
    ],
)
def test_what_tickets_say_is_left_to_the_queue_group(lanes: tuple[Lane, ...]) -> None:
    """ROUTE-5: equal instances of the best tier, and those that hold fewer tickets by themselves, cost nothing here."""
    assert not World(*lanes).special


def test_a_lane_is_drawn_by_its_share() -> None:
    """ROUTE-2: weights 5 : 3 : 2 are 50, 30 and 20 % of a thousand calls to within a point."""
    world = World(lane("a", weight=1.0), lane("b", weight=0.6), lane("c", weight=0.4))
    shares = world.subjects(1000)
    wanted = {"lane.a.a.b": 50, "lane.b.a.b": 30, "lane.c.a.b": 20}
    assert wanted.keys() == shares.keys()
    assert all(abs(shares[subject] - share) <= 1 for subject, share in wanted.items())


def test_a_usable_lane_keeps_a_hundredth() -> None:
    """ROUTE-3: the lightest lane gets 1 %, so that its figures stay fresh."""
    assert abs(World(lane("a"), lane("b", weight=0.0001)).subjects(2000)["lane.b.a.b"] - 1) <= 0.2


def test_a_tier_in_use_that_is_not_the_best_is_told() -> None:
    """ROUTE-1: the level counts the tiers fallen."""
    world = World(lane("a", breaker=opened()), lane("b", priority=20), tiers=((20, 1.0),))
    route = world.choose()
    assert isinstance(route, Route)
    assert ("lane.b.a.b", 1) == (route.subject, route.level)


def test_a_tier_returns_by_its_share() -> None:
    """ROUTE-1: while the better tier returns, both take their part, each at its level."""
    world = World(lane("a"), lane("b", priority=20), tiers=((10, 0.2), (20, 0.8)))
    assert abs(world.subjects(1000)["lane.a.a.b"] - 20) <= 1


@pytest.mark.parametrize("state", ["steered", "fenced", "unavailable"])
def test_an_instance_that_may_not_listen_is_gone_around(state: str) -> None:
    """LIFE-4: the others of its lane are addressed by name, evenly."""
    names = (ONE, TWO, "a-cccccccc")
    world = World(lane("a", 2, exceptions=(hung(ONE, state),)), cards=cards(*names))
    shares = world.subjects(1000)
    assert {f"inst.{TWO}.a.b", "inst.a-cccccccc.a.b"} == shares.keys()
    assert all(abs(share - 50) <= 6 for share in shares.values())


def test_an_exception_ends_with_its_time_and_with_its_generation() -> None:
    """A newer generation is not what was steered around; what has lapsed holds no more."""
    world = World(
        lane("a", exceptions=(hung(ONE, until=int(100.0 * 1000) + MINUTE_MS),)), cards=cards(ONE, TWO)
    )
    assert {f"inst.{TWO}.a.b": 100.0} == world.subjects(50)
    world.now += 61
    world.steering.plans.look()
    assert 2 == len(world.subjects(50))
    newer = tuple(card.model_copy(update={"generation": 6}) for card in cards(ONE, TWO))
    assert 2 == len(World(lane("a", exceptions=(hung(ONE),)), cards=newer).subjects(50))


def test_when_nobody_of_a_lane_is_known_it_is_addressed_as_a_whole() -> None:
    """Without cards the lane's own queue group is the best guess; the directory is asked to look."""
    world = World(lane("a", exceptions=(hung(ONE),)))
    assert {"lane.a.a.b": 100.0} == world.subjects(10)
    assert 1 == world.refreshed


def test_a_canary_takes_its_percentage_of_the_instances_that_belong() -> None:
    """ROUTE-6: 5 % ± 1 over 10 000 calls, whatever the number of instances."""
    known = (*cards(ONE, TWO), *cards("a-newnewne", version="2.0.0"))
    world = World(lane("a", 3), cards=known, canary=Canary(version="2.0.0", percent=5))
    assert abs(world.subjects(10_000)["inst.a-newnewne.a.b"] - 5) <= 1


def test_a_canary_without_anybody_takes_nothing_away() -> None:
    """ROUTE-6: a version that nobody has leaves all calls to the others."""
    world = World(lane("a"), cards=cards(ONE, TWO), canary=Canary(version="9", percent=50))
    assert {f"inst.{ONE}.a.b", f"inst.{TWO}.a.b"} == world.subjects(100).keys()


def test_named_callers_meet_the_canary_only() -> None:
    """ROUTE-6: whoever is named, always."""
    known = (*cards(ONE), *cards("a-newnewne", version="2.0.0"))
    world = World(lane("a"), cards=known, canary=Canary(version="2.0.0", callers=("me",)))
    assert {"inst.a-newnewne.a.b": 100.0} == world.subjects(50, source="me")
    assert {f"inst.{ONE}.a.b": 100.0} == world.subjects(50, source="you")


def test_strategies_are_built_from_the_table() -> None:
    """ROUTE-5: round robin in turn, static by its shares, local first by region, least loaded by what is under way."""
    known = (*cards(ONE, region="north"), *cards(TWO, THREE, region="south"))
    lanes = (lane("a"), lane("b", 1))
    turns = World(*lanes, cards=known, strategy=Strategy(name="round_robin"))
    assert 3 == len(turns.subjects(4))
    shares = (StaticShare(provider="a", weight=1), StaticShare(provider="b", weight=3))
    static = World(*lanes, cards=known, strategy=Strategy(name="static", shares=shares)).subjects(2000)
    assert abs(static[f"inst.{THREE}.a.b"] - 75) <= 3
    local = World(*lanes, cards=known, strategy=Strategy(name="local_first"), region="north")
    assert {f"inst.{ONE}.a.b": 100.0} == local.subjects(20)
    idle = World(*lanes, cards=known, strategy=Strategy(name="least_loaded"))
    idle.lanes.held |= {ONE: 50, TWO: 50}
    assert idle.subjects(300)[f"inst.{THREE}.a.b"] > 65


def test_a_strategy_that_nobody_knows_is_by_weight() -> None:
    """A table written for a newer caller still routes."""
    world = World(lane("a"), cards=cards(ONE, TWO), strategy=Strategy(name="by_moonlight"))
    assert 2 == len(world.subjects(50))


def test_one_key_stays_with_one_instance() -> None:
    """ROUTE-5: consistent_hash, over lanes; a call without the parameter goes by weight."""
    world = World(
        lane("a"),
        lane("b", 1),
        cards=cards(ONE, TWO, THREE),
        strategy=Strategy(name="consistent_hash", key="account"),
    )
    for account in range(20):
        subjects = {str(world.choose(make_call(payload={"account": account}))) for _ in range(5)}
        assert 1 == len(subjects)
    assert 3 == len(world.subjects(100))


def test_an_open_lane_gets_nothing_until_its_time_and_is_asked_for_then() -> None:
    """BREAK-3/5: open by everybody's word: the other lane has it all; half open: who may repeat asks for a place."""
    until = int(100.0 * 1000) + 10_000
    world = World(lane("a", breaker=opened(until=until)), lane("b"))
    assert {"lane.b.a.b": 100.0} == world.subjects(50)
    world.write(lane("a", breaker=opened("half_open")), lane("b"))
    with pytest.raises(AskFirst) as asked:
        world.choose()
    assert "a" == asked.value.lane.provider
    assert {"lane.b.a.b"} == {world.choose(make_call(idempotent=False)).subject}  # type: ignore[union-attr]
    asked.value.lane.ask_at = world.now + 0.1
    assert {"lane.b.a.b": 100.0} == world.subjects(20)


def test_a_lane_that_nobody_says_is_half_open_is_asked_for_all_the_same() -> None:
    """A leader that is gone cannot say that the wait is over: after a moment the lane is asked for."""
    world = World(lane("a", breaker=opened(until=101_000)), lane("b"))
    world.now = 101.2
    assert {"lane.b.a.b": 100.0} == world.subjects(5)
    world.now = 101.6
    with pytest.raises(AskFirst):
        world.choose()


def test_that_a_lane_is_closed_ends_what_was_said_of_it() -> None:
    """BREAK-4: the supervisor's word is laid upon the caller's breaker, and taken off it."""
    world = World(lane("a", breaker=opened(until=200_000)), lane("b"))
    found = world.lanes.of(CAP, "a")
    assert ("open", {CAP: {"a"}}) == (found.breaker.state, world.lanes.troubled)
    world.write(lane("a"), lane("b"))
    assert ("closed", {}) == (found.breaker.state, world.lanes.troubled)
    assert not world.special


def test_that_a_lane_is_closed_does_not_end_what_this_caller_found() -> None:
    """BREAK-4: its own breaker reacts at once, and holds on whatever others see."""
    world = World(lane("a"), lane("b"))
    found = world.lanes.of(CAP, "a")
    found.breaker.trip(world.now, why="mine", jitter=0.5)
    world.lanes.moved(found)
    world.write(lane("a"), lane("b"))
    assert "open" == found.breaker.state


@pytest.mark.parametrize(("state", "expected"), [("forced_open", "forced_open"), ("disabled", "disabled")])
def test_operators_words_reach_the_breaker(state: str, expected: str) -> None:
    """BREAK-4: force-open and disable hold until something else is said."""
    world = World(lane("a", breaker=opened(state)), lane("b"))
    found = world.lanes.of(CAP, "a")
    assert expected == found.breaker.state
    world.write(lane("a"), lane("b"))
    assert "closed" == found.breaker.state


def test_with_nothing_left_normal_calls_are_refused_and_core_calls_may_try() -> None:
    """BREAK-5: BREAKER_OPEN with when to come again; `core` gets the last lane, unless an operator holds it."""
    world = World(lane("a", breaker=opened(until=110_000)), last_resort=True)
    refused = world.choose()
    assert isinstance(refused, Failure)
    assert refused.retry_after_ms is not None
    assert (Reason.BREAKER_OPEN, True) == (refused.reason, 9000 <= refused.retry_after_ms <= 10_001)
    route = world.choose(make_call(priority="core"))
    assert isinstance(route, Route)
    assert "lane.a.a.b" == route.subject
    world.write(lane("a", breaker=opened("forced_open")))
    assert isinstance(world.choose(make_call(priority="core")), Failure)


def test_a_full_lane_spills_into_the_next_tier() -> None:
    """ROUTE-9: a lane at its limit is unusable for the call: another lane, then the next tier, marked."""
    world = World(lane("a", limit=2), lane("b", priority=20))
    full = world.lanes.of(CAP, "a")
    assert "lane.a.a.b" == world.choose().subject  # type: ignore[union-attr]
    full.open = 2
    route = world.choose()
    assert isinstance(route, Route)
    assert ("lane.b.a.b", 1) == (route.subject, route.level)


def test_a_retry_goes_elsewhere_first() -> None:
    """RETRY-5: not to the instance that failed the call; to the next tier where the whole tier has."""
    world = World(
        lane("a", weight=0.5), lane("b", 1), lane("c", 1, priority=20), cards=cards(ONE, THREE, "c-dddddddd")
    )
    for _ in range(20):
        assert f"inst.{ONE}.a.b" == world.choose(make_call(avoid={THREE})).subject  # type: ignore[union-attr]
    route = world.choose(make_call(avoid={ONE, THREE}))
    assert isinstance(route, Route)
    assert ("inst.c-dddddddd.a.b", 1) == (route.subject, route.level)


def test_a_lane_that_the_call_found_empty_is_not_tried_again() -> None:
    """A stale table may name a provider that is gone: the next attempt is another lane's."""
    world = World(lane("a"), lane("b", weight=0.01))
    call = make_call()
    call.attempts.append(Attempt(1, "lane.a.a.b", 0.0, 0.0, None, None, reason=Reason.NO_RESPONDERS))
    assert {"lane.b.a.b"} == {world.choose(call).subject for _ in range(10)}  # type: ignore[union-attr]


def test_what_a_call_requires_excludes_and_its_target_is_met() -> None:
    """CALL-12: requirements are met by instance, exclusions say why, a target is a lane."""
    known = (*cards(ONE, region="north"), *cards(THREE, region="south"))
    world = World(lane("a", weight=0.5), lane("b", 1), cards=known)
    assert {f"inst.{THREE}.a.b": 100.0} == world.subjects(20, require={"region": "south"})
    assert {f"inst.{ONE}.a.b": 100.0} == world.subjects(20, target="a")
    excluded = world.choose(make_call(require={"region": "west"}))
    assert isinstance(excluded, Excluded)
    assert "region='west'" in excluded.why


def test_a_target_that_the_table_does_not_name_is_asked_all_the_same() -> None:
    """CALL-12: whoever is named, and nobody else: the broker says at once when it is not there."""
    world = World(lane("a", weight=0.5), lane("b"))
    assert {"lane.nobody.a.b": 100.0} == world.subjects(5, target="nobody")


def test_a_table_that_knows_of_nobody_leaves_it_to_the_broker() -> None:
    """An entry without a usable lane may be out of date: the queue group says at once whether somebody is there."""
    world = World(lane("a", 0), tiers=((10, 1.0),))
    assert world.special
    assert {"cap.a.b": 100.0} == world.subjects(5)


def test_an_entry_without_lanes_changes_nothing() -> None:
    """What nobody serves any more is the queue group's to answer."""
    assert not World().special


def test_how_slow_a_lane_is_tells_when_to_suspect_it() -> None:
    """Design, section 4: the slowest lane's measured P99 is handed on; an unmeasured one is no figure."""
    world = World(lane("a", figures=Figures(p99_ms=80.0)), lane("b"))
    assert {CAP: 80.0} == world.suspicions


def test_choosing_costs_the_same_for_ten_and_for_ten_thousand() -> None:
    """SPEED-3: the tables are built once; after that a draw looks at one name, however many there are."""
    names = [f"a-{number:08d}" for number in range(10_000)]
    world = World(lane("a", 9_999, exceptions=(hung(names[0]),)), cards=cards(*names))
    world.choose()
    crowd = world.steering.special[CAP].crowds[10, False, ()]
    world.subjects(100)
    assert crowd is world.steering.special[CAP].crowds[10, False, ()]
