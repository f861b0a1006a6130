"""Whether a failed attempt is followed by another (RETRY-1 … RETRY-7, ERR-2), as table and properties."""

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
    backoff_s,
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


# Each row: reason, executed, then what follows for a call that is safe to repeat (idempotent or keyed) and
# for one that is not. `None` as executed is the table's own value.
TABLE = [
    # Nothing was done: always safe, for writes too; elsewhere first.
    (Reason.NO_RESPONDERS, None, ELSEWHERE, ELSEWHERE),
    (Reason.CONNECT, None, ELSEWHERE, ELSEWHERE),
    (Reason.DNS, None, ELSEWHERE, ELSEWHERE),
    (Reason.BREAKER_OPEN, None, ELSEWHERE, ELSEWHERE),
    (Reason.OVERLOADED, None, ELSEWHERE, ELSEWHERE),
    (Reason.REMOTE_429, None, ELSEWHERE, ELSEWHERE),
    (Reason.DEADLINE, NO, ELSEWHERE, ELSEWHERE),
    (Reason.INSTANCE_GONE, NO, ELSEWHERE, ELSEWHERE),
    (Reason.HANDLER_ERROR, NO, ELSEWHERE, ELSEWHERE),  # the handler raised NotExecuted
    # … and the instance is not to blame: it may be the same one again.
    (Reason.STALE, None, ANYWHERE, ANYWHERE),
    (Reason.DISCONNECTED, None, ANYWHERE, ANYWHERE),
    # Nothing was done, but the same call would be refused again.
    (Reason.SCHEMA, None, GiveUp(Why.HOPELESS), GiveUp(Why.HOPELESS)),
    (Reason.TOO_LARGE, None, GiveUp(Why.HOPELESS), GiveUp(Why.HOPELESS)),
    (Reason.KEY_REUSED, None, GiveUp(Why.HOPELESS), GiveUp(Why.HOPELESS)),
    (Reason.NOT_FOUND, None, GiveUp(Why.HOPELESS), GiveUp(Why.HOPELESS)),
    (Reason.AUTH_DENIED, None, GiveUp(Why.HOPELESS), GiveUp(Why.HOPELESS)),
    (Reason.FORBIDDEN, None, GiveUp(Why.HOPELESS), GiveUp(Why.HOPELESS)),
    (Reason.QUOTA_EXCEEDED, None, GiveUp(Why.HOPELESS), GiveUp(Why.HOPELESS)),
    (Reason.BUDGET_EXHAUSTED, None, GiveUp(Why.HOPELESS), GiveUp(Why.HOPELESS)),
    (Reason.TLS, None, GiveUp(Why.HOPELESS), GiveUp(Why.HOPELESS)),
    # It may have been done and nobody told us: only what is safe to repeat is repeated.
    (Reason.DEADLINE, None, ELSEWHERE, Unknown(Reason.DEADLINE)),
    (Reason.FIRST_BYTE, None, ELSEWHERE, Unknown(Reason.FIRST_BYTE)),
    (Reason.INSTANCE_GONE, None, ELSEWHERE, Unknown(Reason.INSTANCE_GONE)),
    (Reason.DISCONNECTED, MAYBE, ANYWHERE, Unknown(Reason.DISCONNECTED)),
    (Reason.WORKER_LOST, None, GiveUp(Why.HOPELESS), Unknown(Reason.WORKER_LOST)),
    (Reason.UNMAPPED, None, GiveUp(Why.HOPELESS), Unknown(Reason.UNMAPPED)),
    # It may have been done, and the far end's own word is kept.
    (Reason.OUTCOME_UNKNOWN, None, GiveUp(Why.HOPELESS), GiveUp(Why.NOT_REPEATABLE)),
    (Reason.REMOTE_5XX, None, GiveUp(Why.HOPELESS), GiveUp(Why.NOT_REPEATABLE)),
    (Reason.NON_JSON_BODY, None, GiveUp(Why.HOPELESS), GiveUp(Why.NOT_REPEATABLE)),
    (Reason.STREAM_CUT, None, GiveUp(Why.HOPELESS), GiveUp(Why.NOT_REPEATABLE)),
    (Reason.IDLE_STREAM, None, GiveUp(Why.HOPELESS), GiveUp(Why.NOT_REPEATABLE)),
    (Reason.IN_PROGRESS, None, GiveUp(Why.HOPELESS), GiveUp(Why.NOT_REPEATABLE)),
    # It was done.
    (Reason.REMOTE_4XX, None, GiveUp(Why.EXECUTED), GiveUp(Why.EXECUTED)),
    (Reason.HANDLER_ERROR, None, GiveUp(Why.EXECUTED), GiveUp(Why.EXECUTED)),
    (Reason.BAD_RESULT, None, GiveUp(Why.EXECUTED), GiveUp(Why.EXECUTED)),
    # The caller left.
    (Reason.CANCELLED, None, GiveUp(Why.CALLER_LEFT), GiveUp(Why.CALLER_LEFT)),
    (Reason.CANCELLED, NO, GiveUp(Why.CALLER_LEFT), GiveUp(Why.CALLER_LEFT)),
]


@pytest.mark.parametrize(("reason", "executed", "safe", "unsafe"), TABLE)
def test_table(reason: Reason, executed: Executed | None, safe: Decision, unsafe: Decision) -> None:
    """RETRY-1, RETRY-2: what is known about execution decides, and whether repeating would be safe."""
    assert safe == _decide(reason, executed, idempotent=True)
    assert safe == _decide(reason, executed, keyed=True)
    assert unsafe == _decide(reason, executed)


def test_table_has_every_reason() -> None:
    """RETRY-1: no reason is decided by accident."""
    assert set(Reason) == {reason for reason, *_ in TABLE}


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
    assert Retry(2.0, elsewhere=True) == _decide(Reason.REMOTE_429, retry_after_ms=2_000)
    assert Retry(0.1, elsewhere=True) == _decide(Reason.OVERLOADED, retry_after_ms=5)
    assert GiveUp(Why.TIME) == _decide(Reason.REMOTE_429, retry_after_ms=9_990)


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


@given(
    retry=st.integers(min_value=1, max_value=10),
    jitter=st.floats(min_value=0.0, max_value=1.0, exclude_max=True),
    base_s=st.floats(min_value=0.001, max_value=10.0),
)
def test_backoff_bounds(retry: int, jitter: float, base_s: float) -> None:
    """RETRY-4: base × 2^(n-1) × U(0.5, 1.5)."""
    plain_s = base_s * 2 ** (retry - 1)
    assert 0.5 * plain_s <= backoff_s(retry, jitter=jitter, base_s=base_s) <= 1.5 * plain_s


def test_codes_do_not_matter() -> None:
    """A far end's NOT_FOUND was executed; ours was not; neither is repeated."""
    assert GiveUp(Why.EXECUTED) == _decide(Reason.NOT_FOUND, code=Code.UPSTREAM_4XX, idempotent=True)
    assert GiveUp(Why.HOPELESS) == _decide(Reason.NOT_FOUND, code=Code.SCHEMA_INVALID, idempotent=True)
