"""What is to be written to the buckets, and what is under way: the newest value of a key, one write of it at a time.

A table that changes ten times while a write is under way is written once more, not ten times. A write whose answer
does not come, or that was refused because the leader's key has just been renewed, is due again unless a newer value
waits. Nothing here writes: `take` says what to send, the others what became of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_UNDER_WAY: Final = 256
"""Writes sent and not answered: some 10 ms of the server's time."""

PATIENCE_S: Final = 2.0
"""How long an answer is waited for."""


@dataclass(frozen=True, slots=True)
class Write:
    """One value for one key; `number` tells its answer from others."""

    number: int
    bucket: str
    key: str
    data: bytes


class Scribe:
    """The writes of one leader."""

    __slots__ = ("_number", "_sent", "_under_way", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], bytes] = {}
        self._under_way: dict[int, tuple[float, Write]] = {}
        self._sent: dict[tuple[str, str], int] = {}
        self._number = 0

    @property
    def idle(self) -> bool:
        """Whether everything was written."""
        return not self._waiting and not self._under_way

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Write this, in place of what waits for the same key."""
        self._waiting[bucket, key] = data

    def take(self, now: float) -> list[Write]:
        """Give what may be sent now."""
        room = MOST_UNDER_WAY - len(self._under_way)
        ready = [place for place in self._waiting if place not in self._sent][: max(0, room)]
        found = []
        for place in ready:
            self._number += 1
            write = Write(self._number, *place, self._waiting.pop(place))
            self._under_way[write.number] = (now, write)
            self._sent[place] = write.number
            found.append(write)
        return found

    def done(self, number: int) -> None:
        """Take in that a write was stored."""
        self._end(number)

    def again(self, number: int) -> None:
        """Take in that a write was not stored: it is due again, unless a newer value waits."""
        write = self._end(number)
        if write is not None:
            self._waiting.setdefault((write.bucket, write.key), write.data)

    def late(self, now: float) -> int:
        """Give up waiting for answers that are overdue: those writes are due again. How many."""
        overdue = [number for number, (at, _) in self._under_way.items() if now - at >= PATIENCE_S]
        for number in overdue:
            self.again(number)
        return len(overdue)

    def forget(self) -> None:
        """Drop everything: another supervisor leads."""
        self._waiting.clear()
        self._under_way.clear()
        self._sent.clear()

    def _end(self, number: int) -> Write | None:
        found = self._under_way.pop(number, None)
        if found is None:
            return None
        write = found[1]
        if self._sent.get((write.bucket, write.key)) == number:
            del self._sent[write.bucket, write.key]
        return write
