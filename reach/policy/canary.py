"""Who goes to the instances that are tried out: n % of the calls, and named callers always (behaviour ROUTE-6).

For our own callers a `Split` decides call by call. Its numbers follow the golden ratio rather than chance, so
that 5 % of ten thousand calls is 500 give or take a few: drawn by lot, an even split would stray by more than a
point now and then. Plain NATS clients meet the canary through tickets: `factors` gives the group its part of
the weights, whatever the number of its instances.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from reach.policy.alias import EvenPicks
from reach.wire.route import Canary


def belongs(canary: Canary, *, version: str, labels: Mapping[str, str]) -> bool:
    """Whether an instance is of the group: it has the version, where one is named, and all the labels.

    A canary that names neither has nobody in its group.
    """
    if canary.version is None and not canary.labels:
        return False
    return canary.version in {None, version} and all(
        labels.get(key) == value for key, value in canary.labels.items()
    )


class Split:
    """One caller's calls of one capability: which of them go to the canary.

    Args:
        canary: The canary that holds now.
        caller: Who calls: named callers always go to it.
        start: Uniform in [0, 1), drawn once for a caller, so that not every caller's first call goes there.
    """

    __slots__ = ("_always", "_caller", "_canary", "_part", "_picks")

    def __init__(self, canary: Canary | None, *, caller: str | None, start: float) -> None:
        self._picks = EvenPicks(start)
        self._caller = caller
        self.change(canary)

    def change(self, canary: Canary | None) -> None:
        """Follow another canary from the next call on; None where there is none any more."""
        self._canary = canary
        self._part = 0.0 if canary is None else canary.percent / 100
        self._always = canary is not None and self._caller is not None and self._caller in canary.callers

    @property
    def canary(self) -> Canary | None:
        """The canary that holds now."""
        return self._canary

    def takes(self) -> bool:
        """Whether the next call goes to the canary."""
        return self._always or self._picks.next() < self._part


def factors(canary: Canary, usual: Mapping[str, float], *, group: Collection[str]) -> dict[str, float]:
    """Give weights by instance in which the group has the canary's part of the whole.

    Inside the group, and outside, instances keep their proportions. Where one side has nobody with a weight,
    the other has everything: a canary without instances takes no calls away, and one without neighbours serves.

    Args:
        canary: Its `percent` counts; named callers are nothing that tickets can tell apart.
        usual: What each instance would weigh without a canary.
        group: The instances that belong to it; others are left out of account.

    Raises:
        ValueError: a weight is negative or not finite.
    """
    for instance, weight in usual.items():
        if not 0 <= weight < math.inf:
            raise ValueError(f"the weight of {instance} is a finite number of 0 or more, not {weight!r}")
    most = max(usual.values(), default=0.0)
    if not most > 0:
        return dict(usual)
    inside = math.fsum(weight / most for instance, weight in usual.items() if instance in group)
    outside = math.fsum(weight / most for instance, weight in usual.items() if instance not in group)
    if not inside > 0 or not outside > 0:
        return dict(usual)
    part = canary.percent / 100
    return {
        instance: weight / most * (part / inside if instance in group else (1 - part) / outside)
        for instance, weight in usual.items()
    }
