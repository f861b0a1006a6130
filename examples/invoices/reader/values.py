"""Numbers and dates as the XML formats write them.

Strict on purpose: `1e999999` is a valid float and a way to fill memory, so only plain decimals are numbers. What is
not one is left out and said.
"""

import re
from datetime import date
from decimal import Decimal
from typing import Final

from .model import Finding
from .xml_node import Node

_DECIMAL: Final = re.compile(r"[+-]?\d{1,18}(\.\d{0,18})?|[+-]?\.\d{1,18}")
_DATE: Final = re.compile(r"(\d{4})-?(\d{2})-?(\d{2})(T.*|Z|[+-]\d{2}:\d{2})?")


class Values:
    """Reads values and collects what could not be read."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def decimal(self, node: Node | None, path: str = "") -> Decimal | None:
        """The number at the path below the node (or of the node itself), None where there is none."""
        text = _text(node, path)
        if text is None:
            return None
        if _DECIMAL.fullmatch(text) is None:
            self._unreadable("number", path or (node.name if node else ""), text)
            return None
        return Decimal(text)

    def date(self, node: Node | None, path: str = "") -> date | None:
        """The day at the path: `2025-01-31`, `20250131`, either with a time zone or time after it."""
        text = _text(node, path)
        if text is None:
            return None
        match = _DATE.fullmatch(text)
        if match is not None:
            try:
                return date(int(match[1]), int(match[2]), int(match[3]))
            except ValueError:  # the 31st of February: no date either
                pass
        self._unreadable("date", path, text)
        return None

    def _unreadable(self, what: str, path: str, text: str) -> None:
        name = path.rsplit("/", 1)[-1]
        self.findings.append(
            Finding(code=f"not_a_{what}", message=f"{name} is {text[:40]!r}, which is no {what}")
        )


def _text(node: Node | None, path: str) -> str | None:
    if node is None:
        return None
    return node.text(path) if path else node.own_text()
