"""Tickets in motion: promote first, withdraw when that is confirmed, whatever is lost on the way."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from actors.supervisor.orders import AGAIN_S, MOST_TRIES, Orders, Told

CAP = "job.do"


def told(orders: Orders, now: float = 0.0) -> dict[str, int]:
    """What is ordered now, by instance."""
    return {one.instance: one.tickets[CAP] for one in orders.due(now)}


def holding(tickets: dict[str, int]) -> Orders:
    """Orders of instances that hold these tickets, as is wanted."""
    orders = Orders()
    orders.want(CAP, tickets, ())
    for name in tickets:
        orders.assume(name)
    assert {} == told(orders)
    return orders


def test_what_is_as_it_should_be_needs_no_order() -> None:
    """A new leader that takes over a table whose tickets are held sends nothing."""
    assert {} == told(holding({"a": 1, "b": 5}))


def test_a_successor_is_promoted_before_anybody_is_withdrawn() -> None:
    """The worse tier is told to take part first; only when it does is the better one told to leave."""
    orders = holding({"best": 1, "spare": 0})
    orders.want(CAP, {"best": 0, "spare": 1}, ())
    assert {"spare": 1} == told(orders)
    assert {} == told(orders, 0.1)
    orders.confirm("spare", {CAP: 1}, orders.due(1.0)[0].revision, 1.0)
    assert {"best": 0} == told(orders, 1.0)


def test_a_lane_that_keeps_somebody_withdraws_at_once() -> None:
    """Where one that stays holds tickets already, nobody has to be waited for."""
    orders = holding({"a": 1, "b": 1})
    orders.want(CAP, {"a": 0, "b": 1}, ("a",))
    (order,) = orders.due(0.0)
    assert ("a", 0, (CAP,)) == (order.instance, order.tickets[CAP], order.off_lane)


def test_everybody_may_be_withdrawn_where_nobody_is_wanted() -> None:
    """An operator who takes everything out gets that."""
    orders = holding({"a": 1, "b": 2})
    orders.want(CAP, {"a": 0, "b": 0}, ("a", "b"))
    assert {"a": 0, "b": 0} == told(orders)


def test_more_weight_is_ordered_at_once() -> None:
    """Gaining tickets endangers nobody."""
    orders = holding({"a": 1, "b": 1})
    orders.want(CAP, {"a": 5, "b": 1}, ())
    assert {"a": 5} == told(orders)


def test_an_order_that_is_not_confirmed_is_sent_again_a_few_times() -> None:
    """The same order, each half second, four times in all; then its heartbeat tells."""
    orders = holding({"a": 1})
    orders.want(CAP, {"a": 2}, ())
    sent = [orders.due(step * AGAIN_S) for step in range(MOST_TRIES + 3)]
    revisions = {one.revision for batch in sent for one in batch}
    assert (MOST_TRIES, 1) == (sum(len(batch) for batch in sent), len(revisions))
    orders.confirm("a", {CAP: 1}, 0, 10.0)
    assert {"a": 2} == told(orders, 10.0 + AGAIN_S)


def test_a_confirmed_order_is_not_sent_again() -> None:
    """What an instance has said that it holds is believed."""
    orders = holding({"a": 1})
    orders.want(CAP, {"a": 2}, ())
    (order,) = orders.due(0.0)
    orders.confirm("a", {CAP: 2}, order.revision, 0.1)
    assert {} == told(orders, 10.0)
    assert ({CAP: 2}, {"a": 2}) == (orders.held("a"), orders.held_of(CAP))


def test_what_was_lost_with_a_link_is_ordered_again() -> None:
    """An instance that followed, and then says that it holds something else, is told once more."""
    orders = holding({"a": 2, "b": 1})
    orders.want(CAP, {"a": 3, "b": 1}, ())
    (order,) = orders.due(0.0)
    orders.confirm("a", {CAP: 3}, order.revision, 0.1)
    orders.confirm("a", {}, order.revision, 5.0)
    assert {"a": 3} == told(orders, 5.0)


def test_the_answer_to_a_registration_is_an_order() -> None:
    """What an instance is told when it registers counts as ordered, and is confirmed by its heartbeat."""
    orders = holding({"a": 1})
    orders.want(CAP, {"a": 1, "b": 1}, ())
    answer = orders.answer("b", {}, 0.0)
    assert ({CAP: 1}, {"a": 1}) == (answer.tickets, orders.held_of(CAP))
    orders.confirm("b", {CAP: 1}, answer.revision, 0.1)
    assert {} == told(orders, 5.0)


def test_who_is_not_reachable_is_not_told() -> None:
    """Orders to somebody whose link has ended are not sent."""
    orders = holding({"a": 1, "b": 1})
    orders.want(CAP, {"a": 2, "b": 2}, ())
    assert ["a"] == [one.instance for one in orders.due(0.0, reachable=lambda name: name == "a")]


def test_who_is_removed_is_forgotten() -> None:
    """An instance that is gone for good holds nothing, and is wanted nowhere."""
    orders = holding({"a": 1, "b": 1})
    orders.forget("a")
    assert ({}, {"b": 1}) == (orders.held("a"), orders.held_of(CAP))
    orders.want(CAP, {"b": 1}, ())
    assert {} == told(orders)


NAMES = ("a", "b", "c")


class Tickets(RuleBasedStateMachine):
    """Instances that follow orders late or never, crash and come back, under plans that change all the time."""

    @initialize()
    def begin(self) -> None:
        """Three instances, one ticket each."""
        self.orders = holding(dict.fromkeys(NAMES, 1))
        self.really = dict.fromkeys(NAMES, 1)
        self.linked = set(NAMES)
        self.under_way: list[Told] = []
        self.followed = dict.fromkeys(NAMES, 0)
        self.wanted = dict.fromkeys(NAMES, 1)
        self.now = 0.0
        self.hurt = False
        """Somebody crashed, or nobody was wanted, since all was well: nobody can promise anything then."""

    @rule(counts=st.tuples(*(st.integers(0, 3) for _ in NAMES)))
    def plan(self, counts: tuple[int, ...]) -> None:
        """Want something else; nothing of who is not linked."""
        self.wanted = {
            name: count if name in self.linked else 0 for name, count in zip(NAMES, counts, strict=True)
        }
        self.orders.want(CAP, self.wanted, [name for name, count in self.wanted.items() if not count])

    @rule(pause=st.sampled_from([0.05, 0.6]))
    def send(self, pause: float) -> None:
        """Let orders go out."""
        self.now += pause
        self.under_way += self.orders.due(self.now, reachable=lambda name: name in self.linked)

    @rule(data=st.data(), answered=st.booleans())
    def arrive(self, data: Any, answered: bool) -> None:
        """One order arrives and is followed, if it is newer; its answer may be lost."""
        if not self.under_way:
            return
        order = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        if order.instance not in self.linked or order.revision <= self.followed[order.instance]:
            return
        self.followed[order.instance] = order.revision
        self.really[order.instance] = order.tickets[CAP]
        if answered:
            self.beat(order.instance)

    @rule(data=st.data())
    def lose(self, data: Any) -> None:
        """An order is lost."""
        if self.under_way:
            self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))

    @rule(name=st.sampled_from(NAMES))
    def beat(self, name: str) -> None:
        """A heartbeat says what is held."""
        if name in self.linked:
            held = {CAP: self.really[name]}
            self.orders.confirm(name, held, self.followed[name], self.now)

    @rule(name=st.sampled_from(NAMES))
    def crash(self, name: str) -> None:
        """A link ends, which is found out."""
        if name in self.linked:
            self.linked.discard(name)
            self.really[name] = 0
            self.hurt = True
            self.orders.ended(name)
            self.wanted[name] = 0
            self.orders.want(CAP, self.wanted, [one for one, count in self.wanted.items() if not count])

    @rule(name=st.sampled_from(NAMES))
    def register(self, name: str) -> None:
        """A new link: it registers, and holds what the answer says."""
        if name in self.linked:
            return
        self.linked.add(name)
        self.wanted[name] = 1
        self.orders.want(CAP, self.wanted, [one for one, count in self.wanted.items() if not count])
        answer = self.orders.answer(name, {}, self.now)
        self.followed[name] = answer.revision
        self.really[name] = answer.tickets[CAP]

    @invariant()
    def there_is_a_responder(self) -> None:
        """Once there is a responder there always is one, unless it crashed or nobody is wanted."""
        if not hasattr(self, "really"):
            return
        if not any(self.wanted.values()):
            self.hurt = True
        elif any(self.really.values()):
            self.hurt = self.hurt and bool(self.under_way)
        elif not self.hurt:
            raise AssertionError(f"nobody answers: wanted {self.wanted}, held {self.really}")

    def teardown(self) -> None:
        """Left alone, every instance ends up with what is wanted of it."""
        if not hasattr(self, "really"):
            return
        for _ in range(12):
            self.now += 1.0
            for order in self.orders.due(self.now, reachable=lambda name: name in self.linked):
                if order.revision > self.followed[order.instance]:
                    self.followed[order.instance] = order.revision
                    self.really[order.instance] = order.tickets[CAP]
            for name in self.linked:
                self.beat(name)
        for name in self.linked:
            assert self.wanted[name] == self.really[name], (name, self.wanted, self.really)


TestTickets = Tickets.TestCase
TestTickets.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
