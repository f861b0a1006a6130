"""What the tasks actor knows and decides, without a bus: the book, its judgements, and the rules of callbacks."""

from typing import Any

import pytest

from actors.tasks import hooks, judge
from actors.tasks.book import FORGET_MS, KEPT_MS, LATE_MS, Book, Row, Search
from actors.tasks.hooks import AGAIN_S, Delivery, Standing, Try
from reach.bus.taskstream import Entry
from reach.faults import Executed, Reason
from reach.policy.tasklife import MAX_LOST, TaskRules
from reach.wire.envelope import Envelope
from reach.wire.task import TaskEvent, TaskState

S = TaskState


def told(book: Book, *events: tuple[int, TaskState], **fields: Any) -> Row:
    """Tell a book of events of one task: sequence and state; the time is the sequence times a second."""
    for sequence, state in events:
        event = TaskEvent(task_id="t1", state=state, capability="a.b", at=sequence * 1000, **fields)
        if state in {S.QUEUED, S.SCHEDULED}:
            event.envelope = Envelope(type="task", expires_at=60_000)
        book.take(Entry(sequence, event))
    return book.rows["default", "t1"]


def test_what_was_seen_is_not_taken_twice() -> None:
    """An event at or below the last sequence changes nothing."""
    book = Book()
    row = told(book, (1, S.QUEUED), (2, S.RUNNING), (2, S.COMPLETED), (1, S.CANCELLED))
    assert S.RUNNING == row.state


def test_a_schedule_that_fires_after_the_end_changes_nothing() -> None:
    """A cancelled task stays cancelled when its schedule fires, and the fired event is its last sequence."""
    row = told(Book(), (1, S.SCHEDULED), (2, S.CANCELLED), (3, S.QUEUED))
    assert (S.CANCELLED, 3) == (row.state, row.life.sequence)


def test_counts_follow_the_states() -> None:
    """Counts by capability and state are those of the rows, and nothing is left of what is forgotten."""
    book = Book()
    told(book, (1, S.QUEUED))
    assert {"a.b": {"queued": 1}} == book.counts
    told(book, (2, S.RUNNING), (3, S.COMPLETED))
    assert {"a.b": {"completed": 1}} == book.counts
    assert 1 == book.forget(3000 + KEPT_MS)
    assert {} == book.counts
    assert {} == book.rows


def test_a_task_is_due_when_its_time_is_up() -> None:
    """What nobody has is due at the end of its time, and not before."""
    book = Book()
    row = told(book, (1, S.QUEUED))
    assert [] == book.due(59_999)
    assert [row] == book.due(60_000)
    assert [] == book.due(60_001)


def test_a_task_at_work_is_due_when_it_is_quiet_or_late() -> None:
    """A worker's task is due 30 s after its last word, and 5 s after the end of its time at the latest."""
    book = Book()
    row = told(book, (1, S.QUEUED), (2, S.RUNNING), (20, S.PROGRESS))
    assert [] == book.due(49_999)
    assert [row] == book.due(50_000)
    told(book, (59, S.PROGRESS))
    assert [] == book.due(60_000 + LATE_MS - 1)
    assert [row] == book.due(60_000 + LATE_MS)


def test_a_script_s_task_ends_before_its_history_does() -> None:
    """A task without a time of its own is due an hour before its first event is forgotten."""
    book = Book()
    event = TaskEvent(task_id="t1", state=S.QUEUED, capability="a.b", at=5000, envelope=Envelope())
    book.take(Entry(1, event))
    ends_ms = 5000 + KEPT_MS - FORGET_MS
    assert [] == book.due(ends_ms - 1)
    (row,) = book.due(ends_ms)
    end = judge.of_unstarted(row, now_ms=ends_ms)
    assert end is not None
    assert (S.TIMED_OUT, Executed.NO) == (end.state, end.failure.executed)


