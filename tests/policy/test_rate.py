"""The ledger of a limit: exactly so many, in any window, whatever clocks and orders (GUARD-3)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.policy.rate import (
    AHEAD_MS,
    LATE_MS,
    LEASE_MS,
    SKEW_MS,
    SLOTS,
    TOLERANCE_MS,
    Full,
    Held,
    Ledger,
    RateLimit,
    Taken,
    Wish,
    local,
    settle,
)

NOTHING = Ledger()
START = 1_000_000_000


def calls(limit: int, per_ms: int = 1_000) -> RateLimit:
    return RateLimit(limit, per_ms, None)


def at_once(limit: int) -> RateLimit:
    return RateLimit(None, 1_000, limit)


def test_an_empty_limit_admits_exactly_so_many() -> None:
    """GUARD-3: of 200 that ask at once, in any portions, 50 are admitted; the others are told when to come again."""
    ledger, granted, full = NOTHING, 0, None
    for portion in (40, 7, 40, 1, 112):
        done = settle(ledger, calls(50), Wish("a", portion), START)
        ledger, granted, full = done.ledger, granted + done.granted, done.full

    (taken,) = ledger.taken
    assert 50 == granted == taken.n
    assert START < taken.slot <= START + 1_000 // SLOTS
    assert Full("calls", 50, 50, taken.slot - START + 1_000 + TOLERANCE_MS) == full


def test_a_refusal_costs_nothing() -> None:
    """Case 33: who is refused leaves the ledger as it was."""
    full = settle(NOTHING, calls(50), Wish("a", 50), START).ledger
    again = settle(full, calls(50), Wish("b", 10), START + 1)

    assert (0, full) == (again.granted, again.ledger)


def test_room_comes_when_it_was_said_to_come() -> None:
    """ERR-6: `resets_in_ms` later there is room, and not a moment before."""
    full = settle(NOTHING, calls(3), Wish("a", 3), START).ledger
    refused = settle(full, calls(3), Wish("a", 1), START + 500).full
    assert refused is not None
    assert refused.resets_in_ms is not None
    room_at = START + 500 + refused.resets_in_ms

    assert 0 == settle(full, calls(3), Wish("a", 1), room_at - 1).granted
    assert 1 == settle(full, calls(3), Wish("a", 1), room_at).granted


def test_what_is_returned_may_be_taken_again() -> None:
    """Units of a call that was cancelled before it was made are there for others at once."""
    first = settle(NOTHING, calls(2), Wish("a", 2), START)
    back = Wish("a", 0, returned=(Taken(first.slot, 1),))
    after = settle(first.ledger, calls(2), back, START + 10)

    assert 1 == settle(after.ledger, calls(2), Wish("b", 5), START + 10).granted


def test_more_cannot_be_returned_than_was_taken() -> None:
    """A returned unit that is not there any more makes no room."""
    first = settle(NOTHING, calls(2), Wish("a", 2), START)
    back = Wish("a", 0, returned=(Taken(first.slot, 9), Taken(7, 9)))
    after = settle(first.ledger, calls(2), back, START + 10)

    assert 2 == settle(after.ledger, calls(2), Wish("b", 5), START + 10).granted


def test_a_clock_that_is_far_ahead_blocks_nobody_for_long() -> None:
    """A slot of tomorrow is taken for the running one."""
    poisoned = Ledger((Taken(START + 86_400_000, 50),))
    refused = settle(poisoned, calls(50), Wish("a", 1), START)

    assert 0 == refused.granted
    assert refused.full is not None
    assert refused.full.resets_in_ms is not None
    assert refused.full.resets_in_ms <= 1_000 + 1_000 // SLOTS + TOLERANCE_MS + AHEAD_MS


def test_calls_under_way_are_everybodys() -> None:
    """GUARD-3: `concurrent` counts the calls of all clients together, each as it says itself."""
    ledger = settle(NOTHING, at_once(3), Wish("a", 2), START).ledger
    other = settle(ledger, at_once(3), Wish("b", 2), START)
    assert (1, Full("concurrent", 3, 3, None)) == (other.granted, other.full)

    ended = settle(other.ledger, at_once(3), Wish("a", 0, holding=0), START + 10)
    assert (Held("b", 1, START + LEASE_MS),) == ended.ledger.held
    assert 2 == settle(ended.ledger, at_once(3), Wish("c", 5), START + 10).granted


def test_a_silent_client_holds_nothing_after_its_lease() -> None:
    """A client that was killed holds up others for its lease, and no longer."""
    ledger = settle(NOTHING, at_once(3), Wish("a", 3), START).ledger

    assert 0 == settle(ledger, at_once(3), Wish("b", 1), START + LEASE_MS - 1).granted
    assert 3 == settle(ledger, at_once(3), Wish("b", 5), START + LEASE_MS).granted


def test_a_lapsed_client_comes_back_with_the_truth() -> None:
    """Who was asleep says what it has under way; nobody is admitted until there is room again."""
    slept = settle(NOTHING, at_once(3), Wish("a", 3), START).ledger
    taken = settle(slept, at_once(3), Wish("b", 3), START + LEASE_MS).ledger
    back = settle(taken, at_once(3), Wish("a", 1, holding=3), START + LEASE_MS + 1)

    assert (0, Full("concurrent", 6, 3, None)) == (back.granted, back.full)


def test_units_may_be_taken_for_a_little_later() -> None:
    """Where the store is slow, units count from when they will be had; room is judged by the present."""
    first = settle(NOTHING, calls(2), Wish("a", 2), START, ahead_ms=300)
    ends = first.slot + 1_000 + TOLERANCE_MS

    assert first.slot > START + 300
    assert 0 == settle(first.ledger, calls(2), Wish("a", 1), ends - 1, ahead_ms=300).granted
    assert 1 == settle(first.ledger, calls(2), Wish("a", 1), ends, ahead_ms=300).granted


@pytest.mark.parametrize(("limit", "share"), [(50, 12), (4, 1), (1, 1)])
def test_alone_a_process_admits_a_quarter(limit: int, share: int) -> None:
    """GUARD-3: without the shared ledger a process admits its share, at least one."""
    assert RateLimit(share, 1_000, share) == RateLimit(limit, 1_000, limit).local


def test_what_was_granted_counts_for_the_local_share() -> None:
    """A process that took its share already has none left when the shared ledger goes."""
    ledger = local(NOTHING, calls(40), START, 9)

    assert 1 == settle(ledger, calls(40).local, Wish("a", 5), START).granted


@given(
    limit=st.integers(1, 20),
    per_ms=st.sampled_from((50, 200, 1_000, 60_000)),
    clients=st.lists(st.integers(-SKEW_MS, SKEW_MS), min_size=1, max_size=4),
    asked=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 8),
            st.floats(0, 1.3),
            st.integers(0, LATE_MS),
            st.booleans(),
        ),
        min_size=1,
        max_size=60,
    ),
)
def test_no_window_admits_more_than_the_limit(
    limit: int,
    per_ms: int,
    clients: list[int],
    asked: list[tuple[int, int, float, int, bool]],
) -> None:
    """GUARD-3: whatever the order, the skew of clocks and the way to the store: never more in any window."""
    ledger, now = NOTHING, START
    admitted: list[int] = []
    for who, want, pause, late_ms, gives_back in asked:
        now += int(pause * per_ms)
        client = who % len(clients)
        # What is written now was decided `late_ms` ago, by a clock that was off.
        stamp = now - late_ms + clients[client]
        done = settle(ledger, calls(limit, per_ms), Wish(str(client), want), stamp)
        ledger = done.ledger
        used = done.granted
        if gives_back and used:
            back = Wish(str(client), 0, returned=(Taken(done.slot, 1),))
            ledger = settle(ledger, calls(limit, per_ms), back, stamp).ledger
            used -= 1
        admitted += [now] * used
        assert len(ledger.taken) <= SLOTS + 8 + (TOLERANCE_MS + 2 * SKEW_MS) * SLOTS // per_ms

    for number, first in enumerate(admitted):
        assert sum(first <= one < first + per_ms for one in admitted[number:]) <= limit


@given(portions=st.lists(st.integers(1, 30), min_size=1, max_size=30), limit=st.integers(1, 60))
def test_a_burst_is_admitted_exactly(portions: list[int], limit: int) -> None:
    """GUARD-3: at rest and in one burst, exactly the limit, or all that were there."""
    ledger, granted = NOTHING, 0
    for number, portion in enumerate(portions):
        done = settle(ledger, calls(limit, 60_000), Wish(str(number), portion), START + number)
        ledger, granted = done.ledger, granted + done.granted

    assert min(limit, sum(portions)) == granted


@given(
    moves=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 4), st.integers(0, LEASE_MS // 4))
    ),
    limit=st.integers(1, 6),
)
def test_never_more_at_once_than_the_limit(moves: list[tuple[int, int, int, int]], limit: int) -> None:
    """GUARD-3: over all clients that say in time what they have, no more than `concurrent` are under way."""
    ledger, now = NOTHING, START
    holding = dict.fromkeys(range(4), 0)
    for who, want, ends, pause in moves:
        now += pause
        for client, held in holding.items():  # Everybody renews.
            ledger = settle(ledger, at_once(limit), Wish(str(client), 0, holding=held), now).ledger
        holding[who] -= min(ends, holding[who])
        done = settle(ledger, at_once(limit), Wish(str(who), want, holding=holding[who]), now)
        ledger = done.ledger
        holding[who] += done.granted

        assert sum(holding.values()) <= limit
        assert sum(holding.values()) == sum(one.n for one in ledger.held)
        assert all(first.client != second.client for first, second in pairwise(ledger.held))
