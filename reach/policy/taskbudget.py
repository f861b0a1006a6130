"""What a round or a task may spend: calls, their cost, time; and how processes share the calls of one task.

A budget is a bound on a loop that does not end by itself, so bursts inside it are fine. Who is refused is told what is
left of everything, so that it can end its work with what it has (GUARD-4). A call that was refused, by whomever, and is
known not to have been done has cost nothing.

Calls of a task are counted by one number that processes add to, in chunks, so that most calls ask nobody: whoever adds
learns the sum, and so which part of its chunk was still within the budget; the rest is taken off again at once. Chunks
become single calls at the end, so that no process sits on calls that another one needs: in all, no more calls are made
than the budget has, and all of them are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

N = TypeVar("N", int, float)

CHUNK_SHARE: Final = 64
"""A chunk is this part of what is left, rounded down, and a single call at least."""

MOST_CHUNK: Final = 64

COST_CHUNK: Final = 4
"""The largest chunk where cost counts too: what other processes have spent is learnt with each."""

LOCAL_SHARE: Final = 4
"""While calls cannot be counted together, each process spends the budget divided by this, at least one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What may be spent: `calls`, their `cost` as replies tell it, `seconds` since it began; None for no bound.

    `by_capability` bounds calls of a capability, or of all below a name (`"invoice.*"`). Raises `ValueError` for what
    is less than nothing or part of a call, `TypeError` for what is no number.
    """

    calls: int | None = None
    cost: float | None = None
    seconds: float | None = None
    by_capability: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named: object = self.by_capability
        if not isinstance(named, Mapping):
            msg = f"a budget's by_capability maps names to calls, as in {{'invoice.*': 5}}, not {named!r}"
            raise TypeError(msg)
        calls = {"calls": self.calls} | {f"by_capability[{it!r}]": n for it, n in self.by_capability.items()}
        for what, most in (calls | {"cost": self.cost, "seconds": self.seconds}).items():
            if most is None:
                continue
            whole = what in calls
            if isinstance(most, bool) or not isinstance(most, int | float):
                msg = f"a budget's {what} is a number, 0 or more, not {most!r}"
                raise TypeError(msg)
            if not most >= 0 or (whole and not isinstance(most, int)):
                msg = f"a budget's {what} is {'a whole number, ' if whole else ''}0 or more, or not given, not {most}"
                raise ValueError(msg)

    @property
    def is_bound(self) -> bool:
        """Whether it bounds anything."""
        return not (self.calls is self.cost is self.seconds is None) or bool(self.by_capability)


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of a budget; None where there is no bound."""

    calls: int | None = None
    cost: float | None = None
    seconds: float | None = None
    by_capability: Mapping[str, int] = field(default_factory=dict)

    def within(self, other: Left) -> Left:
        """Give what is left where both bound."""
        names = {**other.by_capability, **self.by_capability}
        return Left(
            _least(self.calls, other.calls),
            _least(self.cost, other.cost),
            _least(self.seconds, other.seconds),
            {
                name: min(one.by_capability[name] for one in (self, other) if name in one.by_capability)
                for name in names
            },
        )

    def to_map(self) -> dict[str, object]:
        """Give what is bound, as a refusal tells it."""
        told: dict[str, object] = {
            name: value
            for name, value in (("calls", self.calls), ("cost", self.cost), ("seconds", self.seconds))
            if value is not None
        }
        return told | ({"by_capability": dict(self.by_capability)} if self.by_capability else {})


@dataclass(frozen=True, slots=True)
class Spent:
    """A budget is spent: `what` of it, `used` of `allowed`, and what is `left` of the rest."""

    what: str
    used: float
    allowed: float
    left: Left


class Purse:
    """One budget, as it is spent in one process. `now` is loop time in seconds."""

    __slots__ = ("_began", "_by", "_calls", "_cost", "budget")

    def __init__(self, budget: Budget, *, now: float) -> None:
        self.budget = budget
        self._began = now
        self._calls = 0
        self._cost = 0.0
        self._by = dict.fromkeys(budget.by_capability, 0)

    def take(self, capability: str, now: float) -> Spent | None:
        """Take one call out of it; None where there was one, else what is spent, and nothing is taken."""
        budget = self.budget
        used_s = now - self._began
        if budget.calls is not None and self._calls >= budget.calls:
            return Spent("calls", self._calls, budget.calls, self.left(now))
        if budget.cost is not None and self._cost >= budget.cost:
            return Spent("cost", self._cost, budget.cost, self.left(now))
        if budget.seconds is not None and used_s >= budget.seconds:
            return Spent("seconds", round(used_s, 3), budget.seconds, self.left(now))
        names = self._names(capability)
        for name in names:
            if self._by[name] >= budget.by_capability[name]:
                return Spent(f"calls of {name}", self._by[name], budget.by_capability[name], self.left(now))
        self._calls += 1
        for name in names:
            self._by[name] += 1
        return None

    def give_back(self, capability: str) -> None:
        """Put a call back that was not made."""
        self._calls -= 1
        for name in self._names(capability):
            self._by[name] -= 1

    def charge(self, cost: float) -> None:
        """Note what a call has cost; it is known afterwards only, so the last one may go beyond the budget."""
        self._cost += max(0.0, cost)

    def left(self, now: float) -> Left:
        """Say what is left."""
        budget = self.budget
        return Left(
            None if budget.calls is None else max(0, budget.calls - self._calls),
            None if budget.cost is None else max(0.0, budget.cost - self._cost),
            None if budget.seconds is None else round(max(0.0, budget.seconds - (now - self._began)), 3),
            {name: max(0, most - self._by[name]) for name, most in budget.by_capability.items()},
        )

    def _names(self, capability: str) -> list[str]:
        return [name for name in self._by if name == capability or _is_below(capability, name)]


class Chunks:
    """One process's part of the calls of a task: what it holds, of `allowed` in all."""

    __slots__ = ("allowed", "held", "used")

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.held = 0
        """Calls that this process may make without asking."""
        self.used = 0
        """What everybody together had taken when it was last asked."""

    def take(self) -> bool:
        """Take a call out of what is held; False where nothing is."""
        if self.held < 1:
            return False
        self.held -= 1
        return True

    def wanted(self, waiting: int, *, most: int = MOST_CHUNK) -> int:
        """Give how many to ask for, where so many calls wait for one."""
        left = max(0, self.allowed - self.used)
        return max(1, waiting, min(most, left // CHUNK_SHARE))

    def told(self, asked: int, total: int) -> int:
        """Take what is within the budget, of `asked` that made it `total`; gives what has to be taken off again."""
        granted = max(0, min(asked, self.allowed - (total - asked)))
        self.held += granted
        self.used = total - asked + granted
        return asked - granted


def _least(one: N | None, other: N | None) -> N | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _is_below(capability: str, name: str) -> bool:
    return name.endswith(".*") and capability.startswith(name[:-1])
