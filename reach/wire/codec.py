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
import re
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from msgspec import MsgspecError
from msgspec.msgpack import Decoder, Encoder
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from reach.errors import NotOnTheWire, SchemaInvalid

MAX_DEPTH: Final = 64
"""Deepest nesting that is accepted or sent; deeper data is a mistake or an attack on recursive code."""

MAX_BYTES: Final = 64 * 1024 * 1024
"""Largest body that is decoded at all; messages are capped well below, blobs by `max_payload_bytes`."""

_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**64 - 1
_BYTES_KEY: Final = "$bytes"
_JSON_FIRST: Final = ord("{")
LEAVES: Final = frozenset({str, int, float, bool, bytes, NoneType})
"""Types of values that hold no others."""

_HOLDERS: Final = frozenset({dict, list, tuple})

# In JSON text: what the walk after decoding, or before sending, would have to find. Half of a surrogate pair
# comes from an escape only; an integer past 64 bits has 19 digits or more; infinity a three-digit exponent.
_SUSPECT_IN_JSON: Final = re.compile(r"\\u[dD][89a-fA-F]|[0-9]{19}|[eE]\+?[0-9]{3}")

_encode: Final = Encoder().encode


def _nested(levels: int) -> Any:
    value: Any = str | int | float | bool | None
    for _ in range(levels):
        value = str | int | float | bool | list[value] | dict[str, value] | None
    return value


if TYPE_CHECKING:
    Simple = Any
else:
    Simple = _nested(6)
    """What msgspec reads, and checks to the last key, in one go: most values that ever cross.

    It can name neither bytes beside text nor nesting without an end, so the rest is read without a type, and walked.
    """


