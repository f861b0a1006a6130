"""What may be spent, and how processes share it: never more, and all of it (GUARD-4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.policy.taskbudget import MOST_CHUNK, Budget, Chunks, Left, Purse, Spent


def purse(**bounds: object) -> Purse:
    return Purse(Budget(**bounds), now=100.0)  # type: ignore[arg-type]


def test_calls_are_taken_until_they_are_spent() -> None:
    """GUARD-4: the third of two calls is refused, and told what is left of the rest; it costs nothing."""
    ours = purse(calls=2, cost=10, seconds=60)
    assert [None, None] == [ours.take("a.b", 100.0), ours.take("a.b", 101.0)]
    ours.charge(2.5)

    assert Spent("calls", 2, 2, Left(0, 7.5, 50.0)) == ours.take("a.b", 110.0)
    ours.give_back("a.b")
    assert ours.take("a.b", 110.0) is None


def test_cost_and_time_are_bounds_too() -> None:
    """GUARD-4: what was spent is known afterwards; from then on nothing is begun."""
    ours = purse(cost=1.0, seconds=5)
    assert ours.take("a.b", 100.0) is None
    ours.charge(1.5)
    assert Spent("cost", 1.5, 1.0, Left(None, 0.0, 4.0)) == ours.take("a.b", 101.0)

    late = purse(seconds=5)
    assert Spent("seconds", 5.0, 5, Left(None, None, 0.0)) == late.take("a.b", 105.0)


def test_capabilities_have_their_own_part() -> None:
    """GUARD-4: `by_capability` bounds one name, or all below it, beside the whole."""
    ours = purse(calls=10, by_capability={"invoice.extract": 1, "invoice.*": 2})
    assert ours.take("invoice.extract", 100.0) is None
    refused = ours.take("invoice.extract", 100.0)
    assert refused is not None
    assert ("calls of invoice.extract", 1, 1) == (refused.what, refused.used, refused.allowed)
    assert ours.take("invoice.check", 100.0) is None
    assert ours.take("invoice.check", 100.0) is not None
    assert ours.take("ledger.post", 100.0) is None
    assert {"calls": 7, "by_capability": {"invoice.extract": 0, "invoice.*": 0}} == ours.left(100.0).to_map()


@pytest.mark.parametrize("bounds", [{"calls": -1}, {"cost": float("nan")}, {"by_capability": {"a.b": -2}}])
def test_a_budget_is_checked(bounds: dict[str, object]) -> None:
    """A bound that is none is a mistake, said as one."""
    with pytest.raises(ValueError, match="a budget's"):
        Budget(**bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"calls": 1.5}, ValueError, "calls is a whole number, 0 or more, or not given, not 1.5"),
        ({"calls": "3"}, TypeError, "calls is a number, 0 or more, not '3'"),
        ({"calls": True}, TypeError, "calls is a number, 0 or more, not True"),
        ({"by_capability": {"a.*": 0.5}}, ValueError, r"by_capability\['a.\*'\] is a whole number"),
        ({"by_capability": ["a.b"]}, TypeError, "by_capability maps names to calls"),
    ],
    ids=str,
)
def test_what_is_no_budget_is_refused(given: dict[str, object], error: type[Exception], told: str) -> None:
    """GUARD-4: the message says which bound is wrong, and what would be right."""
    with pytest.raises(error, match=told):
        purse(**given)


def test_what_is_left_is_the_least_of_both() -> None:
    """A round inside a round has what both leave it."""
    inner, outer = Left(3, None, 9.0, {"a.b": 4}), Left(5, 1.0, 2.0, {"a.b": 1, "c.d": 7})

    assert Left(3, 1.0, 2.0, {"a.b": 1, "c.d": 7}) == inner.within(outer)


def test_chunks_are_small_at_the_end() -> None:
    """Who asks while little is left asks for one call; in the beginning for 64, or for all that wait."""
    ours = Chunks(10_000)
    assert (MOST_CHUNK, 200) == (ours.wanted(1), ours.wanted(200))
    ours.used = 9_940
    assert 1 == ours.wanted(1)


@given(
    allowed=st.integers(0, 300),
    moves=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(("take", "settle", "return", "rest"))), max_size=300
    ),
)
def test_all_is_spent_and_no_more(allowed: int, moves: list[tuple[int, str]]) -> None:
    """GUARD-4: four processes in any order: never more calls than the budget has; in the end all of them are made."""
    total, made = 0, 0
    processes = [Chunks(allowed) for _ in range(4)]
    surplus = [0, 0, 0, 0]  # What each has to take off again, and has not yet.

    def ask(who: int) -> None:
        nonlocal total
        asked = processes[who].wanted(1)
        total += asked
        surplus[who] += processes[who].told(asked, total)

    for who, move in moves:
        if move == "take":
            if not processes[who].take():
                ask(who)
                made += processes[who].take()
            else:
                made += 1
        elif move == "settle":
            total, surplus[who] = total - surplus[who], 0
        elif move == "return" and made:
            made -= 1
            processes[who].held += 1
        elif move == "rest":
            total, processes[who].held = total - processes[who].held, 0
        assert made + sum(process.held for process in processes) <= allowed
    total -= sum(surplus) + sum(process.held for process in processes)
    for process in processes:
        process.held = 0
    surplus = [0, 0, 0, 0]
    for _ in range(allowed + 1):
        if not processes[0].take():
            ask(0)
            total, surplus[0] = total - surplus[0], 0
            if not processes[0].take():
                break
        made += 1

    assert allowed == made
