"""Whether a failed attempt is followed by another (RETRY-1 … RETRY-7, ERR-2): bounds, waits and properties.

The table itself is in test_retry_table.py.
"""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.faults import FAULTS, Code, Executed, Reason
from reach.policy.retry import (
    LEAST_ATTEMPT_S,
    Decision,
    GiveUp,
    Retry,
    Unknown,
    Why,
    auto_base_s,
    decide,
    timeout_may_retry,
)
from reach.wire.reply import Failure

NO, MAYBE, YES = Executed.NO, Executed.MAYBE, Executed.YES
PLAIN: dict[str, Any] = {
    "idempotent": False,
    "keyed": False,
    "attempt": 1,
    "left_s": 10.0,
    "streaming_started": False,
    "budget_ok": True,
    "jitter": 0.5,  # a factor of exactly 1
    "inner_retried": False,
}
ELSEWHERE = Retry(0.1, elsewhere=True)
ANYWHERE = Retry(0.1, elsewhere=False)


def _decide(reason: Reason, executed: Executed | None = None, **facts: Any) -> Decision:
    failure = Failure.of(
        reason,
        executed=executed,
        code=facts.pop("code", None),
        retry_after_ms=facts.pop("retry_after_ms", None),
    )
    return decide(failure, **(PLAIN | facts))


def _delay(decision: Decision) -> float:
    assert isinstance(decision, Retry)
    return decision.delay_s


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"attempt": 2}, Why.ATTEMPTS),
        ({"attempt": 3}, Why.ATTEMPTS),
        ({"budget_ok": False}, Why.BUDGET),
        ({"streaming_started": True}, Why.STREAM_BEGAN),
        ({"inner_retried": True}, Why.INNER_RETRIED),
        ({"left_s": 0.03}, Why.TIME),
        ({"left_s": 0.0}, Why.TIME),
    ],
)
def test_bounds(facts: dict[str, Any], why: Why) -> None:
    """RETRY-3, RETRY-4, RETRY-6, RETRY-7: each bound stops a retry that would have been safe."""
    assert GiveUp(why) == _decide(Reason.NO_RESPONDERS, **facts)


def test_more_attempts_may_be_allowed() -> None:
    """RETRY-4: the wait doubles with each retry."""
    waits = [_decide(Reason.CONNECT, attempt=n, max_attempts=4) for n in (1, 2, 3, 4)]
    assert [
        Retry(0.1, elsewhere=True),
        Retry(0.2, elsewhere=True),
        Retry(0.4, elsewhere=True),
        GiveUp(Why.ATTEMPTS),
    ] == waits


def test_flagged_5xx_is_repeated_when_safe() -> None:
    """ERR-2: 502, 503, 504 and a body that says so are retried, where repeating is safe."""
    assert ELSEWHERE == _decide(Reason.REMOTE_5XX, idempotent=True, flagged=True)
    assert GiveUp(Why.NOT_REPEATABLE) == _decide(Reason.REMOTE_5XX, flagged=True)


def test_retry_after_is_obeyed_when_it_fits() -> None:
    """ERR-2, RETRY-4: a wait that the far end asks for is kept, or there is no retry at all."""
    assert pytest.approx(2.1) == _delay(_decide(Reason.REMOTE_429, retry_after_ms=2_000))
    assert pytest.approx(0.105) == _delay(_decide(Reason.OVERLOADED, retry_after_ms=5))
    assert GiveUp(Why.TIME) == _decide(Reason.REMOTE_429, retry_after_ms=9_990)
    assert GiveUp(Why.TIME) == _decide(Reason.REMOTE_429, retry_after_ms=60_000)


@pytest.mark.parametrize("facts", [{}, {"retry_after_ms": 100}, {"retry_after_ms": 5_000}])
def test_a_thousand_refused_together_come_back_apart(facts: dict[str, Any]) -> None:
    """RETRY-4: the waits of callers that failed at once are spread over 0.5 to 1.5 of the base, evenly."""
    waits = sorted(_delay(_decide(Reason.OVERLOADED, jitter=n / 1000, **facts)) for n in range(1000))
    asked_s = facts.get("retry_after_ms", 0) / 1000
    assert pytest.approx([asked_s + 0.05, asked_s + 0.1499]) == [waits[0], waits[-1]]
    assert max(later - earlier for earlier, later in pairwise(waits)) == pytest.approx(0.0001)


def test_the_spread_survives_where_time_is_short() -> None:
    """RETRY-4: a wait that is cut to half of the time left is still not the same for everybody."""
    waits = [_delay(_decide(Reason.CONNECT, jitter=jitter, left_s=0.15)) for jitter in (0.0, 0.5, 0.999)]
    assert pytest.approx([0.025, 0.05, 0.075], abs=0.001) == waits


def test_a_worker_lost_before_it_began_is_replaced() -> None:
    """RETRY-1: `executed=no` is safe for writes too; that the worker died is not the call's fault."""
    assert ELSEWHERE == _decide(Reason.WORKER_LOST, NO)


def test_an_automatic_base_follows_the_lane() -> None:
    """RETRY-4: `auto` is twice the P99 that was seen."""
    assert 0.5 == auto_base_s(250.0)


@pytest.mark.parametrize("p99_ms", [-1.0, float("nan"), float("inf")])
def test_an_automatic_base_needs_a_latency(p99_ms: float) -> None:
    """What is no latency is refused by name."""
    with pytest.raises(ValueError, match="p99_ms"):
        auto_base_s(p99_ms)


