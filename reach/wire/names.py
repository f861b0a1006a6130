"""Which names may become part of a subject.

Only capability names contain dots; every other name is one token. What does not fit is refused before
it touches a subject, together with the nearest name that would do, and nothing is changed silently:
a name that was quietly normalised would answer under one spelling and be called under another.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator

from reach.errors import NameRefused

_CAPABILITY = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
_MAX_CAPABILITY = 128
_MAX_TOKEN = 64
_RESERVED_FIRST = "cap"
# All that a reader of headers might take for the end of a line, and what no terminal should be sent.
_BREAKS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]+")


def _nearest(name: str, *, dots: bool) -> str | None:
    folded = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    if not dots:
        return re.sub(r"[^A-Za-z0-9_-]+", "-", folded).strip("-")[:_MAX_TOKEN] or None
    parts = re.sub(r"[^a-z0-9_.-]+", "-", folded.lower()).split(".")
    kept = [bare for part in parts if (bare := part.strip("-"))]
    while kept and kept[0] == _RESERVED_FIRST:
        kept.pop(0)
    return ".".join(kept)[:_MAX_CAPABILITY].rstrip(".-") or None


def _article(what: str) -> str:
    return "an" if what[:1] in "aeiou" else "a"


def _refuse(what: str, name: str, rule: str, nearest: str | None) -> NameRefused:
    hint = f"; {nearest!r} would do" if nearest else ""
    return NameRefused(
        f"{name[:_MAX_CAPABILITY]!r} cannot be {_article(what)} {what}: {rule}{hint}", nearest=nearest
    )


def _must_be_text(value: object, what: str, hint: str = "") -> None:
    if not isinstance(value, str):
        raise TypeError(f"{_article(what)} {what} is a string{hint}, not {type(value).__name__}")


@lru_cache(maxsize=8192)
def capability(name: str) -> str:
    """Check a capability name (`invoice.extract`); a leading `cap.` is taken off. Raises `NameRefused`."""
    _must_be_text(name, "capability name", " such as 'invoice.extract'")
    bare = name.removeprefix("cap.")
    what = "capability name"
    if len(bare) > _MAX_CAPABILITY:
        rule = f"it is longer than {_MAX_CAPABILITY} characters"
        raise _refuse(what, name, rule, _nearest(name, dots=True))
    if not _CAPABILITY.fullmatch(bare):
        rule = "it is made of lower-case tokens [a-z0-9_-] joined by dots"
        raise _refuse(what, name, rule, _nearest(name, dots=True))
    if bare.split(".", 1)[0] == _RESERVED_FIRST:
        raise _refuse(what, name, "its first token may not be 'cap'", _nearest(name, dots=True))
    return bare


@lru_cache(maxsize=8192)
def token(name: str, what: str = "name") -> str:
    """Check a one-token name (agent, provider, instance, client, tenant, task …). Raises `NameRefused`."""
    _must_be_text(name, what)
    if len(name) > _MAX_TOKEN:
        rule = f"it is longer than {_MAX_TOKEN} characters"
        raise _refuse(what, name, rule, _nearest(name, dots=False))
    if not _TOKEN.fullmatch(name):
        raise _refuse(what, name, "it is one token of [A-Za-z0-9_-]", _nearest(name, dots=False))
    return name


def _bare(name: str) -> str:
    if capability(name) != name:
        raise _refuse("capability name", name, "it is written without 'cap.' here", capability(name))
    return name


Token = Annotated[str, AfterValidator(token)]
"""A field of a message that holds a one-token name: whoever reads it will put it into a subject."""

CapabilityName = Annotated[str, AfterValidator(_bare)]
"""A field of a message that holds the name of a capability, for the same reason."""


def header_value(value: str, what: str = "header value") -> str:
    """Check a header value: any text but line breaks and control characters, which could inject a header.

    Raises `NameRefused`, and `TypeError` for what is not text.
    """
    _must_be_text(value, what, " (say str(value) if that is meant)")
    if _BREAKS.search(value):
        raise _refuse(what, value, "it holds a line break or control character", _BREAKS.sub(" ", value))
    try:
        value.encode()
    except UnicodeEncodeError:
        nearest = value.encode(errors="ignore").decode()
        raise _refuse(what, value, "it holds half of a character (a lone surrogate)", nearest) from None
    return value
