"""What parameters say and what shape an answer has, as texts that can be compared (IDEM-1, IDEM-4, SEE-5)."""

import dataclasses
import datetime as dt
import enum
import math
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from reach.errors import NotOnTheWire
from reach.policy.fingerprint import MAX_KEYS, MAX_PATHS, difference, digest, structure, structure_hash
from reach.wire import codec

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**63), max_value=2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
)
MAPS = st.dictionaries(
    st.text(max_size=6),
    st.recursive(
        LEAVES,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
        max_leaves=8,
    ),
    max_size=5,
)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Line(BaseModel):
    amount: Decimal
    at: dt.date


@dataclasses.dataclass
class Point:
    x: int
    y: float


def shuffled(value: Any) -> Any:
    """The same content, each map in the opposite order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


GOLDEN_VALUES = {
    "empty": {},
    "order": {"sku": "A-1", "count": 3, "price": 1.5, "rush": True},
    "nested": {"lines": [{"n": 1}, {"n": None}], "raw": b"\x00"},
}
GOLDEN = {
    "empty": "dc7f8ef06415c15a1cbd3bff88a46e0d",
    "order": "76cbb6727eb39373d00d57085d1c34a2",
    "nested": "e3ee7e1c8f1bf77a97fc1847fec16d3f",
}


@settings(deadline=None)
@given(value=MAPS)
def test_a_digest_is_the_same_on_both_sides_of_the_wire(value: dict[str, Any]) -> None:
    """IDEM-1: what the agent decoded has the digest of what the caller gave, in whatever order."""
    assert digest(value) == digest(codec.unpack(codec.pack(value))) == digest(shuffled(value))


@settings(deadline=None)
@given(value=MAPS)
def test_a_digest_is_the_same_as_json(value: dict[str, Any]) -> None:
    """IDEM-1: a caller that speaks JSON sends the same content, though JSON has other numbers."""
    try:
        data = codec.pack_json(value)
    except NotOnTheWire:
        return  # NaN, and a map that looks like bytes, have no form in JSON.
    assert digest(value) == digest(codec.unpack(data))


@settings(deadline=None)
@given(one=MAPS, other=MAPS)
def test_other_content_has_another_digest(one: dict[str, Any], other: dict[str, Any]) -> None:
    """IDEM-2: two different payloads are not taken for one another."""
    assert (digest(one) == digest(other)) == (repr(told(one)) == repr(told(other)))


def told(value: Any) -> Any:
    """A naive canonical form: sorted maps, numbers that are equal as one."""
    if isinstance(value, dict):
        return [(key, told(value[key])) for key in sorted(value)]
    if isinstance(value, list):
        return ["list", *map(told, value)]
    if isinstance(value, float) and value.is_integer() and -(2**63) <= value < 2**64:
        return int(value)
    return value


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (1.0, 1),
        (-0.0, 0),
        (1e18, 10**18),
        ((1, 2), [1, 2]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        (Decimal("1.0"), "1.0"),
        (uuid.UUID(int=7), str(uuid.UUID(int=7))),
        (dt.date(2026, 1, 2), "2026-01-02"),
        (dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC), "2026-01-02T03:00:00+00:00"),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Point(1, 2.0), {"y": 2, "x": 1}),
        (Line(amount=Decimal(5), at=dt.date(2026, 1, 2)), {"amount": "5", "at": "2026-01-02"}),
        (bytearray(b"ab"), b"ab"),
    ],
)
def test_values_count_as_the_form_they_have_on_the_wire(value: Any, form: Any) -> None:
    """IDEM-1: what the codec turns into something else is that, before sending too."""
    assert digest({"v": form}) == digest({"v": value})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (0, False),
        (1, "1"),
        ("a", b"a"),
        (None, "null"),
        ([], {}),
        ([1, [2]], [[1], 2]),
        (["ab", "c"], ["a", "bc"]),
        (1.5, "1.5"),
        (Decimal("1.0"), Decimal("1.00")),
        ({"a": None}, {}),
        ([1, 2], [2, 1]),
        (2**64 - 1, float(2**64)),
    ],
)
def test_what_is_not_the_same(one: Any, other: Any) -> None:
    """IDEM-2: kinds, order of lists, absence and what borders on each other are told apart."""
    assert digest({"v": one}) != digest({"v": other})


def test_all_that_is_no_number_is_one() -> None:
    """IDEM-1: NaN is equal to nothing, and still the same parameter."""
    assert digest({"v": math.nan}) == digest({"v": -math.nan})


def test_a_set_that_cannot_be_sorted_has_a_digest() -> None:
    """IDEM-4: members that cannot be compared are put in the order of their content."""
    assert digest({"v": {1, "a", None}}) == digest({"v": {None, "a", 1}})


def test_a_digest_stays_what_it_is() -> None:
    """IDEM-5: digests outlive a version; whoever changes the form gives it another name."""
    assert GOLDEN == {name: digest(value) for name, value in GOLDEN_VALUES.items()}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {"b": [2**64]}}, "a.b[0]"),
        ({"a": object()}, "a"),
        ({"a": {1: 2}}, "a[1]"),
        ({"a": "\ud800"}, "a"),
        ({"a": dt.datetime(2026, 1, 1)}, "a"),  # noqa: DTZ001 - a naive one is what is tested
    ],
)
def test_what_cannot_cross_is_refused_with_its_path(value: Any, path: str) -> None:
    """CALL-8: a value without a form on the wire has no digest, and the place is named."""
    with pytest.raises(NotOnTheWire) as refused:
        digest(value)
    assert path == refused.value.path


def test_what_is_nested_too_deep_is_refused() -> None:
    """CALL-8: depth is bounded as it is on the wire."""
    value: Any = 1
    for _ in range(codec.MAX_DEPTH + 2):
        value = [value]
    with pytest.raises(NotOnTheWire, match="deeper"):
        digest({"v": value})


def test_a_structure_has_paths_and_kinds_and_no_values() -> None:
    """SEE-5: the shape of an answer is its fields and their kinds; lists have that of all their items."""
    value = {
        "id": 7,
        "lines": [{"price": 1.5}, {"price": None, "note": "x"}],
        "ok": True,
        "tags": [],
        "raw": b"",
    }
    assert {
        "": "map",
        "id": "number",
        "lines": "list",
        "lines[]": "map",
        "lines[].note": "text",
        "lines[].price": "null|number",
        "ok": "truth",
        "raw": "bytes",
        "tags": "list",
    } == structure(value)


def test_values_do_not_change_a_structure() -> None:
    """SEE-5: other values, another order and other lengths are the same shape."""
    one = {"a": 1, "b": [{"c": "x"}]}
    other = {"b": [{"c": ""}, {"c": "long"}], "a": -2.5}
    assert structure_hash(structure(one)) == structure_hash(structure(other))


def test_a_table_is_one_shape_whatever_its_keys() -> None:
    """SEE-5: a map of very many keys is a table: its keys are data, and no new shape each day."""
    many = {str(n): {"count": n} for n in range(MAX_KEYS + 1)}
    more = {f"x{n}": {"count": n} for n in range(10 * MAX_KEYS)}
    assert {"": "map", "*": "map", "*.count": "number"} == structure(many) == structure(more)


def test_a_structure_is_bounded() -> None:
    """SEE-7: a huge answer is looked at in part."""
    wide = {f"a{n}": {f"b{m}": 1 for m in range(MAX_KEYS)} for n in range(MAX_KEYS)}
    deep: Any = 1
    for _ in range(200):
        deep = {"a": deep}
    assert MAX_PATHS == len(structure(wide))
    assert 9 == len(structure(deep))


def test_keys_that_look_like_paths_are_quoted() -> None:
    """SEE-5: a key with a dot is not taken for two."""
    assert structure({"a.b": 1}) != structure({"a": {"b": 1}})


def test_the_difference_of_two_structures_is_told() -> None:
    """SEE-5: what is new, gone and changed is said by path."""
    before = structure({"a": 1, "b": "x", "c": {"d": 1}})
    after = structure({"a": "1", "c": {"d": 1, "e": None}})
    assert ["a is text, was number", "b is gone: was text", "c.e is new: null"] == difference(before, after)
    assert ["the value is list, was map"] == difference(structure({}), structure([]))
    assert [] == difference(before, before)


@settings(deadline=None)
@given(value=MAPS)
def test_a_structure_is_the_same_on_both_sides_of_the_wire(value: dict[str, Any]) -> None:
    """SEE-5: a shape survives the wire."""
    assert structure(value) == structure(codec.unpack(codec.pack(value)))
