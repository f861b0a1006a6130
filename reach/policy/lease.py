"""Who is alive: leases that heartbeats renew (behaviour LIFE-1, LIFE-2, LIFE-6).

=============  ==========================================================  ========
state          since                                                       weight
=============  ==========================================================  ========
live           registered, or heard of again                               1
suspect        two heartbeats missed: 2/3 of the lease                     0.3
unavailable    three missed: the lease has expired; or its link ended      0
left           it said goodbye                                             0
(removed)      60 s after either of those
=============  ==========================================================  ========

A book keeps the leases of many instances. Hearing of one is cheap: its entry in the queue of deadlines is only
looked at, and moved, when its time comes. Only the newest generation of an instance counts; nobody is ever
registered by a heartbeat, so a lease that ran out says `expired` once and nothing else. `now` is seconds on a
clock that goes on while the machine sleeps (CLOCK_BOOTTIME).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

BEATS: Final = 3
"""Heartbeats in a lease: one each third of it, and the third missed is the lease's end (LIFE-1, LIFE-2)."""

SUSPECT_AFTER: Final = 2
"""Missed heartbeats that make an instance suspect (LIFE-2)."""

KEPT_S: Final = 60.0
"""Seconds from the end of a lease until the instance is removed from the table (LIFE-2)."""

JITTER: Final = 0.1
"""A heartbeat comes up to a tenth early or late, so that ten thousand do not come together. The share is ours."""

STRETCH: Final = 0.1
MOST_STRETCH: Final = 0.5
"""Each failure to send makes the interval a tenth longer, up to a half (LIFE-1)."""


class State(StrEnum):
    """Where an instance is in its life."""

    LIVE = "live"
    SUSPECT = "suspect"
    UNAVAILABLE = "unavailable"
    LEFT = "left"
    REMOVED = "removed"


MOVES: Final[dict[State, frozenset[State]]] = {
    State.LIVE: frozenset({State.SUSPECT, State.UNAVAILABLE, State.LEFT}),
    State.SUSPECT: frozenset({State.LIVE, State.UNAVAILABLE, State.LEFT}),
    State.UNAVAILABLE: frozenset({State.LIVE, State.LEFT, State.REMOVED}),
    State.LEFT: frozenset({State.REMOVED}),
    State.REMOVED: frozenset(),
}
"""From where to where a generation may move; a newer generation begins anew."""

WEIGHT: Final[dict[State, float]] = {
    State.LIVE: 1.0,
    State.SUSPECT: 0.3,
    State.UNAVAILABLE: 0.0,
    State.LEFT: 0.0,
    State.REMOVED: 0.0,
}
"""What a state makes of an instance's weight (LIFE-2)."""


class Kind(StrEnum):
    """What changed."""

    REGISTERED = "registered"
    """It is new, or a newer generation of itself."""
    RECOVERED = "recovered"
    """It was suspect or unavailable, and is heard of again; `misses` says how long it was silent."""
    SUSPECTED = "suspected"
    EXPIRED = "expired"
    """Its lease has run out: told once."""
    LOST = "lost"
    """Its link ended (`reach.gone`) before the lease did."""
    LEFT = "left"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Change:
    """Something that others should know. `misses` are the heartbeats that were missed before it."""

    kind: Kind
    instance: str
    generation: int
    misses: int = 0


class Answer(StrEnum):
    """What an instance is told."""

    WELCOME = "welcome"
    REGISTER_AGAIN = "register_again"
    """We do not know it, or an older generation of it."""
    OUTDATED = "outdated"
    """A newer generation of the same instance is registered: this one must not serve."""
    LEAVING = "leaving"
    """It said goodbye: it gets no more work."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What follows from a message of an instance: what to answer, and what changed by it, if anything."""

    answer: Answer
    change: Change | None = None


_WELCOME: Final = Heard(Answer.WELCOME)
_REGISTER_AGAIN: Final = Heard(Answer.REGISTER_AGAIN)
_OUTDATED: Final = Heard(Answer.OUTDATED)
_LEAVING: Final = Heard(Answer.LEAVING)


