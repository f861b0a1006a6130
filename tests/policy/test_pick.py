"""Strategies: whom each picks, and that none picks who is to be avoided or has no weight."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.policy.alias import EvenPicks
from reach.policy.pick import BUILT_IN, Candidate, Options, Picker, Share, build

PICKS = [number / 97 for number in range(97)]
THREE = [Candidate("a"), Candidate("b"), Candidate("c")]


def picked(picker: Picker, *, calls: int = 1_000, key: str | None = None) -> Counter[str | None]:
    picks = EvenPicks(0.1)
    return Counter(picker.choose(picks.next(), key=key) for _ in range(calls))


def test_pool_leaves_the_choice_to_nats() -> None:
    """ROUTE-5: the default names nobody, so that the queue group's subject is used."""
    assert {None: 10} == picked(build("pool", THREE), calls=10)


def test_random_picks_by_weight() -> None:
    """ROUTE-5: 10 000 calls are within a point of the weights."""
    found = picked(build("random", [Candidate("a", 0.8), Candidate("b", 0.2)]), calls=10_000)
    assert pytest.approx({"a": 8000, "b": 2000}, abs=100) == dict(found)


def test_round_robin_takes_turns() -> None:
    """ROUTE-5: equal instances come in turn; where the first turn falls is drawn."""
    picker = build("round_robin", THREE)
    turns = [picker.choose(pick) for pick in (0.4, 0.0, 0.9, 0.5, 0.5, 0.1)]
    assert ["b", "c", "a", "b", "c", "a"] == turns


def test_round_robin_keeps_the_weights_apart() -> None:
    """A warming instance gets its fifth of a turn, and a heavy one's turns are spread over the round."""
    picker = build("round_robin", [Candidate("a"), Candidate("b"), Candidate("warm", 0.2)])
    turns = [picker.choose(0.0) for _ in range(11)]
    assert {"a": 5, "b": 5, "warm": 1} == Counter(turns)
    assert not any(first == second for first, second in pairwise(turns))


def test_round_robin_steps_over_who_is_avoided() -> None:
    """RETRY-5: the next in turn that has not failed the call."""
    picker = build("round_robin", THREE)
    assert ["b", "a"] == [picker.choose(0.0, avoid=avoid) for avoid in (["a", "c"], ["b", "c"])]


def test_consistent_hash_brings_a_key_back() -> None:
    """ROUTE-5: the same key meets the same instance, whatever is drawn; without a key calls are spread."""
    picker = build("consistent_hash", THREE)
    assert 1 == len(picked(picker, key="account-7"))
    assert {"a", "b", "c"} == set(picked(picker))


def test_consistent_hash_over_revisions_is_that_of_a_fresh_table() -> None:
    """What one revision hands to the next changes no owner."""
    first = build("consistent_hash", THREE)
    for number in range(200):
        first.choose(0.5, key=str(number))
    later = [Candidate("a"), Candidate("c", 0.2), Candidate("d")]
    handed, fresh = (build("consistent_hash", later, Options(previous=one)) for one in (first, None))
    assert [fresh.choose(0.5, key=str(n)) for n in range(200)] == [
        handed.choose(0.5, key=str(n)) for n in range(200)
    ]


@pytest.mark.parametrize("gone", ["a1", "a2", "b1"])
def test_consistent_hash_moves_the_keys_of_who_is_gone_and_no_others(gone: str) -> None:
    """ROUTE-5: over two lanes that keep their weights, an instance that is lost takes no key of another with it."""
    lanes = {"a": (0.6, ["a1", "a2", "a3"]), "b": (0.4, ["b1", "b2"])}

    def owners(without: str) -> dict[str, str | None]:
        there = {lane: [name for name in names if name != without] for lane, (_, names) in lanes.items()}
        candidates = [
            Candidate(name, lanes[lane][0] / len(names), provider=lane)
            for lane, names in there.items()
            for name in names
        ]
        picker = build("consistent_hash", candidates)
        return {str(number): picker.choose(0.5, key=str(number)) for number in range(2000)}

    before, after = owners(""), owners(gone)
    moved = [key for key, owner in before.items() if owner != after[key]]
    assert {gone} == {before[key] for key in moved}
    assert pytest.approx(400, abs=80) == len(moved)


def test_consistent_hash_goes_to_the_next_lane_when_all_of_one_are_avoided() -> None:
    """RETRY-5: a lane whose instances have all failed the call is left for the key's next one."""
    candidates = [
        Candidate("a1", provider="a"),
        Candidate("a2", provider="a"),
        Candidate("b1", 0.01, provider="b"),
    ]
    picker = build("consistent_hash", candidates)
    assert {"b1"} == {picker.choose(0.5, key=str(number), avoid=["a1", "a2"]) for number in range(50)}
    assert picker.choose(0.5, key="k", avoid=["a1", "a2", "b1"]) is None


def test_least_loaded_picks_the_better_of_two() -> None:
    """ROUTE-5: of two instances the one with less in flight is picked, always."""
    load = {"a": 5, "b": 2}
    picker = build("least_loaded", THREE[:2], Options(load=load.__getitem__))
    assert {"b": 97} == Counter(picker.choose(pick) for pick in PICKS)


