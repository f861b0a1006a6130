"""Which entries of the idempotency store may have been left by an instance that died: what the sweep holds of each.

The store is followed by its headers alone: what is done ends by itself, so it says how long it is kept, and what was
released says so. Whatever says neither is running or unknown, and is held until its key says something else. Most are
gone long before anybody reads them; of those that stay the owner is held, too.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reach.policy.dedupe import KEPT_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reach.wire.idempotency import IdempotencyEntry

MOST: Final = 50_000
"""Keys that are held; about 300 bytes each. What comes beyond them is read when half of them are gone."""

_ENDED: Final = ("Nats-TTL", "KV-Operation", "Nats-Marker-Reason")

Owned = tuple[str, int, float]
"""An instance, its generation, and its lease in seconds."""


@dataclass(slots=True)
class Held:
    """What is held of a key: where it stands, since when (epoch ms of the broker), and who has it, once it was read."""

    revision: int
    stored_ms: int
    owner: Owned | None = None
    ends_ms: int = 0
    """From when on whoever has it is asked for."""


class Left:
    """The keys that are neither done nor free, the oldest first."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._begin = 1
        self._missed: int | None = None
        """The first revision that there was no room for."""

    def __len__(self) -> int:
        return len(self._held)

    def take(self, key: str, revision: int, stored_ms: int, headers: Mapping[str, str]) -> None:
        """Take in that a key was written."""
        held = self._held.get(key)
        if held is not None and held.revision >= revision:
            return
        self._held.pop(key, None)
        if any(header in headers for header in _ENDED):
            return
        if len(self._held) >= MOST:
            self._missed = revision if self._missed is None else self._missed
            return
        self._held[key] = Held(revision, stored_ms)

    @property
    def reads_again(self) -> bool:
        """Whether there was no room for some, and is now: the store is to be read again."""
        return self._missed is not None and len(self._held) <= MOST // 2

    def begin(self) -> int:
        """Give the sequence from which the store is to be read now: whatever stands before it was held before."""
        self._begin, self._missed = self._missed or self._begin, None
        return self._begin

    def unread(self, before_ms: int, most: int) -> list[str]:
        """Give keys of which nothing else is known, and that have stood as they are since `before_ms`."""
        found = []
        for key, held in self._held.items():
            if held.owner is None and held.stored_ms <= before_ms:
                found.append(key)
                if len(found) == most:
                    break
        return found

    def learn(self, key: str, revision: int, entry: IdempotencyEntry) -> None:
        """Take in what a running entry says.

        One of an idempotent capability is whoever's who repeats it, for as long as the store keeps results.
        """
        held = self._held.get(key)
        if held is None or held.revision > revision:
            return
        held.revision = revision
        held.owner = entry.instance, entry.generation, entry.lease_ttl_s
        held.ends_ms = entry.begun_at + int(KEPT_S * 1000) if entry.idempotent else 0

    def drop(self, key: str, revision: int) -> None:
        """Hold a key no more, unless it was written since `revision`."""
        held = self._held.get(key)
        if held is not None and held.revision <= revision:
            del self._held[key]

    def forget(self, key: str) -> None:
        """Hold a key no more under which there is nothing for us; what is written there later is."""
        self._held.pop(key, None)

    def owners(self, now_ms: int, *, after: Owned | None, most: int) -> list[Owned]:
        """Give whoever is to be asked for, in a row that goes on behind `after`, and begins anew at its end."""
        found = sorted({held.owner for held in self._held.values() if held.owner and held.ends_ms <= now_ms})
        at = 0 if after is None else bisect_right(found, after)
        return (found[at:] + found[:at])[:most]

    def keys_of(self, owners: set[Owned], now_ms: int, most: int) -> list[str]:
        """Give the keys that some have who are asked for."""
        found = [
            key
            for key, held in self._held.items()
            if held.owner is not None and held.ends_ms <= now_ms and held.owner in owners
        ]
        return found[:most]