def interval_s(ttl_s: float, *, failures: int, jitter: float) -> float:
    """Give the seconds until an instance's next heartbeat (LIFE-1).

    Args:
        ttl_s: Its lease, more than 0.
        failures: How many heartbeats in a row could not be sent.
        jitter: Uniform in [0, 1).

    Raises:
        ValueError: an argument is out of its range.
    """
    if not ttl_s > 0 or failures < 0 or not 0 <= jitter < 1:
        raise ValueError(
            f"ttl_s is positive, failures not negative, jitter in [0, 1), not {ttl_s}, {failures}, {jitter}"
        )
    stretch = 1 + min(STRETCH * failures, MOST_STRETCH)
    return ttl_s / BEATS * stretch * (1 - JITTER + 2 * JITTER * jitter)


@dataclass(slots=True)
class _Lease:
    instance: str
    generation: int
    ttl_s: float
    heard_at: float
    state: State = State.LIVE
    since: float = 0.0
    serial: int = 0

    def move(self, state: State, now: float) -> None:
        if state not in MOVES[self.state]:
            raise ValueError(f"{self.instance} cannot go from {self.state} to {state}")
        self.state, self.since = state, now

    def misses(self, now: float) -> int:
        """Count what has been missed; a state says a least number, whatever rounding made of the quotient."""
        least = {State.SUSPECT: SUSPECT_AFTER}.get(self.state, 0)
        return max(least, int((now - self.heard_at) / (self.ttl_s / BEATS)))

    def due_at(self) -> float:
        match self.state:
            case State.LIVE:
                return self.heard_at + self.ttl_s * SUSPECT_AFTER / BEATS
            case State.SUSPECT:
                return self.heard_at + self.ttl_s
            case _:
                return self.since + KEPT_S


