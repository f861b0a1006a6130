"""What calls draw from while nothing moves: it is what each call would have found, until something moves."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.call.choose import PATIENCE_S, Route
from reach.call.lanes import SHUN_S
from reach.call.permits import AskFirst
from reach.wire.card import CapabilityCard, Limits
from reach.wire.record import Attempt
from reach.wire.route import Canary
from tests.call.test_steering import CAP, ONE, THREE, TWO, World, cards, hung, lane, make_call, opened


def route_of(world: World, **facts: object) -> Route:
    """Choose for one call that asks for nothing, by the plan whether it says something or not."""
    call = make_call(**facts)  # type: ignore[arg-type]
    plan = world.steering.plan_for(call)
    assert plan is not None
    route = world.steering.choose(call, plan, world.now)
    assert isinstance(route, Route)
    return route


def met(world: World, calls: int = 60, **facts: object) -> set[str]:
    """Give the subjects of some calls."""
    return {route_of(world, **facts).subject for _ in range(calls)}


def test_it_is_worked_out_once_for_many_calls() -> None:
    """SPEED-3: nothing moves, so nothing is looked at again."""
    world = World(lane("a", breaker=opened(until=200_000)), lane("b"))
    plan = world.steering.special[CAP]
    world.choose()
    first = dict(plan.ready)
    world.subjects(50)
    assert 1 == len(first)
    assert all(first[kind] is plan.ready[kind] for kind in first)


def test_an_instance_that_failed_is_avoided_until_its_time() -> None:
    """RETRY-5: also where the table says nothing, and no longer than five seconds."""
    world = World(lane("a"), lane("b", 1), cards=cards(ONE, TWO, THREE))
    world.lanes.shun(CAP, ONE, world.now, of=2)
    assert {f"inst.{TWO}.a.b", f"inst.{THREE}.a.b"} == met(world)
    world.lanes.shun(CAP, THREE, world.now + 1, of=3)
    assert {f"inst.{TWO}.a.b"} == met(world)
    world.now += SHUN_S
    assert {f"inst.{TWO}.a.b", f"inst.{ONE}.a.b"} == met(world)
    world.now += SHUN_S
    assert {"lane.a.a.b", "lane.b.a.b"} == met(world)
    assert {} == world.lanes.shunned


def test_where_all_are_to_be_avoided_somebody_is_met_all_the_same() -> None:
    """RETRY-5: rather one that failed than nobody."""
    world = World(lane("a"), cards=cards(ONE, TWO))
    world.lanes.shunned[CAP] = {ONE: 200.0, TWO: 200.0}
    world.lanes.moves += 1
    assert {f"inst.{ONE}.a.b", f"inst.{TWO}.a.b"} == met(world)


def test_a_breaker_of_this_callers_own_counts_at_once_and_ends() -> None:
    """BREAK-4: the caller's own window reacts at once, and its end is heeded."""
    world = World(lane("a"), lane("b"))
    assert {"lane.a.a.b", "lane.b.a.b"} == met(world)
    found = world.lanes.of(CAP, "a")
    found.breaker.trip(world.now, why="mine", jitter=0.5)
    world.lanes.moved(found)
    assert {"lane.b.a.b"} == met(world)
    world.now = found.breaker.open_until
    assert "a" == getattr(route_of(world).lane, "provider", None), "the first one that may probes"
    found.breaker.force_close(world.now)
    world.lanes.moved(found)
    assert {"lane.a.a.b", "lane.b.a.b"} == met(world)