@pytest.mark.parametrize(
    ("rules", "fields", "expected"),
    [
        (TaskRules(), {}, (S.FAILED, Reason.OUTCOME_UNKNOWN)),
        (TaskRules(idempotent=True), {}, None),
        (TaskRules(idempotent=True), {"lost": MAX_LOST - 1}, (S.DEAD, Reason.WORKER_LOST)),
        (None, {}, None),
    ],
)
def test_a_lost_worker_is_judged_by_what_agents_say(
    rules: TaskRules | None, fields: dict[str, Any], expected: tuple[TaskState, Reason] | None
) -> None:
    """Unknown outcome, taken over, or dead after three: as any worker decides; without a word of agents only time."""
    row = told(Book(), (1, S.QUEUED), (2, S.RUNNING), attempt=1, **fields)
    end = judge.of_lost(row, rules, now_ms=30_000)
    assert expected == (None if end is None else (end.state, end.failure.reason))


def test_what_is_wanted_no_more_is_cancelled_when_its_worker_is_gone() -> None:
    """A cancellation that its worker could not obey any more is carried out, and says that it may have been done."""
    row = told(Book(), (1, S.QUEUED), (2, S.RUNNING), attempt=1)
    row.cancel_wanted = True
    end = judge.of_lost(row, TaskRules(idempotent=True), now_ms=30_000)
    assert end is not None
    assert (S.CANCELLED, Executed.MAYBE) == (end.state, end.failure.executed)


@pytest.mark.parametrize(
    ("search", "found"),
    [
        (Search(), True),
        (Search(capability="a.b"), True),
        (Search(capability="a.*"), True),
        (Search(capability="a"), False),
        (Search(states=frozenset({"queued"})), True),
        (Search(states=frozenset({"dead"})), False),
        (Search(tenant="other"), False),
        (Search(text="T1"), True),
        (Search(text="zzz"), False),
        (Search(before=1), False),
    ],
)
def test_search(search: Search, found: bool) -> None:
    """All that is given must hold; text is found in any case, patterns hold for what is below."""
    book = Book()
    told(book, (1, S.QUEUED))
    assert found == bool(book.search(search))


# -- callbacks ------------------------------------------------------------------------------------------


def owed() -> Delivery:
    return Delivery(
        id="e", tenant="t", task_id="t1", capability="a.b", state="failed", url="http://x/", sequence=3
    )


def test_tries_follow_the_schedule_and_end() -> None:
    """TASK-7: 5 s, 5 min, 30 min, 2 h … after each failure; after the last one it is exhausted."""
    one, now, pauses = owed(), 0, []
    while one.standing is Standing.PENDING:
        one.begin(now_ms=now)
        one.end(Try(at=now, status=500, took_ms=10))
        if one.standing is Standing.PENDING:
            pauses.append((one.next_at - now - 10) / 1000)
            now = one.next_at
    assert list(AGAIN_S) == pauses
    assert (Standing.EXHAUSTED, len(AGAIN_S) + 1) == (one.standing, one.count)


@pytest.mark.parametrize(
    ("status", "standing"),
    [
        (200, Standing.DELIVERED),
        (204, Standing.DELIVERED),
        (301, Standing.PENDING),
        (404, Standing.PENDING),
        (410, Standing.DISABLED),
        (500, Standing.PENDING),
        (None, Standing.PENDING),
    ],
)
def test_what_an_answer_means(status: int | None, standing: Standing) -> None:
    """Only 2xx is an acknowledgement, and only 410 turns an address off."""
    one = owed()
    one.begin(now_ms=0)
    one.end(Try(at=0, status=status))
    assert standing == one.standing
    assert (standing is Standing.DELIVERED) == (status is not None and hooks.explain(status) is None)


def test_a_replay_begins_anew() -> None:
    """What was delivered, refused or given up is owed again, with all its tries before it."""
    one = owed()
    one.begin(now_ms=0)
    one.end(Try(at=0, status=410))
    one.replay(now_ms=7)
    assert (Standing.PENDING, 0, 7) == (one.standing, one.count, one.next_at)
    one.move(Standing.DELIVERED)
    with pytest.raises(ValueError, match="cannot go"):
        one.move(Standing.REFUSED)


def test_a_delivery_reads_back() -> None:
    """The ledger's form reads back to the same delivery."""
    one = owed()
    one.begin(now_ms=0)
    one.end(Try(at=0, error="no"))
    assert one == hooks.read(hooks.pack(one))
