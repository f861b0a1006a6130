"""Whether calls may go to a lane: open when its far end fails or has become slow, probed until it is well.

The words are Resilience4j's. A breaker judges the outcomes that its owner hands it, over a window of a minute
and over the last seconds alone; once open it refuses until its wait is over, then lets a few probes through,
and closes or opens again by what became of them. It has no timers: every state that ends by itself is looked
at when the next call asks. Whether a failure is the lane's at all is decided by `reach.policy.blame`, and what
"slow" is by `reach.policy.pace`.

Two rules that are easily forgotten. A call that began before the breaker last closed is not judged: those that
hung when it opened would open it again when they time out. And the row of openings, by which the wait grows,
ends only when the lane stayed closed for a whole window, so that a lane that fails half of its calls does not
get away with one lucky probe every ten seconds.

The numbers, and where they are from, are in `reach.policy.breaker_settings`.
"""

from __future__ import annotations

import math
from typing import Final

from reach.policy.breaker_settings import BreakerSettings
from reach.policy.breaker_state import MOVES, State
from reach.policy.pace import Pace
from reach.policy.permits import PASS, Permit, Refused, Round, Verdict
from reach.policy.window import Totals, Window

_ALL_COUNT: Final = 200
"""So many latencies of an epoch are all taken; of those that follow every eighth is."""

_SOON_S: Final = 0.1
"""What a call is told to wait while others probe: most answers are there by then."""


