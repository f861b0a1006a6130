"""Which failures speak against a lane: one row a reason, none missing (BREAK-2)."""

import pytest

from reach.faults import FAULTS, Code, Executed, Reason
from reach.policy.blame import counts_against_lane
from reach.wire.reply import Failure

COUNTS = {
    # Never reached it, because of us.
    Reason.DISCONNECTED: None,
    Reason.STALE: None,
    Reason.BREAKER_OPEN: None,
    Reason.CANCELLED: None,
    Reason.BUDGET_EXHAUSTED: None,
    Reason.QUOTA_EXCEEDED: None,
    # Nobody there: routing's business, found out at once.
    Reason.NO_RESPONDERS: None,
    # It refused, and was right.
    Reason.OVERLOADED: None,
    Reason.REMOTE_429: None,
    Reason.SCHEMA: None,
    Reason.TOO_LARGE: None,
    Reason.KEY_REUSED: None,
    Reason.NOT_FOUND: None,
    Reason.REMOTE_4XX: None,
    Reason.AUTH_DENIED: None,
    Reason.FORBIDDEN: None,
    Reason.IN_PROGRESS: None,
    # It was asked, and did not do its work.
    Reason.CONNECT: True,
    Reason.DNS: True,
    Reason.TLS: True,
    Reason.INSTANCE_GONE: None,
    Reason.WORKER_LOST: True,
    Reason.DEADLINE: True,
    Reason.FIRST_BYTE: True,
    Reason.IDLE_STREAM: True,
    Reason.REMOTE_5XX: True,
    Reason.NON_JSON_BODY: True,
    Reason.STREAM_CUT: True,
    Reason.HANDLER_ERROR: True,
    Reason.BAD_RESULT: True,
    Reason.UNMAPPED: True,
    # As its cause does; without one, as what nobody could map.
    Reason.OUTCOME_UNKNOWN: True,
}


def test_every_reason_has_its_row() -> None:
    """BREAK-2: a reason that is new in the table of faults must be judged here."""
    assert set(Reason) == set(COUNTS)


@pytest.mark.parametrize(("code", "reason"), sorted(FAULTS))
def test_each_reason_counts_as_written(code: Code, reason: Reason) -> None:
    """BREAK-2: under each of its codes, a reason counts as its row says."""
    assert COUNTS[reason] == counts_against_lane(Failure.of(reason, code=code))


def test_success_counts_as_such() -> None:
    """An answer speaks for the lane."""
    assert False is counts_against_lane(None)


@pytest.mark.parametrize("cause", sorted(set(Reason) - {Reason.OUTCOME_UNKNOWN}))
def test_an_unknown_outcome_counts_as_its_cause(cause: Reason) -> None:
    """RETRY-2, BREAK-2: what turned into an unknown outcome counts as what it was."""
    failure = Failure.of(Reason.OUTCOME_UNKNOWN, cause=str(cause))
    assert COUNTS[cause] == counts_against_lane(failure)


def test_a_cause_without_a_known_word_counts() -> None:
    """A cause that this version does not know is a failure that nobody could map."""
    assert True is counts_against_lane(Failure.of(Reason.OUTCOME_UNKNOWN, cause="NEW_WORD"))


def test_a_deadline_before_the_start_does_not_count() -> None:
    """BREAK-2, CALL-2: work that expired before it was begun was not failed by the lane."""
    assert None is counts_against_lane(Failure.of(Reason.DEADLINE, executed=Executed.NO))


@pytest.mark.parametrize(
    ("reason", "waited_ms", "usual_ms", "expected"),
    [
        (Reason.DEADLINE, 10.0, 200.0, None),
        (Reason.FIRST_BYTE, 10.0, 200.0, None),
        (Reason.DEADLINE, 200.0, 200.0, True),
        (Reason.DEADLINE, 10.0, None, True),
        (Reason.DEADLINE, None, 200.0, True),
        (Reason.HANDLER_ERROR, 10.0, 200.0, True),
    ],
)
def test_impatience_does_not_count(
    reason: Reason, waited_ms: float | None, usual_ms: float | None, expected: bool | None
) -> None:
    """BREAK-2, case 17: a timeout shorter than the lane usually takes is its caller's own error."""
    failure = Failure.of(reason)
    assert expected == counts_against_lane(failure, waited_ms=waited_ms, usual_ms=usual_ms)
