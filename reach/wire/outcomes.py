"""What a caller tells the supervisor about its calls: counts by lane, about once a second while there is traffic.

Everybody's digests together are what breakers, weights and figures are made of (behaviour BREAK-4), so they are
made to be added up: counts are summed, and latencies travel as the buckets of a mergeable sketch, because an
average of percentiles is none. A digest is a difference: it tells of `span_ms` and of nothing before. `boot`
and `seq` number the digests of one run of a client, so that one delivered twice counts once.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from reach.wire.whole import Whole

MAX_INSTANCES: Final = 64
"""Most instances that one lane of a digest tells of: those with failures first, then the busiest."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class LatencyBuckets(_Message):
    """Latencies counted in buckets of a relative width (DDSketch, Masson et al., 2019).

    With g = (1 + `accuracy`) / (1 - `accuracy`), bucket i holds what lies in (g^(i-1), g^i] milliseconds.
    `counts` are those of the buckets `first`, `first` + 1 and so on; `zero` counts what was too short to tell.
    Buckets of the same accuracy are merged by adding their counts.
    """

    accuracy: float = Field(gt=0, lt=1)
    first: int = 0
    counts: tuple[Whole, ...] = ()
    zero: Whole = 0

    @property
    def count(self) -> int:
        """How many latencies are in it."""
        return self.zero + sum(self.counts)


class InstanceOutcomes(_Message):
    """What one instance of the lane was seen to do."""

    instance: str
    calls: Whole = 0
    failed: Whole = 0


class LaneOutcomes(_Message):
    """The calls of one lane that ended in the span.

    `ok` and `failed` are what counts for the lane; `excused` ended in what is not its failure (4xx,
    cancellations, refusals of ours: BREAK-2). `slow` are those of `ok` and `failed` over the lane's limit.
    `failed_in_a_row` is how many failures were the last ones when the digest was made, 0 after a success, and
    may reach back beyond the span.
    """

    provider: str
    capability: str
    ok: Whole = 0
    failed: Whole = 0
    excused: Whole = 0
    slow: Whole = 0
    failed_in_a_row: Whole = 0
    retries: Whole = 0
    cost: float = Field(default=0.0, ge=0)
    reasons: dict[str, Whole] = Field(default_factory=dict)
    latency: LatencyBuckets | None = None
    instances: tuple[InstanceOutcomes, ...] = ()

    @property
    def counted(self) -> int:
        """How many calls count for the lane's success."""
        return self.ok + self.failed


class Outcomes(_Message):
    """One digest of one client. `at` is epoch milliseconds of its end; it covers the `span_ms` before."""

    client: str
    boot: Whole
    seq: Whole
    at: Whole
    span_ms: Whole
    lanes: tuple[LaneOutcomes, ...] = ()
