"""Tiers: which serves, falling at once and returning gradually, promoting before withdrawing, and the panic rule."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.policy.tier import (
    MOVES,
    Bar,
    Ejection,
    Ladder,
    Moves,
    Offer,
    Phase,
    Standing,
    eject,
    last_resort,
    may_use_last_resort,
    moves,
    usable_tiers,
    withdrawable,
)
from reach.policy.warmup import Ramp

OPEN = Bar.BREAKER


def offers(*bars: Bar | None) -> tuple[Offer, ...]:
    """One lane a tier: 10, 20, 30 … with these bars."""
    return tuple(Offer(f"lane-{10 * n}", 10 * n, barred=bar) for n, bar in enumerate(bars, 1))


def look(ladder: Ladder, now: float, *bars: Bar | None) -> tuple[Phase, tuple[tuple[int, float], ...]]:
    standing = ladder.look(offers(*bars), now=now)
    return standing.phase, tuple((tier, round(share, 9)) for tier, share in standing.shares)


def test_the_best_tier_with_a_usable_lane_serves() -> None:
    """ROUTE-1: 10 before 20 before 30; a tier is usable while one of its lanes is."""
    known = [Offer("a", 10, barred=OPEN), Offer("b", 10), Offer("c", 20), Offer("d", 30, instances=0)]
    assert (10, 20) == usable_tiers(known)
    assert (20,) == usable_tiers([Offer("a", 10, barred=OPEN), Offer("c", 20)])


@pytest.mark.parametrize("bar", list(Bar))
def test_a_barred_lane_makes_no_tier(bar: Bar) -> None:
    """ROUTE-9: whatever bars a lane, being full for this call too, leads to the next tier."""
    assert (20,) == usable_tiers(offers(bar, None))


def test_falling_is_at_once_and_counted() -> None:
    """ROUTE-1: when the top tier fails the second has all calls, and the level says how many were fallen."""
    ladder = Ladder()
    assert (Phase.SETTLED, ((10, 1.0),)) == look(ladder, 0, None, None, None)
    assert (Phase.SETTLED, ((20, 1.0),)) == look(ladder, 1, OPEN, None, None)
    standing = ladder.look(offers(OPEN, OPEN, None), now=2)
    assert ((30, 1.0),) == standing.shares
    assert [0, 1, 2] == [standing.level(tier) for tier in (10, 20, 30)]


def test_returning_is_gradual() -> None:
    """The tier that is back gets 0.2 for a minute, 0.5 to two, then all; each step's time is told."""
    ladder = Ladder()
    ladder.look(offers(OPEN, None), now=0)
    standing = ladder.look(offers(None, None), now=100)
    assert (Phase.RETURNING, ((10, 0.2), (20, 0.8)), 160) == (
        standing.phase,
        standing.shares,
        standing.next_at,
    )
    assert (Phase.RETURNING, ((10, 0.2), (20, 0.8))) == look(ladder, 159.9, None, None)
    assert (Phase.RETURNING, ((10, 0.5), (20, 0.5))) == look(ladder, 160, None, None)
    assert (Phase.SETTLED, ((10, 1.0),)) == look(ladder, 220, None, None)


def test_a_return_that_fails_ends_at_once() -> None:
    """The better tier fails again on its way: all calls are the stand-in's, and the next return begins anew."""
    ladder = Ladder()
    for now, bars in ((0, (OPEN, None)), (100, (None, None))):
        look(ladder, now, *bars)
    assert (Phase.SETTLED, ((20, 1.0),)) == look(ladder, 170, OPEN, None)
    assert (Phase.RETURNING, ((10, 0.2), (20, 0.8))) == look(ladder, 200, None, None)


def test_a_stand_in_that_fails_ends_the_return() -> None:
    """Nobody is left to share with: the better tier has everything, warmed up or not."""
    ladder = Ladder()
    for now, bars in ((0, (OPEN, None)), (100, (None, None))):
        look(ladder, now, *bars)
    assert (Phase.SETTLED, ((10, 1.0),)) == look(ladder, 101, None, OPEN)


@pytest.mark.parametrize(("now", "stand_in"), [(110, 30), (165, 20)])
def test_a_still_better_tier_returns_from_whoever_has_most(now: float, stand_in: int) -> None:
    """While 20 takes over from 30, 10 is back: it returns from the one of the two that has most of the calls."""
    ladder = Ladder()
    look(ladder, 0, OPEN, OPEN, None)
    look(ladder, 100, OPEN, None, None)
    assert (Phase.RETURNING, ((10, 0.2), (stand_in, 0.8))) == look(ladder, now, None, None, None)


