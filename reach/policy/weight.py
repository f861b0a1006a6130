"""How much of a tier's traffic a lane gets, as a product whose factors can be read (behaviour ROUTE-2, ROUTE-3).

=========  ==============================================================================================
term       value
=========  ==============================================================================================
traffic    what an operator set (1)
match      the capability's own weight × 1.0 for an exact name, × 0.6 for an inherited one
health     1.0 / 0.7 / 0.3 at a success of ≥ 99 % / ≥ 95 % / below, over 5 minutes (4xx are not failures)
cost       1 / (1 + 100 × measured cost of a call) × 1 / `cost_weight` relative to the tier's cheapest
capacity   1 / (1 + P99 of the last hour in seconds): 0.91 at 100 ms, 0.5 at 1 s
quality    a slow average of 24 hours' success: 0.5 to 1.5, moving at most 5 % an hour, 1 when reset
=========  ==============================================================================================

A term that is turned off, and one of which nothing is known yet, is 1. Which lanes are usable at all is
`reach.policy.tier`'s question; how shares become subscriptions is `reach.policy.tickets`'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

INHERITED: Final = 0.6
"""What a match through a more general name is worth (ROUTE-2)."""

HEALTH_STEPS: Final = ((0.99, 1.0), (0.95, 0.7), (0.0, 0.3))
"""(least success, factor), best first (ROUTE-2)."""

COST_SLOPE: Final = 100.0
"""A call that costs 0.01 halves its lane's weight (ROUTE-2)."""

CAPACITY_HALF_MS: Final = 1000.0
"""The P99 at which capacity is a half. The rule says only that it falls; this pace is ours."""

QUALITY_LEAST: Final = 0.5
QUALITY_MOST: Final = 1.5
QUALITY_PER_HOUR: Final = 0.05
"""Quality's bounds, and the most that it moves in an hour, of itself (ROUTE-2)."""

LEAST_SHARE: Final = 0.01
"""What a usable lane keeps of its tier's traffic, so that its figures stay fresh (ROUTE-3)."""


class Term(StrEnum):
    """The factors of a weight, in the order in which they are told."""

    TRAFFIC = "traffic"
    MATCH = "match"
    HEALTH = "health"
    COST = "cost"
    CAPACITY = "capacity"
    QUALITY = "quality"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFacts:
    """What is known of a lane. None means "nothing yet".

    Attributes:
        traffic_weight: Set by an operator; 0 takes the lane out.
        tag_weight: From the capability's card.
        inherited: Whether the lane serves a more general name than the one asked for, beside those who serve this.
        through: That name; also where it stands in for them and nothing is taken off.
        success: Share of successes in 5 minutes, 0 to 1.
        cost: Measured cost of a call, in the capability's unit.
        cost_weight: The descriptor's own figure of how dear the lane is, more than 0.
        p99_ms: Of the last hour.
        quality: As `quality` gave it last.
    """

    traffic_weight: float = 1.0
    tag_weight: float = 1.0
    inherited: bool = False
    through: str = ""
    success: float | None = None
    cost: float | None = None
    cost_weight: float | None = None
    p99_ms: float | None = None
    quality: float = 1.0


@dataclass(frozen=True, slots=True)
class Weight:
    """A lane's weight and what it is made of: (term, factor, why), every term, in order."""

    terms: tuple[tuple[Term, float, str], ...]

    @property
    def value(self) -> float:
        """The product."""
        return math.prod(factor for _, factor, _ in self.terms)

    def as_map(self) -> dict[str, float]:
        """The factors by name, as the routing table keeps them."""
        return {term.value: factor for term, factor, _ in self.terms}

    def explain(self) -> tuple[str, ...]:
        """One line a term, and the product: what `reach route explain` prints."""
        lines = [f"{term.value:<8} × {factor:.3f}  {why}" for term, factor, why in self.terms]
        return (*lines, f"{'weight':<8} = {self.value:.4f}")


def weigh(facts: LaneFacts, *, cheapest: float | None = None, off: Iterable[Term] = ()) -> Weight:
    """Give a lane's weight.

    Args:
        facts: What is known of it.
        cheapest: The least `cost_weight` of its tier, that costs are told relative to; None where no lane of the
            tier names one.
        off: Terms that are turned off.

    Raises:
        ValueError: a fact is out of its range.
    """
    _check(facts)
    if cheapest is not None and not 0 < cheapest < math.inf:
        raise ValueError(f"cheapest is a finite cost_weight above 0, not {cheapest!r}")
    turned_off = frozenset(off)
    factors: dict[Term, tuple[float, str]] = {
        Term.TRAFFIC: (
            facts.traffic_weight,
            "set by an operator" if facts.traffic_weight != 1 else "default",
        ),
        Term.MATCH: _match(facts),
        Term.HEALTH: _health(facts.success),
        Term.COST: _cost(facts, cheapest),
        Term.CAPACITY: _capacity(facts.p99_ms),
        Term.QUALITY: (facts.quality, "slow average of 24 h"),
    }
    return Weight(
        tuple(
            (term, 1.0, "turned off") if term in turned_off else (term, factor, why)
            for term, (factor, why) in factors.items()
        )
    )


