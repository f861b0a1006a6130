"""How often, and how many at once, all callers together may call: one small ledger for each limit.

The ledger is one value that every caller changes by compare-and-set, so each change is decided upon the very state
that it replaces, and racing callers are admitted exactly: no more than the limit, and no fewer while there is room.
It holds when units were taken in the last window, in slots of a thirty-second of it, and how many calls each client
has under way, as a lease that ends by itself when that client is gone.

A slot counts from its end on, for a whole window and `TOLERANCE_MS` more: so in *any* window of that length, wherever
it begins, no more than the limit are admitted, while clocks agree within `SKEW_MS` and who took units uses them within
`LATE_MS` (whoever was slower takes them anew, by `Wish.returned`). Prior art: the sliding log, whose drawback, one
entry a call, the slots take away; fixed and half windows admit twice the limit at an edge, or two thirds of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

SLOTS: Final = 32
"""Slots in a window: as much too long as one of them may a unit count."""

SKEW_MS: Final = 25
"""What a caller's idea of the broker's time may be off by, either way."""

LATE_MS: Final = 50
"""Units count from when they were asked for; whoever has them later than this takes them anew."""

TOLERANCE_MS: Final = 2 * SKEW_MS + LATE_MS

AHEAD_MS: Final = 1_000
"""A slot further in the future than this was written by a clock that is wrong: it is taken for the running one."""

MOST_AHEAD_MS: Final = AHEAD_MS // 2
"""Units are taken for so much later at most."""

LEASE_MS: Final = 6_000
"""So long after a client was last heard of its calls under way count: the most that a killed one holds up others."""

RENEW_MS: Final = LEASE_MS // 3
"""How often a client says that its calls are still under way."""

LOCAL_SHARE: Final = 4
"""While the shared ledger cannot be reached, each process alone admits the limit divided by this, at least one."""

What = Literal["calls", "concurrent"]


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `calls` in any `per_ms`, and `concurrent` under way at once; None for no such limit."""

    calls: int | None
    per_ms: int
    concurrent: int | None

    @property
    def local(self) -> RateLimit:
        """One process's own share of it, for when nobody can be asked."""
        return RateLimit(_share(self.calls), self.per_ms, _share(self.concurrent))

    @property
    def kept_ms(self) -> int:
        """For how long something written now may still matter."""
        return max(self.per_ms + self.per_ms // SLOTS + TOLERANCE_MS + AHEAD_MS, LEASE_MS)


@dataclass(frozen=True, slots=True)
class Taken:
    """`n` units of the slot that ends at `slot` (milliseconds of broker time)."""

    slot: int
    n: int


@dataclass(frozen=True, slots=True)
class Held:
    """A client's calls under way, unless it is silent until `until` (milliseconds of broker time)."""

    client: str
    n: int
    until: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """What is known of one limit: slots in ascending order, each client once."""

    taken: tuple[Taken, ...] = ()
    held: tuple[Held, ...] = ()


@dataclass(frozen=True, slots=True)
class Wish:
    """What one client wants to change.

    Attributes:
        client: Who it is.
        want: Calls that it would like to begin.
        holding: Calls that it has under way already; the ledger's own number of them is replaced.
        returned: Units that it took and did not use.
    """

    client: str
    want: int = 0
    holding: int = 0
    returned: tuple[Taken, ...] = ()


@dataclass(frozen=True, slots=True)
class Full:
    """Which limit left somebody outside: `used` of `allowed`; room comes in `resets_in_ms`, None if nobody knows."""

    what: What
    used: int
    allowed: int
    resets_in_ms: int | None


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a wish: the ledger to write, how many calls may begin, and, if fewer than wanted, why."""

    ledger: Ledger
    granted: int
    slot: int
    full: Full | None


def settle(ledger: Ledger, limit: RateLimit, wish: Wish, now_ms: int, *, ahead_ms: int = 0) -> Settled:
    """Decide a wish at `now_ms` (broker time). Nothing is taken for what is not granted.

    Where the way to the ledger is long, units are taken for `ahead_ms` later: for when they will be had.
    """
    slot = _slot(limit, now_ms + ahead_ms)
    taken = _without(_living(ledger.taken, limit, now_ms, slot), wish.returned)
    if taken:
        slot = max(slot, taken[-1].slot)  # A clock that is behind joins the newest slot there is.
    others = tuple(one for one in ledger.held if one.client != wish.client and one.until > now_ms)
    granted = wish.want
    if limit.calls is not None:
        granted = max(0, min(granted, limit.calls - sum(one.n for one in taken)))
    under_way = sum(one.n for one in others) + wish.holding
    crowded = limit.concurrent is not None and limit.concurrent - under_way < granted
    if crowded and limit.concurrent is not None:
        granted = max(0, limit.concurrent - under_way)
    if granted and limit.calls is not None:
        taken = _with(taken, Taken(slot, granted))
    full = None
    if crowded and limit.concurrent is not None:
        full = Full("concurrent", under_way + granted, limit.concurrent, None)
    elif granted < wish.want and limit.calls is not None:
        full = _full(taken, limit, limit.calls, now_ms)
    mine = wish.holding + granted if limit.concurrent is not None else 0
    held = (*others, Held(wish.client, mine, now_ms + LEASE_MS)) if mine else others
    return Settled(Ledger(taken, held), granted, slot, full)


def local(ledger: Ledger, limit: RateLimit, slot: int, n: int) -> Ledger:
    """Note in a process's own ledger what the shared one granted it, should its share be all there is later on."""
    if limit.calls is None or not n:
        return ledger
    kept = tuple(one for one in ledger.taken if one.slot > slot - limit.per_ms - TOLERANCE_MS)
    return replace(ledger, taken=_with(kept, Taken(slot, n)))


def _share(limit: int | None) -> int | None:
    return None if limit is None else max(1, limit // LOCAL_SHARE)


def _slot(limit: RateLimit, now_ms: int) -> int:
    """End of the slot that `now_ms` is in."""
    grain = max(1, limit.per_ms // SLOTS)
    return (now_ms // grain + 1) * grain


def _ends(limit: RateLimit, slot: int) -> int:
    """Give the moment from which what was taken in a slot does not count any more."""
    return slot + limit.per_ms + TOLERANCE_MS


def _living(taken: tuple[Taken, ...], limit: RateLimit, now_ms: int, slot: int) -> tuple[Taken, ...]:
    """Slots that still count; those of a wrong clock become the running one."""
    living: tuple[Taken, ...] = ()
    for one in taken:
        if _ends(limit, one.slot) > now_ms:
            living = _with(living, one if one.slot <= slot + AHEAD_MS else Taken(slot, one.n))
    return living


def _with(taken: tuple[Taken, ...], more: Taken) -> tuple[Taken, ...]:
    """Add units to their slot."""
    counts = {one.slot: one.n for one in taken}
    counts[more.slot] = counts.get(more.slot, 0) + more.n
    return tuple(Taken(slot, counts[slot]) for slot in sorted(counts))


def _without(taken: tuple[Taken, ...], returned: tuple[Taken, ...]) -> tuple[Taken, ...]:
    """Take returned units out of their slots; what has ended there is gone anyway."""
    if not returned:
        return taken
    counts = {one.slot: one.n for one in taken}
    for one in returned:
        if one.slot in counts:
            counts[one.slot] -= min(one.n, counts[one.slot])
    return tuple(Taken(slot, n) for slot, n in counts.items() if n)


def _full(taken: tuple[Taken, ...], limit: RateLimit, allowed: int, now_ms: int) -> Full:
    """Say that there is no room, and when there will be some for one more."""
    used = over = sum(one.n for one in taken)
    for one in taken:
        over -= one.n
        if over < allowed:
            return Full("calls", used, allowed, max(1, _ends(limit, one.slot) - now_ms))
    return Full("calls", used, allowed, 1)