def test_open_breaker_does_not_hold_back_another_lane() -> None:
    """RETRY-1: `retry_after_ms` of an open breaker is about that lane; another one is tried at once."""
    assert ELSEWHERE == _decide(Reason.BREAKER_OPEN, retry_after_ms=30_000)


def test_a_write_on_a_dead_instance_is_unknown_even_without_time_or_attempts() -> None:
    """RETRY-2: that the outcome is unknown is said whatever else would have stopped a retry."""
    for facts in ({"attempt": 2}, {"left_s": 0.0}, {"budget_ok": False}, {"inner_retried": True}):
        assert Unknown(Reason.INSTANCE_GONE) == _decide(Reason.INSTANCE_GONE, **facts)


@pytest.mark.parametrize(
    ("idempotent", "keyed", "attempt", "expected"),
    [(True, False, 1, True), (False, True, 1, True), (False, False, 1, False), (True, True, 2, False)],
)
def test_when_a_timeout_may_be_retried(idempotent: bool, keyed: bool, attempt: int, expected: bool) -> None:
    """CALL-3: time is kept back only for an attempt that could follow."""
    assert expected == timeout_may_retry(idempotent=idempotent, keyed=keyed, attempt=attempt)


def test_words_for_the_record() -> None:
    """SEE-3: each decision has one word that the record keeps."""
    decisions = (ELSEWHERE, ANYWHERE, GiveUp(Why.BUDGET), Unknown(Reason.DEADLINE))
    assert ["retry_elsewhere", "retry", "give_up:retry_budget", "unknown:DEADLINE"] == [
        d.word for d in decisions
    ]


FAILURES = st.builds(
    lambda pair, executed, after: Failure.of(pair[1], code=pair[0], executed=executed, retry_after_ms=after),
    st.sampled_from(sorted(FAULTS)),
    st.sampled_from(Executed),
    st.none() | st.integers(min_value=0, max_value=60_000),
)
FACTS = st.fixed_dictionaries(
    {
        "idempotent": st.booleans(),
        "keyed": st.booleans(),
        "attempt": st.integers(min_value=1, max_value=4),
        "left_s": st.floats(min_value=-1.0, max_value=60.0),
        "streaming_started": st.booleans(),
        "budget_ok": st.booleans(),
        "jitter": st.floats(min_value=0.0, max_value=1.0, exclude_max=True),
        "inner_retried": st.booleans(),
        "max_attempts": st.integers(min_value=1, max_value=4),
        "flagged": st.booleans(),
    }
)


@given(failure=FAILURES, facts=FACTS)
def test_never_twice(failure: Failure, facts: dict[str, Any]) -> None:
    """RETRY-1: what was done is never repeated; what may have been done only if that is declared safe."""
    if isinstance(decide(failure, **facts), Retry):
        assert failure.executed is not YES
        assert failure.executed is NO or facts["idempotent"] or facts["keyed"]


@given(failure=FAILURES, facts=FACTS)
def test_a_retry_keeps_every_bound(failure: Failure, facts: dict[str, Any]) -> None:
    """RETRY-3, RETRY-4, RETRY-6, RETRY-7: attempts, time, budget, streams and inner retries all bound it."""
    decision = decide(failure, **facts)
    if isinstance(decision, Retry):
        assert facts["attempt"] < facts["max_attempts"]
        assert facts["budget_ok"]
        assert not facts["streaming_started"]
        assert not facts["inner_retried"]
        assert 0.0 <= decision.delay_s <= facts["left_s"] - LEAST_ATTEMPT_S


@given(failure=FAILURES, facts=FACTS)
def test_unknown_only_for_writes_that_may_have_happened(failure: Failure, facts: dict[str, Any]) -> None:
    """RETRY-2: an unknown outcome is told only where it is unknown and repeating would be unsafe."""
    decision = decide(failure, **facts)
    if isinstance(decision, Unknown):
        assert failure.executed is MAYBE
        assert (False, False) == (facts["idempotent"], facts["keyed"])
        assert failure.reason is decision.cause


@given(failure=FAILURES, facts=FACTS)
def test_the_wires_advice_is_not_read(failure: Failure, facts: dict[str, Any]) -> None:
    """Design, 3: `retryable` is for whoever receives the reply; the decision does not depend on it."""
    before = decide(failure, **facts)
    failure.retryable = not failure.retryable
    assert before == decide(failure, **facts)


@given(failure=FAILURES, facts=FACTS)
def test_a_wait_that_is_asked_for_is_never_shortened(failure: Failure, facts: dict[str, Any]) -> None:
    """ERR-2: nobody is asked again before the time that was named; an open breaker's is about its lane alone."""
    decision = decide(failure, **facts)
    if isinstance(decision, Retry) and failure.reason is not Reason.BREAKER_OPEN:
        assert decision.delay_s >= (failure.retry_after_ms or 0) / 1000


def test_codes_do_not_matter() -> None:
    """A far end's NOT_FOUND was executed; ours was not; neither is repeated."""
    assert GiveUp(Why.EXECUTED) == _decide(Reason.NOT_FOUND, code=Code.UPSTREAM_4XX, idempotent=True)
    assert GiveUp(Why.HOPELESS) == _decide(Reason.NOT_FOUND, code=Code.SCHEMA_INVALID, idempotent=True)
