"""How many calls may be under way at once, and who goes first when all places are taken (GUARD-1, GUARD-2).

A bulkhead counts slots; it neither waits nor wakes. Where priorities count, a call is let in while fewer than
its share *of all slots* are taken, whoever holds them: so what is busy below is never in the way of `core`, which
finds a fifth of the slots free however much else is offered. What may wait stands in order of priority, then of
age. When the queue is full, somebody better takes the place of the newest of the worst.

==============  =====================================================  =====================
what            number                                                 where it comes from
==============  =====================================================  =====================
shares          core 100 %, normal 80 %, offline 50 %, each at least   GUARD-2
                one slot; without priorities all share all
a queue         none unless asked for                                  GUARD-1
wait to expect  busy time × (waiting + 1) / slots, 10 ms to 30 s       ours: a mean, no promise
==============  =====================================================  =====================
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from reach.wire.envelope import Priority

SHARES: Final[dict[Priority, float]] = {"core": 1.0, "normal": 0.8, "offline": 0.5}
"""The part of all slots that may be taken when a call of this priority is let in, best first (GUARD-2)."""

LEAST_WAIT_MS: Final = 10
MOST_WAIT_MS: Final = 30_000
"""Bounds of the wait that a refused caller is told."""

_RANKS: Final[dict[Priority, int]] = {priority: rank for rank, priority in enumerate(SHARES)}


class Taken(Enum):
    """The call may go; whoever took the slot gives it back, once."""

    TAKEN = "taken"


TAKEN: Final = Taken.TAKEN


class Place(Enum):
    """Where somebody who had to queue stands."""

    WAITING = "waiting"
    IN = "in"
    """It has a slot."""
    SHED = "shed"
    """Somebody better has its place in the queue: it is refused."""
    LEFT = "left"
    """Its caller left, or is done."""


MOVES: Final[dict[Place, frozenset[Place]]] = {
    Place.WAITING: frozenset({Place.IN, Place.SHED, Place.LEFT}),
    Place.IN: frozenset({Place.LEFT}),
    Place.SHED: frozenset(),
    Place.LEFT: frozenset(),
}
"""What may follow what."""


class Waiter:
    """One who waits. `wakes` is the caller's own: what it hangs there is what it wakes by."""

    __slots__ = ("place", "priority", "wakes")

    def __init__(self, priority: Priority) -> None:
        self.priority = priority
        self.place = Place.WAITING
        self.wakes: Any = None

    def move(self, place: Place) -> None:
        """Go to `place`. Raises `RuntimeError` where `MOVES` does not allow it."""
        if place not in MOVES[self.place]:
            raise RuntimeError(f"a waiter that is {self.place.value} cannot become {place.value}")
        self.place = place


@dataclass(frozen=True, slots=True)
class Queued:
    """The call waits; `shed` is who lost its place for it and is to be refused."""

    waiter: Waiter
    shed: Waiter | None


@dataclass(frozen=True, slots=True)
class Full:
    """The call is refused. `allowed` are the slots that its priority may find taken, of `limit` in all."""

    name: str
    owner: str
    priority: Priority
    used: int
    allowed: int
    limit: int
    queued: int
    queue_limit: int

    @property
    def message(self) -> str:
        """One sentence for whoever was refused: the limit, whose it is, how much is used (ERR-6)."""
        share = "" if self.allowed == self.limit else f"; {self.priority} calls may use {self.allowed}"
        queue = f", and {self.queued} of {self.queue_limit} wait" if self.queue_limit else ""
        return f"{self.owner} has {self.used} of {self.limit} places taken ({self.name}){share}{queue}"

    def to_limit(self, *, resets_in_ms: int | None = None) -> dict[str, Any]:
        """Give the wire's form of the limit (see `reach.wire.reply.Failure`)."""
        limit = {"name": self.name, "owner": self.owner, "used": self.used, "allowed": self.allowed}
        return limit if resets_in_ms is None else limit | {"resets_in_ms": resets_in_ms}

    def retry_after_ms(self, mean_busy_ms: float) -> int:
        """Estimate when a slot falls to whoever comes next, from how long a slot is held on the average."""
        if not 0 <= mean_busy_ms < math.inf:
            raise ValueError(f"mean_busy_ms is how long slots are held, 0 or more, not {mean_busy_ms}")
        wait_ms = mean_busy_ms * (self.queued + 1) / self.allowed
        return int(min(MOST_WAIT_MS, max(LEAST_WAIT_MS, math.ceil(wait_ms))))


Outcome = Taken | Queued | Full


