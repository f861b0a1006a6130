"""Which instance of a lane fails while its neighbours do well."""

from hypothesis import given
from hypothesis import strategies as st

from reach.policy.outlier import FAILURES, MEMORY_S, Outliers


def test_an_instance_that_always_fails_is_an_outlier_after_five() -> None:
    """Case 8: before the breaker of its lane has seen its minimum of 20 calls."""
    outliers = Outliers()
    assert [False] * (FAILURES - 1) + [True] == [outliers.failed("bad", 1.0) for _ in range(FAILURES)]
    assert outliers.none


def test_a_failure_now_and_then_makes_no_outlier() -> None:
    """One that mostly does well stays, however often it fails in all."""
    outliers = Outliers()
    for _ in range(50):
        assert not outliers.failed("fair", 1.0)
        outliers.succeeded("fair", 1.0)
        outliers.succeeded("fair", 1.0)


def test_what_was_long_ago_is_forgotten() -> None:
    """After ten quiet seconds the count starts afresh."""
    outliers = Outliers()
    for _ in range(FAILURES - 1):
        outliers.failed("bad", 1.0)
    assert not outliers.failed("bad", 1.5 + MEMORY_S)
    outliers.succeeded("bad", 3.0 + 2 * MEMORY_S)
    assert outliers.none


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_none_is_true_exactly_when_nobody_is_counted(events: list[tuple[str, bool]]) -> None:
    """The success path asks for nothing else."""
    outliers = Outliers()
    for instance, failed in events:
        if failed:
            outliers.failed(instance, 1.0)
        else:
            outliers.succeeded(instance, 1.0)
        assert outliers.none == (not outliers._suspects)
