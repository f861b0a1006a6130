"""The book of unknown outcomes, folded from messages: whom to alert of what, and when; what is dropped."""

from hypothesis import given
from hypothesis import strategies as st

from actors.unknowns.book import EACH_MS, MAX_ALSO, Book
from reach.policy.dedupe import explicit_key
from reach.wire.unknown import ListUnknowns, Resolution, UnknownOutcome, Verdict

AT = 1_700_000_000_000


def outcome(number: int, capability: str = "ledger.post", *, key: str | None = None) -> UnknownOutcome:
    store_key = None if key is None else explicit_key("default", key, capability)
    return UnknownOutcome(
        reach_id=f"rch_{number}",
        capability=capability,
        at=AT + number,
        idempotency_key=key,
        store_key=store_key,
        instance="ledger-abcdefgh",
        cause="DEADLINE",
    )


def told_of(book: Book, now_ms: int, sequence: int) -> list[int]:
    """Alert of what is due, as one platform does; the counts that were told."""
    counts = []
    for told, follows in book.due(now_ms):
        assert follows < sequence
        counts.append(book.alert(told).count)
        book.tell(told, sequence)
        sequence += 1
    return counts


def test_the_first_is_told_at_once_and_the_rest_after_five_minutes() -> None:
    """One alert, then none for five minutes, then one that counts what came since; then silence."""
    book = Book()
    book.enter(outcome(1), 1, AT)
    assert [1] == told_of(book, AT, 2)
    for number in (3, 4, 5):
        book.enter(outcome(number), number, AT)
    assert [] == told_of(book, AT + EACH_MS - 1, 6)
    assert [3] == told_of(book, AT + EACH_MS, 6)
    assert [] == told_of(book, AT + 9 * EACH_MS, 7)


def test_each_capability_is_a_matter_of_its_own() -> None:
    """An alert of one says nothing of another."""
    book = Book()
    book.enter(outcome(1, "a.b"), 1, AT)
    book.enter(outcome(2, "c.d"), 2, AT)
    assert {"a.b", "c.d"} == {told.capability for told, _ in book.due(AT)}
    assert "reach outcomes show rch_1" == book.alert(book.due(AT)[0][0]).link


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_nothing_is_told_twice_and_nothing_is_left_untold(entered: list[bool]) -> None:
    """However entries and alerts are mixed, and read anew by a platform that starts: all are told, each once."""
    book, again, sequence, now, counts = Book(), Book(), 0, AT, []
    for is_entry in entered:
        sequence += 1
        if is_entry:
            for one in (book, again):
                one.enter(outcome(sequence), sequence, now)
            continue
        now += EACH_MS
        for told, _ in book.due(now):
            counts.append(book.alert(told).count)
            for one in (book, again):
                one.tell(told, sequence)
    due = book.due(now + EACH_MS)
    counts += [again.alert(told).count for told, _ in again.due(now + EACH_MS)]
    assert due == again.due(now + EACH_MS)
    assert sum(entered) == sum(counts)


def test_the_second_message_of_a_resolution_says_what_became_of_the_first() -> None:
    """It takes its place; an older one does not."""
    book = Book()
    book.enter(outcome(1), 1, AT)
    first = Resolution(reach_id="rch_1", verdict=Verdict.EXECUTED, by="jo", at=AT)
    done = first.model_copy(update={"applied": "done"})
    book.resolve(first, 2)
    assert ["rch_1"] == [row.outcome.reach_id for row in book.unapplied()]
    book.resolve(done, 3)
    book.resolve(first, 2)
    assert [] == book.unapplied()
    assert 0 == book.open


def test_many_that_met_the_same_are_one_row_of_bounded_size() -> None:
    """The row names a hundred of them; another key is another row."""
    book = Book()
    for number in range(MAX_ALSO + 10):
        book.enter(outcome(number, key="k"), number + 1, AT)
    book.enter(outcome(999, key="other"), 1000, AT)
    assert 2 == len(book.rows)
    assert MAX_ALSO == len(book.rows["rch_0"].also)


def test_what_the_stream_has_forgotten_is_dropped() -> None:
    """By when it was stored, whatever its caller's clock said; its key opens a new row then."""
    book = Book()
    book.enter(outcome(1, key="k"), 1, AT)
    book.enter(outcome(2), 2, AT + 10)
    book.forget(AT + 5)
    book.enter(outcome(3, key="k"), 3, AT + 20)
    found, _ = book.search(ListUnknowns(by="jo"))
    assert ["rch_3", "rch_2"] == [row.outcome.reach_id for row in found]
