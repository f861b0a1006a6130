"""What to do when a supervised child fails: restart whom, after how long, or give up.

The strategies are data. A `RestartBook` remembers the restarts of one group: each restart waits longer than
the one before it in the same window, and a child that fails more often than its intensity allows ends the
group, which then is its parent's to judge. Under *one for one* the children do not share a fate, so each has
a count of its own; under the other strategies the group has one. Nobody here sleeps, logs or reads a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from reach.policy.backoff import delay_s


class Strategy(StrEnum):
    """Who else is restarted when one child fails."""

    ONE_FOR_ONE = "one_for_one"
    """Only the child that failed."""

    ONE_FOR_ALL = "one_for_all"
    """Every child of the group: they cannot do without each other."""

    REST_FOR_ONE = "rest_for_one"
    """The child that failed and those started after it, which build on it."""

    ESCALATE = "escalate"
    """Nobody: the group ends, and its parent decides."""


@dataclass(frozen=True, slots=True)
class Intensity:
    """How many restarts are borne: `max_restarts` within any `within_s` (behaviour LIFE-9)."""

    max_restarts: int = 3
    within_s: float = 60.0

    def __post_init__(self) -> None:
        if self.max_restarts < 0 or not self.within_s > 0:
            raise ValueError(
                f"max_restarts is 0 or more and within_s is positive, "
                f"not {self.max_restarts} and {self.within_s}"
            )


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays between restarts; see `reach.policy.backoff`."""

    base_s: float = 0.1
    cap_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Restart:
    """Stop those of `which` that still run, last first; after `delay_s` start all of them, first first."""

    delay_s: float
    which: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the group; `reason` is for people."""

    reason: str


_GROUP: Final = ""
"""Key of the count that a whole group shares; no child has an empty name."""


class RestartBook:
    """The restarts of one group of named children, in the order in which they start."""

    def __init__(
        self,
        children: Iterable[str] = (),
        *,
        strategy: Strategy = Strategy.ONE_FOR_ONE,
        intensity: Intensity | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._strategy = strategy
        self._intensity = intensity or Intensity()
        self._backoff = backoff or Backoff()
        self._children: list[str] = []
        self._restarts: dict[str, deque[float]] = {}
        for child in children:
            self.add(child)

    @property
    def children(self) -> tuple[str, ...]:
        """The names, in start order."""
        return tuple(self._children)

    def add(self, child: str) -> None:
        """Take in one more child, started last.

        Raises:
            ValueError: its name is empty, or taken.
        """
        if not child:
            raise ValueError("a child has a name that is not empty")
        if child in self._children:
            raise ValueError(f"there already is a child named {child!r}: names in a group are unique")
        self._children.append(child)

    def remove(self, child: str) -> None:
        """Forget a child that ended for good, and its restarts.

        Raises:
            KeyError: no such child.
        """
        if child not in self._children:
            raise KeyError(child)
        self._children.remove(child)
        self._restarts.pop(child, None)

    def failed(self, child: str, *, now: float, jitter: float) -> Restart | GiveUp:
        """Decide what follows from the failure of `child`.

        Args:
            child: Its name.
            now: Seconds on a clock that only grows.
            jitter: A random number, uniform in [0, 1).

        Raises:
            KeyError: no such child.
        """
        if child not in self._children:
            raise KeyError(child)
        if self._strategy is Strategy.ESCALATE:
            return GiveUp(f"{child} failed, and this group escalates every failure")
        counted = child if self._strategy is Strategy.ONE_FOR_ONE else _GROUP
        restarts = self._restarts.setdefault(counted, deque())
        limit = self._intensity
        while restarts and restarts[0] <= now - limit.within_s:
            restarts.popleft()
        if len(restarts) >= limit.max_restarts:
            who = child if counted == child else f"the group of {', '.join(self._children)}"
            return GiveUp(
                f"{child} failed, and {who} was restarted {len(restarts)} times "
                f"in the last {limit.within_s:g} s, which is the most that is allowed"
            )
        restarts.append(now)
        wait = delay_s(len(restarts), base_s=self._backoff.base_s, jitter=jitter, cap_s=self._backoff.cap_s)
        return Restart(delay_s=wait, which=self._which(child))

    def _which(self, child: str) -> tuple[str, ...]:
        match self._strategy:
            case Strategy.ONE_FOR_ALL:
                return tuple(self._children)
            case Strategy.REST_FOR_ONE:
                return tuple(self._children[self._children.index(child) :])
            case _:
                return (child,)
