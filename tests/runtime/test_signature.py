"""Handlers' signatures become contracts, or are refused at decoration in words that teach."""

import datetime as dt
import functools
import json
import timeit
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator
from typing_extensions import TypedDict

from reach.errors import NameRefused, SchemaInvalid, UpstreamFailure
from reach.faults import Code, Executed, Reason
from reach.registry.face import Kind
from reach.runtime.signature import Handler, bind


class Context:
    pass


class TaskContext(Context):
    pass


class Line(BaseModel):
    sku: str
    price: Decimal
    quantity: int = Field(default=1, ge=1)


class Invoice(BaseModel):
    number: str
    issued: dt.date
    lines: list[Line] = []


class Extracted(BaseModel):
    number: str
    total: Decimal


@dataclass
class Point:
    x: int
    y: int = 0


class Filters(TypedDict, total=False):
    region: str


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    day: dt.date
    count: int


def contract(function: Callable[..., Any], **options: Any) -> Handler:
    return bind(function, capability="invoice.extract", context_types=(Context,), **options)


def refusal(handler: Handler, params: dict[str, Any]) -> str:
    with pytest.raises(SchemaInvalid) as caught:
        handler.arguments(params)
    assert caught.value.executed is Executed.NO
    return caught.value.message


# ----------------------------------------------------------------------------------------------- parameters


async def test_a_plain_dict_is_handed_over_as_it_came() -> None:
    """A handler with a `dict` parameter gets the very map that was decoded."""

    async def extract(params: dict) -> dict:  # type: ignore[type-arg]
        return params

    params = {"file_url": "a"}
    args, kwargs = contract(extract).arguments(params)
    assert kwargs == {}
    assert args[0] is params
    assert contract(extract).input_schema is None


@pytest.mark.parametrize(
    "annotation",
    [dict, dict[str, Any], dict[str, object], "dict[str, Any]"],
    ids=["bare", "any", "object", "text"],
)
def test_every_spelling_of_an_open_map_is_the_fast_path(annotation: object) -> None:
    """`dict`, `dict[str, Any]` and `dict[str, object]` are one thing."""

    def extract(params):  # type: ignore[no-untyped-def]
        return params

    extract.__annotations__ = {"params": annotation}
    params = {"a": 1}
    assert contract(extract).arguments(params)[0][0] is params


def test_a_plain_dict_costs_almost_nothing() -> None:
    """SPEED-1 rests on this: handing a map over takes under 0.3 µs (bound with slack for a busy machine)."""

    def extract(params: dict[str, Any]) -> dict[str, Any]:
        return params

    handler = contract(extract)
    params = {"file_url": "a"}
    best = min(timeit.repeat(lambda: handler.arguments(params), number=10_000, repeat=5)) / 10_000
    assert best < 1e-6


def test_an_unannotated_params_is_the_whole_map() -> None:
    """The shortest handler anybody writes works."""

    def shout(params):  # type: ignore[no-untyped-def]
        return params

    assert contract(shout).arguments({"a": 1}) == (({"a": 1},), {})


async def test_a_model_is_validated_from_wire_forms() -> None:
    """CALL-8: dates and decimals come as text and arrive as what the model says."""

    async def extract(invoice: Invoice) -> None: ...

    (invoice,), kwargs = contract(extract).arguments(
        {"number": "17", "issued": "2025-01-31", "lines": [{"sku": "A", "price": "9.90"}]}
    )
    assert kwargs == {}
    assert invoice == Invoice(
        number="17", issued=dt.date(2025, 1, 31), lines=[Line(sku="A", price=Decimal("9.90"))]
    )


def test_keyword_parameters_have_defaults_nested_models_and_constraints() -> None:
    """Keyword parameters work as FastAPI's users expect."""

    def find(
        account_id: str,
        since: dt.date | None = None,
        limit: Annotated[int, Field(gt=0, le=100)] = 10,
        line: Line | None = None,
        tags: list[str] = [],  # noqa: B006 - what users write
    ) -> None: ...

    handler = contract(find)
    args, kwargs = handler.arguments(
        {"account_id": "a-1", "since": "2025-01-31", "line": {"sku": "A", "price": 1}}
    )
    assert args == ()
    assert kwargs == {
        "account_id": "a-1",
        "since": dt.date(2025, 1, 31),
        "limit": 10,
        "line": Line(sku="A", price=Decimal(1)),
        "tags": [],
    }
    kwargs["tags"].append("mine")
    assert handler.arguments({"account_id": "a-1"})[1]["tags"] == []


