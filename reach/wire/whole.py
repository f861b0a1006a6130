"""Whole numbers as other languages write them.

JavaScript has one kind of number, and its msgpack libraries send large whole ones as floats; so does JSON
that was written `5.0`. A float without a fraction is therefore taken as the integer that it is, which is
what JSON Schema's `integer` says too. Text is not: `"5"` is a mistake that its sender should hear about.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta
from pydantic import Field

MAX_WHOLE: Final = 2**63 - 1
"""Largest whole number in a field of ours: what a signed 64-bit integer holds."""

Whole = Annotated[int, Field(ge=0, le=MAX_WHOLE), Meta(ge=0, le=MAX_WHOLE)]
"""A field that holds a whole number from 0."""

Count = Annotated[int, Field(ge=1, le=MAX_WHOLE), Meta(ge=1, le=MAX_WHOLE)]
"""A field that holds a whole number from 1."""


def whole(value: Any, least: int = 0) -> int | None:
    """Give a decoded value as a whole number of at least `least`; None when it is none."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and least <= value <= MAX_WHOLE else None
