"""Who is more general than whom: by dotted prefixes and a small table (ROUTE-4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.errors import ConfigError
from reach.policy.inherit import APART, MODE, MOST_ANCESTORS, PARENTS, Inheritance, Mode, parse, stands_in

NAMES = st.sampled_from(["a", "b", "c", "a.x", "a.x.y", "b.z", "c.q.r.s"])
RULES = st.builds(
    Inheritance,
    st.just(Mode.FALLBACK),
    st.dictionaries(NAMES, st.lists(NAMES, max_size=3, unique=True).map(tuple), max_size=6),
)


def test_prefixes_and_the_table_are_followed_nearest_first() -> None:
    """ROUTE-4: `invoice.extract` < `invoice` < `document`."""
    rule = Inheritance.of({PARENTS: "invoice=document, scan=document"})
    assert (("invoice", 1), ("document", 2)) == rule.ancestors("invoice.extract")
    assert (("document", 1),) == rule.ancestors("scan")
    assert () == rule.ancestors("document")


@pytest.mark.parametrize(
    ("mode", "own", "generation", "expected"),
    [
        (Mode.FALLBACK, 10, 0, 10),
        (Mode.FALLBACK, 10, 1, APART + 10),
        (Mode.FALLBACK, 20, 2, 2 * APART + 20),
        (Mode.WEIGHT, 10, 2, 10),
    ],
)
def test_a_stand_in_comes_after_everybody_exact(mode: Mode, own: int, generation: int, expected: int) -> None:
    """ROUTE-4: only when no exact one is usable; by weight it is a neighbour in the tier of its card."""
    priority = Inheritance(mode).priority(own, generation)
    assert expected == priority
    assert (expected > APART) is stands_in("invoice", priority)
    assert not stands_in(None, priority)


def test_it_can_be_turned_off() -> None:
    """ROUTE-4: then nobody is more general than anybody."""
    assert () == Inheritance.of({MODE: "off", PARENTS: "a=b"}).ancestors("a.x")


@pytest.mark.parametrize(
    ("env", "word"),
    [
        ({MODE: "sometimes"}, "fallback, weight, off"),
        ({PARENTS: "invoice"}, "invoice=document"),
        ({PARENTS: "Invoice=document"}, "Invoice=document"),
        ({PARENTS: "a=a"}, "more general than itself"),
    ],
)
def test_what_is_none_is_refused_with_what_would_be_right(env: dict[str, str], word: str) -> None:
    """Errors teach."""
    with pytest.raises(ConfigError, match=word):
        Inheritance.of(env)


def test_a_name_may_have_several_parents() -> None:
    """Told twice is told once."""
    assert {"a": ("b", "c")} == parse("a=b, a=c ,a=b,")


@given(rule=RULES, name=NAMES)
def test_ancestors_end_whatever_the_table_says(rule: Inheritance, name: str) -> None:
    """No name is its own ancestor, none comes twice, generations do not fall, and there are not too many."""
    found = rule.ancestors(name)
    names = [ancestor for ancestor, _ in found]
    generations = [generation for _, generation in found]
    assert name not in names
    assert len(set(names)) == len(names) < MOST_ANCESTORS + 8
    assert sorted(generations) == generations
