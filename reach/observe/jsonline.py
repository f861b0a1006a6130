"""One JSON object a line, as records and access lines are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final


def _name_of_type(value: object) -> str:
    """Stand in for what JSON does not know: better a word than a lost batch."""
    return type(value).__name__


_encoder: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_name_of_type)


def encode(body: Mapping[str, Any]) -> str:
    """Give the line, without a line end."""
    return _encoder.encode(body)