def test_a_call_that_must_not_be_repeated_probes_where_no_other_has_come_for_a_while() -> None:
    """BREAK-3: who is never asked is never found to be well."""
    world = World(lane("a"), lane("b"))
    found = world.lanes.of(CAP, "a")
    found.breaker.trip(world.now, why="mine", jitter=0.5)
    world.lanes.moved(found)
    world.now = found.breaker.open_until + PATIENCE_S - 0.1
    assert {"lane.b.a.b"} == met(world, idempotent=False)
    world.now += 0.2
    probe = route_of(world, idempotent=False)
    assert ("lane.a.a.b", True) == (probe.subject, probe.permit is not None)


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_lane_that_the_leader_probes_is_asked_for_when_it_is_due(idempotent: bool) -> None:
    """BREAK-3: at `ask_at` by whoever may repeat, ten seconds after its opening by anybody."""
    world = World(lane("a", breaker=opened(until=110_000)), lane("b"))
    found = world.lanes.of(CAP, "a")
    assert {"lane.b.a.b"} == met(world, idempotent=idempotent)
    world.now = found.breaker.open_until + 0.6 + (0 if idempotent else PATIENCE_S)
    with pytest.raises(AskFirst):
        route_of(world, idempotent=idempotent)
    found.ask_at = world.now + 0.1
    assert {"lane.b.a.b"} == met(world, idempotent=True)


def test_a_lane_is_given_back_when_nobody_leads() -> None:
    """BREAK-3: without a leader its word holds no more; what is ready is worked out anew."""
    world = World(lane("a", breaker=opened(until=200_000)), lane("b"))
    assert {"lane.b.a.b"} == met(world)
    found = world.lanes.of(CAP, "a")
    found.breaker.force_close(world.now)
    found.told = "closed"
    world.lanes.moves += 1
    assert {"lane.a.a.b", "lane.b.a.b"} == met(world)


def test_core_calls_have_a_breaker_of_their_own() -> None:
    """BREAK-1: what is ready for `core` calls is not what is ready for the others."""
    world = World(lane("a"), lane("b"))
    found = world.lanes.of(CAP, "a")
    found.breaker_of("core").trip(world.now, why="mine", jitter=0.5)
    world.lanes.moved(found)
    assert {"lane.b.a.b"} == met(world, priority="core")
    assert {"lane.a.a.b", "lane.b.a.b"} == met(world)


def test_a_lane_that_is_full_is_passed_over_for_that_call() -> None:
    """ROUTE-9: by the cards' limit too; places count, and come back."""
    limits = CapabilityCard(tag=CAP, idempotent=True, limits=Limits(max_concurrency=1))
    known = tuple(card.model_copy(update={"capabilities": (limits,)}) for card in cards(ONE, THREE))
    world = World(lane("a", 1, weight=0.5), lane("b", 1), cards=known)
    full = world.lanes.of(CAP, "a")
    assert {"lane.a.a.b", "lane.b.a.b"} == met(world)
    world.lanes.enter(full, None)
    assert {"lane.b.a.b"} == met(world)
    world.lanes.leave(full, None)
    assert {"lane.a.a.b", "lane.b.a.b"} == met(world)


def test_calls_of_an_unusable_tier_begin_in_the_next() -> None:
    """ROUTE-1: while a tier returns and its breaker opens here, its part goes to the one that stands in."""
    world = World(lane("a"), lane("b", priority=20), tiers=((10, 0.5), (20, 0.5)))
    found = world.lanes.of(CAP, "a")
    found.breaker.trip(world.now, why="mine", jitter=0.5)
    world.lanes.moved(found)
    routes = [route_of(world) for _ in range(20)]
    assert {("lane.b.a.b", 1)} == {(route.subject, route.level) for route in routes}


def test_another_table_and_other_cards_are_heeded_at_once() -> None:
    """SPEED-4: what is ready ends with its plan, and with what is known of instances."""
    world = World(lane("a", exceptions=(hung(ONE),)), cards=cards(ONE, TWO))
    assert {f"inst.{TWO}.a.b"} == met(world)
    world.known = cards(ONE, TWO, "a-dddddddd")
    world.changes += 1
    assert {f"inst.{TWO}.a.b", "inst.a-dddddddd.a.b"} == met(world)
    world.write(lane("a", weight=0.5), lane("b"))
    assert {"lane.a.a.b", "lane.b.a.b"} == met(world)


