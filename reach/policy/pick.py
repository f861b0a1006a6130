"""Which instance of a lane gets a call (behaviour ROUTE-5).

=================  ===================================================================================
strategy           picks
=================  ===================================================================================
pool               nobody: the queue group is asked, and NATS picks (the default)
random             by weight
round_robin        in turn, as often as the weights say
consistent_hash    the owner of the call's key, by rendezvous: a lane, then an instance; without a key by weight
least_loaded       of two drawn by weight, the one with less in flight for its weight
local_first        by weight among those of the caller's region, else among all
static             provider and label groups by their own weights, by weight inside a group
=================  ===================================================================================

A strategy is built once a revision and answers each call from tables. Others plug in: anything callable as
`Build` is one, found by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from reach.policy.alias import Weighted
from reach.policy.rendezvous import Rendezvous, slot_of
from reach.policy.tickets import tickets

TURNS: Final = 8
"""Most turns that one instance has in a round of `round_robin`: weights are told to an eighth of the heaviest."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instance that may be picked. A weight of 0 is never picked."""

    name: str
    weight: float = 1.0
    provider: str = ""
    region: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Share:
    """One group of `static`: a provider, or all instances with these labels, and the group's weight."""

    weight: float
    provider: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def holds(self, candidate: Candidate) -> bool:
        """Whether a candidate belongs to the group."""
        return self.provider in {None, candidate.provider} and all(
            candidate.labels.get(key) == value for key, value in self.labels.items()
        )


def idle(_name: str) -> int:
    """Give the load of an instance where nobody counts: none."""
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a strategy may need beside its candidates.

    Attributes:
        region: The caller's own, for `local_first`.
        load: Calls in flight at an instance, by name, for `least_loaded`.
        shares: The groups of `static`.
        previous: The picker of the revision before, which may hand on what is still true.
    """

    region: str = ""
    load: Callable[[str], int] = idle
    shares: tuple[Share, ...] = ()
    previous: Picker | None = None


class Picker(Protocol):
    """A strategy at work on one revision."""

    def choose(self, pick: float, *, key: str | None = None, avoid: Collection[str] = ()) -> str | None:
        """Pick an instance that is not in `avoid`.

        Args:
            pick: Uniform in [0, 1).
            key: What the call is hashed by; None where it has no key.
            avoid: Names that this call should not meet (again).

        Returns:
            Its name, or None: ask the queue group (`pool`), or nobody is left (all others).
        """
        ...


class Build(Protocol):
    """A strategy: makes a picker for the candidates of one revision."""

    def __call__(self, candidates: Sequence[Candidate], options: Options) -> Picker:
        """Make the picker. Raises `ValueError` where the options do not do."""
        ...


class Pool:
    """NATS picks."""

    __slots__ = ()

    def __init__(self, candidates: Sequence[Candidate], options: Options) -> None:
        """Take what every strategy is given, and need none of it."""

    def choose(self, pick: float, *, key: str | None = None, avoid: Collection[str] = ()) -> str | None:  # noqa: ARG002
        """Name nobody: the subject is the queue group's."""
        return None


class Random:
    """By weight."""

    __slots__ = ("_table",)

    def __init__(self, candidates: Sequence[Candidate], options: Options) -> None:  # noqa: ARG002 - as every strategy
        self._table = Weighted(_weights(candidates))

    def choose(self, pick: float, *, key: str | None = None, avoid: Collection[str] = ()) -> str | None:  # noqa: ARG002
        """Draw one."""
        return self._table.draw(pick, avoid)


class RoundRobin:
    """In turn. The first turn of a revision is drawn, so that callers do not all begin with the same instance."""

    __slots__ = ("_at", "_turns")

    def __init__(self, candidates: Sequence[Candidate], options: Options) -> None:  # noqa: ARG002 - as every strategy
        held = tickets(_weights(candidates), most=TURNS).counts
        # The k-th of an instance's c turns lies at (k + 1/2) / c of the round: equal weights alternate,
        # and the turns of a heavy one are apart.
        places = [((turn + 0.5) / count, name) for name, count in held.items() for turn in range(count)]
        self._turns = tuple(name for _, name in sorted(places, key=lambda place: place[0]))
        self._at = -1

    def choose(self, pick: float, *, key: str | None = None, avoid: Collection[str] = ()) -> str | None:  # noqa: ARG002
        """Give the next in turn that is not to be avoided."""
        turns = self._turns
        count = len(turns)
        at = self._at if self._at >= 0 else min(int(pick * count), count - 1)
        for step in range(count):
            name = turns[(at + step) % count]
            if name not in avoid:
                self._at = (at + step + 1) % count
                return name
        return None