def test_no_parameter_names_are_reserved() -> None:
    """Names that models use themselves are free for parameters."""

    def handle(json: int, copy: int, schema: int, model_config: int, fields: int, self_: int = 0) -> None: ...

    params = {"json": 1, "copy": 2, "schema": 3, "model_config": 4, "fields": 5}
    assert contract(handle).arguments(params)[1] == {**params, "self_": 0}


def test_an_alias_is_the_name_on_the_wire() -> None:
    """A parameter whose wire name is a Python keyword takes an alias."""

    def between(start: Annotated[dt.date, Field(alias="from")]) -> None: ...

    handler = contract(between)
    assert handler.arguments({"from": "2025-01-31"})[1] == {"start": dt.date(2025, 1, 31)}
    assert handler.input_schema is not None
    assert list(handler.input_schema["properties"]) == ["from"]


def test_field_defaults_in_the_old_style_work() -> None:
    """`= Field(...)` as default is understood."""

    def handle(count: int = Field(default=3, gt=1), name: str = Field(min_length=2)) -> None: ...

    assert contract(handle).arguments({"name": "ab"})[1] == {"count": 3, "name": "ab"}


def test_a_dataclass_and_a_typed_dict_take_all_parameters_too() -> None:
    """What describes a map takes the map."""

    def locate(point: Point) -> None: ...

    def select(filters: Filters) -> None: ...

    assert contract(locate).arguments({"x": "3"}) == ((Point(3, 0),), {})
    assert contract(select).arguments({"region": "south"}) == (({"region": "south"},), {})


def test_an_optional_model_may_be_left_out() -> None:
    """An empty map means the default."""

    def extract(invoice: Invoice | None = None) -> None: ...

    assert contract(extract).arguments({}) == ((None,), {})
    assert contract(extract).arguments({"number": "1", "issued": "2025-01-31"})[0][0].number == "1"


def test_a_handler_without_parameters_takes_none() -> None:
    """No parameters: an empty map fits, anything else is told."""

    def ping() -> str:
        return "pong"

    handler = contract(ping)
    assert handler.arguments({}) == ((), {})
    assert refusal(handler, {"loud": True}) == (
        "the parameters do not fit 'invoice.extract': unknown field 'loud': there are no parameters"
    )


def test_bytes_arrive_as_bytes() -> None:
    """CALL-8: what was bytes stays bytes, whatever they hold."""

    def store(blob: bytes, name: str = "") -> None: ...

    assert contract(store).arguments({"blob": b"\xff\x00"})[1]["blob"] == b"\xff\x00"


def test_strict_models_take_the_forms_of_json() -> None:
    """A strict model takes a date as text, as it does in JSON, and still no text for a number."""

    def handle(params: Strict) -> None: ...

    handler = contract(handle)
    assert handler.arguments({"day": "2025-01-31", "count": 1})[0] == (
        Strict(day=dt.date(2025, 1, 31), count=1),
    )
    assert "count should be a whole number, got text" in refusal(handler, {"day": "2025-01-31", "count": "1"})


# -------------------------------------------------------------------------------------------------- context


@pytest.mark.parametrize("params", [{"params": {"a": 1}}], ids=["map"])
def test_the_context_is_found_by_type_or_by_name(params: dict[str, Any]) -> None:
    """A context parameter stands anywhere and is never taken from outside."""
    context = TaskContext()

    def by_type(params: dict[str, Any], context: Context) -> None: ...

    def by_subtype(context: TaskContext | None, params: dict[str, Any]) -> None: ...

    def by_name(params: dict[str, Any], ctx: Any) -> None: ...

    def bare(ctx, params: dict[str, Any]):  # type: ignore[no-untyped-def]
        ...

    for function, name in ((by_type, "context"), (by_subtype, "context"), (by_name, "ctx"), (bare, "ctx")):
        handler = contract(function)
        assert handler.wants_context is True
        assert handler.arguments({"a": 1}, context) == ((), {"params": {"a": 1}, name: context})


def test_the_context_stands_beside_models_and_keywords() -> None:
    """The context does not turn a model into a keyword parameter, nor show in the schema."""

    def whole(invoice: Invoice, ctx: Context) -> None: ...

    def keywords(number: str, *, ctx: Context) -> None: ...

    params = {"number": "1", "issued": "2025-01-31"}
    assert contract(whole).arguments(params, 5) == (
        (),
        {"invoice": Invoice(number="1", issued=dt.date(2025, 1, 31)), "ctx": 5},
    )
    assert contract(keywords).arguments({"number": "1"}, 5) == ((), {"number": "1", "ctx": 5})
    assert "ctx" in refusal(contract(keywords), {"number": "1", "ctx": 1})


# ------------------------------------------------------------------------------------------------- callables


