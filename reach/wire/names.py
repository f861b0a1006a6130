"""Which names may become part of a subject.

Only capability names contain dots; every other name is one token. What does not fit is refused before
it touches a subject, together with the nearest name that would do, and nothing is changed silently:
a name that was quietly normalised would answer under one spelling and be called under another.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from reach.errors import NameRefused

_CAPABILITY = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
_MAX_CAPABILITY = 128
_MAX_TOKEN = 64
_RESERVED_FIRST = "cap"


def _nearest(name: str, *, dots: bool) -> str | None:
    folded = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    if dots:
        folded = folded.lower().removeprefix("cap.")
    kept = re.sub(r"[^A-Za-z0-9_.-]+" if dots else r"[^A-Za-z0-9_-]+", "-", folded)
    if dots:
        kept = ".".join(part for part in kept.split(".") if part)
    kept = kept.strip("-")[: _MAX_CAPABILITY if dots else _MAX_TOKEN]
    if dots and kept.split(".", 1)[0] == _RESERVED_FIRST:
        kept = ""
    return kept or None


def _refuse(what: str, name: str, rule: str, nearest: str | None) -> NameRefused:
    hint = f"; {nearest!r} would do" if nearest else ""
    return NameRefused(f"{name!r} cannot be a {what}: {rule}{hint}", nearest=nearest)


@lru_cache(maxsize=8192)
def capability(name: str) -> str:
    """Check a capability name (`invoice.extract`); a leading `cap.` is taken off. Raises `NameRefused`."""
    if not isinstance(name, str):
        msg = f"a capability name is a string such as 'invoice.extract', not {type(name).__name__}"
        raise TypeError(msg)
    bare = name.removeprefix("cap.")
    if len(bare) > _MAX_CAPABILITY:
        raise _refuse("capability name", name, f"it is longer than {_MAX_CAPABILITY} characters", None)
    if not _CAPABILITY.fullmatch(bare):
        rule = "it is made of lower-case tokens [a-z0-9_-] joined by dots"
        raise _refuse("capability name", name, rule, _nearest(name, dots=True))
    if bare.split(".", 1)[0] == _RESERVED_FIRST:
        raise _refuse("capability name", name, "its first token may not be 'cap'", _nearest(bare[4:], dots=True))
    return bare


@lru_cache(maxsize=8192)
def token(name: str, what: str = "name") -> str:
    """Check a one-token name (agent, provider, instance, client, tenant, task, stream). Raises `NameRefused`."""
    if not isinstance(name, str):
        msg = f"a {what} is a string, not {type(name).__name__}"
        raise TypeError(msg)
    if len(name) > _MAX_TOKEN:
        raise _refuse(what, name, f"it is longer than {_MAX_TOKEN} characters", name[:_MAX_TOKEN])
    if not _TOKEN.fullmatch(name):
        raise _refuse(what, name, "it is one token of [A-Za-z0-9_-]", _nearest(name, dots=False))
    return name


def header_value(value: str, what: str = "header value") -> str:
    """Check a header value: any text but line breaks and NUL, which could inject a header. Raises `NameRefused`."""
    if not isinstance(value, str):
        msg = f"a {what} is a string, not {type(value).__name__}: say str(value) if that is meant"
        raise TypeError(msg)
    if any(mark in value for mark in "\r\n\0"):
        raise _refuse(what, value, "it holds a line break or NUL", re.sub(r"[\r\n\0]+", " ", value))
    return value