def test_that_somebody_else_came_makes_nothing_anew() -> None:
    """SPEED-3: what is known of other capabilities changes all the time."""
    world = World(lane("a", exceptions=(hung(ONE),)), cards=cards(ONE, TWO))
    met(world)
    plan = world.steering.special[CAP]
    before = dict(plan.crowds)
    world.changes += 1
    met(world)
    assert before
    assert all(plan.crowds[place] is crowd for place, crowd in before.items())


@pytest.mark.parametrize(
    "change",
    [
        lambda call: setattr(call, "avoid", {ONE}),
        lambda call: call.attempts.append(Attempt(1, "lane.a.a.b", 0.0, 0.0, None, None)),
        lambda call: setattr(call.envelope, "target", "a"),
        lambda call: setattr(call.envelope, "require", {"version": "9"}),
    ],
)
def test_who_asks_for_something_is_not_decided_by_a_plan_that_says_nothing(
    change: Callable[[object], None],
) -> None:
    """CALL-12: such calls are looked at one by one."""
    world = World(lane("a"), lane("b"))
    call = make_call()
    assert world.steering.plan_for(call) is not None
    change(call)
    assert None is world.steering.plan_for(call)


BREAKERS = st.sampled_from(["closed", "closed", "closed", "open", "half_open", "forced_open", "disabled"])
LANES = st.lists(
    st.tuples(st.sampled_from([10, 10, 20]), BREAKERS, st.sampled_from([None, None, 1]), st.booleans()),
    min_size=1,
    max_size=4,
)
STATES = st.sets(st.sampled_from(["tripped", "full", "shunned"]), max_size=2)


@settings(max_examples=120, deadline=None)
@given(
    lanes=LANES,
    states=st.lists(STATES, min_size=4, max_size=4),
    canary=st.booleans(),
    idempotent=st.booleans(),
    priority=st.sampled_from(["core", "normal"]),
)
def test_what_is_ready_is_what_a_look_at_everything_finds(
    lanes: list[tuple[int, str, int | None, bool]],
    states: list[set[str]],
    canary: bool,
    idempotent: bool,
    priority: str,
) -> None:
    """SPEED-3: drawn or looked at, calls meet the same subjects, at the same levels, and are refused alike."""
    names = "abcd"
    told = [
        lane(
            name,
            2,
            priority=tier,
            limit=limit,
            breaker=opened(breaker, until=200_000 if breaker == "open" else None),
            exceptions=(hung(f"{name}-aaaaaaaa"),) if is_hung else (),
        )
        for name, (tier, breaker, limit, is_hung) in zip(names, lanes, strict=False)
    ]
    known = cards(*(f"{name}-{end}" for name in names for end in ("aaaaaaaa", "bbbbbbbb")))
    known += cards(*(f"{name}-cccccccc" for name in names), labels={"pool": "new"})
    trying = Canary(labels={"pool": "new"}, percent=50) if canary else None
    world = World(*told, cards=known, canary=trying)
    for one, found in zip(told, states, strict=False):
        mine = world.lanes.of(CAP, one.provider)
        if "tripped" in found:
            mine.breaker.trip(world.now, why="mine", jitter=0.5)
            world.lanes.moved(mine)
        if "full" in found:
            mine.open = 1
        if "shunned" in found:
            world.lanes.shun(CAP, f"{one.provider}-bbbbbbbb", world.now, of=3)
    plan = world.steering.plans.of(CAP)
    assert plan is not None

    def outcomes(choose: Callable[..., object]) -> set[tuple[object, ...]]:
        found: set[tuple[object, ...]] = set()
        for _ in range(300):
            try:
                route = choose(make_call(idempotent=idempotent, priority=priority), plan, world.now)
            except AskFirst as asked:
                found.add(("ask", asked.lane.provider))
                continue
            if isinstance(route, Route):
                found.add((route.subject, route.level))
            else:
                found.add(("refused", getattr(route, "reason", route)))
        return found

    assert outcomes(world.steering._carefully) == outcomes(world.steering.choose)
