"""What is counted of a lane's calls between two digests."""

import pytest

from reach.call.account import PEERS_S, Account
from reach.policy.sketch import Sketch
from reach.wire.outcomes import LaneOutcomes

A, B = "best-aaaaaaaa", "best-bbbbbbbb"


def take(account: Account, *, now: float = 1.0, slow_ms: float = float("inf")) -> LaneOutcomes:
    return account.take("job.do", "best", now=now, slow_ms=slow_ms)


def test_nothing_is_empty_and_everything_is_told_once() -> None:
    """A digest is a difference: what was told is not told again."""
    account = Account()
    assert account.empty
    account.ok += 3
    account.retries += 1
    account.cost += 0.5
    account.bad(1.0, "REMOTE_5XX", counts=True, instance=A)
    account.bad(1.0, "SCHEMA", counts=False, instance=A)
    told = take(account)
    assert (3, 1, 1, 1, 0.5) == (told.ok, told.failed, told.excused, told.retries, told.cost)
    assert {"REMOTE_5XX": 1} == told.reasons
    assert account.empty
    assert (0, 0, {}) == (take(account).ok, take(account).failed, take(account).reasons)


def test_failures_in_a_row_reach_back_and_end_with_a_success() -> None:
    """`failed_in_a_row` counts over digests, and is 0 after a success."""
    account = Account()
    account.ok += 1
    for _ in range(4):
        account.bad(1.0, "DEADLINE", counts=True, instance=None)
    assert 4 == take(account).failed_in_a_row
    account.bad(2.0, "DEADLINE", counts=True, instance=None)
    assert 5 == take(account).failed_in_a_row
    assert 5 == take(account).failed_in_a_row
    account.ok += 1
    assert 0 == take(account).failed_in_a_row
    account.bad(3.0, "DEADLINE", counts=True, instance=None)
    assert 1 == take(account).failed_in_a_row


def test_sampled_latencies_stand_for_all_calls() -> None:
    """Of a busy lane every eighth is taken: the sketch told has about as many as there were, and the same quantiles."""
    account = Account()
    for number in range(8000):
        account.ok += 1
        if number % 8 == 0:
            account.sketch.add(10.0 if number % 400 else 200.0)
    told = take(account, slow_ms=150.0)
    assert told.latency is not None
    sketch = Sketch.from_map(told.latency.model_dump())
    assert 8000 == sketch.count
    p50 = sketch.quantile(0.5)
    assert p50 is not None
    assert abs(p50 - 10) <= 0.5
    assert 160 == told.slow


def test_instances_are_counted_from_the_first_failure_on_for_a_minute() -> None:
    """While nothing fails nobody is told of; then all of the lane's are, the worst first."""
    account = Account()
    account.ok += 5
    account.answered(A)
    assert () == take(account).instances
    account.bad(10.0, "REMOTE_5XX", counts=True, instance=B)
    for _ in range(3):
        account.answered(A)
    told = take(account, now=11.0)
    assert [(B, 1, 1), (A, 3, 0)] == [(one.instance, one.calls, one.failed) for one in told.instances]
    account.answered(A)
    assert [(A, 1)] == [(one.instance, one.calls) for one in take(account, now=12.0).instances]
    take(account, now=10.0 + PEERS_S)
    account.answered(A)
    assert () == take(account, now=80.0).instances


@pytest.mark.parametrize("counts", [False, None])
def test_what_is_not_the_lanes_fault_breaks_no_row(counts: bool | None) -> None:
    """BREAK-2: excused failures are told as such, and say nothing of the row."""
    account = Account()
    account.bad(1.0, "REMOTE_5XX", counts=True, instance=None)
    account.bad(1.0, "SCHEMA", counts=counts, instance=None)
    told = take(account)
    assert (1, 1, 1) == (told.failed, told.excused, told.failed_in_a_row)


def test_instances_are_told_apart_where_keys_decide() -> None:
    """ROUTE-10: of a hashed lane every digest says who had how many calls, failures or not."""
    account = Account()
    account.tell_apart(True)
    for span in range(2):
        account.ok += 2
        account.answered("a-aaaaaaaa")
        account.answered("a-bbbbbbbb")
        told = account.take("cap.x", "a", now=1000.0 + span, slow_ms=1e9)
        assert {("a-aaaaaaaa", 1), ("a-bbbbbbbb", 1)} == {(one.instance, one.calls) for one in told.instances}
    account.tell_apart(False)
    account.take("cap.x", "a", now=1002.0, slow_ms=1e9)
    assert None is account.peers
