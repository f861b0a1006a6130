"""How a handler's own signature becomes the contract of its capability.

A handler takes one model (or a plain `dict`), or keyword parameters, or nothing, and perhaps a context;
its annotations are the schema, as FastAPI's users expect. `bind` reads them once, at decoration, and refuses
there what could not work later. What it gives is pure: from a map of parameters to arguments, and from a
returned value to what goes on the wire. Validation is pydantic's lax mode, because wire forms of dates, ids
and decimals are text; a plain `dict` costs nothing. Refusals name fields and kinds, never values.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_origin

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticSerializationError, to_json

from reach.errors import SchemaInvalid, UpstreamFailure
from reach.faults import Reason
from reach.registry import misfit, schemas
from reach.registry.face import EMPTY, Face, Kind, is_open_map
from reach.wire import names

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""What to call a function with."""

_PLAIN: Final = frozenset({dict, str, int, float, bool, bytes, list, type(None)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A function and its contract.

    Attributes:
        function: What to call.
        capability: Whose handler it is.
        kind: How to run it.
        input_schema: JSON Schema of the parameters; None for a plain `dict`.
        output_schema: JSON Schema of the result (of each item, for a stream); None where nothing is promised.
        wants_context: Whether it has a context parameter.
        arguments: `arguments(params, context=None)` gives `(args, kwargs)` to call `function` with. Raises
            `SchemaInvalid` naming each wrong field.
        result: `result(value)` gives the plain value for the wire, of a returned value or of one item of a
            stream. Raises `UpstreamFailure` (`BAD_RESULT`) when it is not what the capability promises.
    """

    function: Callable[..., Any]
    capability: str
    kind: Kind
    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None
    wants_context: bool
    arguments: Callable[..., Arguments]
    result: Callable[[Any], Any]


def bind(
    function: Callable[..., Any],
    *,
    capability: str,
    context_types: Sequence[type] = (),
    namespace: Mapping[str, object] | None = None,
    offloaded: bool = False,
) -> Handler:
    """Read a function's signature as the contract of `capability`.

    Args:
        function: Any callable: `async def`, `def`, generators of both kinds, partials, bound methods.
        capability: Its capability name.
        context_types: Classes that mark the context parameter; one named `ctx` is it in any case.
        namespace: Where else to look for annotations (locals of the decorating frame).
        offloaded: It runs in a worker process: `arguments` then validates but hands on the parameters as they
            came, because only bytes cross, and the worker binds them again.

    Raises `NameRefused` for the capability, `TypeError` for a signature that cannot be served.
    """
    name = names.capability(capability)
    if not callable(function):
        raise TypeError(f"the handler of {name!r} is a function, not {type(function).__name__}")
    face = Face.of(function, context_types=context_types, namespace=namespace)
    if offloaded:
        _refuse_offload(face)
    taker = _taker(face, name)
    giver = _giver(_promised(face), face, name)
    return Handler(
        function=function,
        capability=name,
        kind=face.kind,
        input_schema=taker.schema,
        output_schema=giver.schema,
        wants_context=face.context is not None,
        arguments=_handed_on(taker.arguments) if offloaded else taker.arguments,
        result=_unchanged if offloaded else giver.result,
    )


def _refuse_offload(face: Face) -> None:
    if face.kind is not Kind.SYNC:
        raise TypeError(
            f"{face.label} cannot run in a worker process: that is for plain functions that compute; "
            "use executor='async' or 'thread' for coroutines and streams"
        )
    if face.context is not None:
        raise TypeError(
            f"{face.label} cannot take {face.context!r} in a worker process, since only parameters cross: "
            "remove it, or use executor='thread'"
        )


# ------------------------------------------------------------------------------------------ taking parameters


@dataclass(frozen=True, slots=True)
class _Taker:
    schema: dict[str, Any] | None
    arguments: Callable[..., Arguments]


def _taker(face: Face, capability: str) -> _Taker:
    if face.whole is not None:
        return _whole(face, face.whole, capability)
    return _by_name(face, capability)


def _whole(face: Face, parameter: inspect.Parameter, capability: str) -> _Taker:
    annotation, name = parameter.annotation, parameter.name
    by_name = parameter.kind is parameter.KEYWORD_ONLY or face.context is not None
    if annotation is EMPTY or is_open_map(annotation):
        return _Taker(None, _pass(name, face.context) if by_name else _pass_only)
    adapter = _adapter(annotation, f"parameter {name!r} of {face.label}")
    schema = schemas.taken(adapter)
    if schema is not None and schema.get("type", "object") != "object":
        raise TypeError(
            f"parameter {name!r} of {face.label} takes {misfit.wanted(schema, schema)}, but parameters are "
            "always a map: give it a field, or take keyword parameters"
        )
    validate = _validator(adapter, schema, capability)
    context, default = face.context, parameter.default

    def arguments(params: dict[str, Any], context_value: object = None) -> Arguments:
        value = default if not params and default is not EMPTY else validate(params)
        if not by_name:
            return (value,), {}
        return (), {name: value} if context is None else {name: value, context: context_value}

    return _Taker(schema, arguments)


def _pass_only(params: dict[str, Any], context_value: object = None) -> Arguments:  # noqa: ARG001 - one shape for all
    return (params,), {}


def _pass(name: str, context: str | None) -> Callable[..., Arguments]:
    def arguments(params: dict[str, Any], context_value: object = None) -> Arguments:
        return (), {name: params} if context is None else {name: params, context: context_value}

    return arguments


def _by_name(face: Face, capability: str) -> _Taker:
    adapter = _keyword_adapter(face)
    schema = schemas.taken(adapter)
    validate = _validator(adapter, schema, capability)
    context = face.context

    def arguments(params: dict[str, Any], context_value: object = None) -> Arguments:
        kwargs = vars(validate(params))
        if context is not None:
            kwargs[context] = context_value
        return (), kwargs

    return _Taker(schema, arguments)


def _keyword_adapter(face: Face) -> TypeAdapter[Any]:
    """Make a record of the keyword parameters; a dataclass, which has no names of its own to clash with."""
    fields: list[tuple[str, Any, Any]] = []
    for parameter in face.parameters:
        if parameter.annotation is EMPTY:
            raise TypeError(
                f"parameter {parameter.name!r} of {face.label} has no annotation: give its type, as in "
                f"{parameter.name}: str, or take all parameters as one map, as in {face.label}(params: dict)"
            )
        fields.append((parameter.name, parameter.annotation, _default(parameter.default)))
    record = dataclasses.make_dataclass(face.label.replace(".", "_"), fields, kw_only=True)
    record.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    try:
        return _adapter(record, face.label)
    except TypeError:
        for parameter in face.parameters:  # Find out whose it was.
            _adapter(parameter.annotation, f"parameter {parameter.name!r} of {face.label}")
        raise


def _default(value: Any) -> Any:
    if value is EMPTY:
        return dataclasses.field()
    if (
        value.__class__.__hash__ is None
    ):  # A list or map: as in any function, written once, but here never shared.
        return dataclasses.field(default_factory=functools.partial(copy.deepcopy, value))
    return dataclasses.field(default=value)


def _validator(
    adapter: TypeAdapter[Any], schema: dict[str, Any] | None, capability: str
) -> Callable[[dict[str, Any]], Any]:
    check = adapter.validator.validate_python

    def validate(params: dict[str, Any]) -> Any:
        try:
            return check(params)
        except ValidationError as error:
            found = error
        try:
            # Strict models get their chance: in JSON, text is a date's proper form even to them.
            return adapter.validate_json(to_json(params))
        except (ValidationError, PydanticSerializationError):
            problems = misfit.explain(found, params, schema=schema)
        raise SchemaInvalid(f"the parameters do not fit {capability!r}: {problems}")

    return validate


def _adapter(annotation: Any, what: str) -> TypeAdapter[Any]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        adapter.rebuild(raise_errors=True)
    except (PydanticSchemaGenerationError, PydanticUserError, NameError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise TypeError(
            f"{what} has a type with no form on the wire ({reason}): use a pydantic model, a dataclass, or "
            "plain types; what the agent itself owns (connections, clients) does not come from callers"
        ) from None
    return adapter


def _handed_on(arguments: Callable[..., Arguments]) -> Callable[..., Arguments]:
    def handed_on(params: dict[str, Any], context_value: object = None) -> Arguments:  # noqa: ARG001 - one shape for all
        arguments(params)
        return (params,), {}

    return handed_on


# --------------------------------------------------------------------------------------------- giving results


@dataclass(frozen=True, slots=True)
class _Giver:
    schema: dict[str, Any] | None
    result: Callable[[Any], Any]


def _promised(face: Face) -> Any:
    """Give what a handler promises to return, or each item of its stream; `Any` when it does not say."""
    promised = face.item if face.kind in {Kind.STREAM, Kind.SYNC_STREAM} else face.returns
    return Any if promised is EMPTY or promised is object else promised


def _giver(promised: Any, face: Face, capability: str) -> _Giver:
    if promised is Any:
        return _Giver(None, functools.partial(_open_result, capability))
    exact = type(None) if promised is None else get_origin(promised) or promised
    if exact is dict and not is_open_map(promised):
        exact = None
    adapter = _adapter(promised, f"the return value of {face.label}")
    validate, dump = adapter.validator.validate_python, adapter.serializer.to_python
    schema = None if exact is dict else schemas.given(adapter)
    fast = exact if exact in {dict, str, bool, int, bytes, type(None)} else None

    def result(value: Any) -> Any:
        if type(value) is fast:
            return value
        try:
            return dump(validate(value), mode="python", by_alias=True)
        except ValidationError as error:
            _refuse_awaitable(value, capability)
            problems = misfit.explain(error, value, schema=schema).replace("the parameters", "the result")
        except PydanticSerializationError:
            problems = "it has a part with no form on the wire"
        raise UpstreamFailure(
            f"the agent's result is not what {capability!r} promises: {problems}", reason=Reason.BAD_RESULT
        ) from None

    return _Giver(schema, result)


def _open_result(capability: str, value: Any) -> Any:
    """Give an undeclared result: plain values as they are, models as maps; the codec judges the rest."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, BaseModel):
        return value.model_dump(mode="python", by_alias=True)
    _refuse_awaitable(value, capability)
    return value


def _refuse_awaitable(value: Any, capability: str) -> None:
    if inspect.isawaitable(value) or inspect.isasyncgen(value):
        if inspect.iscoroutine(value):
            value.close()
        raise UpstreamFailure(
            f"the handler of {capability!r} returned something still to be awaited: make it `async def`",
            reason=Reason.BAD_RESULT,
        )


def _unchanged(value: Any) -> Any:
    return value
