"""What parameters say, and what shape an answer has, as short texts that can be compared.

`digest` is of the *content*: the same before sending and after receiving, in whatever form it travelled. Key order
does not matter; a value that the wire has no type for counts as the form that `reach.wire.codec` documents, so
`Decimal("1.0")` is the text "1.0" (and not "1.00"), a set is its sorted list, an enum its value. Numbers that are
equal are the same (1 and 1.0: JavaScript cannot tell them apart), but a truth value is no number, bytes are no
text, and an absent field is not one that is null. Sets of members that cannot be compared have no stable order on
the wire: send a list.

`structure` is of the *shape* (SEE-5): which fields, of which kinds, no values. Lists are one shape, of all their
items; a map with very many keys is taken for a table and its keys for data. A large value is looked at in part.

=================  ==========  ======================================================
what               number      where it comes from
=================  ==========  ======================================================
a digest           128 bits    ours: BLAKE2b; a collision is not to be found by chance
items looked at    32          ours: of each list, the first
a table            64 keys     ours: more than anybody writes into a schema by hand
levels             8           ours: below, only the kind is noted
paths              512         ours: of the whole value
=================  ==========  ======================================================
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from typing import Any, Final

from reach.wire import codec

DIGEST_BYTES: Final = 16
MAX_ITEMS: Final = 32
MAX_KEYS: Final = 64
MAX_LEVELS: Final = 8
MAX_PATHS: Final = 512

_LEAST: Final = -(2**63)
_MOST: Final = 2**64 - 1
_PLAIN_KEY: Final = re.compile(r"[\w-]+").fullmatch
# What is hashed is part of the definition; a change of it is a new name, so that old digests never match.
_PARAMS: Final = b"reach.params/1"
_SHAPE: Final = b"reach.shape/1"

Structure = dict[str, str]
"""Path → kind, or kinds joined by `|`; `items[].price` is the price of any item, `*` any key of a table."""


def digest(value: Any) -> str:
    """Give the digest of a value's content: 32 hexadecimal digits.

    Raises:
        NotOnTheWire: the value has no form on the wire; says where and why.
    """
    try:
        content = _content(value, 0)
    except (TypeError, ValueError):
        codec.explain(value, as_json=False)
    return blake2b(content, digest_size=DIGEST_BYTES, person=_PARAMS).hexdigest()


def structure(value: Any) -> Structure:
    """Give the shape of a value, by path; "" is the value itself."""
    found: dict[str, set[str]] = {}
    _look(value, "", 0, found)
    return {path: "|".join(sorted(kinds)) for path, kinds in sorted(found.items())}


def structure_hash(shape: Structure) -> str:
    """Give the hash of a shape: 32 hexadecimal digits."""
    hashed = blake2b(digest_size=DIGEST_BYTES, person=_SHAPE)
    for path, kinds in sorted(shape.items()):
        hashed.update(f"{path}\0{kinds}\n".encode(errors="surrogatepass"))
    return hashed.hexdigest()


def difference(before: Structure, after: Structure) -> list[str]:
    """Say how one shape became another, one sentence a path, in order."""
    said = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        name = path or "the value"
        if old is None:
            said.append(f"{name} is new: {new}")
        elif new is None:
            said.append(f"{name} is gone: was {old}")
        elif old != new:
            said.append(f"{name} is {new}, was {old}")
    return said


def _content(value: Any, depth: int) -> bytes:  # noqa: PLR0911 - one return a kind
    """Write a value so that only equal ones read alike: a letter for the kind, then its length, then what it is.

    A form of our own, for digests outlive the encoder of one version. Raises `TypeError`, `ValueError`.
    """
    if depth > codec.MAX_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(value, str):
        data = value.encode()
        return b"s%d:%b" % (len(data), data)
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, dict):
        items = [(_text(key), item) for key, item in value.items()]
        return b"{%b}" % b"".join(key + _content(item, depth + 1) for key, item in sorted(items, key=_first))
    if isinstance(value, list | tuple):
        return b"[%b]" % b"".join([_content(item, depth + 1) for item in value])
    if isinstance(value, bytes):
        return b"b%d:%b" % (len(value), value)
    if isinstance(value, set | frozenset):
        return _set(value, depth)
    return _content(codec.plain(value), depth + 1)


def _first(item: tuple[bytes, Any]) -> bytes:
    return item[0]


def _text(key: object) -> bytes:
    if not isinstance(key, str):
        raise TypeError("a map key is text")
    data = key.encode()
    return b"s%d:%b" % (len(data), data)


def _number(value: Any) -> bytes:
    if isinstance(value, float) and not (value.is_integer() and _LEAST <= value <= _MOST):
        return b"d%b;" % float.__repr__(value).encode()
    whole = int(value)
    if not _LEAST <= whole <= _MOST:
        raise ValueError("more than 64 bits")
    return b"i%d;" % whole


def _set(value: AbstractSet[Any], depth: int) -> bytes:
    """Write a set as the list that it becomes; members that cannot be compared are in the order of their content."""
    try:
        items = [_content(item, depth + 1) for item in sorted(value)]
    except TypeError:
        items = sorted(_content(item, depth + 1) for item in value)
    return b"[%b]" % b"".join(items)


def _look(value: Any, path: str, level: int, found: dict[str, set[str]]) -> None:
    kind = _kind(value)
    if kind == "value":
        value = codec.plain(value)
        kind = _kind(value)
    if path not in found and len(found) >= MAX_PATHS:
        return
    found.setdefault(path, set()).add(kind)
    if level >= MAX_LEVELS:
        return
    if kind == "map":
        if len(value) > MAX_KEYS:
            for key in sorted(value, key=str)[:MAX_ITEMS]:
                _look(value[key], f"{path}.*" if path else "*", level + 1, found)
            return
        for key in sorted(value, key=str):
            name = key if _PLAIN_KEY(str(key)) else repr(key)
            _look(value[key], f"{path}.{name}" if path else name, level + 1, found)
    elif kind == "list":
        for index, item in enumerate(value):
            if index == MAX_ITEMS:
                break
            _look(item, f"{path}[]", level + 1, found)


_KINDS: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (bool, "truth"),
    ((int, float), "number"),
    (str, "text"),
    (bytes, "bytes"),
    (dict, "map"),
    ((list, tuple), "list"),
)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    for kinds, name in _KINDS:
        if isinstance(value, kinds):
            return name
    return "value"
