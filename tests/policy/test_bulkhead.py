"""Slots, who waits for one, and who goes first (GUARD-1, GUARD-2)."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from reach.policy.bulkhead import MOVES, SHARES, TAKEN, Bulkhead, Full, Place, Queued, Waiter

RANK = {"core": 0, "normal": 1, "offline": 2}


def filled(limit: int, *, queue_limit: int = 0, prioritised: bool = True) -> Bulkhead:
    """A bulkhead with no slot free."""
    ours = Bulkhead(limit, queue_limit=queue_limit, prioritised=prioritised)
    for _ in range(limit):
        assert TAKEN is ours.take("core")
    return ours


def queued(ours: Bulkhead, priority: str) -> Waiter:
    """Take a place in the queue."""
    outcome = ours.take(priority)
    assert isinstance(outcome, Queued)
    return outcome.waiter


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(100, [100, 80, 50]), (10, [10, 8, 5]), (3, [3, 2, 1]), (2, [2, 1, 1]), (1, [1, 1, 1])],
)
def test_shares_of_each_priority(limit: int, expected: list[int]) -> None:
    """GUARD-2: core may use all slots, normal 80 %, offline 50 %, each at least one."""
    ours = Bulkhead(limit, prioritised=True)
    assert expected == [ours.share(priority) for priority in SHARES]


@pytest.mark.parametrize("priority", list(SHARES))
def test_without_priorities_all_share_all(priority: str) -> None:
    """GUARD-2: where a capability declares no priorities, every slot is everybody's."""
    ours = Bulkhead(4)
    assert [TAKEN] * 4 == [ours.take(priority) for _ in range(4)]
    assert isinstance(ours.take("core"), Full)


def test_each_priority_finds_its_share_of_all_slots_taken() -> None:
    """GUARD-2: whoever holds the slots, offline stops at half of them, normal at 80 %, core at the last."""
    ours = Bulkhead(10, prioritised=True)
    taken = [
        priority
        for priority in ["offline"] * 9 + ["normal"] * 9 + ["core"] * 9
        if ours.take(priority) is TAKEN
    ]
    assert ["offline"] * 5 + ["normal"] * 3 + ["core"] * 2 == taken


def test_a_flood_below_leaves_core_its_places() -> None:
    """GUARD-2: with five times the capacity offered as offline, each core call of half the capacity gets in."""
    ours = Bulkhead(10, prioritised=True)
    refused = 0
    for _ in range(100):
        for _ in range(50):
            ours.take("offline")
        refused += sum(ours.take("core") is not TAKEN for _ in range(5))
        while ours.used:
            ours.give_back()
    assert 0 == refused


def test_full_says_which_limit_whose_and_how_much_is_used() -> None:
    """GUARD-1, ERR-6: who was refused knows the limit, its owner and what is used of it."""
    ours = Bulkhead(2, name="max_concurrency of invoice.extract", owner="invoice-extractor")
    ours.take()
    ours.take()
    full = ours.take()
    assert isinstance(full, Full)
    assert "invoice-extractor has 2 of 2 places taken (max_concurrency of invoice.extract)" == full.message
    assert {
        "name": "max_concurrency of invoice.extract",
        "owner": "invoice-extractor",
        "used": 2,
        "allowed": 2,
        "resets_in_ms": 40,
    } == full.to_limit(resets_in_ms=40)


def test_full_says_the_share_and_the_queue() -> None:
    """ERR-6: a call that is refused although slots are free learns what its priority may use."""
    ours = Bulkhead(10, prioritised=True, queue_limit=1, name="slots", owner="us")
    for _ in range(5):
        ours.take("offline")
    queued(ours, "offline")
    full = ours.take("offline")
    assert isinstance(full, Full)
    assert "us has 5 of 10 places taken (slots); offline calls may use 5, and 1 of 1 wait" == full.message


@pytest.mark.parametrize(
    ("mean_busy_ms", "waiting", "expected"),
    [(100.0, 0, 25), (100.0, 3, 100), (0.0, 0, 10), (1e9, 0, 30_000)],
)
def test_the_wait_to_expect(mean_busy_ms: float, waiting: int, expected: int) -> None:
    """GUARD-1: `retry_after_ms` is the mean time of a slot over the slots, for all who come before."""
    ours = filled(4, queue_limit=waiting, prioritised=False)
    for _ in range(waiting):
        queued(ours, "normal")
    full = ours.take()
    assert isinstance(full, Full)
    assert expected == full.retry_after_ms(mean_busy_ms)


