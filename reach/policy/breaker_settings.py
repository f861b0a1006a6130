"""When a breaker opens, for how long, and what closes it: its numbers, each with its source.

==============================  =======  =====================================================================
failure_rate_threshold          30 %     BREAK-1
core_failure_rate_threshold     50 %     BREAK-1: a lane that much hangs on is given up later
slow_call_rate_threshold        50 %     BREAK-1
slow_factor                     3        BREAK-1: slow is over 3 × the usual P99 …
slow_ms                         none     BREAK-1: … or over this, where the owner says so
slow_floor_ms                   150 ms   nobody suspects what answers within the suspicion time (design): a
                                         lane of 1 ms would open for a pause of its garbage collector
minimum_calls                   20       BREAK-1
window_s                        60 s     BREAK-1
fast_window_s                   5 s      BREAK-1
fast_minimum_calls              20       BREAK-1
consecutive_failures            10       BREAK-1
p99_minimum_calls               100      BREAK-1
p99_sigmas                      3        the P99 of 100 calls rests on two of them: a P99 is *over* when that
                                         is no chance (5 slow of 100, 84 of 6 000); 0 takes it as it comes
wait_in_open_s                  10 s     BREAK-3: × times opened in a row
wait_cap_s                      300 s    BREAK-3; no wait is longer, the jitter included
wait_jitter                     ±20 %    BREAK-3
permitted_calls_in_half_open    5        BREAK-3: in all, by permits from the leader
local_permits                   1        BREAK-3: without a leader, for each caller process
half_open_timeout_s             30 s     a round of decisions; longer than a call usually has (15 s)
new_pace_after                  5        openings in a row (some 2 min of waiting) after which a lane that
                                         answers well, but slowly, is taken to be like that now
==============================  =======  =====================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSettings:
    """See the module for each. Rates are shares in (0, 1]; all others are positive, `p99_sigmas` may be 0."""

    failure_rate_threshold: float = 0.30
    core_failure_rate_threshold: float = 0.50
    slow_call_rate_threshold: float = 0.50
    slow_factor: float = 3.0
    slow_ms: float | None = None
    slow_floor_ms: float = 150.0
    minimum_calls: int = 20
    window_s: float = 60.0
    fast_window_s: float = 5.0
    fast_minimum_calls: int = 20
    consecutive_failures: int = 10
    p99_minimum_calls: int = 100
    p99_sigmas: float = 3.0
    wait_in_open_s: float = 10.0
    wait_cap_s: float = 300.0
    wait_jitter: float = 0.20
    permitted_calls_in_half_open: int = 5
    local_permits: int = 1
    half_open_timeout_s: float = 30.0
    new_pace_after: int = 5

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            least_ok = (
                value >= 0 if field.name in {"p99_sigmas", "wait_jitter", "slow_floor_ms"} else value > 0
            )
            if not (least_ok and value < math.inf):
                raise ValueError(f"{field.name} is a positive number, not {value!r}")
            if field.name.endswith("_threshold") and value > 1:
                raise ValueError(f"{field.name} is a share of calls in (0, 1], not {value!r}")
        if self.wait_jitter >= 1:
            raise ValueError(f"wait_jitter is a share in [0, 1), not {self.wait_jitter!r}")
        if self.fast_window_s > self.window_s:
            raise ValueError(
                f"fast_window_s ({self.fast_window_s}) is a part of window_s ({self.window_s}), not more"
            )

    def wait_s(self, times: int, *, jitter: float) -> float:
        """Give the seconds that the opening number `times` in a row lasts; `jitter` is uniform in [0, 1).

        The spread survives at the cap, so that those who opened together do not probe together.
        """
        middle_s = min(self.wait_in_open_s * times, self.wait_cap_s / (1 + self.wait_jitter))
        return middle_s * (1 - self.wait_jitter + 2 * self.wait_jitter * jitter)
