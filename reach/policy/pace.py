"""How fast a lane usually is: its P99, P95 and median in good times, learned slowly.

Latencies of successes gather in a sketch. About once a minute, when at least a hundred are there, its P99 moves
the usual one by a tenth of the difference; the first rounds move it more (they average), so that a first figure
exists after a hundred calls. While the lane is suspect nothing is learned and what was gathered is thrown
away: a lane that becomes slow must not become its own yardstick.

============  =====  =====================================================================================
least calls   100    BREAK-1: the fewest that a P99 is believed from
epoch         60 s   the breaker's window: what is learned from is what was judged
weight        1/10   a step that nobody finds suspect becomes the usual pace in some 20 min
============  =====  =====================================================================================
"""

from __future__ import annotations

import math
from typing import Final

from reach.policy.sketch import Sketch

MINIMUM_CALLS: Final = 100
EPOCH_S: Final = 60.0
_ROUNDS: Final = 10


class Pace:
    """The usual pace of one lane; `p99_ms`, `p95_ms` and `median_ms` are None until there is a first figure.

    Whoever adds to `sketch` compares its `count` with `due` and calls `learn` when it is reached: that
    spares every call a function.
    """

    __slots__ = ("_epoch_ends", "_rounds", "due", "median_ms", "p95_ms", "p99_ms", "sketch")

    def __init__(self) -> None:
        self.sketch = Sketch()
        self.due = MINIMUM_CALLS
        self.p99_ms: float | None = None
        self.p95_ms: float | None = None
        self.median_ms: float | None = None
        self._rounds = 0
        self._epoch_ends = -math.inf

    def learn(self, now: float, *, suspect: bool) -> bool:
        """End the epoch if it is time; returns whether the usual pace is another now."""
        sketch = self.sketch
        if now < self._epoch_ends:
            self.due = sketch.count + MINIMUM_CALLS
            return False
        self._epoch_ends = now + EPOCH_S
        p99_ms, p95_ms, median_ms = sketch.quantile(0.99), sketch.quantile(0.95), sketch.quantile(0.5)
        self.discard()
        if suspect or p99_ms is None or p95_ms is None or median_ms is None:
            return False
        self._rounds = min(self._rounds + 1, _ROUNDS)
        self.p99_ms = _moved(self.p99_ms, p99_ms, 1 / self._rounds)
        self.p95_ms = _moved(self.p95_ms, p95_ms, 1 / self._rounds)
        self.median_ms = _moved(self.median_ms, median_ms, 1 / self._rounds)
        return True

    def accept(self, ms: float) -> None:
        """Take `ms` for the usual pace from now on, as a first figure that soon moves."""
        self.p99_ms = self.p95_ms = self.median_ms = ms
        self._rounds = 1
        self.discard()

    def discard(self) -> None:
        """Throw away what was gathered since the last epoch."""
        self.sketch.clear()
        self.due = MINIMUM_CALLS


def _moved(from_ms: float | None, to_ms: float, share: float) -> float:
    return to_ms if from_ms is None else from_ms + (to_ms - from_ms) * share
