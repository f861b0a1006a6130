"""What a caller tells the supervisor about its calls: counts by lane, about once a second while there is traffic.

Everybody's digests together are what breakers, weights and figures are made of (behaviour BREAK-4), so they are
made to be added up: counts are summed, and latencies travel as the buckets of a mergeable sketch, because an
average of percentiles is none. A digest is a difference: it tells of `span_ms` and of nothing before. `boot`
and `seq` number the digests of one run of a client, so that one delivered twice counts once.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from reach.wire.bounds import Amount, Tally
from reach.wire.whole import Whole

MAX_INSTANCES: Final = 64
"""Most instances that one lane of a digest tells of: those with failures first, then the busiest."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class LatencySketch(_Message):
    """Latencies counted in buckets of equal relative width (DDSketch; Masson, Rim and Lee, VLDB 2019).

    With g = (100 + `e`) / (100 - `e`), bucket 0 holds everything up to 0.01 ms and bucket k what lies in
    (0.01 g^(k-1), 0.01 g^k] ms. Sketches of the same `e` are merged by adding their counts.
    """

    e: float = Field(gt=0, lt=100)
    i: Whole = 0
    n: tuple[Whole, ...] = ()


class InstanceOutcomes(_Message):
    """What one instance of the lane was seen to do."""

    instance: str
    calls: Tally = 0
    failed: Tally = 0


class LaneOutcomes(_Message):
    """The calls of one lane that ended in the span.

    `ok` and `failed` are what counts for the lane; `excused` ended in what is not its failure (4xx,
    cancellations, refusals of ours: BREAK-2). `slow` are those of `ok` and `failed` over the lane's limit.
    `failed_in_a_row` is how many failures were the last ones when the digest was made, 0 after a success, and
    may reach back beyond the span.
    """

    provider: str
    capability: str
    ok: Tally = 0
    failed: Tally = 0
    excused: Tally = 0
    slow: Tally = 0
    failed_in_a_row: Tally = 0
    retries: Tally = 0
    cost: Amount = Field(default=0.0, ge=0)
    reasons: dict[str, Whole] = Field(default_factory=dict)
    latency: LatencySketch | None = None
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