def _check(facts: LaneFacts) -> None:
    for name in ("traffic_weight", "tag_weight", "cost", "p99_ms", "quality"):
        value = getattr(facts, name)
        if value is not None and not 0 <= value < math.inf:
            raise ValueError(f"{name} is a finite number of 0 or more, not {value!r}")
    if facts.success is not None and not 0 <= facts.success <= 1:
        raise ValueError(f"success is a share from 0 to 1, not {facts.success!r}")
    if facts.cost_weight is not None and not 0 < facts.cost_weight < math.inf:
        raise ValueError(f"cost_weight is a finite number above 0, not {facts.cost_weight!r}")


def _match(facts: LaneFacts) -> tuple[float, str]:
    factor = facts.tag_weight * (INHERITED if facts.inherited else 1.0)
    name = (
        f"the more general {facts.through}"
        if facts.through
        else "inherited"
        if facts.inherited
        else "exact name"
    )
    return factor, f"{name}, tag weight {facts.tag_weight:g}"


def _health(success: float | None) -> tuple[float, str]:
    if success is None:
        return 1.0, "no calls yet"
    factor = next(factor for least, factor in HEALTH_STEPS if success >= least)
    return factor, f"{success:.2%} of 5 min succeeded"


def _cost(facts: LaneFacts, cheapest: float | None) -> tuple[float, str]:
    measured = 1.0 if facts.cost is None else 1 / (1 + COST_SLOPE * facts.cost)
    told = "not measured" if facts.cost is None else f"{facts.cost:g} a call"
    if facts.cost_weight is None or cheapest is None:
        return measured, told
    relative = max(facts.cost_weight / cheapest, 1.0)
    return measured / relative, f"{told}, {relative:g} × the cheapest"


def _capacity(p99_ms: float | None) -> tuple[float, str]:
    if p99_ms is None:
        return 1.0, "no calls yet"
    return 1 / (1 + p99_ms / CAPACITY_HALF_MS), f"P99 of the hour {p99_ms:g} ms"


def quality(previous: float, *, success_24h: float | None, elapsed_s: float) -> float:
    """Move a lane's quality towards what its last 24 hours deserve (0.5 + their success), slowly.

    To reset it is to begin with 1 again. Where nothing was called in 24 hours it stays.

    Args:
        previous: As it was.
        success_24h: Share of successes of the last 24 hours, 0 to 1.
        elapsed_s: Seconds since it was last moved; it moves at most 5 % of itself an hour.

    Raises:
        ValueError: a number is out of its range.
    """
    if not elapsed_s >= 0 or not (success_24h is None or 0 <= success_24h <= 1):
        raise ValueError(
            f"success_24h is a share from 0 to 1 and elapsed_s not negative, not {success_24h} and {elapsed_s}"
        )
    if not QUALITY_LEAST <= previous <= QUALITY_MOST:
        raise ValueError(f"quality lies in [{QUALITY_LEAST}, {QUALITY_MOST}], not {previous}")
    if success_24h is None:
        return previous
    deserved = QUALITY_LEAST + success_24h * (QUALITY_MOST - QUALITY_LEAST)
    step = min(QUALITY_PER_HOUR * elapsed_s / 3600, 1.0)
    return min(max(deserved, previous * (1 - step), QUALITY_LEAST), previous * (1 + step), QUALITY_MOST)


def shares(weights: Mapping[str, float], *, least: float = LEAST_SHARE) -> dict[str, float]:
    """Give each lane's share of its tier, none of a positive weight below `least` (ROUTE-3).

    Lanes under the floor are lifted to it and the others share the rest by weight. With so many lanes that the
    floors fill the tier, all are equal. A weight of 0 stays 0. The shares add up to 1, or are all 0.

    Raises:
        ValueError: a weight is negative or not finite.
    """
    for lane, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise ValueError(f"the weight of {lane} is a finite number of 0 or more, not {weight!r}")
    most = max(weights.values(), default=0.0)
    # Relative to the heaviest, so that neither their sum nor a share of it leaves what a float can hold.
    taking = {lane: weight / most for lane, weight in weights.items() if weight > 0}
    found = dict.fromkeys(weights, 0.0)
    if not taking:
        return found
    floor = min(least, 1 / len(taking))
    lifted = 0
    remaining = sum(taking.values())
    for lane, weight in sorted(taking.items(), key=lambda item: item[1]):  # The lightest are lifted first.
        free = 1 - lifted * floor
        if weight * free < floor * remaining:
            found[lane] = floor
            lifted += 1
            remaining -= weight
        else:
            break
    heavier = {lane: weight for lane, weight in taking.items() if not found[lane]}
    total = math.fsum(heavier.values())
    for lane, weight in heavier.items():
        found[lane] = weight / total * (1 - lifted * floor)
    return found
