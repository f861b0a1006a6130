"""Rendezvous: the same owner everywhere, and as little movement as can be."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.policy.rendezvous import Rendezvous, slot_of

KEYS = [f"account-{number}" for number in range(6_000)]


def owners(table: Rendezvous) -> dict[str, str | None]:
    return {key: table.owner(key) for key in KEYS}


@pytest.mark.parametrize("count", [2, 5, 10])
def test_losing_one_moves_its_own_keys_only(count: int) -> None:
    """ROUTE-5: losing one of n instances moves at most 1.3/n of the keys, all of them its own; adding one likewise."""
    weights = {f"i-{number}": 1.0 for number in range(count)}
    before = owners(Rendezvous(weights))
    gone = weights.pop("i-1")
    after = owners(Rendezvous(weights))
    moved = [key for key in KEYS if before[key] != after[key]]
    assert {"i-1"} == {before[key] for key in moved}
    assert len(moved) <= 1.3 / count * len(KEYS)
    assert gone == 1.0


def test_keys_are_spread_by_weight() -> None:
    """Each instance owns its share of the keys: equal ones within a tenth, a lighter one for its weight."""
    seen = Counter(owners(Rendezvous({"a": 1.0, "b": 1.0, "c": 1.0, "warm": 0.2})).values())
    assert pytest.approx({"a": 1875, "b": 1875, "c": 1875, "warm": 375}, rel=0.1) == dict(seen)


def test_a_changed_weight_moves_keys_to_or_from_that_instance_only() -> None:
    """While an instance warms up its keys come to it step by step, and no other key moves."""
    before = owners(Rendezvous({"a": 1.0, "b": 1.0, "warm": 0.2}))
    after = owners(Rendezvous({"a": 1.0, "b": 1.0, "warm": 1.0}))
    assert {"warm"} == {after[key] for key in KEYS if before[key] != after[key]}
    assert all(after[key] == "warm" for key in KEYS if before[key] == "warm")


def test_owners_are_the_same_in_every_process() -> None:
    """The algorithm is written down, so these owners are what every caller, of any version, finds."""
    table = Rendezvous({"i-0": 1.0, "i-1": 1.0, "i-2": 1.0})
    assert ["i-1", "i-2", "i-2", "i-2", "i-2", "i-0", "i-1", "i-2"] == [
        table.owner(f"account-{number}") for number in range(8)
    ]
    assert 11629 == slot_of("account-0")


@pytest.mark.parametrize("avoid", [{"a"}, {"a", "b"}])
def test_an_owner_to_avoid_is_replaced_by_who_would_own_without_it(avoid: set[str]) -> None:
    """RETRY-5: the stand-in is the next in line, so that retries of a key meet one instance too."""
    weights = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}
    table = Rendezvous(weights)
    without = Rendezvous({name: weight for name, weight in weights.items() if name not in avoid})
    assert [without.owner(key) for key in KEYS[:500]] == [table.owner(key, avoid) for key in KEYS[:500]]


def test_nobody_owns_where_nobody_is() -> None:
    """No instance, none with a weight, or all to be avoided: no owner."""
    assert [None, None, None] == [
        Rendezvous({}).owner("k"),
        Rendezvous({"a": 0.0}).owner("k"),
        Rendezvous({"a": 1.0}).owner("k", {"a"}),
    ]


NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f"])
TABLES = st.dictionaries(NAMES, st.sampled_from([0.0, 0.2, 0.5, 1.0, 2.0]))


@settings(max_examples=60, deadline=None)
@given(st.lists(TABLES, min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_a_revised_table_is_a_fresh_one(revisions: list[dict[str, float]], chance: random.Random) -> None:
    """SPEED-3: keeping known owners over a revision never changes an answer."""
    table = Rendezvous(revisions[0])
    for weights in revisions[1:]:
        for key in chance.sample(KEYS, 60):
            table.owner(key)
        table = table.revised(weights)
        fresh = Rendezvous(weights)
        for key in chance.sample(KEYS, 60):
            assert fresh.owner(key) == table.owner(key)


def test_a_weight_that_is_none_is_refused() -> None:
    """A negative or endless weight is told with its instance."""
    with pytest.raises(ValueError, match="the weight of a is a finite number"):
        Rendezvous({"a": math.nan})


def test_a_key_may_be_any_text() -> None:
    """Keys come from users: empty, not ASCII, even half a character."""
    table = Rendezvous({"a": 1.0})
    assert ["a"] * 3 == [table.owner(key) for key in ("", "发票", "\ud800")]