def test_least_loaded_weighs_the_load() -> None:
    """A warming instance is full sooner: one call at a fifth of the weight is worth five."""
    load = {"a": 3, "warm": 0}
    picker = build("least_loaded", [Candidate("a"), Candidate("warm", 0.2)], Options(load=load.__getitem__))
    assert {"a": 97} == Counter(picker.choose(pick) for pick in PICKS)


def test_least_loaded_keeps_queues_short() -> None:
    """With 20 instances and calls that stay, the fullest is within two of the emptiest; by lot it would be far off."""
    load: Counter[str] = Counter()
    candidates = [Candidate(f"i{number}") for number in range(20)]
    picker = build("least_loaded", candidates, Options(load=load.__getitem__))
    generator = random.Random(3)
    for _ in range(2_000):
        load[str(picker.choose(generator.random()))] += 1
    assert max(load.values()) - min(load.values()) <= 4


def test_local_first_stays_in_the_region() -> None:
    """ROUTE-5: instances of the caller's region get its calls, by weight."""
    candidates = [
        Candidate("s1", region="south"),
        Candidate("s2", 3.0, region="south"),
        Candidate("n1", region="n"),
    ]
    found = picked(build("local_first", candidates, Options(region="south")))
    assert pytest.approx({"s2": 750, "s1": 250}, abs=20) == dict(found)


@pytest.mark.parametrize(("region", "avoid"), [("west", ()), ("south", ("s1",))])
def test_local_first_goes_elsewhere_when_nobody_is_near(region: str, avoid: Collection[str]) -> None:
    """A region without anybody, or without anybody left, does not fail the call."""
    candidates = [Candidate("s1", region="south"), Candidate("n1", region="north")]
    picker = build("local_first", candidates, Options(region=region))
    assert "n1" in {picker.choose(pick, avoid=avoid) for pick in PICKS}


def test_static_splits_by_provider_and_label_group() -> None:
    """ROUTE-5: named groups get their weights, whatever the number of their instances."""
    candidates = [
        Candidate("x1", provider="x"),
        Candidate("x2", provider="x"),
        Candidate("y1", provider="y", labels={"pool": "blue"}),
        Candidate("z1", provider="z"),
    ]
    shares = (Share(0.7, provider="x"), Share(0.3, labels={"pool": "blue"}))
    found = picked(build("static", candidates, Options(shares=shares)))
    assert pytest.approx({"x1": 350, "x2": 350, "y1": 300}, abs=10) == dict(found)


def test_static_gives_the_share_of_an_empty_group_to_the_others() -> None:
    """A group without anybody takes no calls away."""
    shares = (Share(0.9, provider="gone"), Share(0.1, provider="x"))
    assert {"x1": 50} == picked(
        build("static", [Candidate("x1", provider="x")], Options(shares=shares)), calls=50
    )


def test_static_without_groups_is_refused() -> None:
    """A static split of nothing would serve nobody: it is told when it is built."""
    with pytest.raises(ValueError, match="static needs shares"):
        build("static", THREE)


def _always_c(candidates: Sequence[Candidate], options: Options) -> Picker:
    assert ("south", 3) == (options.region, len(candidates))
    return build("random", [one for one in candidates if one.name == "c"])


def test_strategies_plug_in() -> None:
    """ROUTE-5: whatever builds a picker is a strategy, found by its name, with all that ours are given."""
    picker = build("always_c", THREE, Options(region="south"), plugins={"always_c": _always_c})
    assert {"c": 97} == Counter(picker.choose(pick) for pick in PICKS)


def test_an_unknown_strategy_is_told_with_those_there_are() -> None:
    """The error names what could have been meant, plug-ins too."""
    with pytest.raises(
        ValueError, match=r"no strategy 'robin'; there are pool, random, round_robin.* always_c"
    ):
        build("robin", THREE, plugins={"always_c": _always_c})


def test_a_candidate_listed_twice_is_refused() -> None:
    """Two entries of one name would hide a fault of the table."""
    with pytest.raises(ValueError, match="listed twice as candidates: a"):
        build("random", [*THREE, Candidate("a")])


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        name=st.sampled_from(["a", "b", "c", "d", "e"]),
        weight=st.sampled_from([0.0, 0.2, 1.0]),
        provider=st.sampled_from(["x", "y"]),
        region=st.sampled_from(["south", "north"]),
    ),
    max_size=5,
    unique_by=lambda one: one.name,
)
CHOOSING = sorted(BUILT_IN.keys() - {"pool"})


@pytest.mark.parametrize("name", CHOOSING)
@settings(max_examples=40, deadline=None)
@given(
    CANDIDATES,
    st.floats(0, 1, exclude_max=True),
    st.none() | st.text(max_size=3),
    st.frozensets(st.sampled_from(["a", "b", "c", "d"])),
)
def test_no_strategy_picks_who_cannot_serve(
    name: str, candidates: list[Candidate], pick: float, key: str | None, avoid: frozenset[str]
) -> None:
    """Somebody with a weight who is not to be avoided is picked if there is one; nobody else, ever."""
    options = Options(region="south", shares=(Share(1.0, provider="x"), Share(1.0, provider="y")))
    found = build(name, candidates, options).choose(pick, key=key, avoid=avoid)
    able = {one.name for one in candidates if one.weight > 0} - avoid
    assert (found in able) if able else found is None