async def _extract(params: dict[str, Any]) -> None: ...


class _Desk:
    async def extract(self, number: str) -> str:
        return number

    def __call__(self, number: str) -> str:
        return number

    @staticmethod
    def fixed(number: str) -> str:
        return number

    @classmethod
    def shared(cls, number: str) -> str:
        return number


def test_the_kind_of_a_handler_is_seen_through_wrappings() -> None:
    """Async def, def, both kinds of generator, partials, methods and callable objects."""

    async def stream(text: str) -> AsyncIterator[str]:
        yield text

    def sync_stream(text: str) -> Iterator[str]:
        yield text

    @functools.wraps(_extract)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        return _extract(*args, **kwargs)

    desk = _Desk()
    kinds = {
        contract(_extract).kind: Kind.ASYNC,
        contract(functools.partial(_extract)).kind: Kind.ASYNC,
        contract(decorated).kind: Kind.ASYNC,
        contract(desk.extract).kind: Kind.ASYNC,
        contract(desk).kind: Kind.SYNC,
        contract(_Desk.fixed).kind: Kind.SYNC,
        contract(_Desk.shared).kind: Kind.SYNC,
        contract(stream).kind: Kind.STREAM,
        contract(sync_stream).kind: Kind.SYNC_STREAM,
    }
    assert all(found is expected for found, expected in kinds.items())
    assert contract(desk.extract).arguments({"number": "1"}) == ((), {"number": "1"})


def test_what_a_partial_has_bound_does_not_come_from_outside() -> None:
    """A connection bound by a partial is no parameter: neither in the schema nor to be overridden."""

    def query(db: Any, text: str, limit: int = 3) -> None: ...

    handler = contract(functools.partial(query, object(), limit=9))
    assert handler.input_schema is not None
    assert list(handler.input_schema["properties"]) == ["text"]
    assert "unknown field 'limit'" in refusal(handler, {"text": "a", "limit": 1})


def test_annotations_as_text_are_resolved() -> None:
    """`from __future__ import annotations`: also for types of the decorating frame, when it is handed in."""

    class Local(BaseModel):
        number: int

    def module_level(invoice: "Invoice") -> "Extracted": ...  # type: ignore[empty-body]

    def frame_level(local: "Local") -> None: ...

    assert contract(module_level).input_schema == Invoice.model_json_schema() | {
        "$defs": contract(module_level).input_schema["$defs"],  # type: ignore[index]
        "properties": contract(module_level).input_schema["properties"],  # type: ignore[index]
    }
    assert contract(frame_level, namespace=locals()).arguments({"number": 1}) == ((Local(number=1),), {})


# -------------------------------------------------------------------------------------------------- schemas