class Bulkhead:
    """The slots of one capability at a caller, of a lane, or of an agent.

    Each slot that was taken is given back exactly once: by `give_back`, or by `leave` where its holder came
    through the queue. `name` and `owner` are what a refusal calls the limit and whose it says it is.

    While somebody waits, at least its share is taken; so a slot that is given back lets in one waiter at most,
    and `take` need not look at the queue.
    """

    __slots__ = (
        "_always",
        "_queues",
        "limit",
        "name",
        "owner",
        "prioritised",
        "queue_limit",
        "queued",
        "used",
    )

    def __init__(
        self,
        limit: int,
        *,
        queue_limit: int = 0,
        prioritised: bool = False,
        name: str = "concurrency",
        owner: str = "this process",
    ) -> None:
        if limit < 1 or queue_limit < 0:
            raise ValueError(
                f"a bulkhead has at least 1 slot and a queue of 0 or more, not {limit} and {queue_limit}"
            )
        self.limit = limit
        self.queue_limit = queue_limit
        self.prioritised = prioritised
        self.name = name
        self.owner = owner
        self.used = 0
        self.queued = 0
        self._always = self.share("offline")  # Below it anybody is let in, and nothing need be looked up.
        self._queues: tuple[OrderedDict[Waiter, None], ...] | None = None

    def share(self, priority: Priority) -> int:
        """Give the slots that may be taken for a call of this priority to be let in. Raises `ValueError`."""
        share = SHARES.get(priority)
        if share is None:
            raise ValueError(f"a priority is one of {', '.join(SHARES)}, not {priority!r}")
        return max(1, int(self.limit * share)) if self.prioritised else self.limit

    def take(self, priority: Priority = "normal") -> Outcome:
        """Ask for a slot. Raises `ValueError` for a priority that there is none, where it matters."""
        used = self.used
        if used < self._always:
            self.used = used + 1
            return TAKEN
        return self._contend(priority)

    def give_back(self) -> Waiter | None:
        """Give a slot back; gives the waiter that has it now, who is to be woken.

        Raises:
            RuntimeError: nobody holds a slot, so that one was given back twice.
        """
        if self.used < 1:
            raise RuntimeError(f"a slot of {self.name} was given back that nobody held")
        self.used -= 1
        return self._hand_on() if self.queued else None

    def leave(self, waiter: Waiter) -> Waiter | None:
        """Let go whatever a waiter has, a slot or its place in the queue; gives who has the slot now.

        For a waiter whose caller left, or is done. Once more does no harm, nor does it after it was shed.
        """
        match waiter.place:
            case Place.WAITING:
                self._remove(waiter, Place.LEFT)
            case Place.IN:
                waiter.move(Place.LEFT)
                return self.give_back()
            case Place.SHED | Place.LEFT:
                pass
        return None

    def _contend(self, priority: Priority) -> Outcome:
        allowed = self.share(priority)
        if self.used < allowed:
            self.used += 1
            return TAKEN
        if self.queued < self.queue_limit:
            return Queued(self._enter(priority), None)
        worst = self._worse_than(priority)
        if worst is not None:
            self._remove(worst, Place.SHED)
            return Queued(self._enter(priority), worst)
        return self.full(priority)

    def full(self, priority: Priority) -> Full:
        """Give the refusal of a call of this priority, with the figures of this moment."""
        return Full(
            name=self.name,
            owner=self.owner,
            priority=priority,
            used=self.used,
            allowed=self.share(priority),
            limit=self.limit,
            queued=self.queued,
            queue_limit=self.queue_limit,
        )

    def _hand_on(self) -> Waiter | None:
        for queue in self._queues or ():
            if queue:
                waiter = next(iter(queue))
                if self.used >= self.share(waiter.priority):
                    return None  # Nor is there a slot for those behind it, who may use fewer.
                self._remove(waiter, Place.IN)
                self.used += 1
                return waiter
        return None

    def _enter(self, priority: Priority) -> Waiter:
        waiter = Waiter(priority)
        self._queue_of(priority)[waiter] = None
        self.queued += 1
        return waiter

    def _remove(self, waiter: Waiter, place: Place) -> None:
        del self._queue_of(waiter.priority)[waiter]
        self.queued -= 1
        waiter.move(place)

    def _worse_than(self, priority: Priority) -> Waiter | None:
        """Give the newest waiter of the lowest priority, if that is lower than `priority`."""
        if self._queues is not None and self.prioritised:
            for queue in self._queues[: _RANKS[priority] : -1]:
                if queue:
                    return next(reversed(queue))
        return None

    def _queue_of(self, priority: Priority) -> OrderedDict[Waiter, None]:
        if self._queues is None:
            self._queues = tuple(OrderedDict() for _ in (SHARES if self.prioritised else (None,)))
        return self._queues[_RANKS[priority] if self.prioritised else 0]