@pytest.mark.parametrize(
    ("shares", "now", "expected"),
    [
        (((20, 1.0),), 0, (Phase.RETURNING, ((10, 0.2), (20, 0.8)))),
        (((10, 0.5), (20, 0.5)), 0, (Phase.RETURNING, ((10, 0.5), (20, 0.5)))),
        (((10, 0.5), (20, 0.5)), 60, (Phase.SETTLED, ((10, 1.0),))),
        (((10, 1.0),), 0, (Phase.SETTLED, ((10, 1.0),))),
        ((), 0, (Phase.SETTLED, ((10, 1.0),))),
    ],
)
def test_a_new_leader_goes_on_where_the_table_stands(
    shares: tuple[tuple[int, float], ...], now: float, expected: tuple[Phase, object]
) -> None:
    """LIFE-8: a change of leaders neither jumps to a tier that is only returning nor begins its return anew."""
    ladder = Ladder()
    ladder.resume(shares, now=0.0, failed=(10,))
    assert expected == look(ladder, now, None, None)


def test_who_was_not_in_the_table_takes_over_at_once_from_what_a_new_leader_found() -> None:
    """ROUTE-1: a better tier that the table does not name is there for the first time."""
    ladder = Ladder()
    ladder.resume([(20, 1.0)], now=0.0)
    assert (Phase.SETTLED, ((10, 1.0),)) == look(ladder, 1, None, None)


@pytest.mark.parametrize("before", [(Bar.EMPTY, None), (Bar.EMPTY, Bar.EMPTY, None)])
def test_a_better_tier_that_comes_for_the_first_time_takes_over_at_once(
    before: tuple[Bar | None, ...],
) -> None:
    """ROUTE-1: whoever registers first at a start; that is no recovery."""
    ladder = Ladder()
    look(ladder, 0, *before)
    assert (Phase.SETTLED, ((10, 1.0),)) == look(ladder, 0.1, None, *before[1:])


def test_a_tier_that_left_and_comes_back_returns_gradually_and_the_next_time_too() -> None:
    """ROUTE-1: it took calls before, so it is back; what it did before its full return counts no more."""
    ladder = Ladder()
    for begin in (0.0, 1000.0):
        assert (Phase.SETTLED, ((10, 1.0),)) == look(ladder, begin, None, None)
        assert (Phase.SETTLED, ((20, 1.0),)) == look(ladder, begin + 1, Bar.EMPTY, None)
        assert (Phase.RETURNING, ((10, 0.2), (20, 0.8))) == look(ladder, begin + 2, None, None)


def test_a_tier_that_never_answered_was_not_there() -> None:
    """LIFE-8: what only the buckets of a platform that ended long ago showed does not make a start a recovery."""
    ladder = Ladder()
    look(ladder, 0, None, None)
    ladder.unsee(10)
    assert (Phase.SETTLED, ((20, 1.0),)) == look(ladder, 1, Bar.EMPTY, None)
    assert (Phase.SETTLED, ((10, 1.0),)) == look(ladder, 2, None, None)


def test_a_copy_stands_where_the_ladder_does_and_moves_alone() -> None:
    """ROUTE-7: a dry run changes nothing."""
    ladder = Ladder()
    look(ladder, 0, OPEN, None)
    twin = ladder.copy()
    assert (Phase.RETURNING, ((10, 0.2), (20, 0.8))) == look(twin, 1, None, None)
    assert Phase.SETTLED is ladder.phase
    assert (Phase.RETURNING, ((10, 0.2), (20, 0.8))) == look(ladder, 500, None, None)


def test_a_ladder_that_has_looked_does_not_resume() -> None:
    """What was seen is newer than the table; and no table has three tiers in use."""
    ladder = Ladder()
    look(ladder, 0, None)
    with pytest.raises(ValueError, match="at most two tiers"):
        ladder.resume([(20, 1.0)], now=0.0)
    with pytest.raises(ValueError, match="at most two tiers, not 3"):
        Ladder().resume([(10, 0.2), (20, 0.2), (30, 0.6)], now=0.0)


