"""What is known about a capability's providers: one entry of the routing table, one key in `reach_routes`.

An entry holds lanes (a provider's instances of one capability) and exceptions, not rosters: who is there at
all stands in the cards, and an instance that no exception names is healthy and as good as its neighbours.
The leader alone writes; a reader keeps the entry with the highest `(term, revision)` and ignores older ones.
Weights stand beside the terms that made them, so that anybody can explain a choice.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from reach.wire.bounds import Factor, Short, at_most
from reach.wire.names import Token
from reach.wire.whole import Count, Whole

BreakerState = Literal["closed", "open", "half_open", "forced_open", "forced_closed", "disabled"]
ExceptionState = Literal[
    "suspect", "unavailable", "warmup", "not_ready", "degraded", "busy", "draining", "steered", "fenced"
]
TermName = Literal["traffic", "match", "health", "cost", "capacity", "quality"]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Terms(_Message):
    """The factors of a lane's weight (behaviour ROUTE-2). A term that is turned off stands at 1."""

    traffic: float = Field(default=1.0, ge=0)
    match: float = Field(default=1.0, ge=0)
    health: float = Field(default=1.0, ge=0)
    cost: float = Field(default=1.0, ge=0)
    capacity: float = Field(default=1.0, ge=0)
    quality: float = Field(default=1.0, ge=0)


class Figures(_Message):
    """What was measured of a lane in the last 5 minutes; `p99_hour_ms` in the last hour. None: not known yet."""

    calls: Whole = 0
    success: float | None = Field(default=None, ge=0, le=1)
    p50_ms: float | None = Field(default=None, ge=0)
    p95_ms: float | None = Field(default=None, ge=0)
    p99_ms: float | None = Field(default=None, ge=0)
    p99_hour_ms: float | None = Field(default=None, ge=0)
    usual_p99_ms: float | None = Field(default=None, ge=0)
    cost: float | None = Field(default=None, ge=0)


class InstanceException(_Message):
    """One instance that is not as its neighbours. `factor` scales its share; 0 keeps calls away from it.

    `until` is epoch milliseconds after which the exception no longer holds by itself; None where only a new
    entry ends it.
    """

    instance: str
    generation: Whole
    state: ExceptionState
    factor: float = Field(default=0.0, ge=0, le=1)
    since: Whole = 0
    until: Whole | None = None
    reason: str = ""


class Breaker(_Message):
    """What everybody's outcomes say about a lane (behaviour BREAK-4). `until` ends an open one's wait."""

    state: BreakerState = "closed"
    until: Whole | None = None
    opened_in_a_row: Whole = 0
    why: str = ""


class Lane(_Message):
    """One provider of the capability.

    `serves` is the name its instances are subscribed under, where that is a more general one (ROUTE-4).
    `instances` counts those that take calls. `weight` is the product of `terms`; `share` is the part of all calls
    that follows from it, tiers and canary included (0 to 1), as it was when this was written.
    """

    provider: str
    serves: str | None = None
    priority: int = 10
    instances: Whole = 0
    weight: float = Field(default=1.0, ge=0)
    share: float = Field(default=0.0, ge=0, le=1)
    terms: Terms = Terms()
    limit: Count | None = None
    breaker: Breaker = Breaker()
    figures: Figures = Figures()
    exceptions: tuple[InstanceException, ...] = ()

    @property
    def uniform(self) -> bool:
        """Whether NATS may pick the instance: all of them are healthy and of equal weight."""
        return not self.exceptions


class TierShare(_Message):
    """A tier that is in use, and its share of the calls (0 to 1)."""

    priority: int
    share: float = Field(default=1.0, ge=0, le=1)


class Canary(_Message):
    """Which instances are tried out, with how much of the traffic, and by whom in any case (ROUTE-6).

    An instance belongs to the group when it has the `version` (where one is named) and all `labels`.
    """

    version: Short | None = None
    labels: Annotated[dict[str, str], at_most(100)] = Field(default_factory=dict)
    percent: float = Field(default=0.0, ge=0, le=100)
    callers: Annotated[tuple[Token, ...], at_most(1000)] = ()


class StaticShare(_Message):
    """One line of a static split: a provider or a label group, and its weight beside the others."""

    provider: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    weight: Factor = Field(default=1.0, ge=0)


class Strategy(_Message):
    """How an instance is picked (ROUTE-5). `key` names the parameter that `consistent_hash` looks at."""

    name: Short = "pool"
    key: Short | None = None
    shares: Annotated[tuple[StaticShare, ...], at_most(1000)] = ()


class RouteEntry(_Message):
    """Everything that callers need to choose among the providers of one capability.

    `tiers` are the tiers in use (two while one returns gradually); `last_resort` says that none is healthy and
    the least bad one is kept for those who may use it (panic rule).
    """

    capability: str
    term: Whole
    revision: Whole
    at: Whole
    lanes: tuple[Lane, ...] = ()
    tiers: tuple[TierShare, ...] = ()
    last_resort: bool = False
    canary: Canary | None = None
    strategy: Strategy = Strategy()
    terms_off: tuple[TermName, ...] = ()

    def supersedes(self, other: RouteEntry | None) -> bool:
        """Whether a reader that has `other` takes this one: a higher term, or in the same a higher revision."""
        return other is None or (self.term, self.revision) > (other.term, other.revision)