def _sorted_if_possible(values: set[Any] | frozenset[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        return list(values)


def plain(value: object) -> Any:  # noqa: PLR0911 - one return a kind
    """Give the documented form of a value that the wire has no type for. Raises `TypeError`, `ValueError`."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="python", by_alias=True)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(
                "a datetime needs a time zone to mean the same elsewhere: add one, such as datetime.UTC"
            )
        return value.isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | PurePath):
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
        raise TypeError(f"a {kind} has no form on the wire: pass its fields, or a pydantic model") from None


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a value is made of the wire's own types: text for keys, nothing nested deeper than `MAX_DEPTH`."""
    kind = type(value)
    if kind is dict:
        for key in value:
            if type(key) is not str:
                return False
        value = value.values()
    elif kind is not list and kind is not tuple:
        return kind in LEAVES
    for item in value:
        kind = type(item)
        if kind is str or kind in LEAVES:
            continue
        if depth >= MAX_DEPTH or kind not in _HOLDERS or not is_plain(item, depth + 1):
            return False
    return True


def wire_form(value: Any) -> Any:
    """Give the documented form of a value; one that is plain is given back as it is.

    Raises `NotOnTheWire` naming the path of what cannot cross: a key that is not text, a type without a form,
    nesting that is too deep. Numbers and text that do not fit show when they are packed.
    """
    if is_plain(value):
        return value
    try:
        return _formed(value, 0)
    except (ValueError, TypeError, OverflowError):
        raise _refusal(value, as_json=False) from None


def _formed(value: Any, depth: int) -> Any:
    if type(value) in LEAVES:
        return value
    if depth > MAX_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a key is not text")
        return {str.__str__(key): _formed(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_formed(item, depth + 1) for item in value]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bytes):
        return bytes(value)
    return _formed(plain(value), depth + 1)


def pack(body: dict[str, Any]) -> bytes:
    """Encode a map as msgpack. Raises `NotOnTheWire` naming the path of what cannot cross."""
    return pack_plain(wire_form(body))


def pack_plain(body: dict[str, Any]) -> bytes:
    """Encode a map of which `is_plain` is true. Raises `NotOnTheWire` for numbers and text that do not fit."""
    try:
        return _encode(body)
    except (ValueError, TypeError, OverflowError):
        raise _refusal(body, as_json=False) from None


def _as_json(value: object) -> Any:
    if isinstance(value, bytes):
        return {_BYTES_KEY: base64.b64encode(value).decode()}
    return plain(value)


def _may_be_json(value: Any, depth: int = 0) -> bool:
    """Whether keys are text and the depth is in bounds: what `json` would let through, or turn into text, silently."""
    if depth > MAX_DEPTH:
        return False
    if isinstance(value, dict):
        return all(
            isinstance(key, str) and (type(item) in LEAVES or _may_be_json(item, depth + 1))
            for key, item in value.items()
        )
    if isinstance(value, list | tuple):
        return all(type(item) in LEAVES or _may_be_json(item, depth + 1) for item in value)
    if isinstance(value, BaseModel | set | frozenset) or dataclasses.is_dataclass(value):
        return _may_be_json(plain(value), depth + 1)
    return True


def pack_json(body: dict[str, Any]) -> bytes:
    """Encode a map as JSON. Raises `NotOnTheWire` naming the path of what cannot cross (NaN among it)."""
    try:
        if _may_be_json(body):
            text = json.dumps(
                body, default=_as_json, allow_nan=False, ensure_ascii=False, separators=(",", ":")
            )
            suspect = _SUSPECT_IN_JSON.search(text) is not None or f'"{_BYTES_KEY}"' in text
            if not suspect or _find(body, "", 0, as_json=True) is None:
                return text.encode()
    except (ValueError, TypeError, OverflowError, RecursionError):
        pass  # Told below, with its path.
    raise _refusal(body, as_json=True)


def _why_not(value: Any, *, as_json: bool) -> str | None:
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
            where = f"a lone surrogate at character {error.start}"
            return f"{where}: it is half of a character and not valid text"
    return None


def explain(value: Any, *, as_json: bool, path: str = "") -> NoReturn:
    """Find what cannot cross and raise `NotOnTheWire` with its path."""
    raise _refusal(value, as_json=as_json, path=path)


def _refusal(value: Any, *, as_json: bool, path: str = "") -> NotOnTheWire:
    found = _find(value, path, 0, as_json=as_json)
    where, why = found or (path, "it cannot be encoded")
    return NotOnTheWire(f"{where or 'the value'}: {why}", path=where)


def _find(value: Any, path: str, depth: int, *, as_json: bool) -> tuple[str, str] | None:
    """Give the path of the first thing that cannot cross, and why."""
    if depth > MAX_DEPTH:
        return path, f"nested deeper than {MAX_DEPTH} levels"
    if isinstance(value, dict):
        return _find_in_map(value, path, depth, as_json=as_json)
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


def _find_in_map(value: dict[Any, Any], path: str, depth: int, *, as_json: bool) -> tuple[str, str] | None:
    for key, item in value.items():
        if not isinstance(key, str):
            return f"{path}[{key!r}]", f"a map key is text on the wire, not {type(key).__name__}"
        if (why := _why_not(key, as_json=as_json)) is not None:
            return f"{path}[{key!r}]", why
        if as_json and key == _BYTES_KEY and len(value) == 1 and isinstance(item, str):
            return path, f"a map of {_BYTES_KEY!r} alone is what bytes look like in JSON: use another key"
        inner = f"{path}.{key}" if path else key
        if (found := _find(item, inner, depth + 1, as_json=as_json)) is not None:
            return found
    return None


def is_json(data: bytes) -> bool:
    """Whether a body is JSON, by its first byte."""
    return bool(data) and data[0] == _JSON_FIRST


def unpack(data: bytes) -> dict[str, Any]:
    """Decode a body in either form. Raises `SchemaInvalid` with what is wrong and, for JSON, where."""
    if not data:
        raise SchemaInvalid("the body is empty: a call without parameters sends an empty map, {}")
    if len(data) > MAX_BYTES:
        raise SchemaInvalid(f"the body has {len(data)} bytes; {MAX_BYTES} is the most that is read")
    if data[0] == _JSON_FIRST:
        return _unpack_json(data)
    try:
        body = _decode(data)
    except SchemaInvalid:
        raise
    except (MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        if "UTF-8" in str(error):
            raise SchemaInvalid("a text in the body is not valid UTF-8") from None
        raise SchemaInvalid("the body is neither JSON (first byte '{') nor msgpack") from None
    if type(body) is not dict:
        raise SchemaInvalid(f"the body is a map of parameters, not a {_name(body)}")
    if not has_text_keys(body):
        raise SchemaInvalid(
            f"the body is nested deeper than {MAX_DEPTH} levels, or has a key that is not text"
        )
    return body


def has_text_keys(value: Any, depth: int = 0) -> bool:
    """Whether a decoded value has text for keys and is not nested too deep: what msgpack itself lets through."""
    kind = type(value)
    if kind is dict:
        for key in value:
            if type(key) is not str:
                return False
        value = value.values()
    elif kind is not list:
        return True
    for item in value:
        kind = type(item)
        if kind is str or kind in LEAVES:
            continue
        if depth >= MAX_DEPTH or not has_text_keys(item, depth + 1):
            return False
    return True


def _unpack_json(data: bytes) -> dict[str, Any]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise SchemaInvalid(f"the JSON body is not valid UTF-8 at byte {error.start}") from None
    hook = _from_json if f'"{_BYTES_KEY}"' in text else None
    try:
        body: dict[str, Any] = json.loads(text, parse_constant=_refuse_constant, object_hook=hook)
    except json.JSONDecodeError as error:
        raise SchemaInvalid(
            f"the JSON body is malformed at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except RecursionError:
        raise SchemaInvalid(f"the JSON body is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise SchemaInvalid(f"the JSON body cannot be read: {error}") from None
    if type(body) is not dict:
        raise SchemaInvalid(f"the body is a map of parameters, not a {_name(body)}")
    if text.count("{") + text.count("[") > MAX_DEPTH and not has_text_keys(body):
        raise SchemaInvalid(f"the JSON body is nested deeper than {MAX_DEPTH} levels")
    if _SUSPECT_IN_JSON.search(text) and (found := _find(body, "", 0, as_json=True)) is not None:
        raise SchemaInvalid(f"{found[0]}: {found[1]}")
    return body


def _from_json(item: dict[str, Any]) -> Any:
    if len(item) == 1 and isinstance(text := item.get(_BYTES_KEY), str):
        try:
            return base64.b64decode(text, validate=True)
        except ValueError:
            raise ValueError(f"{_BYTES_KEY} holds text that is not base64") from None
    return item


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} has no form in JSON")


def refuse_ext(code: int, _data: memoryview) -> NoReturn:
    """Refuse an extension type; for decoders. Raises `SchemaInvalid`."""
    raise SchemaInvalid(f"msgpack extension type {code} is not accepted; the codec's documented forms are")


_decode: Final = Decoder(ext_hook=refuse_ext).decode


def _name(value: object) -> str:
    names = {list: "list", str: "text", bytes: "byte string", int: "number", float: "number", bool: "boolean"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
