"""Which change of a schema breaks whom: each kind of incompatible change is refused, compatible ones pass."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from reach.wire.compat import both_ways, incompatibilities

Schema = dict[str, Any]
Change = Callable[[Schema], Any]

INVOICE: Schema = {
    "$id": "schema://invoice.extract/output@1",
    "type": "object",
    "properties": {
        "number": {"type": "string", "minLength": 1, "maxLength": 40},
        "total": {"type": "string", "pattern": "^[0-9.]+$"},
        "currency": {"enum": ["EUR", "CNY"]},
        "pages": {"type": "integer", "minimum": 1, "maximum": 500, "default": 1},
        "issued": {"type": "string", "format": "date"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}, "minItems": 0, "maxItems": 1000},
        "extra": {"type": "object", "additionalProperties": {"type": "number"}},
    },
    "required": ["number", "total"],
    "$defs": {
        "Line": {
            "type": "object",
            "properties": {"text": {"type": "string"}, "net": {"type": "number"}, "kind": {"const": "item"}},
            "required": ["text"],
        }
    },
}


def changed(change: Change) -> Schema:
    new = copy.deepcopy(INVOICE)
    change(new)
    return new


def setting(field: str, word: str, value: Any) -> Change:
    return lambda s: s["properties"][field].__setitem__(word, value)


def dropping(field: str, word: str) -> Change:
    return lambda s: s["properties"][field].pop(word)


def field(name: str, value: Any) -> Change:
    return lambda s: s["properties"].__setitem__(name, value)


def line(change: Change) -> Change:
    return lambda s: change(s["$defs"]["Line"])


# (what changes, who is upgraded first, what is said)
BREAKING: dict[str, tuple[Change, str, str]] = {
    "a field required": (
        lambda s: s["required"].append("pages"),
        "reader",
        "pages: the field is now required",
    ),
    "a new field required": (
        lambda s: (field("buyer", {"type": "string"})(s), s["required"].append("buyer")),
        "reader",
        "buyer: the field is now required",
    ),
    "a field removed, taken": (
        lambda s: s["properties"].pop("pages"),
        "reader",
        "pages: the field was removed",
    ),
    "a field removed, given": (
        lambda s: s["properties"].pop("pages"),
        "writer",
        "pages: the field was removed",
    ),
    "a promise withdrawn": (
        lambda s: s["required"].remove("total"),
        "writer",
        "total: the field is no longer promised",
    ),
    "a type changed": (
        setting("pages", "type", "string"),
        "reader",
        "pages: the type was narrowed: integer is no longer taken",
    ),
    "a type narrowed": (
        line(setting("net", "type", "integer")),
        "reader",
        "lines[].net: the type was narrowed: number is no longer taken",
    ),
    "a type widened": (
        setting("pages", "type", "number"),
        "writer",
        "pages: the type was widened: number is now sent too",
    ),
    "null no longer taken": (
        field("note", {"type": "string", "default": None}),
        "reader",
        "note: null is no longer taken",
    ),
    "null now sent": (
        setting("number", "type", ["string", "null"]),
        "writer",
        "number: null is now sent too",
    ),
    "a value removed": (
        lambda s: s["properties"]["currency"]["enum"].remove("CNY"),
        "reader",
        "currency: 'CNY' is no longer taken",
    ),
    "a value added": (
        lambda s: s["properties"]["currency"]["enum"].append("USD"),
        "writer",
        "currency: 'USD' is now sent too",
    ),
    "a list of values closed": (
        setting("number", "enum", ["R-1"]),
        "reader",
        "number: the values are now a closed list",
    ),
    "a list of values opened": (
        line(dropping("kind", "const")),
        "writer",
        "lines[].kind: the type was widened: array or boolean or integer or null or number or object is now sent too",
    ),
    "a constant changed": (
        line(setting("kind", "const", "row")),
        "reader",
        "lines[].kind: 'item' is no longer taken",
    ),
    "a maximum tightened": (
        setting("pages", "maximum", 100),
        "reader",
        "pages: maximum was tightened from 500 to 100",
    ),
    "a maximum loosened": (
        dropping("pages", "maximum"),
        "writer",
        "pages: maximum was loosened from 500 to none",
    ),
    "a minimum tightened": (
        setting("pages", "minimum", 2),
        "reader",
        "pages: minimum was tightened from 1 to 2",
    ),
    "a length tightened": (
        setting("number", "maxLength", 10),
        "reader",
        "number: maxLength was tightened from 40 to 10",
    ),
    "a list shortened": (
        setting("lines", "maxItems", 5),
        "reader",
        "lines: maxItems was tightened from 1000 to 5",
    ),
    "a pattern added": (
        setting("number", "pattern", "^R"),
        "reader",
        "number: pattern changed from none to '^R'",
    ),
    "a pattern changed": (
        setting("total", "pattern", "^[0-9]+$"),
        "reader",
        "total: pattern changed from '^[0-9.]+$' to '^[0-9]+$'",
    ),
    "a pattern dropped": (
        dropping("total", "pattern"),
        "writer",
        "total: pattern changed from '^[0-9.]+$' to none",
    ),
    "a format changed": (
        setting("issued", "format", "date-time"),
        "reader",
        "issued: format changed from 'date' to 'date-time'",
    ),
    "a default changed": (
        setting("pages", "default", 2),
        "reader",
        "pages: the default changed from 1 to 2: leaving it out means another thing",
    ),
    "a default dropped": (
        dropping("pages", "default"),
        "writer",
        "pages: the default changed from 1 to none: leaving it out means another thing",
    ),
    "closed to unknown fields": (
        lambda s: s.__setitem__("additionalProperties", False),
        "reader",
        "the whole: unknown fields are no longer taken (additionalProperties was closed)",
    ),
    "the values of a map": (
        setting("extra", "additionalProperties", {"type": "string"}),
        "reader",
        "extra.*: the type was narrowed: number is no longer taken",
    ),
    "what cannot be judged": (
        lambda s: s.__setitem__("not", {"required": ["pages"]}),
        "reader",
        "the whole: not changed, which cannot be judged: let a person decide",
    ),
    "what lists no items": (
        setting("lines", "items", {"type": "string"}),
        "reader",
        "lines[]: the type was narrowed: object is no longer taken",
    ),
}


@pytest.mark.parametrize("kind", BREAKING)
def test_an_incompatible_change_is_refused_and_named(kind: str) -> None:
    """Each kind of change that breaks somebody is found, with its place and what it does."""
    change, upgraded, said = BREAKING[kind]
    new = changed(change)
    assert said in incompatibilities(INVOICE, new, upgraded=upgraded)  # type: ignore[arg-type]
    assert said in both_ways(INVOICE, new)


COMPATIBLE: dict[str, tuple[Change, tuple[str, ...]]] = {
    "nothing": (lambda _: None, ("reader", "writer")),
    "an optional field": (field("buyer", {"type": "string"}), ("reader", "writer")),
    "words for people": (setting("pages", "description", "How many."), ("reader", "writer")),
    "an extension": (setting("pages", "x-unit", "pages"), ("reader", "writer")),
    "a default given": (setting("currency", "default", "EUR"), ("reader", "writer")),
    "the order of values": (lambda s: s["properties"]["currency"]["enum"].reverse(), ("reader", "writer")),
    "types as a list": (
        field("note", {"type": ["null", "string"], "default": None}),
        ("reader", "writer"),
    ),
    "a part written out": (
        lambda s: s["properties"]["lines"].__setitem__("items", s["$defs"]["Line"]),
        ("reader", "writer"),
    ),
    "no longer required, taken": (lambda s: s["required"].remove("total"), ("reader",)),
    "wider, taken": (setting("pages", "type", "number"), ("reader",)),
    "looser, taken": (setting("pages", "maximum", 1000), ("reader",)),
    "no pattern, taken": (dropping("total", "pattern"), ("reader",)),
    "more values, taken": (lambda s: s["properties"]["currency"]["enum"].append("USD"), ("reader",)),
    "promised, given": (lambda s: s["required"].append("pages"), ("writer",)),
    "narrower, given": (line(setting("net", "type", "integer")), ("writer",)),
    "tighter, given": (setting("pages", "maximum", 100), ("writer",)),
    "never null, given": (field("note", {"type": "string", "default": None}), ("writer",)),
    "fewer values, given": (lambda s: s["properties"]["currency"]["enum"].remove("CNY"), ("writer",)),
    "closed, given": (lambda s: s.__setitem__("additionalProperties", False), ("writer",)),
}


@pytest.mark.parametrize("kind", COMPATIBLE)
def test_a_compatible_change_passes(kind: str) -> None:
    """What breaks nobody is allowed, for the side that is upgraded first."""
    change, sides = COMPATIBLE[kind]
    for upgraded in sides:
        assert [] == incompatibilities(INVOICE, changed(change), upgraded=upgraded)  # type: ignore[arg-type]


def test_a_closed_schema_takes_no_new_field_of_a_writer() -> None:
    """Where old readers refuse unknown fields, a new one breaks them."""
    old = changed(lambda s: s.__setitem__("additionalProperties", False))
    new = copy.deepcopy(old)
    new["properties"]["buyer"] = {"type": "string"}
    expected = ["buyer: the field is new, and old readers refuse unknown fields"]
    assert expected == incompatibilities(old, new, upgraded="writer")
    assert [] == incompatibilities(old, new, upgraded="reader")


def test_a_change_behind_a_reference_is_found_where_nothing_else_moved() -> None:
    """A keyword that cannot be judged is compared with all that it leads to."""
    old: Schema = {"not": {"$ref": "#/$defs/Bad"}, "$defs": {"Bad": {"type": "string"}}}
    new: Schema = {"not": {"$ref": "#/$defs/Bad"}, "$defs": {"Bad": {"type": "integer"}}}
    assert ["the whole: not changed, which cannot be judged: let a person decide"] == both_ways(old, new)


@pytest.mark.parametrize("word", ["allOf", "prefixItems"])
def test_parts_by_place_are_compared_place_by_place(word: str) -> None:
    """What pydantic puts into `allOf` or `prefixItems` is judged like anything else."""
    old: Schema = {word: [{"type": "string"}, {"type": "integer", "minimum": 1}]}
    new: Schema = {word: [{"type": "string"}, {"type": "integer", "minimum": 2}]}
    assert ["the whole: minimum was tightened from 1 to 2"] == incompatibilities(old, new)
    assert [] == incompatibilities(new, old)


@pytest.mark.parametrize(
    ("beside", "inside"),
    [
        ({"items": {"type": "string"}}, {"items": {}}),
        ({"properties": {"a": {"type": "string"}}}, {"properties": {"a": {}}}),
        ({"additionalProperties": False, "properties": {}}, {"properties": {"a": {}}}),
    ],
)
def test_what_stands_beside_alternatives_counts_as_much_as_they_do(beside: Schema, inside: Schema) -> None:
    """A limit that goes from beside an `anyOf` is found, though its branches speak of the same thing."""
    old: Schema = {**beside, "anyOf": [inside]}
    assert [] != incompatibilities(old, {"anyOf": [inside]}, upgraded="writer")
    assert [] != incompatibilities({"anyOf": [inside]}, old, upgraded="reader")
    assert [] == both_ways(old, copy.deepcopy(old))


def test_two_fields_of_one_part_are_both_judged() -> None:
    """The same part met again beside another schema is not skipped."""
    old: Schema = {"properties": {"a": {"$ref": "#/$defs/A"}, "b": {"type": "string", "maxLength": 9}}}
    old["$defs"] = {"A": {"type": "string"}}
    new: Schema = {"properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#/$defs/A"}}}
    new["$defs"] = {"A": {"type": "string", "maxLength": 5}}
    assert [
        "a: maxLength was tightened from none to 5",
        "b: maxLength was tightened from 9 to 5",
    ] == incompatibilities(old, new)


def test_a_schema_that_holds_itself_is_judged_once() -> None:
    """Recursion ends: a tree is compared where it is met first."""
    tree: Schema = {
        "$ref": "#/$defs/Node",
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {"n": {"type": "integer"}, "below": {"items": {"$ref": "#/$defs/Node"}}},
            }
        },
    }
    new = copy.deepcopy(tree)
    new["$defs"]["Node"]["properties"]["n"] = {"type": "string"}
    assert ["n: the type was narrowed: integer is no longer taken"] == incompatibilities(tree, new)


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("https://example.org/x.json", "leads out of the document"),
        ("#/$defs/Missing", "leads nowhere"),
        ("#", "leads back to itself"),
    ],
)
def test_a_reference_is_never_fetched(reference: str, why: str) -> None:
    """References are followed inside the document only; others are an error, not a download."""
    with pytest.raises(ValueError, match=why):
        incompatibilities({"$ref": reference}, {"$ref": reference})


def test_true_and_false_are_schemas() -> None:
    """`True` allows anything and `False` nothing, as a field's schema may be."""
    old: Schema = {"properties": {"a": True, "b": False}}
    new: Schema = {"properties": {"a": False, "b": True}}
    assert any(line.startswith("a: ") for line in incompatibilities(old, new, upgraded="reader"))
    assert any(line.startswith("b: ") for line in incompatibilities(old, new, upgraded="writer"))


SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["string", "integer", "null", ["string", "null"]]),
            "enum": st.lists(st.sampled_from(["a", 1, None]), min_size=1, unique=True),
            "minimum": st.integers(0, 3),
            "default": st.sampled_from(["a", 1, None]),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            "required": st.lists(st.sampled_from("abc"), unique=True, max_size=2),
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "additionalProperties": st.booleans() | inner,
        },
    ),
    max_leaves=8,
)


@given(one=SCHEMAS)
@settings(max_examples=200, deadline=None)
def test_a_schema_may_always_follow_itself(one: Schema) -> None:
    """No schema is incompatible with itself."""
    assert [] == both_ways(one, copy.deepcopy(one))


VALUES = st.recursive(
    st.sampled_from(["a", "b", 0, 1, 2, None, True, 1.5]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=5,
)


def without_unknown_fields(node: Any) -> Any:
    """The same schema, forbidding what it does not mention: our readers ignore it, so it proves nothing."""
    if not isinstance(node, dict):
        return node
    made = dict(node)
    if made.get("additionalProperties") is True:
        del made["additionalProperties"]  # Said or left out, it means the same.
    for word in ("items", "additionalProperties"):
        if word in made:
            made[word] = without_unknown_fields(made[word])
    if "properties" in made:
        made["properties"] = {key: without_unknown_fields(one) for key, one in made["properties"].items()}
    return {**made, "unevaluatedProperties": False}


@st.composite
def revisions(draw: st.DrawFn) -> tuple[Schema, Schema]:
    """A schema, and another that differs from it in a word or two, somewhere inside."""
    old = draw(SCHEMAS)
    new = copy.deepcopy(old)
    for _ in range(draw(st.integers(1, 2))):
        node = new
        while below := [one for one in parts_of(node) if draw(st.booleans())]:
            node = below[0]
        other = draw(SCHEMAS)
        word = draw(st.sampled_from(sorted({*node, *other, "type"})))
        if word in other:
            node[word] = other[word]
        else:
            node.pop(word, None)
    return old, new


def parts_of(node: Schema) -> list[Schema]:
    found = [*node.get("properties", {}).values(), *node.get("anyOf", [])]
    found += [node[word] for word in ("items", "additionalProperties") if isinstance(node.get(word), dict)]
    return found


@given(pair=revisions(), value=VALUES)
@settings(max_examples=600, deadline=None)
def test_what_passes_breaks_nobody(pair: tuple[Schema, Schema], value: Any) -> None:
    """Where nothing is found, no value that one side may send is wrong for the other."""
    old, new = pair
    for upgraded, sender, receiver in (("reader", old, new), ("writer", new, old)):
        if incompatibilities(old, new, upgraded=upgraded):  # type: ignore[arg-type]
            continue
        if Draft202012Validator(without_unknown_fields(sender)).is_valid(value):
            assert Draft202012Validator(receiver).is_valid(value), upgraded