def test_without_a_ramp_a_return_is_at_once() -> None:
    """An empty ramp is a setting for those who want it so."""
    ladder = Ladder(ramp=Ramp(()))
    look(ladder, 0, OPEN, None)
    assert (Phase.SETTLED, ((10, 1.0),)) == look(ladder, 1, None, None)


def test_the_last_resort_is_the_best_tier_that_only_a_breaker_bars() -> None:
    """BREAK-5, case 28: with every breaker open the best tier stays, for `core` calls; the rest have fallbacks."""
    ladder = Ladder()
    assert (Phase.LAST_RESORT, ((10, 1.0),)) == look(ladder, 0, OPEN, OPEN)
    assert (Phase.LAST_RESORT, ((20, 1.0),)) == look(ladder, 1, Bar.FORCED, OPEN)
    assert (Phase.SETTLED, ((20, 1.0),)) == look(ladder, 2, Bar.FORCED, None)
    assert [True, False, False] == [
        may_use_last_resort(priority) for priority in ("core", "normal", "offline")
    ]


@pytest.mark.parametrize("bar", sorted(set(Bar) - {Bar.BREAKER}))
def test_what_is_no_resort(bar: Bar) -> None:
    """An operator's word, an empty, a full and an unfit lane are respected: nobody is there."""
    assert last_resort(offers(bar)) is None
    assert (Phase.NOBODY, ()) == look(Ladder(), 0, bar)


def test_a_return_from_nobody_is_at_once() -> None:
    """Where no healthy tier stands in, there is nothing to return from gradually."""
    ladder = Ladder()
    for now, bars in ((0, (None,)), (1, (Bar.EMPTY,)), (2, (OPEN,))):
        look(ladder, now, *bars)
    assert (Phase.SETTLED, ((10, 1.0),)) == look(ladder, 3, None)
    assert (Phase.NOBODY, ()) == look(ladder, 4)


@pytest.mark.parametrize(("pick", "expected"), [(0.0, 10), (0.19, 10), (0.2, 20), (math.nextafter(1, 0), 20)])
def test_a_call_gets_its_tier_by_share(pick: float, expected: int) -> None:
    """A pick falls into one of the tiers in use, in proportion."""
    standing = Standing(Phase.RETURNING, ((10, 0.2), (20, 0.8)), (10, 20))
    assert expected == standing.tier(pick)
    assert Standing(Phase.NOBODY).tier(pick) is None


BARS = st.lists(st.none() | st.sampled_from(sorted(Bar)), max_size=4)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(BARS, st.sampled_from([0.0, 10.0, 61.0, 200.0])), min_size=1, max_size=12))
def test_a_ladder_never_uses_what_is_not_usable(steps: list[tuple[list[Bar | None], float]]) -> None:
    """ROUTE-1: over any history only usable tiers have calls, all of them, and the best among them comes to all."""
    ladder, now, phase = Ladder(), 0.0, Phase.NOBODY
    for bars, passed in steps:
        now += passed
        known = offers(*bars)
        standing = ladder.look(known, now=now)
        assert standing.phase in MOVES[phase]
        assert ladder.phase is standing.phase
        phase = standing.phase
        usable = usable_tiers(known)
        used = [tier for tier, _ in standing.shares]
        if usable:
            assert set(used) <= set(usable)
            assert usable[0] in used
            assert used == sorted(set(used))
            assert pytest.approx(1.0) == sum(share for _, share in standing.shares)
            assert all(share > 0 for _, share in standing.shares)
        else:
            assert used == [tier for tier in [last_resort(known)] if tier is not None]
        assert standing.next_at is None or standing.next_at > now
    settled = ladder.look(known, now=now + 1_000)
    assert settled.phase is not Phase.RETURNING


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.booleans(), min_size=3, max_size=3), st.sampled_from([0.1, 10.0, 61.0])),
        min_size=1,
        max_size=12,
    )
)
def test_only_who_took_calls_before_returns_gradually(steps: list[tuple[list[bool], float]]) -> None:
    """ROUTE-1: over any history of comings and goings, a tier that is new has all calls as soon as it is the best."""
    ladder, now = Ladder(), 0.0
    been: set[int] = set()
    for there, passed in steps:
        now += passed
        bars = [None if is_there else Bar.EMPTY for is_there in there]
        standing = ladder.look(offers(*bars), now=now)
        usable = [tier for tier, bar in zip((10, 20, 30), bars, strict=True) if bar is None]
        if usable and usable[0] not in been:
            assert ((usable[0], 1.0),) == standing.shares
        been |= set(usable)


