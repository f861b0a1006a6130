"""The caller's check of a card's schema: presence and kind at the top level, and never a false refusal."""

import datetime as dt
import enum
import re
import timeit
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Json,
    RootModel,
    TypeAdapter,
    ValidationError,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from reach.registry import schemas
from reach.registry.structure import compile_check


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Size(enum.Enum):
    SMALL = 1

    @classmethod
    def _missing_(cls, value: object) -> "Size":
        return cls.SMALL


class Pair(NamedTuple):
    left: int
    right: int


@dataclass
class Point:
    x: int = 0


class Money(BaseModel):
    amount: Decimal = Decimal(0)

    @model_validator(mode="before")
    @classmethod
    def from_text(cls, value: Any) -> Any:
        return {"amount": value} if isinstance(value, str) else value


class Node(BaseModel):
    below: "Node | None" = None


class Loose(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True, validate_by_name=True, validate_by_alias=True)

    name: str = Field(default="", alias="called")


class Words(RootModel[list[str]]):
    pass


TYPES: list[Any] = [
    *[int, float, bool, str, bytes, Decimal, dt.date, dt.datetime, dt.time, dt.timedelta, uuid.UUID, Path],
    *[
        list[int],
        list[Any],
        tuple[int, ...],
        tuple[int, str],
        set[str],
        frozenset[int],
        dict[str, Any],
        dict[str, int],
    ],
    *[Any, None, int | None, str | int, list[str] | str, int | SkipJsonSchema[None], Colour, Level, Size],
    *[Literal["a", 1], Literal["a"], Pair, Point, Money, Node, Loose, Words, Json[list[int]]],
    Annotated[
        list[str], BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value)
    ],
    Annotated[int, WrapValidator(lambda value, handler: 0 if value is None else handler(value))],
    Annotated[str, Field(min_length=2)],
    Annotated[int, Field(gt=3)],
]

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(-3, 3)
    | st.floats()
    | st.sampled_from(
        ["", "3", "-3.5", "true", "off", "a", "red", "inf", "NaN", "2025-01-31", "12:30", "PT3S", "[1]"]
    )
    | st.sampled_from(
        ["2025-01-31T09:30:00Z", str(uuid.UUID(int=1)), "٣", " 4 ", "1_000", "1e3", b"3", b"\xff", b""]
    )
    | st.text(max_size=5)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["x", "left", "right", "a", "amount"]), inner)
    ),
    max_leaves=5,
)
FIELDS = st.sampled_from(["a", "b", "c", "called", "name"])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_false_refusal(data: st.DataObject) -> None:
    """Whatever pydantic's lax mode accepts, the caller's check lets pass."""
    kinds = data.draw(
        st.dictionaries(FIELDS, st.tuples(st.sampled_from(TYPES), st.booleans()), min_size=1, max_size=3)
    )
    closed = data.draw(st.booleans())
    fields: dict[str, Any] = {
        name: (kind, ... if required else None) for name, (kind, required) in kinds.items()
    }
    model = create_model("Params", __config__=ConfigDict(extra="forbid" if closed else "ignore"), **fields)
    params = data.draw(st.dictionaries(FIELDS, VALUES, max_size=4))
    check = compile_check(schemas.taken(TypeAdapter(model)))
    problem = None if check is None else check(params)
    try:
        model.model_validate(params)
    except ValidationError:
        return
    assert problem is None


# Without the addresses of functions, which are others in each process that collects.
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: re.sub(r" at 0x[0-9a-f]+", "", str(kind)))
@pytest.mark.parametrize(
    "value", [None, True, 3, 3.5, "3", "a", b"3", [1], {"x": 1}, "2025-01-31", (1, 2), 0, "1,2"]
)
def test_no_false_refusal_of_any_kind(kind: Any, value: Any) -> None:
    """The same, exhaustively over kinds of fields and kinds of values."""
    model = create_model("Params", field=(kind, ...))
    check = compile_check(schemas.taken(TypeAdapter(model)))
    problem = None if check is None else check({"field": value})
    try:
        model.model_validate({"field": value})
    except ValidationError:
        return
    assert problem is None


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")

    order_id: str
    quantity: int
    due: dt.date | None = None
    express: bool = False
    lines: list[dict[str, Any]] = []
    buyer: Node | None = None