class Leases:
    """The leases of all instances that one supervisor knows."""

    __slots__ = ("_book", "_queue", "_serial")

    def __init__(self) -> None:
        self._book: dict[str, _Lease] = {}
        self._queue: list[tuple[float, int, _Lease]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._book)

    def __contains__(self, instance: object) -> bool:
        return instance in self._book

    def state(self, instance: str) -> State:
        """Give where an instance is; `REMOVED` for one that is not known."""
        lease = self._book.get(instance)
        return State.REMOVED if lease is None else lease.state

    def weight(self, instance: str) -> float:
        """Give what its state makes of its weight."""
        return WEIGHT[self.state(instance)]

    def generation(self, instance: str) -> int | None:
        """Give the generation that counts; None for an instance that is not known."""
        lease = self._book.get(instance)
        return None if lease is None else lease.generation

    # -- what instances say -------------------------------------------------------------------------------

    def register(self, instance: str, *, generation: int, ttl_s: float, now: float) -> Heard:
        """An instance asks to take part, as it does on each connect.

        The same generation renews its lease; a newer one takes the place of the older, an older one is outdated.

        Raises:
            ValueError: `ttl_s` is not positive.
        """
        if not ttl_s > 0:
            raise ValueError(f"a lease is a positive number of seconds, not {ttl_s!r}")
        lease = self._book.get(instance)
        if lease is not None and generation < lease.generation:
            return _OUTDATED
        if lease is not None and generation == lease.generation:
            return self._renew(lease, ttl_s, now)
        self._begin(_Lease(instance, generation, ttl_s, heard_at=now, since=now))
        return Heard(Answer.WELCOME, Change(Kind.REGISTERED, instance, generation))

    def heard(self, instance: str, *, generation: int, now: float, ttl_s: float | None = None) -> Heard:
        """A heartbeat came. It renews a lease and never begins one. Raises `ValueError` as `register` does."""
        lease = self._book.get(instance)
        if lease is None or generation > lease.generation:
            return _REGISTER_AGAIN
        if generation < lease.generation:
            return _OUTDATED
        if ttl_s is not None and not ttl_s > 0:
            raise ValueError(f"a lease is a positive number of seconds, not {ttl_s!r}")
        return self._renew(lease, lease.ttl_s if ttl_s is None else ttl_s, now)

    def goodbye(self, instance: str, *, generation: int, now: float) -> Change | None:
        """An instance leaves in good order. None where that is no news."""
        lease = self._current(instance, generation)
        if lease is None or lease.state is State.LEFT:
            return None
        self._move(lease, State.LEFT, now)
        return Change(Kind.LEFT, instance, generation)

    def gone(self, instance: str, *, generation: int, now: float) -> Change | None:
        """Its link ended and did not come back. None where that is no news."""
        lease = self._current(instance, generation)
        if lease is None or lease.state in {State.UNAVAILABLE, State.LEFT}:
            return None
        self._move(lease, State.UNAVAILABLE, now)
        return Change(Kind.LOST, instance, generation, lease.misses(now))

    # -- what time says -----------------------------------------------------------------------------------

    def due(self, now: float) -> list[Change]:
        """Give what changed because nothing was heard until `now`, in the order in which it fell due."""
        changes: list[Change] = []
        queue = self._queue
        while queue and queue[0][0] <= now:
            _, serial, lease = heapq.heappop(queue)
            if serial != lease.serial or self._book.get(lease.instance) is not lease:
                continue
            if lease.due_at() <= now:
                changes.append(self._late(lease, now))
            if lease.state is not State.REMOVED:
                heapq.heappush(queue, (lease.due_at(), serial, lease))
        return changes

    def next_due(self) -> float | None:
        """Give a time before which `due` has nothing to say; None where there is no lease."""
        return self._queue[0][0] if self._queue else None

    def forgive(self, now: float) -> None:
        """Count what is live or suspect as just heard of: it was us who did not listen.

        For a supervisor that was itself stopped, or takes over: silence while nobody listened is no miss.
        """
        for lease in self._book.values():
            if lease.state in {State.LIVE, State.SUSPECT}:
                lease.heard_at = max(lease.heard_at, now)

    def adopt(self, instance: str, *, generation: int, ttl_s: float, state: State, now: float) -> None:
        """Take over what the table shows, as just seen (design, section 5). A newer generation wins.

        Raises:
            ValueError: `ttl_s` is not positive, or `state` is `REMOVED`.
        """
        if not ttl_s > 0 or state is State.REMOVED:
            raise ValueError(f"{instance} cannot be adopted as {state} with a lease of {ttl_s} s")
        known = self._book.get(instance)
        if known is None or known.generation < generation:
            self._begin(_Lease(instance, generation, ttl_s, heard_at=now, state=state, since=now))

    # -- inside -------------------------------------------------------------------------------------------

    def _current(self, instance: str, generation: int) -> _Lease | None:
        lease = self._book.get(instance)
        return lease if lease is not None and lease.generation == generation else None

    def _begin(self, lease: _Lease) -> None:
        self._book[lease.instance] = lease
        self._schedule(lease)

    def _schedule(self, lease: _Lease) -> None:
        """Queue its deadline; an earlier entry of it no longer counts."""
        self._serial += 1
        lease.serial = self._serial
        heapq.heappush(self._queue, (lease.due_at(), lease.serial, lease))

    def _move(self, lease: _Lease, state: State, now: float) -> None:
        lease.move(state, now)
        self._schedule(lease)

    def _renew(self, lease: _Lease, ttl_s: float, now: float) -> Heard:
        if lease.state is State.LEFT:
            return _LEAVING
        misses = lease.misses(now)
        lease.heard_at = max(lease.heard_at, now)
        if ttl_s != lease.ttl_s:
            lease.ttl_s = ttl_s
            self._schedule(lease)
        if lease.state is State.LIVE:
            return _WELCOME
        self._move(lease, State.LIVE, now)
        return Heard(Answer.WELCOME, Change(Kind.RECOVERED, lease.instance, lease.generation, misses))

    def _late(self, lease: _Lease, now: float) -> Change:
        misses = lease.misses(now)
        match lease.state:
            case State.LIVE if misses < BEATS:
                lease.move(State.SUSPECT, now)
                kind, misses = Kind.SUSPECTED, SUSPECT_AFTER
            case State.LIVE | State.SUSPECT:
                lease.move(State.UNAVAILABLE, now)
                kind, misses = Kind.EXPIRED, max(misses, BEATS)
            case _:
                lease.move(State.REMOVED, now)
                del self._book[lease.instance]
                kind = Kind.REMOVED
        return Change(kind, lease.instance, lease.generation, misses)