def test_promotions_and_withdrawals_are_told_apart() -> None:
    """Design, section 5: what grows is promoted, what shrinks is withdrawn, what stays is left alone."""
    held, wanted = {"a": 5, "b": 1, "c": 1}, {"a": 1, "b": 1, "d": 2}
    assert Moves(promote={"d": 2}, withdraw={"a": 1, "c": 0}) == moves(held, wanted)


@pytest.mark.parametrize(
    ("held", "wanted", "confirmed", "expected"),
    [
        ({"a": 1}, {"b": 1}, [], {}),
        ({"a": 1}, {"b": 1}, ["b"], {"a": 0}),
        ({"a": 1}, {"b": 1}, ["x"], {}),
        ({"a": 1, "b": 1}, {"b": 1, "c": 1}, [], {"a": 0}),
        ({"a": 5, "b": 5}, {"a": 1, "b": 5}, [], {"a": 1}),
        ({"a": 1}, {}, [], {"a": 0}),
        ({"a": 1}, {"a": 0}, [], {"a": 0}),
        ({}, {"b": 1}, [], {}),
    ],
)
def test_withdrawing_waits_for_a_promotion(
    held: dict[str, int], wanted: dict[str, int], confirmed: list[str], expected: dict[str, int]
) -> None:
    """Promote before withdrawing: until somebody who is wanted holds tickets, nobody gives any up."""
    assert expected == withdrawable(held, wanted, confirmed=confirmed)


INSTANCES = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3), max_size=6)


@settings(max_examples=150)
@given(INSTANCES, INSTANCES, st.data())
def test_there_is_never_a_moment_without_responders(
    held: dict[str, int], wanted: dict[str, int], data: st.DataObject
) -> None:
    """In any order of confirmations, and if some never come, a subject that had and wants a responder has one."""
    now = dict(held)
    promote = moves(held, wanted).promote
    confirmed: list[str] = []
    had = any(held.values()) and any(wanted.values())
    for one in data.draw(st.lists(st.sampled_from(sorted(promote)), unique=True)) if promote else []:
        now[one] = promote[one]
        confirmed.append(one)
        now |= withdrawable(held, wanted, confirmed=confirmed)
        assert not had or any(now.values())
    now |= withdrawable(held, wanted, confirmed=confirmed)
    assert not had or any(now.values())
    if len(confirmed) == len(promote):
        assert {one: count for one, count in wanted.items() if count} == {
            one: count for one, count in now.items() if count
        }


@pytest.mark.parametrize(
    ("size", "bad", "out", "panic"),
    [
        (1, 0, 0, False),
        (1, 1, 0, True),
        (2, 1, 1, False),
        (2, 2, 0, True),
        (3, 2, 2, False),
        (3, 3, 0, True),
        (4, 2, 2, False),
        (4, 3, 0, True),
        (5, 3, 3, False),
        (5, 4, 0, True),
    ],
)
def test_the_panic_rule(size: int, bad: int, out: int, panic: bool) -> None:
    """Cases 8, 28: one bad of three is out; over half of a lane, or its last one, is never: health is ignored."""
    lane = [f"i{number}" for number in range(size)]
    found = eject(lane, lane[:bad])
    assert (out, panic) == (len(found.out), found.panic)
    assert ("looks unhealthy" in found.explain()) is panic


def test_who_is_gone_does_not_count() -> None:
    """Instances that are no longer there neither are thrown out nor make room for others to be."""
    assert Ejection(frozenset({"a"})) == eject(["a", "b"], ["a", "gone-1", "gone-2"])
    assert "thrown out: a" == eject(["a", "b"], ["a"]).explain()
    assert Ejection(frozenset()) == eject([], ["gone-1"])


@given(st.frozensets(st.integers(0, 30).map(str)), st.frozensets(st.integers(0, 30).map(str)))
def test_half_of_a_lane_always_stays(lane: frozenset[str], bad: frozenset[str]) -> None:
    """Never more than half of a lane, rounded up, never its last instance, and never a healthy one."""
    found = eject(lane, bad)
    assert found.out <= lane & bad
    assert len(found.out) <= (len(lane) + 1) // 2
    assert not lane or lane - found.out
    assert found.panic is (bool(lane & bad) and not found.out)
