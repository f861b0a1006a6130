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
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from types import NoneType
from typing import Any, Final, NoReturn, Protocol, cast

import msgpack
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
_PACK_BUFFER: Final = 2048  # Bytes; grows as needed. Most bodies fit, and a small one is quicker to get.
_LEAVES: Final = frozenset({str, int, float, bool, bytes, NoneType})

# In JSON text: what the walk after decoding, or before sending, would have to find. Half of a surrogate pair
# comes from an escape only; an integer past 64 bits has 19 digits or more; infinity a three-digit exponent.
_SUSPECT_IN_JSON: Final = re.compile(r"\\u[dD][89a-fA-F]|[0-9]{19}|[eE]\+?[0-9]{3}")

# msgpack bytes that may open a map or list become 1, those that may open a byte string 255; what cannot is
# deleted. So one pass over a short body shows that it holds neither deep nesting nor a key of bytes.
_OPEN_CONTAINER: Final = frozenset({*range(0x80, 0xA0), *range(0xDC, 0xE0)})
_OPEN_BYTES: Final = frozenset({0xC4, 0xC5, 0xC6})
_MARKS: Final = bytes(1 if byte in _OPEN_CONTAINER else 255 for byte in range(256))
_NEITHER: Final = bytes(set(range(256)) - _OPEN_CONTAINER - _OPEN_BYTES)
_SHORT: Final = (
    4096  # Bytes; above it the walk costs less, compared with the decoding, than this trick saves.
)


class _Packer(Protocol):
    def pack(self, obj: object) -> bytes: ...


_new_packer = cast("Callable[..., _Packer]", msgpack.Packer)


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


def _keys_are_text(value: Any, depth: int) -> bool:
    """Whether all map keys are text and the depth is in bounds: what msgpack would let through silently."""
    if depth > MAX_DEPTH:
        return False
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                return False
            if type(item) not in _LEAVES and not _keys_are_text(item, depth + 1):
                return False
    elif isinstance(value, list | tuple):
        for item in value:
            if type(item) not in _LEAVES and not _keys_are_text(item, depth + 1):
                return False
    elif isinstance(value, BaseModel | set | frozenset) or dataclasses.is_dataclass(value):
        return _keys_are_text(plain(value), depth + 1)
    return True


def pack(body: dict[str, Any]) -> bytes:
    """Encode a map as msgpack. Raises `NotOnTheWire` naming the path of what cannot cross."""
    try:
        if _keys_are_text(body, 0):
            return pack_trusted(body)
    except (ValueError, TypeError, OverflowError):
        pass  # Told below, with its path.
    raise _refusal(body, as_json=False)


def pack_trusted(body: dict[str, Any]) -> bytes:
    """Encode a map whose keys we wrote ourselves and whose user part was checked by `check` before.

    Each message has a packer of its own: one that is shared mixes up two messages when a value's form is
    asked for (`plain`) and that code packs, or another thread does.
    """
    return _new_packer(default=plain, use_bin_type=True, buf_size=_PACK_BUFFER).pack(body)


def check(value: Any) -> None:
    """Refuse what cannot cross although msgpack would take it: keys that are not text, and depth."""
    if not _keys_are_text(value, 0):
        raise _refusal(value, as_json=False)


def _as_json(value: object) -> Any:
    if isinstance(value, bytes):
        return {_BYTES_KEY: base64.b64encode(value).decode()}
    return plain(value)


def pack_json(body: dict[str, Any]) -> bytes:
    """Encode a map as JSON. Raises `NotOnTheWire` naming the path of what cannot cross (NaN among it)."""
    try:
        if _keys_are_text(body, 0):
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
        body = msgpack.unpackb(data, raw=False, strict_map_key=True, ext_hook=_refuse_ext, timestamp=3)
    except SchemaInvalid:
        raise
    except UnicodeDecodeError:
        raise SchemaInvalid("a text in the body is not valid UTF-8") from None
    except Exception:  # noqa: BLE001 - msgpack raises a dozen kinds; all of them mean "not msgpack"
        raise SchemaInvalid("the body is neither JSON (first byte '{') nor msgpack") from None
    if type(body) is not dict:
        raise SchemaInvalid(f"the body is a map of parameters, not a {_name(body)}")
    if len(data) <= _SHORT:
        # Each level takes a byte of its own, and msgpack lets no keys through but text and bytes.
        marks = data.translate(_MARKS, _NEITHER)
        if len(marks) <= MAX_DEPTH and marks.isascii():
            return body
    if not _keys_are_text(body, 0):
        raise SchemaInvalid(
            f"the body is nested deeper than {MAX_DEPTH} levels, or has a key that is not text"
        )
    return body


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
    if text.count("{") + text.count("[") > MAX_DEPTH and not _keys_are_text(body, 0):
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


def _refuse_ext(code: int, _data: bytes) -> NoReturn:
    raise SchemaInvalid(f"msgpack extension type {code} is not accepted; the codec's documented forms are")


def _name(value: object) -> str:
    names = {list: "list", str: "text", bytes: "byte string", int: "number", float: "number", bool: "boolean"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