def order_check() -> Callable[[dict[str, Any]], str | None]:
    check = compile_check(schemas.taken(TypeAdapter(Order)))
    assert check is not None
    return check


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"order_id": "a", "quantity": 1}, None),
        ({"order_id": "a", "quantity": "3", "due": "2025-01-31", "express": "yes", "buyer": {}}, None),
        ({}, "order_id is missing (wanted text); quantity is missing (wanted a whole number)"),
        ({"order_id": 7, "quantity": 1}, "order_id should be text, got a whole number"),
        ({"order_id": "a", "quantity": "many"}, "quantity should be a whole number, got text"),
        ({"order_id": "a", "quantity": 1.5}, "quantity should be a whole number, got a number"),
        ({"order_id": "a", "quantity": None}, "quantity should be a whole number, got null"),
        ({"order_id": "a", "quantity": 1, "express": "maybe"}, "express should be true or false, got text"),
        ({"order_id": "a", "quantity": 1, "lines": {}}, "lines should be a list, got a map"),
        ({"order_id": "a", "quantity": 1, "buyer": "me"}, "buyer should be a map or null, got text"),
        ({"order_id": "a", "quantity": 1, "quantty": 2}, "unknown field 'quantty': did you mean 'quantity'?"),
    ],
    ids=str,
)
def test_a_refusal_names_field_wanted_and_got(params: dict[str, Any], words: str | None) -> None:
    """DESC-4: presence and type at the top level, told field by field."""
    assert order_check()(params) == words


def test_unknown_fields_pass_where_the_schema_is_open() -> None:
    """Only `additionalProperties: false` refuses what it does not name."""

    class Open(BaseModel):
        a: int

    check = compile_check(schemas.taken(TypeAdapter(Open)))
    assert check is not None
    assert check({"a": 1, "b": 2}) is None


@pytest.mark.parametrize(
    "schema",
    [None, {}, {"type": "object"}, {"type": "object", "properties": {"a": {}}}, {"$ref": "#/nowhere"}],
    ids=str,
)
def test_a_schema_that_refuses_nothing_costs_nothing(schema: dict[str, Any] | None) -> None:
    """There is no check to run for plain `dict` handlers."""
    assert compile_check(schema) is None


def test_what_schemas_cannot_say_is_marked_and_not_checked() -> None:
    """A choice of names, and validators that run first, take more than JSON Schema says."""

    class Flexible(BaseModel):
        number: int = Field(validation_alias=AliasChoices("number", "no"))

    schema = schemas.taken(TypeAdapter(Flexible))
    assert schema is not None
    assert schema[schemas.LENIENT] is True
    assert compile_check(schema) is None
    money = schemas.taken(TypeAdapter(create_model("P", price=(Money, ...))))
    check = compile_check(money)
    assert check is not None
    assert check({"price": "10 EUR"}) is None
    assert check({}) == "price is missing (wanted a map)"


def test_a_union_of_models_passes_when_one_branch_does() -> None:
    """Discriminated or not, the check never guesses which branch was meant."""

    class Card(BaseModel):
        kind: Literal["card"]
        number: str

    class Cash(BaseModel):
        kind: Literal["cash"]
        amount: int

    for union in (Card | Cash, Annotated[Card | Cash, Field(discriminator="kind")]):
        check = compile_check(schemas.taken(TypeAdapter(union)))
        assert check is not None
        assert check({"kind": "cash", "amount": 3}) is None
        assert check({"kind": "card"}) == "number is missing (wanted text)"


def test_recursive_schemas_are_followed_to_a_bounded_depth() -> None:
    """`$ref` cycles, at the top and by themselves, end."""
    check = compile_check(schemas.taken(TypeAdapter(Node)))
    assert check is not None
    assert check({"below": 3}) == "below should be a map or null, got a whole number"
    assert compile_check({"$ref": "#"}) is None
    assert compile_check({"properties": {"a": {"$ref": "#/properties/a"}}}) is None


def test_the_check_never_fails_on_hand_written_schemas() -> None:
    """Descriptors and other languages write schemas too; odd ones check less and never raise."""
    odd = {
        "type": "object",
        "required": ["a"],
        "properties": {
            "a": True,
            "b": {"type": ["string", "null"]},
            "c": {"type": "colour"},
            "d": {"allOf": [{}]},
        },
        "patternProperties": {"^x": {}},
        "additionalProperties": False,
    }
    check = compile_check(odd)
    assert check is not None
    assert check({"a": 1, "b": None, "c": 2, "d": 3, "x1": 4}) is None
    assert check({"b": 5}) == "a is missing (wanted a value); b should be text or null, got a whole number"


def test_the_check_is_quick() -> None:
    """It runs once a call: a few microseconds for six fields (bound with slack for a busy machine)."""
    check = order_check()
    params = {"order_id": "a", "quantity": 1, "express": True, "lines": []}
    assert min(timeit.repeat(lambda: check(params), number=2_000, repeat=5)) / 2_000 < 10e-6
