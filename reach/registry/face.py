"""What a function's signature says: which parameters cross the wire, which is the context, how it runs.

Both ends read it: a handler's is the contract of its capability, a touched function's says what to send and
what to expect. It is read once, at decoration, so that what could not work is refused there and in words that
teach. Types come from annotations, resolved one at a time: a refusal can then name the one parameter.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections import abc
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel
from typing_extensions import is_typeddict


class Kind(StrEnum):
    """How a handler runs. Streams give many values; the `sync` ones run in a thread."""

    ASYNC = "async"
    SYNC = "sync"
    STREAM = "stream"
    SYNC_STREAM = "sync_stream"


EMPTY: Final = inspect.Parameter.empty
_WHOLE_NAMES: Final = frozenset({"params", "payload"})
_MAPS: Final = frozenset({dict, abc.Mapping, abc.MutableMapping})
_STREAMS: Final = frozenset(
    {abc.AsyncIterator, abc.AsyncIterable, abc.AsyncGenerator, abc.Iterator, abc.Iterable, abc.Generator}
)
_CONTEXT_NAME: Final = "ctx"


@dataclass(frozen=True, slots=True)
class Face:
    """The parameters of a function that arrive from outside, its context parameter, and what it returns."""

    label: str
    kind: Kind
    parameters: tuple[inspect.Parameter, ...]
    context: str | None
    returns: Any

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        *,
        context_types: Sequence[type] = (),
        namespace: Mapping[str, object] | None = None,
    ) -> Face:
        """Read a callable. Raises `TypeError` for a signature that cannot be served."""
        inner, bound = unwrapped(function)
        label = getattr(inner, "__qualname__", type(inner).__name__).rpartition(".<locals>.")[2]
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            raise TypeError(f"{label} has no readable signature: wrap it in a function of your own") from None
        hints = _Hints(inner, label, namespace or {})
        outside: list[inspect.Parameter] = []
        context: str | None = None
        for parameter in signature.parameters.values():
            if parameter.name in bound:
                continue  # Fixed by a partial: it neither comes from outside nor is replaced from there.
            _refuse_shape(parameter, label)
            if parameter.name == _CONTEXT_NAME:
                context = parameter.name
                continue
            annotation = hints.of(parameter.name, parameter.annotation)
            if _is_context(annotation, tuple(context_types)):
                context = parameter.name
                continue
            outside.append(parameter.replace(annotation=annotation))
        returns = hints.of("return", signature.return_annotation)
        return cls(label, kind_of(inner), tuple(outside), context, returns)

    @property
    def whole(self) -> inspect.Parameter | None:
        """The only parameter, when it takes all parameters as one: a map, a model, or a union of models."""
        if len(self.parameters) != 1:
            return None
        [parameter] = self.parameters
        if parameter.annotation is EMPTY:
            return parameter if parameter.name in _WHOLE_NAMES else None
        return parameter if is_map(parameter.annotation) or _is_record(parameter.annotation) else None

    @property
    def item(self) -> Any:
        """What each item of a stream is, where `returns` says so; else `Any`."""
        items = get_args(self.returns) if get_origin(self.returns) in _STREAMS else ()
        return items[0] if items else Any


def is_map(annotation: Any) -> bool:
    """Whether an annotation is `dict`, `Mapping`, or one of them with types."""
    kind = get_origin(annotation) or annotation
    return inspect.isclass(kind) and kind in _MAPS


def is_open_map(annotation: Any) -> bool:
    """Whether an annotation is a map that takes anything: `dict`, `dict[str, Any]`."""
    return is_map(annotation) and get_args(annotation) in {(), (str, Any), (str, object)}


def _is_record(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _is_record(get_args(annotation)[0])
    if origin in {Union, types.UnionType}:
        branches = [each for each in get_args(annotation) if each is not type(None)]
        return all(_is_record(each) for each in branches)
    known = origin or annotation
    return inspect.isclass(known) and (
        issubclass(known, BaseModel) or dataclasses.is_dataclass(known) or is_typeddict(known)
    )


class _Hints:
    """Annotations as types, one at a time."""

    def __init__(self, inner: Callable[..., Any], label: str, namespace: Mapping[str, object]) -> None:
        plain = inspect.unwrap(inner)
        plain = getattr(plain, "__func__", plain)
        self._globals = getattr(plain, "__globals__", {})
        self._locals = {**_closed_over(plain), **namespace}
        self._label = label

    def of(self, name: str, annotation: Any) -> Any:
        if annotation is EMPTY or annotation is None:
            return annotation
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            return typing.get_type_hints(holder, self._globals, self._locals, include_extras=True)[name]
        except (NameError, AttributeError) as error:
            whose = "the return value" if name == "return" else f"parameter {name!r}"
            raise TypeError(
                f"the annotation {annotation!r} of {whose} of {self._label} cannot be resolved ({error}): "
                "annotations of handlers are read at run time, so import the type at module level and not "
                "under TYPE_CHECKING"
            ) from None


def _closed_over(function: Any) -> dict[str, object]:
    """Give the variables of enclosing functions; one that is not bound yet (the function itself) is left out."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    found: dict[str, object] = {}
    for name, cell in zip(code.co_freevars if code else (), cells or (), strict=True):
        with suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def unwrapped(function: Callable[..., Any]) -> tuple[Callable[..., Any], frozenset[str]]:
    """Give the function inside partials and callable objects, and the names that the partials have bound."""
    bound: frozenset[str] = frozenset()
    while isinstance(function, functools.partial):
        bound |= frozenset(function.keywords)
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = type(function).__call__.__get__(function)
    return function, bound


def _refuse_shape(parameter: inspect.Parameter, label: str) -> None:
    name, kind = parameter.name, parameter.kind
    if name == "self" and parameter.annotation is EMPTY:
        method = label.rpartition(".")[2]
        raise TypeError(
            f"{label} still lacks its `self`: decorate the bound method of an object, as in "
            f"agent.capability(...)(thing.{method})"
        )
    if kind is parameter.POSITIONAL_ONLY:
        raise TypeError(
            f"parameter {name!r} of {label} is positional-only, but parameters arrive by name: remove the '/'"
        )
    if kind is parameter.VAR_POSITIONAL:
        raise TypeError(
            f"{label} takes *{name}, but parameters arrive by name: say {name}: list[...] instead"
        )
    if kind is parameter.VAR_KEYWORD:
        raise TypeError(
            f"{label} takes **{name}: name its parameters, or take them all as one map, as in "
            f"{label}(params: dict)"
        )


def _is_context(annotation: Any, context_types: tuple[type, ...]) -> bool:
    if get_origin(annotation) in {Union, types.UnionType, Annotated}:
        return any(_is_context(each, context_types) for each in get_args(annotation))
    return inspect.isclass(annotation) and issubclass(annotation, context_types)


def kind_of(function: Callable[..., Any]) -> Kind:
    """Judge by the innermost function: a plain decorator around an `async def` gives a coroutine too."""
    plain = inspect.unwrap(unwrapped(function)[0])
    plain = getattr(plain, "__func__", plain)
    if inspect.isasyncgenfunction(plain):
        return Kind.STREAM
    if inspect.isgeneratorfunction(plain):
        return Kind.SYNC_STREAM
    return Kind.ASYNC if inspect.iscoroutinefunction(plain) else Kind.SYNC