def test_schemas_are_json_schema_2020_12_without_titles_of_fields() -> None:
    """Cards carry the schema; it is valid 2020-12 and says no field's name twice."""

    def find(account_id: str, line: Line, since: dt.date | None = None) -> list[Extracted]: ...  # type: ignore[empty-body]

    handler = contract(find)
    for schema in (handler.input_schema, handler.output_schema):
        assert schema is not None
        jsonschema.Draft202012Validator.check_schema(schema)
        assert json.loads(json.dumps(schema)) == schema
    assert handler.input_schema == {
        "$defs": {
            "Line": {
                "properties": {
                    "sku": {"type": "string"},
                    "price": handler.input_schema["$defs"]["Line"]["properties"]["price"],  # type: ignore[index]
                    "quantity": {"default": 1, "minimum": 1, "type": "integer"},
                },
                "required": ["sku", "price"],
                "title": "Line",
                "type": "object",
            }
        },
        "additionalProperties": False,
        "properties": {
            "account_id": {"type": "string"},
            "line": {"$ref": "#/$defs/Line"},
            "since": {"anyOf": [{"format": "date", "type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["account_id", "line"],
        "title": "find",
        "type": "object",
    }


# ------------------------------------------------------------------------------------------------- refusals


def test_a_refusal_names_every_field_and_what_would_be_right() -> None:
    """Each wrong field with what it should be and what kind of thing it was."""

    def find(
        account_id: str, since: dt.date, lines: list[Line], limit: Annotated[int, Field(gt=0)] = 1
    ) -> None: ...

    message = refusal(
        contract(find),
        {
            "since": "yesterday",
            "lines": [{"sku": "A", "price": 1}, {"sku": 2, "price": "x"}],
            "limit": 0,
            "limt": 4,
        },
    )
    assert message.removeprefix("the parameters do not fit 'invoice.extract': ").split("; ") == [
        "account_id is missing (wanted text)",
        "since should be a date such as 2025-01-31, got text",
        "lines[1].sku should be text, got a whole number",
        "lines[1].price should be a number, got text",
        "limit should be greater than 0",
        "and 1 more",
    ]


def test_a_misspelt_field_is_suggested() -> None:
    """Unknown fields of keyword functions are refused with the nearest name."""

    def find(account_id: str, limit: int = 1) -> None: ...

    assert refusal(contract(find), {"account_id": "a", "acount_id": "b", "colour": 1}) == (
        "the parameters do not fit 'invoice.extract': unknown field 'acount_id': did you mean 'account_id'?; "
        "unknown field 'colour' (there are account_id, limit)"
    )


def test_branches_of_a_union_are_told_in_one_sentence() -> None:
    """`int | list[str]` is one place that may be two things."""

    def find(key: int | list[str], kind: Literal["a", "b"] = "a") -> None: ...

    assert refusal(contract(find), {"key": {"x": 1}, "kind": "c"}) == (
        "the parameters do not fit 'invoice.extract': key should be a whole number or a list, got a map; "
        "kind should be 'a' or 'b'"
    )


SECRET = "hunter2-canary"


STRICT_TEXT = [Annotated[str, Field(max_length=3)], Annotated[str, Field(pattern="^a$")], Literal["a"]]
KINDS = [
    int,
    float,
    bool,
    dt.date,
    dt.datetime,
    dt.timedelta,
    uuid.UUID,
    Decimal,
    list[int],
    dict[str, int],
    Line,
]


@pytest.mark.parametrize("annotation", [*KINDS, int | list[str], *STRICT_TEXT], ids=str)
def test_a_refusal_never_repeats_a_value(annotation: Any) -> None:
    """ERR-5: parameters may be secrets; a refusal tells kinds."""

    def handle(field, other=None):  # type: ignore[no-untyped-def]
        ...

    handle.__annotations__ = {"field": annotation, "other": int}
    handler = contract(handle)
    for value in (SECRET, [SECRET], {"sku": SECRET, "price": SECRET, "k": SECRET}):
        try:
            handler.arguments({"field": value})
        except SchemaInvalid as refused:
            told = str(refused)
        else:
            continue  # A list of texts may hold this text.
        assert "field" in told
        assert "hunter" not in told


def test_a_models_own_words_pass_unless_they_repeat_the_value() -> None:
    """A validator's message reaches the caller, but not when it holds what was sent."""

    class Login(BaseModel):
        user: str
        password: str

        @field_validator("user")
        @classmethod
        def known(cls, value: str) -> str:
            raise ValueError("this user is not known here")

        @field_validator("password")
        @classmethod
        def careless(cls, value: str) -> str:
            raise ValueError(f"{value} is too weak")

    def login(params: Login) -> None: ...

    message = refusal(contract(login), {"user": "ann", "password": SECRET})
    assert "user: this user is not known here" in message
    assert "password: refused by the agent's own check, whose words are withheld" in message
    assert SECRET not in message


# ------------------------------------------------------------------------------------- refused at decoration


def _positional(a: int, /) -> None: ...
def _many(*items: int) -> None: ...
def _options(a: int, **options: int) -> None: ...
def _bare(text, other) -> None: ...  # type: ignore[no-untyped-def]
def _unknown(invoice: "NotImportedHere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def _object(db: object, connection: json.JSONDecoder) -> None: ...
def _root(items: RootModel[list[int]]) -> None: ...
def _unfit_return(a: int) -> json.JSONDecoder: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            _positional,
            "parameter 'a' of _positional is positional-only, but parameters arrive by name: remove the '/'",
        ),
        (_many, "_many takes *items, but parameters arrive by name: say items: list[...] instead"),
        (_options, "_options takes **options: name its parameters, or take them all as one map"),
        (_bare, "parameter 'text' of _bare has no annotation: give its type, as in text: str"),
        (_unknown, "the annotation 'NotImportedHere' of parameter 'invoice' of _unknown cannot be resolved"),
        (_object, "parameter 'connection' of _object has a type with no form on the wire"),
        (_root, "parameter 'items' of _root takes a list, but parameters are always a map"),
        (_unfit_return, "the return value of _unfit_return has a type with no form on the wire"),
        (_Desk.extract, "_Desk.extract still lacks its `self`: decorate the bound method of an object"),
        (17, "the handler of 'invoice.extract' is a function, not int"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_cannot_be_served_is_refused_at_decoration(function: Any, words: str) -> None:
    """A signature that cannot work says so where it is written."""
    with pytest.raises(TypeError) as caught:
        contract(function)
    assert words in str(caught.value)


def test_a_bad_capability_name_is_refused_with_the_nearest() -> None:
    """CALL-9: the name is checked at decoration."""
    with pytest.raises(NameRefused) as caught:
        bind(_extract, capability="Invoice.Extract")
    assert caught.value.nearest == "invoice.extract"


# --------------------------------------------------------------------------------------------------- results


def test_an_undeclared_result_passes_and_models_become_maps() -> None:
    """Without a return annotation the codec judges; a model at the top is dumped."""

    def handle(params: dict[str, Any]):  # type: ignore[no-untyped-def]
        ...

    handler = contract(handle)
    answer = {"a": dt.date(2025, 1, 31)}
    assert handler.output_schema is None
    assert handler.result(answer) is answer
    assert handler.result(None) is None
    assert handler.result(Line(sku="A", price=Decimal("9.90"))) == {
        "sku": "A",
        "price": Decimal("9.90"),
        "quantity": 1,
    }


def test_a_declared_result_is_validated_and_dumped() -> None:
    """A model, or a map that makes one, comes out as a map; subclasses lose what was not promised."""

    class Detailed(Extracted):
        internal_note: str = "not for callers"

    def handle(params: dict[str, Any]) -> Extracted: ...  # type: ignore[empty-body]

    result = contract(handle).result
    assert result(Extracted(number="1", total=Decimal(3))) == {"number": "1", "total": Decimal(3)}
    assert result({"number": "1", "total": "3"}) == {"number": "1", "total": Decimal(3)}
    assert result(Detailed(number="1", total=Decimal(3))) == {"number": "1", "total": Decimal(3)}


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (Extracted, {"number": "1"}, "total is missing (wanted text)"),
        (Extracted, None, "the result should be a map, got null"),
        (list[Extracted], {"number": "1"}, "the result should be a list, got a map"),
        (int, SECRET, "the result should be a whole number, got text"),
        (None, "text", "the result should be null, got text"),
        (dict, ["a"], "the result should be a map, got a list"),
        (dict[str, int], {"a": "x"}, "a should be a whole number, got text"),
    ],
    ids=str,
)
def test_a_result_that_breaks_its_promise_is_bad_result(annotation: Any, value: Any, words: str) -> None:
    """BAD_RESULT: executed yes, and the words name what is wrong, not the value."""

    def handle(params: dict[str, Any]):  # type: ignore[no-untyped-def]
        ...

    handle.__annotations__["return"] = annotation
    with pytest.raises(UpstreamFailure) as caught:
        contract(handle).result(value)
    error = caught.value
    assert (error.code, error.reason, error.executed) == (Code.UPSTREAM_5XX, Reason.BAD_RESULT, Executed.YES)
    assert error.message == f"the agent's result is not what 'invoice.extract' promises: {words}"


def test_a_stream_promises_its_items() -> None:
    """The schema of a stream, and the check, are those of one item."""

    async def stream(text: str) -> AsyncIterator[Point]:
        yield Point(1)

    handler = contract(stream)
    assert handler.result(Point(1, 2)) == {"x": 1, "y": 2}
    assert handler.output_schema is not None
    assert set(handler.output_schema["properties"]) == {"x", "y"}
    with pytest.raises(UpstreamFailure):
        handler.result("text")


def test_a_forgotten_async_is_told() -> None:
    """A plain function that returns a coroutine is the author's mistake, and is named as such."""

    def handle(params: dict[str, Any]):  # type: ignore[no-untyped-def]
        return _extract(params)

    with pytest.raises(UpstreamFailure, match="make it `async def`"):
        contract(handle).result(handle({}))


# ------------------------------------------------------------------------------------------------- processes


def test_an_offloaded_handler_checks_here_and_binds_there() -> None:
    """Only bytes cross to a worker: parameters are checked first and handed on as they came."""

    def reckon(number: int) -> Extracted: ...  # type: ignore[empty-body]

    handler = contract(reckon, offloaded=True)
    params = {"number": "3"}
    args, kwargs = handler.arguments(params)
    assert args[0] is params
    assert kwargs == {}
    assert handler.result({"number": "1"}) == {"number": "1"}
    assert "number should be a whole number" in refusal(handler, {"number": "x"})


def test_what_cannot_run_in_a_worker_is_refused_at_decoration() -> None:
    """Coroutines, streams and contexts stay in the agent's process."""

    def with_context(number: int, ctx: Context) -> None: ...

    with pytest.raises(TypeError, match="cannot run in a worker process"):
        contract(_extract, offloaded=True)
    with pytest.raises(TypeError, match="cannot take 'ctx' in a worker process"):
        contract(with_context, offloaded=True)
