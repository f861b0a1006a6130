"""What one caller's calls of one lane came to since it told so last: the material of a digest.

A good call adds one to a number, and its latency to a sketch: all of the first ones in a second, of a busy lane's
every eighth. Who of the lane answered is counted only for a while after one of its instances has failed, since only
then it is a question. The rest is counted where failures are handled, which are few.
"""

from __future__ import annotations

from typing import Final

from reach.policy.sketch import LEAST_MS, RELATIVE_ERROR, Sketch
from reach.wire.outcomes import MAX_INSTANCES, InstanceOutcomes, LaneOutcomes, LatencySketch

ALL_COUNT: Final = 32
"""So many latencies of a span are all taken."""

PEERS_S: Final = 60.0
"""After its last failure with a known instance a lane counts by instance for so long; the supervisor looks a minute
back."""

_GAMMA: Final = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)


class Account:
    """One lane's calls of one span. `ok` may be added to directly, as `Lanes.good` does."""

    __slots__ = (
        "_failed",
        "_failed_at",
        "_in_a_row",
        "_ok_at_failure",
        "_reasons",
        "_told_apart",
        "cost",
        "excused",
        "ok",
        "peers",
        "retries",
        "sketch",
    )

    def __init__(self) -> None:
        self.ok = 0
        self.excused = 0
        self.retries = 0
        self.cost = 0.0
        self.sketch = Sketch()
        self.peers: dict[str, list[int]] | None = None
        """Calls and failures by instance, while one of them has failed lately, or they are to be told apart."""
        self._told_apart = False
        self._failed = 0
        self._failed_at = 0.0
        self._in_a_row = 0
        self._ok_at_failure = -1
        self._reasons: dict[str, int] = {}

    def tell_apart(self, wanted: bool) -> None:  # noqa: FBT001 - a fact
        """Count by instance whether one has failed or not, for a lane whose keys decide who is called (ROUTE-10)."""
        self._told_apart = wanted
        if wanted and self.peers is None:
            self.peers = {}

    @property
    def empty(self) -> bool:
        """Whether nothing was counted since the last digest."""
        return not (self.ok or self._failed or self.excused or self.retries)

    def bad(self, now: float, reason: str, *, counts: bool | None, instance: str | None) -> None:
        """Count a failed attempt; `counts` says whether it is the lane's (None: whose it is is not known)."""
        if not counts:
            self.excused += 1
            return
        if self.ok != self._ok_at_failure:
            self._in_a_row = 0
        self._in_a_row += 1
        self._ok_at_failure = self.ok
        self._failed += 1
        self._reasons[reason] = self._reasons.get(reason, 0) + 1
        if instance is not None:
            self._failed_at = now
            if self.peers is None:
                self.peers = {}
            peer = self.peers.setdefault(instance, [0, 0])
            peer[0] += 1
            peer[1] += 1

    def answered(self, instance: str) -> None:
        """Count an instance's good answer, while `peers` are counted."""
        if self.peers is not None:
            self.peers.setdefault(instance, [0, 0])[0] += 1

    def take(self, capability: str, provider: str, *, now: float, slow_ms: float) -> LaneOutcomes:
        """Give what was counted, and begin anew."""
        in_a_row = self._in_a_row if self.ok == self._ok_at_failure else 0
        latency, slow = self._latency(slow_ms)
        told = LaneOutcomes(
            provider=provider,
            capability=capability,
            ok=self.ok,
            failed=self._failed,
            excused=self.excused,
            slow=min(slow, self.ok),
            failed_in_a_row=in_a_row,
            retries=self.retries,
            cost=max(0.0, self.cost),
            reasons=self._reasons,
            latency=latency,
            instances=self._instances(),
        )
        self.ok = self.excused = self.retries = self._failed = 0
        self.cost = 0.0
        self.sketch.clear()
        self._in_a_row, self._ok_at_failure = in_a_row, 0 if in_a_row else -1
        self._reasons = {}
        asked = self._told_apart or (self.peers is not None and now - self._failed_at < PEERS_S)
        self.peers = {} if asked else None
        return told

    def _latency(self, slow_ms: float) -> tuple[LatencySketch | None, int]:
        """Give the latencies, as many as there were calls where only some were taken; and how many were slow."""
        if not self.sketch.count:
            return None, 0
        form = self.sketch.to_map()
        times = max(1, round(self.ok / self.sketch.count))
        counts = [count * times for count in form["n"]]
        slow = sum(
            count for at, count in enumerate(counts, form["i"]) if LEAST_MS * _GAMMA ** (at - 1) >= slow_ms
        )
        return LatencySketch(e=form["e"], i=form["i"], n=tuple(counts)), slow

    def _instances(self) -> tuple[InstanceOutcomes, ...]:
        if not self.peers:
            return ()
        worst_first = sorted(self.peers.items(), key=lambda item: (-item[1][1], -item[1][0]))
        return tuple(
            InstanceOutcomes(instance=name, calls=calls, failed=failed)
            for name, (calls, failed) in worst_first[:MAX_INSTANCES]
        )
