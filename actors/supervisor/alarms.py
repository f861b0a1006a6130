"""What a person should know, told once for many times: the same kind and subject are one matter for five minutes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from reach.wire.alert import Alert

EACH_S: Final = 300.0
"""The same matter is told again at most so often (behaviour SEE-9)."""

MAX_MATTERS: Final = 10_000


@dataclass(slots=True)
class _Matter:
    first_ms: int
    seen_at: float
    told_at: float | None = None
    count: int = 0


class Alarms:
    """All matters of one supervisor."""

    __slots__ = ("_matters",)

    def __init__(self) -> None:
        self._matters: dict[tuple[str, str], _Matter] = {}

    def raise_one(self, kind: str, subject: str, message: str, *, now: float, at_ms: int) -> Alert | None:
        """Give the alert to publish; None where the matter was told a while ago. One unseen for long begins anew."""
        matter = self._matters.get((kind, subject))
        if matter is None or now - matter.seen_at >= EACH_S:
            if len(self._matters) >= MAX_MATTERS:
                self._matters.clear()
            matter = self._matters[kind, subject] = _Matter(at_ms, now)
        matter.count += 1
        matter.seen_at = now
        if matter.told_at is not None and now - matter.told_at < EACH_S:
            return None
        matter.told_at = now
        return Alert(
            kind=kind,
            subject=subject,
            message=message,
            first_seen=matter.first_ms,
            at=at_ms,
            count=matter.count,
        )
