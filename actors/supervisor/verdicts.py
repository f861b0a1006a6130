"""What everybody's outcomes say about each lane: breakers for all callers, and their probe permits (BREAK-3, BREAK-4).

The breaker is the one that callers have (`reach.policy.breaker`), fed with digests instead of calls: of each, the
failures that were followed by a success evenly among the successes, then those at its end, so that ten failures in a
row are ten in a row, and ten of a thousand calls are not. Of a busy lane a sample of the same proportions is fed. A
breaker's states that end by themselves are turned here, since nobody asks for a pass.

Only callers of ours can probe. A lane that nobody of theirs has called for a while closes without: plain NATS
clients alone could never bring it back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from reach.policy.breaker import Breaker
from reach.policy.breaker_settings import BreakerSettings
from reach.policy.breaker_state import State
from reach.policy.permits import Pass, Permit
from reach.policy.sketch import LEAST_MS, RELATIVE_ERROR, Sketch
from reach.policy.tier import Bar
from reach.wire.outcomes import LaneOutcomes
from reach.wire.registration import PermitAnswer
from reach.wire.route import Breaker as Told

MOST_FED: Final = 500
"""Calls of one digest that the breaker is fed with; a microsecond each."""

UNHEARD_S: Final = 60.0
"""A lane whose callers were silent for so long has none that could probe it."""

_GAMMA: Final = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)

Lane = tuple[str, str]
"""Provider and capability."""


@dataclass(slots=True)
class _Judged:
    breaker: Breaker
    slow_ms: int | None
    told_at: float = -math.inf


class Verdicts:
    """The breakers of all lanes. `chance` gives numbers uniform in [0, 1)."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._lanes: dict[Lane, _Judged] = {}
        self._permits: dict[str, tuple[Lane, Permit]] = {}
        self._number = 0

    def breaker(self, lane: Lane, *, slow_ms: int | None = None) -> Breaker:
        """Give a lane's breaker, made at first use."""
        judged = self._lanes.get(lane)
        if judged is None or (slow_ms is not None and judged.slow_ms != slow_ms and judged.breaker.closed):
            settings = BreakerSettings(slow_ms=slow_ms)
            judged = self._lanes[lane] = _Judged(Breaker(settings, leads=True), slow_ms)
        return judged.breaker

    def known(self, lane: Lane) -> Breaker | None:
        """Give a lane's breaker, where anything is known of it."""
        judged = self._lanes.get(lane)
        return None if judged is None else judged.breaker

    def bar(self, lane: Lane) -> Bar | None:
        """Say why the breaker keeps calls away; None when it does not."""
        judged = self._lanes.get(lane)
        if judged is None or judged.breaker.closed:
            return None
        return Bar.FORCED if judged.breaker.state is State.FORCED_OPEN else Bar.BREAKER

    def told(self, lane: Lane, *, now: float, at_ms: int) -> Told:
        """Give what the table says of a lane's breaker."""
        judged = self._lanes.get(lane)
        if judged is None:
            return Told()
        breaker = judged.breaker
        until = (
            at_ms + max(0, round((breaker.open_until - now) * 1000)) if breaker.state is State.OPEN else None
        )
        return Told(
            state=breaker.state.value,
            until=until,
            opened_in_a_row=breaker.opened_in_a_row,
            why=breaker.why or "",
        )

    def forget(self, lane: Lane) -> None:
        """Drop a lane that is gone."""
        self._lanes.pop(lane, None)

    # -- judging --------------------------------------------------------------------------------------

    def feed(self, told: LaneOutcomes, latencies: Sketch, *, span_s: float, now: float) -> bool:
        """Take one digest's part in; whether the lane's state is another now."""
        lane = (told.provider, told.capability)
        breaker = self.breaker(lane)
        judged = self._lanes[lane]
        judged.told_at = now
        before = breaker.state
        part = min(1.0, MOST_FED / max(1, told.counted))
        failed, good = _scaled(told.failed, part), _scaled(told.ok, part)
        last = min(failed, told.failed_in_a_row)
        early, given = failed - last, 0
        for number, latency_ms in enumerate(_spread(latencies, good), start=1):
            due = early * number // good
            self._fail(breaker, due - given, span_s, now)
            given = due
            breaker.record(now, failed=False, latency_ms=latency_ms, jitter=self._chance())
        self._fail(breaker, early - given + last, span_s, now)
        return breaker.state is not before

    def _fail(self, breaker: Breaker, count: int, span_s: float, now: float) -> None:
        for _ in range(count):
            breaker.record(now, failed=True, latency_ms=span_s * 1000, jitter=self._chance())

    def turn(self, now: float) -> list[Lane]:
        """Let states end that end by themselves; gives the lanes whose state is another now."""
        changed = []
        for lane, judged in self._lanes.items():
            breaker = judged.breaker
            if breaker.closed or breaker.state is State.FORCED_OPEN:
                continue
            before = breaker.state
            if before is State.OPEN and now < breaker.open_until:
                continue
            if before is State.OPEN and now - judged.told_at >= UNHEARD_S:
                breaker.force_close(now)
            else:
                breaker.admit(now, expires_at=-math.inf)  # A permit that has ended takes nobody's place.
            if breaker.state is not before:
                changed.append(lane)
        for number in [key for key, (_, permit) in self._permits.items() if permit.round.ends_at <= now]:
            del self._permits[number]
        return changed

    # -- probing --------------------------------------------------------------------------------------

    def permit(self, lane: Lane, *, now: float, at_ms: int, expires_at_ms: int) -> PermitAnswer:
        """Answer a caller that wants to probe. A lane that is closed needs no permit: it is told so."""
        judged = self._lanes.get(lane)
        if judged is None:
            return PermitAnswer()
        judged.told_at = now  # Somebody of ours calls it.
        deadline = now + (expires_at_ms - at_ms) / 1000
        verdict = judged.breaker.admit(now, expires_at=deadline)
        told = self.told(lane, now=now, at_ms=at_ms)
        if isinstance(verdict, Pass):
            return PermitAnswer(breaker=told)
        if isinstance(verdict, Permit):
            self._number += 1
            number = f"p{self._number}"
            self._permits[number] = (lane, verdict)
            left_ms = max(0, round((verdict.expires_at - now) * 1000))
            return PermitAnswer(permit=number, expires_at=at_ms + left_ms, breaker=told)
        wait = None if verdict.retry_after_s is None else round(verdict.retry_after_s * 1000)
        return PermitAnswer(retry_after_ms=wait, breaker=told)

    def probed(self, lane: Lane, number: str, *, failed: bool | None, latency_ms: float, now: float) -> bool:
        """Take a probe's outcome in, once; whether the lane's state is another now."""
        found = self._permits.get(number)
        judged = self._lanes.get(lane)
        if found is None or found[0] != lane or judged is None:
            return False
        del self._permits[number]
        judged.told_at = now
        before = judged.breaker.state
        judged.breaker.record(
            now, failed=failed, latency_ms=latency_ms, jitter=self._chance(), permit=found[1]
        )
        return judged.breaker.state is not before

    # -- taking over ----------------------------------------------------------------------------------

    def adopt(self, lane: Lane, told: Told, *, now: float, at_ms: int) -> None:
        """Go on from what the table says of a lane's breaker."""
        if told.state in {"closed", "forced_closed"}:
            return
        breaker = self.breaker(lane)
        self._lanes[lane].told_at = now
        if told.state == "forced_open":
            breaker.force_open(why=told.why or "an operator opened it")
        elif told.state == "disabled":
            breaker.disable()
        else:
            left_s = 0.0 if told.until is None else max(0.0, (told.until - at_ms) / 1000)
            breaker.trip(now, why=told.why, jitter=self._chance(), until=now + left_s)
            breaker.opened_in_a_row = max(1, told.opened_in_a_row)


def _scaled(count: int, part: float) -> int:
    """A few must not become none."""
    return math.ceil(count * part) if part < 1 else count


def _spread(latencies: Sketch, count: int) -> Iterator[float]:
    """Give `count` latencies in milliseconds that are spread as the sketch's are; 0 where it has none."""
    if not latencies.count:
        yield from (0.0 for _ in range(count))
        return
    form = latencies.to_map()
    first, counts = form["i"], form["n"]
    given, seen = 0, 0
    for place, held in enumerate(counts):
        seen += held
        wanted = seen * count // latencies.count
        middle = LEAST_MS * _GAMMA ** (first + place) * 2 / (1 + _GAMMA)
        while given < wanted:
            given += 1
            yield middle
