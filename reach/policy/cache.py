"""Answers that are kept to be given again (GUARD-5): least recently used first out, bounded in bytes and in number.

An answer is *fresh* for its time to live, counted from its arrival, and after that for a while *stale*: good for
taking a failure's place, marked as old (BREAK-6), and for nothing else. It is kept as the bytes that it came as, so
that whoever is given it may change what it gets. It belongs to a *face*, what its capability was when it was kept (its
card, the versions of its agents): under another face it is not given any more. Failures are not kept; that is for
whoever calls `keep` to see to.

================  ==========  =============================================================
what              number      where it comes from
================  ==========  =============================================================
bytes in all      32 MiB      ours: as much as one large answer may have
answers in all    10 000      ours: as with all that a process remembers
largest answer    1/16        ours, of the bytes: one must not push out everything
what one costs    512 bytes   ours: its key, its place in the map; measured, rounded up
================  ==========  =============================================================
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

MAX_BYTES: Final = 32 * 1024 * 1024
MAX_ANSWERS: Final = 10_000
LARGEST_SHARE: Final = 1 / 16
COST_BYTES: Final = 512

A = TypeVar("A")


@dataclass(slots=True)
class Kept(Generic[A]):
    """One answer. Times are seconds of the clock that `now` comes from.

    It is fresh before `fresh_until`, and may take a failure's place before `gone_at`.
    """

    answer: A
    face: object
    size: int
    fresh_until: float
    gone_at: float

    def is_fresh(self, now: float) -> bool:
        """Whether it may be given as if it had just come."""
        return now < self.fresh_until

    def expired_for_s(self, now: float) -> float:
        """Seconds that it is past its time to live; 0 or less while it is fresh."""
        return now - self.fresh_until


class AnswerCache(Generic[A]):
    """The answers that one process keeps.

    Raises `ValueError` for bounds that would keep nothing.
    """

    __slots__ = ("_bytes", "_kept", "_max_answers", "_max_bytes", "evicted")

    def __init__(self, *, max_bytes: int = MAX_BYTES, max_answers: int = MAX_ANSWERS) -> None:
        if max_answers < 1 or max_bytes * LARGEST_SHARE < COST_BYTES:
            raise ValueError(
                f"a cache holds at least 1 answer and {int(COST_BYTES / LARGEST_SHARE)} bytes, "
                f"not {max_answers} and {max_bytes}"
            )
        self._max_bytes = max_bytes
        self._max_answers = max_answers
        self._kept: OrderedDict[Hashable, Kept[A]] = OrderedDict()
        self._bytes = 0
        self.evicted = 0
        """Answers that made room for others while they could still be given."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """Bytes that are taken."""
        return self._bytes

    def look(self, key: Hashable, *, now: float, face: object) -> Kept[A] | None:
        """Give what is kept under `key`, fresh or stale; what is neither, or has another face, is forgotten."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        if now >= kept.gone_at or kept.face != face:
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return kept

    def keep(
        self,
        key: Hashable,
        answer: A,
        *,
        size: int,
        now: float,
        face: object,
        ttl_s: float,
        stale_s: float = 0.0,
    ) -> bool:
        """Keep an answer of `size` bytes that arrived at `now`, in place of an older one; False for a too large one."""
        self._drop(key)
        size += COST_BYTES
        if size > self._max_bytes * LARGEST_SHARE:
            return False
        fresh_until = now + ttl_s
        self._kept[key] = Kept(answer, face, size, fresh_until, fresh_until + stale_s)
        self._bytes += size
        while self._bytes > self._max_bytes or len(self._kept) > self._max_answers:
            oldest = next(iter(self._kept))
            self.evicted += self._kept[oldest].gone_at > now
            self._drop(oldest)
        return True

    def doubt(self, key: Hashable, *, now: float) -> None:
        """From `now` on what is kept under `key` is no longer fresh; it may still take a failure's place."""
        kept = self._kept.get(key)
        if kept is not None and kept.is_fresh(now):
            kept.gone_at -= kept.fresh_until - now
            kept.fresh_until = now
            if kept.gone_at <= now:
                self._drop(key)

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
        self._bytes = 0

    def _drop(self, key: Hashable) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= kept.size