class Breaker:
    """The breaker of one lane, for one caller; with `leads=True` the supervisor's, for all callers.

    A leader gives `permitted_calls_in_half_open` probes to everybody together; a caller without one gives
    itself `local_permits` (BREAK-3). `core` lanes bear more failures before they open (BREAK-1).

    `closed` says that no call needs to ask: while it is True, `admit` answers `PASS`. `state`, `why` (a
    sentence with the numbers, None while calls pass), `open_until` (seconds, on the caller's clock),
    `opened_in_a_row` and `slow_ms` (over which a call is slow; infinite while nobody knows) are for reading.
    """

    __slots__ = (
        "_failed_in_a_row",
        "_judged_since",
        "_judging",
        "_leads",
        "_pace",
        "_round",
        "_settings",
        "_threshold",
        "_window",
        "closed",
        "open_until",
        "opened_in_a_row",
        "slow_ms",
        "state",
        "why",
    )

    def __init__(
        self, settings: BreakerSettings | None = None, *, core: bool = False, leads: bool = False
    ) -> None:
        self._settings = settings = settings or BreakerSettings()
        self._leads = leads
        self._threshold = settings.core_failure_rate_threshold if core else settings.failure_rate_threshold
        self._window = Window(span_s=settings.window_s)
        self._pace = Pace()
        self._failed_in_a_row = 0
        self._judged_since = -math.inf
        self._judging = True
        self._round: Round | None = None
        self.state = State.CLOSED
        self.closed = True
        self.why: str | None = None
        self.open_until = -math.inf
        self.opened_in_a_row = 0
        self.slow_ms = math.inf if settings.slow_ms is None else settings.slow_ms

    @property
    def usual_p99_ms(self) -> float | None:
        """The lane's P99 in good times; None until it is known."""
        return self._pace.p99_ms

    @property
    def usual_p95_ms(self) -> float | None:
        """The lane's P95 in good times; None until it is known."""
        return self._pace.p95_ms

    @property
    def patience_ms(self) -> float:
        """How long a caller must have waited for its timeout to speak against the lane, in milliseconds.

        The lane's median in good times; until that is known, the floor of what may count as slow.
        """
        usual_ms = self._pace.median_ms
        return self._settings.slow_floor_ms if usual_ms is None else usual_ms

    # -------------------------------------------------------------------------------- asking

    def admit(
        self, now: float, *, priority: str = "normal", expires_at: float = math.inf, last_usable: bool = False
    ) -> Verdict:
        """Say whether a call may go to the lane now.

        Args:
            now: Seconds on a clock that only grows, as everywhere here.
            priority: The call's; see `last_usable`.
            expires_at: The call's deadline on the same clock: when a permit given to it ends by itself.
            last_usable: No other lane is left. A lane that opened by itself then still takes `core` calls
                (BREAK-5); what becomes of them is not judged.
        """
        if self.closed:
            return PASS
        self._turn(now)
        return self._answer(now, priority=priority, expires_at=expires_at, last_usable=last_usable)

    def _turn(self, now: float) -> None:
        """Leave a state that has ended by itself."""
        if self._round is not None and now >= self._round.ends_at:
            self._end_round(now, self._round)
        if self.state is State.OPEN and now >= self.open_until:
            self._begin_round(now)

    def _answer(self, now: float, *, priority: str, expires_at: float, last_usable: bool) -> Verdict:
        if self.closed:
            return PASS
        if self._round is not None:
            permit = self._round.permit(now, expires_at=expires_at)
            if permit is not None:
                return permit
        if last_usable and priority == "core" and self.state is not State.FORCED_OPEN:
            return PASS
        return Refused(self._retry_after_s(now), self.why or "")

    def _retry_after_s(self, now: float) -> float | None:
        if self._round is not None:
            return max(0.0, min(_SOON_S, self._round.ends_at - now))
        return max(0.0, self.open_until - now) if self.state is State.OPEN else None

    # -------------------------------------------------------------------------------- judging

    def record(
        self,
        now: float,
        *,
        failed: bool | None,
        latency_ms: float,
        jitter: float,
        permit: Permit | None = None,
    ) -> None:
        """Take in the outcome of a call that was let through.

        Args:
            now: When it ended.
            failed: What `counts_against_lane` says; None is not judged, and only gives its permit back.
            latency_ms: How long it took.
            jitter: A random number, uniform in [0, 1), for the case that this opens the breaker.
            permit: What `admit` gave for it. Only its first outcome counts.
        """
        if permit is not None:
            self._record_probe(now, permit, failed=failed, latency_ms=latency_ms, jitter=jitter)
            return
        if failed is None or not self._judging:
            return
        window = self._window
        if failed:
            if now - latency_ms / 1000 < self._judged_since:
                return
            window.record(now, failed=True, slow=False)
            self._failed_in_a_row += 1
            self._judge(now, jitter, bad=True)
            return
        self._failed_in_a_row = 0
        if latency_ms > self.slow_ms:
            if now - latency_ms / 1000 < self._judged_since:
                return
            window.record(now, failed=False, slow=True)
            self._judge(now, jitter, bad=True)
        else:
            window.record(now, failed=False, slow=False)
            if window.failures or window.slow:  # Good calls complete a minimum, too.
                self._judge(now, jitter, bad=False)
        pace = self._pace
        sketch = pace.sketch
        sketch.add(latency_ms)
        if sketch.count >= pace.due:
            self._learn(now)

    def good(self, now: float, latency_ms: float) -> None:
        """Take in a success that came without a permit: `record` for the usual case, which is nearly every call."""
        window = self._window
        if not self._judging or latency_ms > self.slow_ms or window.failures or window.slow:
            self.record(now, failed=False, latency_ms=latency_ms, jitter=now % 1.0)
            return
        self._failed_in_a_row = 0
        window.record_good(now)
        sketch = self._pace.sketch
        # Of many calls every eighth tells the pace as well.
        if sketch.count < _ALL_COUNT or not window.calls & 7:
            sketch.add(latency_ms)
            if sketch.count >= self._pace.due:
                self._learn(now)

    def _judge(self, now: float, jitter: float, *, bad: bool) -> None:
        settings, window = self._settings, self._window
        why = None
        if self._failed_in_a_row >= settings.consecutive_failures:
            why = f"{self._failed_in_a_row} calls in a row failed"
        elif window.calls >= settings.minimum_calls:
            why = self._excess(window.calls, window.failures, window.slow, settings.window_s)
        if why is None and bad and window.calls >= settings.fast_minimum_calls:
            why = self._recent_excess(window.recent(now, settings.fast_window_s))
        if why is not None:
            self._open(now, why, jitter)

    def _recent_excess(self, recent: Totals) -> str | None:
        settings = self._settings
        if recent.calls < settings.fast_minimum_calls:
            return None
        return self._excess(recent.calls, recent.failures, recent.slow, settings.fast_window_s)

    def _excess(self, calls: int, failures: int, slow: int, span_s: float) -> str | None:
        """Say which threshold these counts are over, or None."""
        settings = self._settings
        if failures > calls * self._threshold:
            return (
                f"{failures} of {calls} calls of the last {span_s:g} s failed "
                f"({failures / calls:.0%}; more than {self._threshold:.0%} opens)"
            )
        if not slow:
            return None
        answered = calls - failures
        found = (
            f"{slow} of {answered} answers of the last {span_s:g} s took longer than {self.slow_ms:.0f} ms"
        )
        if slow > answered * settings.slow_call_rate_threshold:
            return f"{found} ({slow / answered:.0%}; more than {settings.slow_call_rate_threshold:.0%} opens)"
        # The P99 is over a bound when more than a hundredth of all is; see `p99_sigmas` for the second term.
        expected = answered / 100
        if (
            answered >= settings.p99_minimum_calls
            and slow > expected
            and slow > expected + settings.p99_sigmas * math.sqrt(expected)
        ):
            return f"{found}: their P99 is over that bound, too"
        return None

    def _learn(self, now: float) -> None:
        window, settings = self._window, self._settings
        suspect = window.failures > window.calls * self._threshold / 2 or window.slow * 100 > window.calls
        if self._pace.learn(now, suspect=suspect) and settings.slow_ms is None:
            self._set_slow()

    def _set_slow(self) -> None:
        settings, usual_ms = self._settings, self._pace.p99_ms
        if usual_ms is not None:
            self.slow_ms = max(settings.slow_floor_ms, usual_ms * settings.slow_factor)

    # -------------------------------------------------------------------------------- probing

    def _record_probe(
        self, now: float, permit: Permit, *, failed: bool | None, latency_ms: float, jitter: float
    ) -> None:
        tries = self._round
        if tries is None or not tries.give_back(permit) or failed is None:
            return
        tries.count(bad=failed or (latency_ms > self.slow_ms and not self._is_new_pace(latency_ms)))
        if tries.bad > tries.quota * self._threshold:
            self._open(now, f"{tries.bad} of {tries.judged} probe calls failed or were slow", jitter)
        elif tries.judged >= tries.quota:
            self._close(now)

    def _is_new_pace(self, latency_ms: float) -> bool:
        """Whether a slow success is taken for the lane's new pace, so that slower does not mean shut for ever."""
        settings = self._settings
        if settings.slow_ms is not None or self.opened_in_a_row < settings.new_pace_after:
            return False
        self._pace.accept(latency_ms)
        self._set_slow()
        return True

    def _begin_round(self, now: float) -> None:
        settings = self._settings
        self._move(State.HALF_OPEN)
        self._round = Round(
            quota=settings.permitted_calls_in_half_open if self._leads else settings.local_permits,
            ends_at=now + settings.half_open_timeout_s,
        )

    def _end_round(self, now: float, tries: Round) -> None:
        """Decide by the probes that there were; without any, wait once more, as long as the last time.

        The wait counts from when the round ended, not from when the next call happens to ask.
        """
        if tries.judged and tries.bad <= tries.judged * self._threshold:
            self._close(now)
            return
        if tries.judged:
            self.opened_in_a_row += 1
        self._move(State.OPEN)
        self.why = f"probing ended after {tries.judged} of {tries.quota} probe calls, {tries.bad} of them bad"
        # Without jitter: the rounds of those who opened together have been apart since their first wait.
        self.open_until = tries.ends_at + self._settings.wait_s(self.opened_in_a_row, jitter=0.5)

    def probed(self, now: float, *, ok: bool) -> None:
        """Take in what the prober found: success ends the wait early, anything else changes nothing."""
        if ok and self.state is State.OPEN:
            self._begin_round(now)

    # -------------------------------------------------------------------------------- moving

    def trip(self, now: float, *, why: str, jitter: float, until: float | None = None) -> None:
        """Open on somebody else's finding, such as the supervisor's from everybody's outcomes (BREAK-4).

        Stays open until `until`, else as long as an opening of its own would last. If it is open already, the
        later end holds (BREAK-3); an operator's word holds against both.
        """
        if self.state is State.OPEN:
            if until is None:
                until = now + self._settings.wait_s(self.opened_in_a_row, jitter=jitter)
            self.open_until = max(self.open_until, until)
        elif self.state in (State.CLOSED, State.HALF_OPEN):
            self._open(now, why, jitter)
            if until is not None:
                self.open_until = until

    def force_open(self, *, why: str = "an operator opened it") -> None:
        """Refuse everything until `force_close`, `enable` or `disable`."""
        if self.state is not State.FORCED_OPEN:
            self._move(State.FORCED_OPEN)
        self.why = why

    def force_close(self, now: float) -> None:
        """Let calls pass from now on, and judge them anew: what was before is forgotten."""
        if self.state is State.CLOSED:
            self._restart(now)
        else:
            self._close(now)
        self.opened_in_a_row = 0

    def disable(self) -> None:
        """Let calls pass and judge none, until `enable`."""
        if self.state is not State.DISABLED:
            self._move(State.DISABLED)
        self.why = None

    def enable(self, now: float) -> None:
        """End what an operator said (`force_open`, `disable`): judge calls again, from now on."""
        if self.state in (State.FORCED_OPEN, State.DISABLED):
            self.force_close(now)

    def rest(self, now: float) -> bool:
        """Give back the memory of what is too old to matter; True if no call was judged in the last window."""
        self._window.roll(now)
        return self._window.calls == 0

    def _open(self, now: float, why: str, jitter: float) -> None:
        if now - self._judged_since >= self._settings.window_s and self.state is State.CLOSED:
            self.opened_in_a_row = 0
        self.opened_in_a_row += 1
        self._move(State.OPEN)
        self.why = why
        self.open_until = now + self._settings.wait_s(self.opened_in_a_row, jitter=jitter)
        self._pace.discard()

    def _close(self, now: float) -> None:
        self._move(State.CLOSED)
        self._restart(now)

    def _restart(self, now: float) -> None:
        self._window.clear()
        self._failed_in_a_row = 0
        self._judged_since = now
        self.why = None

    def _move(self, to: State) -> None:
        if to not in MOVES[self.state]:
            may = ", ".join(sorted(MOVES[self.state]))
            raise RuntimeError(f"a breaker that is {self.state} becomes {may}, not {to}")
        self.state = to
        self._round = None
        self._judging = to is State.CLOSED
        self.closed = to in (State.CLOSED, State.DISABLED)
