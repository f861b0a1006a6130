"""How many retries a lane bears (RETRY-6), by example and against a naive list of what happened."""

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from reach.policy.retrybudget import RetryBudget


def spend(ours: RetryBudget, now: float, *, calls: int, wanted: int) -> int:
    """Make `calls`, then as many of the `wanted` retries as the budget lets through."""
    for _ in range(calls):
        ours.call(now)
    made = 0
    for _ in range(wanted):
        if ours.may_retry(now):
            ours.retried(now)
            made += 1
    return made


def test_a_lane_that_fails_everything_is_asked_a_fifth_more() -> None:
    """RETRY-6: at 100 calls a second, all failing, extra calls stay within 20 %."""
    ours = RetryBudget()
    made = sum(spend(ours, second, calls=100, wanted=100) for second in range(60))
    assert 1200 == made


def test_a_quiet_lane_may_retry_three_times_a_second() -> None:
    """RETRY-6: at least 3 retries a second are allowed, however few calls there are."""
    ours = RetryBudget()
    assert [3, 3, 3] == [spend(ours, second, calls=4, wanted=4) for second in range(3)]


def test_the_floor_is_a_seconds_not_a_spans() -> None:
    """RETRY-6: what a quiet lane did not use does not pile up."""
    assert 3 == spend(RetryBudget(), 100.0, calls=5, wanted=100)


def test_calls_of_the_span_pay_for_a_burst() -> None:
    """RETRY-6: after ten seconds of 50 calls that went well, 100 retries may follow at once, and no more."""
    ours = RetryBudget()
    for second in range(9):
        spend(ours, second, calls=50, wanted=0)
    assert 100 == spend(ours, 9.0, calls=50, wanted=500)


def test_what_is_older_than_the_span_pays_for_nothing() -> None:
    """RETRY-6: ten seconds later the calls count no more; the floor is left."""
    ours = RetryBudget()
    spend(ours, 0.0, calls=1000, wanted=0)
    assert 3 == spend(ours, 10.0, calls=0, wanted=100)


def test_a_long_silence_costs_nothing() -> None:
    """RETRY-6: after a day without a call the budget is as new."""
    ours = RetryBudget()
    spend(ours, 0.0, calls=1000, wanted=200)
    ours.call(86_400.0)
    assert (1, 0) == (ours.calls, ours.retries)


def test_a_clock_that_goes_back_is_counted_as_now() -> None:
    """A clock that goes back a little neither loses what was counted nor counts it twice."""
    ours = RetryBudget()
    for now in (100.5, 100.4, 99.9, 100.6):
        ours.call(now)
    assert 4 == ours.calls


def test_a_lane_may_forbid_retries() -> None:
    """RETRY-6: with neither share nor floor there is no retry at all."""
    assert 0 == spend(RetryBudget(share=0.0, floor_per_s=0), 5.0, calls=100, wanted=10)


@pytest.mark.parametrize("wrong", [{"share": -0.1}, {"share": 1.1}, {"floor_per_s": -1}, {"span_s": 0}])
def test_numbers_out_of_range_are_refused(wrong: dict) -> None:
    """A budget that makes no sense is refused when it is made."""
    with pytest.raises(ValueError, match="share is within 0 and 1"):
        RetryBudget(**wrong)


class AgainstAList(RuleBasedStateMachine):
    """The same calls and retries, kept in a list and counted anew at each question."""

    @initialize(
        start=st.floats(min_value=0.0, max_value=1e6),
        share=st.sampled_from([0.0, 0.2, 0.5]),
        floor_per_s=st.integers(min_value=0, max_value=4),
        span_s=st.integers(min_value=1, max_value=12),
    )
    def build(self, start: float, share: float, floor_per_s: int, span_s: int) -> None:
        self.ours = RetryBudget(share=share, floor_per_s=floor_per_s, span_s=span_s)
        self.now = start
        self.calls: list[int] = []
        self.retries: list[int] = []

    @property
    def second(self) -> int:
        return math.floor(self.now)

    def recent(self, happened: list[int]) -> int:
        return sum(second > self.second - len(self.ours._calls) for second in happened)

    @rule(step_s=st.floats(min_value=0.0, max_value=3.0) | st.floats(min_value=3.0, max_value=100.0))
    def wait(self, step_s: float) -> None:
        self.now += step_s

    @rule(n=st.integers(min_value=1, max_value=30))
    def call(self, n: int) -> None:
        for _ in range(n):
            self.ours.call(self.now)
            self.calls.append(self.second)

    @rule()
    def retry_if_allowed(self) -> None:
        share = self.recent(self.retries) + 1 <= self.recent(self.calls) * self.ours.share
        floor = self.retries.count(self.second) < self.ours.floor_per_s
        assert (share or floor) == self.ours.may_retry(self.now)
        if share or floor:
            self.ours.retried(self.now)
            self.retries.append(self.second)

    @invariant()
    def sums_are_those_of_the_list(self) -> None:
        if hasattr(self, "ours"):
            self.ours.may_retry(self.now)
            assert (self.recent(self.calls), self.recent(self.retries)) == (
                self.ours.calls,
                self.ours.retries,
            )


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
