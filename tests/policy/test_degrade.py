"""When degradation is made visible, to users and to the people on duty (BREAK-6)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.policy.degrade import ALERT_EVERY_S, LASTS_S, NOTICE_EVERY_S, RUN, DegradeBook, Due, notice


def degraded(book: DegradeBook, *times: float, capability: str = "stock.query") -> list[Due | None]:
    return [book.replied("shop", capability, now=now, degraded=True) for now in times]


def noticed(dues: list[Due | None]) -> list[bool]:
    return [due is not None and due.notice for due in dues]


def test_the_third_in_a_row_carries_a_notice() -> None:
    """BREAK-6: after three degraded replies in a row the user is told, once."""
    assert [None, None, Due(notice=True, alert=False, run=3, since_s=2.0), None] == degraded(
        DegradeBook(), 0.0, 1.0, 2.0, 3.0
    )


def test_one_usual_reply_ends_a_run() -> None:
    """BREAK-6: in a row means without a usual reply between."""
    book = DegradeBook()
    degraded(book, 0.0, 1.0)
    book.replied("shop", "stock.query", now=2.0, degraded=False)
    assert [None, None] == degraded(book, 3.0, 4.0)


def test_at_most_one_notice_in_ten_minutes() -> None:
    """BREAK-6: however long it goes on, and although it went well in between, ten minutes pass first."""
    book = DegradeBook()
    assert [False, False, True] == noticed(degraded(book, 0.0, 1.0, 2.0))
    book.replied("shop", "stock.query", now=3.0, degraded=False)
    assert [False] * 4 == noticed(degraded(book, 10.0, 11.0, 12.0, 601.9))
    assert [True, False] == noticed(degraded(book, 602.0, 603.0))


def test_each_caller_and_capability_has_its_own_run() -> None:
    """BREAK-6: runs are counted for a caller and a capability, not for all of them."""
    book = DegradeBook()
    degraded(book, 0.0, 1.0)
    assert [None] == degraded(book, 2.0, capability="price.query")
    assert book.replied("office", "stock.query", now=3.0, degraded=True) is None


def test_what_lasts_raises_an_alert() -> None:
    """BREAK-6: degradation that lasts a minute is told to the people on duty, and again while it goes on."""
    dues = degraded(DegradeBook(), *range(0, 500, 10))
    assert [60.0, 360.0] == [due.since_s for due in dues if due is not None and due.alert]


def test_two_slow_replies_raise_no_alert() -> None:
    """BREAK-6: two degraded replies far apart are no run."""
    assert [None, None] == degraded(DegradeBook(), 0.0, 1000.0)


def test_who_is_well_is_not_remembered() -> None:
    """BREAK-6: the book holds the pairs that are degraded, and those told within ten minutes."""
    book = DegradeBook()
    book.replied("shop", "stock.query", now=0.0, degraded=False)
    degraded(book, 1.0, 2.0)
    book.replied("shop", "stock.query", now=3.0, degraded=False)
    assert 0 == len(book)
    degraded(book, 4.0, 5.0, 6.0)
    book.replied("shop", "stock.query", now=7.0, degraded=False)
    assert 1 == len(book)
    book.replied("shop", "stock.query", now=606.0, degraded=False)
    assert 0 == len(book)


def test_the_book_is_bounded() -> None:
    """BREAK-6: however many callers there are, the one that was silent for longest is forgotten."""
    book = DegradeBook(max_pairs=2)
    for now, capability in enumerate(["a", "b", "a", "c", "a"]):
        last = book.replied("shop", capability, now=now, degraded=True)
    assert (2, Due(notice=True, alert=False, run=3, since_s=4.0)) == (len(book), last)


def test_a_book_without_room_is_refused() -> None:
    """A book that could remember nobody is a mistake."""
    with pytest.raises(ValueError, match="max_pairs"):
        DegradeBook(max_pairs=0)


@pytest.mark.parametrize(
    ("language", "begins"), [("en", "Part of"), ("zh", "由于"), ("zh-CN", "由于"), ("fr", "Part of")]
)
def test_the_sentence_has_two_languages(language: str, begins: str) -> None:
    """BREAK-6, ERR-4: the user's sentence is English or Chinese, and one sentence."""
    assert begins == notice(language)[: len(begins)]
    assert 1 == sum(notice(language).count(stop) for stop in ".。")


@settings(deadline=None)
@given(steps=st.lists(st.tuples(st.floats(min_value=0.0, max_value=200.0), st.booleans()), max_size=60))
def test_notices_and_alerts_keep_their_distance(steps: list[tuple[float, bool]]) -> None:
    """BREAK-6: no reply that is not the third or a later one of its run carries anything, nor comes too early."""
    book = DegradeBook()
    now, run, began = 0.0, 0, 0.0
    notices, alerts = [-1e9], [-1e9]
    for step_s, is_degraded in steps:
        now += step_s
        run = run + 1 if is_degraded else 0
        began = now if run == 1 else began
        alerts = alerts if run != 1 else [-1e9]
        due = book.replied("shop", "stock.query", now=now, degraded=is_degraded)
        assert (run >= RUN and now - notices[-1] >= NOTICE_EVERY_S) == (due is not None and due.notice)
        lasts = run >= RUN and now - began >= LASTS_S
        assert (lasts and now - alerts[-1] >= ALERT_EVERY_S) == (due is not None and due.alert)
        if due is not None:
            notices += [now] if due.notice else []
            alerts += [now] if due.alert else []
