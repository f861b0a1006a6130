"""A function's signature, as its caller uses it: what to send, and what may come back.

The mirror of `reach.runtime.signature`: one model or map is the parameters, else each argument is a field by
its name (or alias). What the caller leaves out is not sent unless the signature has a default of its own
other than None: the far end's defaults are its own. A result is validated into the return annotation, so
that code behind a touched function never meets half a document.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.fields import FieldInfo

from reach.errors import UpstreamFailure
from reach.faults import Reason
from reach.registry import misfit, schemas
from reach.registry.face import EMPTY, Face, Kind
from reach.wire import names

_ASYNC_STREAMS: Final = ("AsyncIterator", "AsyncIterable", "AsyncGenerator")


class Stub:
    """What a touched function sends and expects. Raises `TypeError` or `NameRefused` for what could not work."""

    def __init__(
        self, function: Callable[..., Any], capability: str, *, namespace: Mapping[str, object] | None = None
    ) -> None:
        self.capability = names.capability(capability)
        self.face = Face.of(function, namespace=namespace)
        self.is_stream = _is_stream(self.face)
        self.is_async = self.face.kind is Kind.ASYNC
        self._signature = inspect.signature(function)
        self._whole = None if self.face.whole is None else self.face.whole.name
        self._wire_names = {each.name: _wire_name(each) for each in self.face.parameters}
        promised = self.face.item if self.is_stream else self.face.returns
        self._adapter = _adapter(promised, self.face.label)
        self._schema = None if self._adapter is None else schemas.taken(self._adapter)

    def params_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Give what to send. Raises `TypeError` for arguments that the signature does not take."""
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self.face.label}(): {error}") from None
        if self._whole is not None:
            return _plain(bound.get(self._whole))
        params: dict[str, Any] = {}
        for parameter in self.face.parameters:
            if parameter.name in bound:
                params[self._wire_names[parameter.name]] = bound[parameter.name]
            elif _is_own_default(parameter.default):
                params[self._wire_names[parameter.name]] = parameter.default
        return params

    def result_of(self, data: Any) -> Any:
        """Validate a result (of a stream: one item). Raises `UpstreamFailure` (`BAD_RESULT`) for a misfit."""
        if self._adapter is None:
            return data
        try:
            return self._adapter.validate_python(data)
        except ValidationError as error:
            problems = misfit.explain(error, data, schema=self._schema).replace("the parameters", "it")
        raise UpstreamFailure(
            f"the answer of {self.capability!r} is not what {self.face.label} returns: {problems}",
            reason=Reason.BAD_RESULT,
        )


def _is_stream(face: Face) -> bool:
    if face.kind is Kind.STREAM:
        return True
    origin = getattr(get_origin(face.returns) or face.returns, "__name__", "")
    if origin in _ASYNC_STREAMS:
        if face.kind is Kind.ASYNC:
            raise TypeError(
                f"{face.label} is `async def` and returns {origin}: write it as a plain `def`, which is what a "
                f"function that gives an asynchronous iterator is, and read it with `async for`"
            )
        return True
    if face.kind is Kind.SYNC_STREAM:
        raise TypeError(
            f"{face.label} is a plain generator: streams are read with `async for`, so make it `async def`"
        )
    return False


def _wire_name(parameter: inspect.Parameter) -> str:
    for extra in get_args(parameter.annotation)[1:]:
        if isinstance(extra, FieldInfo) and isinstance(extra.alias, str):
            return extra.alias
    return parameter.name


def _is_own_default(default: Any) -> bool:
    return default is not EMPTY and default is not None and not isinstance(default, FieldInfo)


def _plain(value: Any) -> Any:
    """Give a whole parameter as the bus takes it: models and maps as they are, records as maps."""
    if value is None or isinstance(value, BaseModel | dict):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    return TypeAdapter(type(value)).dump_python(value, by_alias=True)


def _adapter(promised: Any, label: str) -> TypeAdapter[Any] | None:
    if promised is EMPTY or promised is Any or promised is object:
        return None
    try:
        return TypeAdapter(promised)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise TypeError(
            f"{label} returns a type that no answer can become ({reason}): use a pydantic model, a dataclass, or "
            "plain types"
        ) from None
