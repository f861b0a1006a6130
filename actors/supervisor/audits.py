"""Who changed what, kept until the stream of audits has stored it: sent again while no answer says so.

An entry outlives the leadership in which it was made. Sent twice, it is stored once: the stream knows it by its id.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from reach.wire.audit import AuditEntry

_log = logging.getLogger("reach.supervisor")

AGAIN_S: Final = 2.0
"""How long an answer is waited for."""

MOST_TRIES: Final = 50
"""Within the stream's window in which the same id is stored once (120 s)."""

MOST_WAITING: Final = 10_000


@dataclass(slots=True)
class _Waiting:
    entry: AuditEntry
    tries: int = 0
    sent_at: float = 0.0


class Audits:
    """The entries of one supervisor that are not stored yet."""

    __slots__ = ("_number", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, entry: AuditEntry) -> None:
        """Take an entry that is to be kept."""
        if len(self._waiting) >= MOST_WAITING:
            oldest = self._waiting.pop(next(iter(self._waiting)))
            _log.error("An audit entry is given up, too many wait: %s", oldest.entry)
        self._number += 1
        self._waiting[self._number] = _Waiting(entry)

    def due(self, now: float) -> list[tuple[int, AuditEntry]]:
        """Give what is to be sent now, each by its number. What was tried often enough is told to the log instead."""
        found = []
        for number, one in list(self._waiting.items()):
            if one.tries and now - one.sent_at < AGAIN_S:
                continue
            if one.tries >= MOST_TRIES:
                del self._waiting[number]
                _log.error("An audit entry could not be stored: %s", one.entry)
                continue
            one.tries += 1
            one.sent_at = now
            found.append((number, one.entry))
        return found

    def stored(self, number: int) -> None:
        """Take in that an entry was stored."""
        self._waiting.pop(number, None)
