"""What calls that ask for nothing in particular draw from: one plan, with what this caller has found out laid upon it.

Which lanes may be used, who of their instances is to be avoided, and how the calls are divided among what is left is
worked out once, and holds until something moves: a breaker or an instance of this caller's (`Lanes.moves`), who is
known (the directory's `changes`), the table (a new plan has nothing ready), or a time at which something ends by
itself (`until`). A call then costs a few draws, among ten instances as among ten thousand (behaviour SPEED-3).

Nothing is made ready while a lane is to be probed by such a call, or none may be used: who is let through is decided
call by call then (`reach.call.steering`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from reach.call.choose import PATIENCE_S, Route
from reach.policy.alias import Weighted
from reach.policy.breaker_state import State
from reach.policy.weight import shares

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reach.call.call import Call
    from reach.call.lanes import Lane
    from reach.call.plan import Crowd, Part, Plan
    from reach.wire.envelope import Priority

LATE_S: Final = 0.5
"""A lane that is to be probed for so long, and is not said to be, has nobody who says so: it is asked for."""

WAITING: Final = frozenset({"open", "half_open"})
"""What the table says of a lane that is to be probed, now or soon."""


def asks(call: Call) -> bool:
    """Say whether a call asks for somebody in particular."""
    envelope = call.envelope
    return bool(envelope.target or envelope.require or envelope.prefer)


def kind_of(call: Call) -> int:
    """Give what makes a difference between two calls that ask for nothing: which breaker, and who may probe."""
    may_be_repeated = call.idempotent or call.envelope.idempotency_key is not None
    return (2 if call.envelope.priority == "core" else 0) + may_be_repeated


def key_of(call: Call, name: str) -> str | None:
    """Give what a call is hashed by: the parameter of that name."""
    params: Any = call.envelope.payload
    value = params.get(name) if isinstance(params, dict) else None
    return None if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Pool:
    """What one tier has for such calls, where instances are picked: a crowd of them, and one of the canary's."""

    crowd: Crowd | None
    canary: Crowd | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """See the module. Either lanes are drawn, all of the tiers in use together, or a pool first and then from it.

    `avoid` are instances that have just failed; `limited` says that a way's lane may be full.
    """

    moves: int
    changes: int
    until: float
    lanes: Weighted | None
    ways: dict[str, Route]
    pools: tuple[tuple[float, Pool], ...]
    avoid: frozenset[str]
    limited: bool
    trying: bool
    """Whether there is a canary."""
    key: str | None
    """The parameter that calls are hashed by."""

    def pool(self, at: float) -> Pool:
        """Give the pool of one call, with `at` uniform in [0, 1)."""
        for part, pool in self.pools:
            at -= part
            if at < 0:
                return pool
        return self.pools[-1][1]


@dataclass(frozen=True, slots=True)
class Sight:
    """Which lanes such calls may use now, and until when (loop seconds) that holds by itself."""

    usable: dict[int, list[Part]]
    until: float


def sight(
    plan: Plan,
    *,
    priority: Priority,
    may_probe: bool,
    now: float,
    barred: Callable[[Part], bool],
) -> Sight | None:
    """Look at all lanes for calls of one kind; None where it has to be decided call by call.

    Nothing is changed by looking: a breaker that would give a permit keeps it.

    Args:
        plan: Whose lanes.
        priority: The calls'.
        may_probe: Whether they may be repeated: then they probe as soon as a lane is due.
        now: Loop seconds.
        barred: Whether something keeps such calls from a lane, beside its breaker and its limit.
    """
    usable: dict[int, list[Part]] = {tier: [] for tier in plan.tiers}
    until = math.inf
    for part in plan.parts.values():
        if barred(part):
            continue
        due = _due_at(part.lane, priority, may_probe=may_probe)
        if due is None:
            usable[part.told.priority].append(part)
        elif due <= now:
            return None
        else:
            until = min(until, due)
    return Sight(usable, until) if any(usable.values()) else None


def _due_at(lane: Lane, priority: Priority, *, may_probe: bool) -> float | None:
    """Give when a lane that is closed to such calls is to be probed by one of them; None for one that is open to them.

    Who cannot be repeated waits for longer, since another one may come that can.
    """
    breaker = lane.breaker_of(priority)
    patience = breaker.open_until + PATIENCE_S
    if lane.told in WAITING:
        return due_at(lane) if may_probe else max(due_at(lane), lane.breaker.open_until + PATIENCE_S)
    if breaker.closed:
        return None
    if breaker.state is State.FORCED_OPEN:
        return math.inf
    if may_probe:
        return breaker.open_until if breaker.state is State.OPEN else -math.inf
    return patience


def due_at(lane: Lane) -> float:
    """Give when a lane that the table says to be waiting takes probes that the leader gives places for."""
    if lane.told == "half_open":
        return lane.ask_at
    return max(lane.ask_at, lane.breaker.open_until + LATE_S)


def make(
    plan: Plan,
    seen: Sight,
    *,
    moves: int,
    avoid: Mapping[str, float],
    crowd_of: Callable[[int, bool, list[Part]], Crowd | None],
) -> Ready | None:
    """Put together what calls draw from; None where a tier has nobody to be drawn.

    Args:
        plan: The plan.
        seen: Which lanes may be used.
        moves: The stamp that it is made at.
        avoid: Instances to avoid, each until when (loop seconds).
        crowd_of: Gives the crowd of a tier's lanes: the canary's side, or the others.
    """
    parts = _tiers(plan, seen.usable)
    limited = any(part.lane.limit is not None for tier in parts for part in seen.usable[tier])
    until = min([seen.until, *avoid.values()])
    weights: dict[str, float] = {}
    ways: dict[str, Route] = {}
    pools: list[tuple[float, Pool]] = []
    picked = plan.by_instance or bool(avoid)
    for tier, share in parts.items():
        usable = seen.usable[tier]
        if picked:
            trying = plan.entry.canary is not None
            canary = crowd_of(tier, True, usable) if trying else None  # noqa: FBT003 - the canary's side
            pool = Pool(crowd_of(tier, False, usable), canary)  # noqa: FBT003 - the others
            if pool.crowd is None and canary is None:
                return None
            pools.append((share, pool))
            continue
        own = shares({part.provider: part.told.weight for part in usable})
        for part in usable:
            weights[part.provider] = share * own[part.provider]
            ways[part.provider] = (
                Route(part.route.subject, None, part.lane, None, part.level) if limited else part.route
            )
    return Ready(
        moves=moves,
        changes=plan.known_at,
        until=until,
        lanes=None if picked else Weighted(weights),
        ways=ways,
        pools=tuple(pools),
        avoid=frozenset(avoid),
        limited=limited,
        trying=plan.entry.canary is not None,
        key=plan.entry.strategy.key,
    )


def _tiers(plan: Plan, usable: Mapping[int, list[Part]]) -> dict[int, float]:
    """Give the tiers that calls end up in, with their parts: who would begin in an unusable one goes to the next."""
    found: dict[int, float] = {}
    for first, share in plan.in_use or ((next(iter(plan.tiers)), 1.0),):
        tier = next(tier for tier in (first, *plan.tiers) if usable[tier])
        found[tier] = found.get(tier, 0.0) + share
    return found
