"""Answers that are kept: how long, how many, for whom (GUARD-5)."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.policy.cache import COST_BYTES, LARGEST_SHARE, AnswerCache


def cache_of(*, max_bytes: int = 1 << 20, max_answers: int = 100) -> AnswerCache[str]:
    return AnswerCache(max_bytes=max_bytes, max_answers=max_answers)


def keep(cache: AnswerCache[str], key: str, answer: str, *, now: float = 0.0, **given: object) -> bool:
    options: dict[str, object] = {"size": len(answer), "face": "v1", "ttl_s": 5.0, **given}
    return cache.keep(key, answer, now=now, **options)  # type: ignore[arg-type]


def test_an_answer_is_fresh_for_its_time_to_live() -> None:
    """GUARD-5: given again until `ttl_s` after it arrived, and then no more."""
    cache = cache_of()
    keep(cache, "a", "1", now=10.0)
    kept = cache.look("a", now=14.9, face="v1")
    assert kept is not None
    assert ("1", True) == (kept.answer, kept.is_fresh(14.9))
    assert cache.look("a", now=15.0, face="v1") is None
    assert (0, 0) == (len(cache), cache.size)


def test_a_stale_answer_may_only_take_a_failures_place() -> None:
    """GUARD-5: past its time to live it is there, says that it is old, and how old."""
    cache = cache_of()
    keep(cache, "a", "1", stale_s=60.0)
    kept = cache.look("a", now=25.0, face="v1")
    assert kept is not None
    assert (False, 20.0) == (kept.is_fresh(25.0), kept.expired_for_s(25.0))
    assert cache.look("a", now=65.0, face="v1") is None


def test_another_face_ends_it() -> None:
    """GUARD-5: what was kept of another version, or under another card, is not given any more."""
    cache = cache_of()
    keep(cache, "a", "1", stale_s=60.0)
    assert cache.look("a", now=1.0, face="v2") is None
    assert cache.look("a", now=1.0, face="v1") is None


def test_a_newer_answer_takes_its_place() -> None:
    """GUARD-5: there is one answer to a question, the one that came last."""
    cache = cache_of()
    keep(cache, "a", "old", now=0.0)
    keep(cache, "a", "new", now=3.0)
    kept = cache.look("a", now=7.0, face="v1")
    assert kept is not None
    assert ("new", 1, 3 + COST_BYTES) == (kept.answer, len(cache), cache.size)


def test_doubt_leaves_it_for_failures_only() -> None:
    """GUARD-5: once somebody asked anew, nobody is given an answer from before that as if it were fresh."""
    cache = cache_of()
    keep(cache, "a", "1", stale_s=10.0)
    keep(cache, "b", "1")
    cache.doubt("a", now=1.0)
    cache.doubt("b", now=1.0)
    cache.doubt("nothing", now=1.0)
    kept = cache.look("a", now=1.0, face="v1")
    assert kept is not None
    assert (False, 11.0) == (kept.is_fresh(1.0), kept.gone_at)
    assert cache.look("b", now=1.0, face="v1") is None


def test_doubting_a_stale_answer_does_not_renew_it() -> None:
    """GUARD-5: doubt shortens, it never lengthens."""
    cache = cache_of()
    keep(cache, "a", "1", stale_s=10.0)
    cache.doubt("a", now=8.0)
    kept = cache.look("a", now=8.0, face="v1")
    assert kept is not None
    assert 15.0 == kept.gone_at


def test_the_least_recently_used_makes_room() -> None:
    """GUARD-5: bounded in number; what is asked for stays."""
    cache = cache_of(max_answers=3)
    for key in "abc":
        keep(cache, key, key)
    cache.look("a", now=1.0, face="v1")
    keep(cache, "d", "d", now=1.0)
    assert [True, False, True, True] == [cache.look(key, now=1.0, face="v1") is not None for key in "abcd"]
    assert 1 == cache.evicted


def test_what_is_too_large_is_not_kept_and_pushes_nothing_out() -> None:
    """GUARD-5: one answer has a sixteenth at most; an older one to the same question goes all the same."""
    cache = cache_of(max_bytes=1 << 20)
    keep(cache, "a", "1")
    keep(cache, "b", "old")
    assert not keep(cache, "b", "large", size=int((1 << 20) * LARGEST_SHARE))
    assert cache.look("a", now=1.0, face="v1") is not None
    assert cache.look("b", now=1.0, face="v1") is None


@pytest.mark.parametrize(("max_bytes", "max_answers"), [(0, 10), (100, 10), (1 << 20, 0)])
def test_bounds_that_keep_nothing_are_refused(max_bytes: int, max_answers: int) -> None:
    """A cache that could never keep anything is a mistake, told at once."""
    with pytest.raises(ValueError, match="a cache holds at least"):
        cache_of(max_bytes=max_bytes, max_answers=max_answers)


@dataclass(frozen=True)
class Put:
    key: int
    size: int
    ttl_s: float
    stale_s: float
    face: int


@dataclass(frozen=True)
class Look:
    key: int
    face: int


@dataclass(frozen=True)
class Doubt:
    key: int


KEYS = st.integers(0, 12)
FACES = st.integers(0, 1)
STEPS = st.lists(
    st.tuples(
        st.floats(0, 3),
        st.one_of(
            st.builds(
                Put,
                key=KEYS,
                size=st.integers(0, 3000),
                ttl_s=st.floats(0.1, 5),
                stale_s=st.floats(0, 5),
                face=FACES,
            ),
            st.builds(Look, key=KEYS, face=FACES),
            st.builds(Doubt, key=KEYS),
        ),
    ),
    max_size=120,
)


@given(STEPS)
def test_it_never_holds_more_than_it_may_nor_gives_what_it_must_not(
    steps: list[tuple[float, Put | Look | Doubt]],
) -> None:
    """GUARD-5: for any use: the bounds hold, and what is given is the last that was kept, in time, of that face."""
    max_bytes, max_answers = 32_768, 8
    cache: AnswerCache[int] = AnswerCache(max_bytes=max_bytes, max_answers=max_answers)
    model: dict[int, tuple[int, int, float, float]] = {}
    now = 0.0
    for number, (passed_s, step) in enumerate(steps):
        now += passed_s
        match step:
            case Put(key, size, ttl_s, stale_s, face):
                model.pop(key, None)
                if cache.keep(key, number, size=size, now=now, face=face, ttl_s=ttl_s, stale_s=stale_s):
                    model[key] = number, face, now + ttl_s, now + ttl_s + stale_s
            case Look(key, face):
                kept = cache.look(key, now=now, face=face)
                if kept is not None:
                    answer, its_face, fresh_until, gone_at = model[key]
                    assert (answer, its_face) == (kept.answer, face)
                    assert now < gone_at + 1e-9
                    assert not kept.is_fresh(now) or now < fresh_until
            case Doubt(key):
                cache.doubt(key, now=now)
                if key in model:
                    answer, face, fresh_until, gone_at = model[key]
                    cut = max(0.0, fresh_until - now)
                    model[key] = answer, face, fresh_until - cut, gone_at - cut
        assert len(cache) <= max_answers
        assert cache.size <= max_bytes
        assert (cache.size > 0) == (len(cache) > 0)
    cache.clear()
    assert (0, 0) == (len(cache), cache.size)
