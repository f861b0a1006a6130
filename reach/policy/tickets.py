"""From weights to tickets: how many queue subscriptions each instance holds (design, section 5).

NATS picks uniformly among the subscriptions of a queue group, so an instance's share is its number of
subscriptions over all of them. Wanted are the smallest whole numbers, at most 64 an instance, that express the
weights: equal weights give one each, a warm-up at 0.2 beside two healthy instances 5 : 5 : 1. The heaviest gets
t tickets and the others in proportion; the first t of 1 to 64 at which nobody is off by more than 1 % of its own
wanted number is taken, else the one that is off least. What rounding costs is told.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MOST: Final = 64
"""Most tickets of one capability that one instance holds (design, section 5)."""

TOLERANCE: Final = 0.01
"""How far an instance may be off its wanted number, as a share of it, before finer tickets are looked for."""

_LOOKED_AT: Final = 500
"""Different weights that the scale is chosen by; of more, evenly many of all sizes, so that it stays quick."""


@dataclass(frozen=True, slots=True)
class Tickets:
    """Tickets by instance, and their rounding error.

    `error_points` is the largest difference between an instance's share and the wanted one, in points of 100;
    `worst` is the instance that it was found at, None where nobody takes part.
    """

    counts: dict[str, int]
    error_points: float
    worst: str | None

    @property
    def total(self) -> int:
        """All tickets together."""
        return sum(self.counts.values())

    def explain(self) -> str:
        """One sentence for people: the numbers of tickets and what rounding cost."""
        if self.worst is None:
            return "no tickets: nobody has a weight"
        kinds = Counter(count for count in self.counts.values() if count)
        told = ", ".join(f"{held} with {count}" for count, held in sorted(kinds.items(), reverse=True))
        return f"{self.total} tickets ({told}); rounding is off by {self.error_points:.2f} points at {self.worst}"


def tickets(weights: Mapping[str, float], *, most: int = MOST, tolerance: float = TOLERANCE) -> Tickets:
    """Give the smallest tickets that express `weights`.

    A positive weight gets at least one ticket, 0 gets none.

    Args:
        weights: By instance; only their ratios matter.
        most: Tickets that one instance may hold, from 1.
        tolerance: How far an instance may be off its wanted number, as a share of it.

    Raises:
        ValueError: a weight is negative or not finite, or `most` is less than 1.
    """
    if most < 1:
        raise ValueError(f"an instance may hold 1 ticket or more, not {most}")
    for instance, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise ValueError(f"the weight of {instance} is a finite number of 0 or more, not {weight!r}")
    heaviest = max(weights.values(), default=0.0)
    if not heaviest > 0:
        return Tickets(dict.fromkeys(weights, 0), 0.0, None)
    # Ten thousand instances have a handful of weights between them: each is rounded once.
    ratios = {weight: weight / heaviest for weight in set(weights.values()) if weight > 0}
    ascending = sorted(ratios.values())
    scale = _scale(ascending[:: len(ascending) // _LOOKED_AT + 1], most, tolerance)
    rounded = {weight: _held(ratio, scale) for weight, ratio in ratios.items()} | {0.0: 0}
    counts = {instance: rounded[weight] for instance, weight in weights.items()}
    return Tickets(counts, *_error(weights, counts, heaviest))


def _held(ratio: float, scale: int) -> int:
    return max(1, round(ratio * scale))


def _scale(ratios: list[float], most: int, tolerance: float) -> int:
    """Give what the heaviest holds. Off is relative: a twentieth that holds a tenth is twice what it should be.

    The lightest come first in `ratios`: rounding hits them hardest, so that most scales are dismissed at once.
    """
    best, least = 1, math.inf
    for scale in range(1, most + 1):
        off = 0.0
        for ratio in ratios:
            off = max(off, _off(ratio, scale))
            if off >= least:
                break
        else:
            best, least = scale, off
            if off <= tolerance:
                break
    return best


def _off(ratio: float, scale: int) -> float:
    wanted = ratio * scale
    return abs(_held(ratio, scale) - wanted) / wanted if wanted > 0 else math.inf


def _error(weights: Mapping[str, float], counts: Mapping[str, int], heaviest: float) -> tuple[float, str]:
    wanted = math.fsum(weight / heaviest for weight in weights.values())
    total = sum(counts.values())
    points, worst = -1.0, ""
    for instance, weight in weights.items():
        off = abs(counts[instance] / total - weight / heaviest / wanted) * 100
        if off > points:
            points, worst = off, instance
    return points, worst


def spread(lanes: Mapping[str, float], instances: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Give what each instance of a tier weighs, from its lane's share and its own factor in the lane.

    A lane's share is divided among its instances by factor, so that a lane does not gain calls by having many,
    nor lose its share because one of them warms up. The share of a lane without a usable instance goes to the
    others.

    Args:
        lanes: Share by lane.
        instances: Factor by instance, by lane; a lane left out has no instances.

    Raises:
        ValueError: an instance is listed in two lanes.
    """
    found: dict[str, float] = {}
    for lane, share in lanes.items():
        factors = instances.get(lane, {})
        total = math.fsum(factors.values())
        for instance, factor in factors.items():
            if instance in found:
                raise ValueError(f"{instance} is listed in two lanes; an instance belongs to one provider")
            found[instance] = share * factor / total if total > 0 else 0.0
    return found