@pytest.mark.parametrize("mean_busy_ms", [-1.0, float("nan"), float("inf")])
def test_a_wait_needs_a_duration(mean_busy_ms: float) -> None:
    """What is no duration is refused by name."""
    full = filled(1).take()
    assert isinstance(full, Full)
    with pytest.raises(ValueError, match="mean_busy_ms"):
        full.retry_after_ms(mean_busy_ms)


def test_who_waits_goes_by_priority_then_by_age() -> None:
    """GUARD-2: what waits is ordered by priority, and the older of two equals goes first."""
    ours = filled(1, queue_limit=5)
    came = [queued(ours, priority) for priority in ("offline", "normal", "core", "normal", "core")]
    went = [ours.give_back() for _ in came]
    assert [came[n] for n in (2, 4, 1, 3, 0)] == went


def test_without_priorities_who_waits_goes_by_age() -> None:
    """GUARD-2: where priorities do not count, they count in the queue neither."""
    ours = filled(1, queue_limit=3, prioritised=False)
    came = [queued(ours, priority) for priority in ("offline", "core", "normal")]
    assert came == [ours.give_back() for _ in came]


def test_the_newest_offline_waiter_is_shed_first() -> None:
    """GUARD-2: with the queue full, somebody better takes the place of the newest of the worst."""
    ours = filled(1, queue_limit=3)
    old, normal, new = (queued(ours, priority) for priority in ("offline", "normal", "offline"))
    outcomes = [ours.take(priority) for priority in ("core", "normal", "core")]
    newcomer = outcomes[1].waiter
    assert [new, old, newcomer] == [outcome.shed for outcome in outcomes]
    assert [Place.SHED, Place.SHED, Place.SHED, Place.WAITING] == [
        waiter.place for waiter in (new, old, newcomer, normal)
    ]


def test_nobody_is_shed_for_an_equal() -> None:
    """GUARD-2: with the queue full of its own kind, or of better ones, the newcomer is refused."""
    ours = filled(1, queue_limit=2)
    queued(ours, "normal")
    queued(ours, "core")
    assert isinstance(ours.take("normal"), Full)
    assert isinstance(ours.take("offline"), Full)


def test_a_slot_below_the_share_is_not_for_those_behind() -> None:
    """GUARD-2: a slot that comes free above the share of all who wait stays free for somebody better."""
    ours = filled(10, queue_limit=2)
    queued(ours, "offline")
    assert [None] * 5 == [ours.give_back() for _ in range(5)]
    assert ours.give_back() is not None


def test_whoever_leaves_the_queue_takes_no_slot() -> None:
    """GUARD-1: a caller that was cancelled while it waited is passed over."""
    ours = filled(1, queue_limit=2)
    first, second = queued(ours, "normal"), queued(ours, "normal")
    assert ours.leave(first) is None
    assert second is ours.give_back()


def test_whoever_leaves_just_after_it_got_its_slot_hands_it_on() -> None:
    """GUARD-1 (case 33): a slot given to a caller that is gone goes to the next, not lost."""
    ours = filled(1, queue_limit=2)
    first, second = queued(ours, "normal"), queued(ours, "normal")
    assert first is ours.give_back()
    assert second is ours.leave(first)
    assert ours.leave(second) is None
    assert (0, 0) == (ours.used, ours.queued)


def test_leaving_twice_does_no_harm() -> None:
    """GUARD-1: cleaning up in more than one place gives one slot back, not two."""
    ours = filled(2, queue_limit=1)
    waiter = queued(ours, "core")
    ours.give_back()
    ours.leave(waiter)
    ours.leave(waiter)
    assert 1 == ours.used


def test_a_slot_given_back_twice_is_a_mistake() -> None:
    """GUARD-1: more given back than taken would let in more than the limit, so it is refused."""
    ours = Bulkhead(1)
    ours.take()
    ours.give_back()
    with pytest.raises(RuntimeError, match="nobody held"):
        ours.give_back()


