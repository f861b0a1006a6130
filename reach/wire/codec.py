"""Bytes to maps and back: msgpack between our own, JSON for everybody else.

A body is always a map; its first byte tells the form (`{` is JSON, anything else msgpack) and the answer
comes back in kind. The wire knows nil, booleans, integers of 64 bits, floats, text, bytes, lists and maps
with text keys. Everything else has one documented form and is turned back by the receiver's own model:

==================================  =======================================================
aware ``datetime``, ``date``, time   ISO 8601 text (a naive ``datetime`` is refused)
``UUID``, ``Decimal``, ``Path``      their text
``timedelta``                        ISO 8601 duration
``set``, ``frozenset``, ``tuple``    a list (sets sorted where their members can be)
enum                                 its value
pydantic model, dataclass            a map (fields by alias)
``bytes``                            msgpack bin; in JSON ``{"$bytes": "<base64>"}``
==================================  =======================================================

What cannot cross is refused before sending, with the path to it (behaviour CALL-8). What arrives is
capped in size and depth, and extension types other than msgpack's timestamp are refused.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, cast

import msgpack
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from reach.errors import NotOnTheWire, SchemaInvalid

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DEPTH: Final = 64
"""Deepest nesting that is accepted or sent; deeper data is a mistake or an attack on recursive code."""

MAX_BYTES: Final = 64 * 1024 * 1024
"""Largest body that is decoded at all; a broker message is capped well below, blobs by `max_payload_bytes`."""

_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**64 - 1
_BYTES_KEY: Final = "$bytes"
_JSON_FIRST: Final = ord("{")


class _Packer(Protocol):
    def pack(self, obj: object) -> bytes: ...
    def reset(self) -> None: ...


def _sorted_if_possible(values: set[Any] | frozenset[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        return list(values)


def plain(value: object) -> Any:  # noqa: ANN401 - the wire's plain values have no narrower type
    """Give the documented form of a value that the wire has no type for. Raises `TypeError` or `ValueError`."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="python", by_alias=True)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            msg = "a datetime needs a time zone to mean the same elsewhere: add tzinfo, such as datetime.UTC"
            raise ValueError(msg)
        return value.isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, set | frozenset):
        return _sorted_if_possible(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, timedelta):
        return to_jsonable_python(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError:
        kind = type(value).__name__
        msg = f"a {kind} has no form on the wire: pass its fields, or a pydantic model"
        raise TypeError(msg) from None


_new_packer = cast("Callable[..., _Packer]", msgpack.Packer)
_packer: _Packer = _new_packer(default=plain, use_bin_type=True, autoreset=True)


def _keys_are_text(value: Any, depth: int) -> bool:  # noqa: ANN401
    """Whether all map keys are text and the depth is within bounds: the one thing msgpack lets through silently."""
    if depth > MAX_DEPTH:
        return False
    if isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                return False
            kind = type(item)
            if kind is not str and kind is not int and kind is not float and not _keys_are_text(item, depth + 1):
                return False
    elif isinstance(value, list | tuple):
        for item in value:
            kind = type(item)
            if kind is not str and kind is not int and kind is not float and not _keys_are_text(item, depth + 1):
                return False
    elif isinstance(value, BaseModel | set | frozenset) or dataclasses.is_dataclass(value):
        return _keys_are_text(plain(value), depth + 1)
    return True


def pack(body: dict[str, Any]) -> bytes:
    """Encode a map as msgpack. Raises `NotOnTheWire` naming the path of what cannot cross."""
    try:
        if _keys_are_text(body, 0):
            return _packer.pack(body)
    except (ValueError, TypeError, OverflowError):
        _packer.reset()
    explain(body, as_json=False)


def pack_trusted(body: dict[str, Any]) -> bytes:
    """Encode a map whose keys we wrote ourselves and whose user part was checked by `check` before."""
    return _packer.pack(body)


def check(value: Any) -> None:  # noqa: ANN401
    """Refuse what cannot cross although msgpack would take it: keys that are not text, and depth."""
    if not _keys_are_text(value, 0):
        explain(value, as_json=False)


def _as_json(value: object) -> Any:  # noqa: ANN401
    if isinstance(value, bytes):
        return {_BYTES_KEY: base64.b64encode(value).decode()}
    return plain(value)


def pack_json(body: dict[str, Any]) -> bytes:
    """Encode a map as JSON. Raises `NotOnTheWire` naming the path of what cannot cross (NaN among it)."""
    try:
        if _keys_are_text(body, 0):
            return json.dumps(
                body, default=_as_json, allow_nan=False, ensure_ascii=False, separators=(",", ":")
            ).encode()
    except (ValueError, TypeError, OverflowError, RecursionError):
        pass
    explain(body, as_json=True)


def _why_not(value: Any, *, as_json: bool) -> str | None:  # noqa: ANN401
    """Say why a leaf cannot cross, or None when it can."""
    if isinstance(value, bool) or value is None or isinstance(value, bytes):
        return None
    if isinstance(value, int):
        if not _INT_MIN <= value <= _INT_MAX:
            return "an integer of more than 64 bits: send it as text"
        return None
    if isinstance(value, float):
        if as_json and not math.isfinite(value):
            return f"{value} has no form in JSON: send null or text"
        return None
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            return f"a lone surrogate at character {error.start}: it is half of a character and not valid text"
    return None


def explain(value: Any, *, as_json: bool, path: str = "") -> NoReturn:  # noqa: ANN401
    """Find what cannot cross and raise `NotOnTheWire` with its path."""
    found = _find(value, path, 0, as_json=as_json)
    where, why = found or (path, "it cannot be encoded")
    raise NotOnTheWire(f"{where or 'the value'}: {why}", path=where)


def _find(value: Any, path: str, depth: int, *, as_json: bool) -> tuple[str, str] | None:  # noqa: ANN401
    if depth > MAX_DEPTH:
        return path, f"nested deeper than {MAX_DEPTH} levels"
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                return f"{path}[{key!r}]", f"a map key is text on the wire, not {type(key).__name__}"
            if (why := _why_not(key, as_json=as_json)) is not None:
                return f"{path}[{key!r}]", why
            inner = f"{path}.{key}" if path else key
            if (found := _find(item, inner, depth + 1, as_json=as_json)) is not None:
                return found
        return None
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            if (found := _find(item, f"{path}[{index}]", depth + 1, as_json=as_json)) is not None:
                return found
        return None
    if value is None or isinstance(value, bool | int | float | str | bytes):
        why = _why_not(value, as_json=as_json)
        return None if why is None else (path, why)
    try:
        form = plain(value)
    except (TypeError, ValueError) as error:
        return path, str(error)
    return None if form is value else _find(form, path, depth + 1, as_json=as_json)


def is_json(data: bytes) -> bool:
    """Whether a body is JSON, by its first byte."""
    return bool(data) and data[0] == _JSON_FIRST


def unpack(data: bytes) -> dict[str, Any]:
    """Decode a body in either form. Raises `SchemaInvalid` with what is wrong and, for JSON, where."""
    if len(data) > MAX_BYTES:
        msg = f"the body has {len(data)} bytes; {MAX_BYTES} is the most that is read"
        raise SchemaInvalid(msg)
    if data and data[0] == _JSON_FIRST:
        return _unpack_json(data)
    try:
        body = msgpack.unpackb(data, raw=False, strict_map_key=True, ext_hook=_refuse_ext, timestamp=3)
    except SchemaInvalid:
        raise
    except UnicodeDecodeError:
        msg = "a text in the body is not valid UTF-8"
        raise SchemaInvalid(msg) from None
    except Exception:  # noqa: BLE001 - msgpack raises a dozen kinds; all of them mean "not msgpack"
        msg = "the body is neither JSON (first byte '{') nor msgpack"
        raise SchemaInvalid(msg) from None
    if type(body) is not dict:
        msg = f"the body is a map of parameters, not a {_name(body)}"
        raise SchemaInvalid(msg)
    if not _keys_are_text(body, 0):
        msg = f"the body is nested deeper than {MAX_DEPTH} levels, or has a key that is not text"
        raise SchemaInvalid(msg)
    return body


def _unpack_json(data: bytes) -> dict[str, Any]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        msg = f"the JSON body is not valid UTF-8 at byte {error.start}"
        raise SchemaInvalid(msg) from None
    hook = _from_json if f'"{_BYTES_KEY}"' in text else None
    try:
        body = json.loads(text, parse_constant=_refuse_constant, object_hook=hook)
    except json.JSONDecodeError as error:
        msg = f"the JSON body is malformed at line {error.lineno}, column {error.colno}: {error.msg}"
        raise SchemaInvalid(msg) from None
    except (RecursionError, ValueError) as error:
        why = f"nested deeper than {MAX_DEPTH} levels" if isinstance(error, RecursionError) else str(error)
        msg = f"the JSON body cannot be read: {why}"
        raise SchemaInvalid(msg) from None
    try:
        fits = _keys_are_text(body, 0)
    except RecursionError:
        fits = False
    if not fits:
        msg = f"the JSON body is nested deeper than {MAX_DEPTH} levels"
        raise SchemaInvalid(msg)
    if not isinstance(body, dict):
        msg = f"the body is a map of parameters, not a {_name(body)}"
        raise SchemaInvalid(msg)
    found = _find(body, "", 0, as_json=True)
    if found is not None:
        msg = f"{found[0]}: {found[1]}"
        raise SchemaInvalid(msg)
    return body


def _from_json(item: dict[str, Any]) -> Any:  # noqa: ANN401
    if len(item) == 1 and isinstance(text := item.get(_BYTES_KEY), str):
        try:
            return base64.b64decode(text, validate=True)
        except ValueError:
            msg = f"{_BYTES_KEY} holds text that is not base64"
            raise ValueError(msg) from None
    return item


def _refuse_constant(word: str) -> NoReturn:
    msg = f"{word} has no form in JSON"
    raise ValueError(msg)


def _refuse_ext(code: int, _data: bytes) -> NoReturn:
    msg = f"msgpack extension type {code} is not accepted; the codec's documented forms are"
    raise SchemaInvalid(msg)


def _name(value: object) -> str:
    names = {list: "list", str: "text", bytes: "byte string", int: "number", float: "number", bool: "boolean"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
