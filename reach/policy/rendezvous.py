"""Which instance a key belongs to, so that the same key meets the same instance (ROUTE-5, `consistent_hash`).

Rendezvous hashing (Thaler and Ravishankar, 1998): every instance draws a number for the key, and the highest
wins. So losing one of n instances moves its own 1/n of the keys and no other, and callers that never spoke to
each other agree. With weights the number u becomes -weight / ln(u), and a change of one weight moves only keys
to or from that instance.

Drawing for all instances is linear, so keys are first gathered in 65 536 slots and a slot's owner is kept: after
the first key of a slot the cost does not depend on how many instances there are. A new revision keeps the owners
that the change cannot have touched. With thousands of instances a slot is a coarse portion (at 1 000 instances
the loads differ by about an eighth); such a lane is better served by `least_loaded`.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from hashlib import blake2b
from typing import Final

SLOTS: Final = 1 << 16

_WORD: Final = (1 << 64) - 1
_MULTIPLY_1: Final = 0xBF58476D1CE4E5B9
_MULTIPLY_2: Final = 0x94D049BB133111EB
_UNIT: Final = 2.0**-53


def slot_of(key: str) -> int:
    """Give the slot of a key, the same in every process and language: its BLAKE2b-64 modulo 65 536."""
    return _digest(key) % SLOTS


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def _score(slot: int, seed: int, weight: float) -> float:
    """Give what an instance bids for a slot: SplitMix64's finaliser over both, as a number in (0, 1)."""
    bits = seed ^ slot
    bits = ((bits ^ (bits >> 30)) * _MULTIPLY_1) & _WORD
    bits = ((bits ^ (bits >> 27)) * _MULTIPLY_2) & _WORD
    return weight / -math.log(((bits ^ (bits >> 31)) >> 11) * _UNIT + _UNIT / 2)


class Rendezvous:
    """Owners of keys among instances with weights. A weight of 0 owns nothing."""

    __slots__ = ("_owners", "_seeds", "_weights")

    def __init__(self, weights: Mapping[str, float]) -> None:
        for name, weight in weights.items():
            if not 0 <= weight < math.inf:
                raise ValueError(f"the weight of {name} is a finite number of 0 or more, not {weight!r}")
        self._weights = {name: weight for name, weight in sorted(weights.items()) if weight > 0}
        self._seeds = {name: _digest(name) for name in self._weights}
        self._owners: dict[int, tuple[float, str]] = {}

    def owner(self, key: str, avoid: Container[str] = ()) -> str | None:
        """Give the instance that owns a key, of those not in `avoid`; None when there is none."""
        return self.owner_of(slot_of(key), avoid)

    def owner_of(self, slot: int, avoid: Container[str] = ()) -> str | None:
        """Give the instance that owns a slot (`slot_of`), of those not in `avoid`; None when there is none."""
        kept = self._owners.get(slot)
        if kept is None:
            kept = self._best(slot, ())
            if kept is None:
                return None
            self._owners[slot] = kept
        if kept[1] not in avoid:
            return kept[1]
        second = self._best(slot, avoid)
        return None if second is None else second[1]

    def _best(self, slot: int, avoid: Container[str]) -> tuple[float, str] | None:
        seeds = self._seeds
        return max(
            (
                (_score(slot, seeds[name], weight), name)
                for name, weight in self._weights.items()
                if name not in avoid
            ),
            default=None,
        )

    def revised(self, weights: Mapping[str, float]) -> Rendezvous:
        """Give the table for new weights: the same as a fresh one, with the owners kept that are known already."""
        new = Rendezvous(weights)
        new.keep(self._owners, before=self._weights)
        return new

    def keep(self, owners: Mapping[int, tuple[float, str]], *, before: Mapping[str, float]) -> None:
        """Take over the owners of another table, made with the weights `before`, where they still are or can be told.

        An owner that left or lost weight says nothing about who follows it. Everybody else is challenged only by
        those that came or gained weight.
        """
        now = self._weights
        fallen = {name for name, weight in before.items() if weight > now.get(name, 0.0)}
        rising = {name: weight for name, weight in now.items() if weight > before.get(name, 0.0)}
        if len(rising) * len(owners) > SLOTS:
            return  # Dearer than to look at each slot again when a key asks for it.
        seeds = self._seeds
        for slot, (score, name) in owners.items():
            if name not in fallen:
                bids = [(_score(slot, seeds[other], weight), other) for other, weight in rising.items()]
                self._owners[slot] = max([*bids, (0.0 if name in rising else score, name)])