@pytest.mark.parametrize("place", list(Place))
@pytest.mark.parametrize("then", list(Place))
def test_a_waiter_moves_as_its_table_says(place: Place, then: Place) -> None:
    """A waiter's illegal moves are refused: one that was shed never gets a slot."""
    waiter = Waiter("normal")
    waiter.place = place
    if then in MOVES[place]:
        waiter.move(then)
        assert then is waiter.place
    else:
        with pytest.raises(RuntimeError, match=f"cannot become {then.value}"):
            waiter.move(then)


@pytest.mark.parametrize(("limit", "queue_limit"), [(0, 0), (-1, 0), (1, -1)])
def test_a_bulkhead_has_a_slot(limit: int, queue_limit: int) -> None:
    """A bulkhead that lets nobody in is a mistake, told at once."""
    with pytest.raises(ValueError, match="at least 1 slot"):
        Bulkhead(limit, queue_limit=queue_limit)


def test_priorities_are_called_by_their_names() -> None:
    """A priority that there is none is refused with those that there are."""
    with pytest.raises(ValueError, match="core, normal, offline, not 'urgent'"):
        filled(1).take("urgent")


class Schedules(RuleBasedStateMachine):
    """Any schedule of calls that come, succeed, fail, time out, are cancelled while they wait, or are shed."""

    holders = Bundle("holders")
    waiters = Bundle("waiters")

    @initialize(
        limit=st.integers(min_value=1, max_value=6),
        queue_limit=st.integers(min_value=0, max_value=4),
        prioritised=st.booleans(),
    )
    def build(self, limit: int, queue_limit: int, prioritised: bool) -> None:
        self.ours = Bulkhead(limit, queue_limit=queue_limit, prioritised=prioritised)
        self.direct = 0
        self.known: list[Waiter] = []

    @rule(target=waiters, priority=st.sampled_from(list(SHARES)))
    def come(self, priority: str):
        before = [waiter for waiter in self.known if waiter.place is Place.WAITING]
        outcome = self.ours.take(priority)
        if outcome is TAKEN:
            self.direct += 1
            return multiple()
        if isinstance(outcome, Full):
            assert self.ours.used >= self.ours.share(priority)
            return multiple()
        if outcome.shed is not None:
            worst = max(RANK[waiter.priority] for waiter in before)
            assert RANK[outcome.shed.priority] == worst > RANK[priority]
            assert outcome.shed is [waiter for waiter in before if RANK[waiter.priority] == worst][-1]
        self.known.append(outcome.waiter)
        return outcome.waiter

    @rule()
    def end(self) -> None:
        """A call that came straight in ends, however."""
        if self.direct:
            self.direct -= 1
            self.went_in(self.ours.give_back())

    @rule(waiter=consumes(waiters))
    def leave(self, waiter: Waiter) -> None:
        """One that queued is cancelled while it waits, or ends."""
        self.went_in(self.ours.leave(waiter))

    @rule(waiter=waiters)
    def leave_more_than_once(self, waiter: Waiter) -> None:
        self.went_in(self.ours.leave(waiter))
        assert self.ours.leave(waiter) is None

    def went_in(self, waiter: Waiter | None) -> None:
        if waiter is not None:
            assert Place.IN is waiter.place
            rank = RANK.get if self.ours.prioritised else lambda _: 0
            better = [w for w in self.waiting() if rank(w.priority) < rank(waiter.priority)]
            older = self.known[: self.known.index(waiter)]
            assert [] == better
            assert [] == [
                w for w in older if w.place is Place.WAITING and rank(w.priority) == rank(waiter.priority)
            ]

    def waiting(self) -> list[Waiter]:
        return [waiter for waiter in self.known if waiter.place is Place.WAITING]

    @invariant()
    def no_slot_leaks(self) -> None:
        inside = sum(waiter.place is Place.IN for waiter in self.known)
        assert self.direct + inside == self.ours.used <= self.ours.limit

    @invariant()
    def nobody_waits_beside_a_free_slot(self) -> None:
        waiting = self.waiting()
        assert len(waiting) == self.ours.queued <= self.ours.queue_limit
        assert [] == [w for w in waiting if self.ours.used < self.ours.share(w.priority)]

    def teardown(self) -> None:
        """When all have left, all slots are free again."""
        if hasattr(self, "ours"):
            for waiter in self.known:
                self.ours.leave(waiter)
            while self.direct:
                self.direct -= 1
                self.ours.give_back()
            assert (0, 0) == (self.ours.used, self.ours.queued)


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