class ConsistentHash:
    """The owner of the key: first the lane, by its weight, then the instance in it.

    So a lane that loses an instance keeps its share, and of all keys only that instance's move (ROUTE-5). A call
    without a key is placed by weight.
    """

    __slots__ = ("_table", "lanes", "owners")

    def __init__(self, candidates: Sequence[Candidate], options: Options) -> None:
        self._table = Weighted(_weights(candidates))
        by_lane: dict[str, dict[str, float]] = {}
        for one in candidates:
            by_lane.setdefault(one.provider, {})[one.name] = one.weight
        was = options.previous if isinstance(options.previous, ConsistentHash) else None
        weights = {lane: sum(mine.values()) for lane, mine in by_lane.items()}
        self.lanes: Rendezvous = Rendezvous(weights) if was is None else was.lanes.revised(weights)
        self.owners: dict[str, Rendezvous] = {
            lane: was.owners[lane].revised(mine)
            if was is not None and lane in was.owners
            else Rendezvous(mine)
            for lane, mine in by_lane.items()
        }

    def choose(self, pick: float, *, key: str | None = None, avoid: Collection[str] = ()) -> str | None:
        """Give the key's owner, or who would own it without those to be avoided."""
        if key is None:
            return self._table.draw(pick, avoid)
        slot = slot_of(key)
        spent: list[str] = []
        while (lane := self.lanes.owner_of(slot, spent)) is not None:
            owner = self.owners[lane].owner_of(slot, avoid)
            if owner is not None:
                return owner
            spent.append(lane)
        return None


class LeastLoaded:
    """The better of two choices, which is nearly as good as the best of all and never sends a herd to one."""

    __slots__ = ("_load", "_table", "_weights")

    def __init__(self, candidates: Sequence[Candidate], options: Options) -> None:
        self._weights = _weights(candidates)
        self._table = Weighted(self._weights)
        self._load = options.load

    def choose(self, pick: float, *, key: str | None = None, avoid: Collection[str] = ()) -> str | None:  # noqa: ARG002
        """Draw two by weight, and give the one with less in flight for its weight."""
        first = self._table.draw(pick, avoid)
        if first is None:
            return None
        # Digits of the number that the first draw has not looked at, for up to a million instances.
        second = self._table.draw(pick * 1_048_573 % 1.0, (first, *avoid))
        if second is None:
            return first
        weights, load = self._weights, self._load
        return first if (load(first) + 1) / weights[first] <= (load(second) + 1) / weights[second] else second


class LocalFirst:
    """The caller's region while somebody is there, else everywhere."""

    __slots__ = ("_all", "_near")

    def __init__(self, candidates: Sequence[Candidate], options: Options) -> None:
        self._near = Weighted(_weights([one for one in candidates if one.region == options.region]))
        self._all = Weighted(_weights(candidates))

    def choose(self, pick: float, *, key: str | None = None, avoid: Collection[str] = ()) -> str | None:  # noqa: ARG002
        """Draw one nearby, else one anywhere."""
        return self._near.draw(pick, avoid) or self._all.draw(pick, avoid)


class Static:
    """Named groups by their weights. A candidate belongs to the first group that holds it, else to none."""

    __slots__ = ("_table",)

    def __init__(self, candidates: Sequence[Candidate], options: Options) -> None:
        if not options.shares:
            raise ValueError("static needs shares: at least one provider or label group with a weight")
        groups: list[dict[str, float]] = [{} for _ in options.shares]
        for one in candidates:
            for index, share in enumerate(options.shares):
                if share.holds(one):
                    groups[index][one.name] = one.weight
                    break
        weights: dict[str, float] = {}
        for share, group in zip(options.shares, groups, strict=True):
            total = sum(group.values())
            weights |= {name: share.weight * weight / total for name, weight in group.items() if total > 0}
        self._table = Weighted(weights)

    def choose(self, pick: float, *, key: str | None = None, avoid: Collection[str] = ()) -> str | None:  # noqa: ARG002
        """Draw one; a group without anybody leaves its share to the others."""
        return self._table.draw(pick, avoid)


BUILT_IN: Final[Mapping[str, Build]] = {
    "pool": Pool,
    "random": Random,
    "round_robin": RoundRobin,
    "consistent_hash": ConsistentHash,
    "least_loaded": LeastLoaded,
    "local_first": LocalFirst,
    "static": Static,
}
"""The strategies of ROUTE-5 by name."""


def build(
    name: str,
    candidates: Sequence[Candidate],
    options: Options | None = None,
    *,
    plugins: Mapping[str, Build] | None = None,
) -> Picker:
    """Make the picker of a strategy.

    Args:
        name: Of a strategy that is built in or plugged in. A plug-in cannot take a built-in's name.
        candidates: Who may be picked.
        options: What the strategy may need.
        plugins: Strategies of others, by name.

    Raises:
        ValueError: no strategy has that name, or the options do not do for it.
    """
    made = BUILT_IN.get(name) or (plugins or {}).get(name)
    if made is None:
        known = ", ".join([*BUILT_IN, *sorted(plugins or {})])
        raise ValueError(f"there is no strategy {name!r}; there are {known}")
    return made(candidates, options or Options())


def _weights(candidates: Sequence[Candidate]) -> dict[str, float]:
    weights = {one.name: one.weight for one in candidates}
    if len(weights) != len(candidates):
        names = [one.name for one in candidates]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"listed twice as candidates: {', '.join(twice)}")
    return weights
