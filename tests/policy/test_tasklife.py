"""The life of a task as pure decisions: which move may follow which, what a delivery and what a failure lead to."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reach.faults import Code, Executed, Reason
from reach.policy.tasklife import (
    AT_WORK,
    MAX_ATTEMPTS,
    MAX_LOST,
    NOTHING_YET,
    RETRY_CAP_S,
    TRANSITIONS,
    UNSTARTED,
    AskWorker,
    End,
    IllegalMove,
    LeaveAlone,
    PutOff,
    Retry,
    Start,
    TaskLife,
    TaskRules,
    after_failure,
    fold,
    handle,
    may_follow,
    of_last,
    step,
)
from reach.wire.reply import Failure
from reach.wire.task import TERMINAL, TaskEvent, TaskState

S = TaskState
IDEMPOTENT = TaskRules(idempotent=True)
ONCE = TaskRules()


def event(state: TaskState, **facts: Any) -> TaskEvent:
    return TaskEvent(task_id="t", state=state, capability="a.b", **facts)


def life(state: TaskState | None, **facts: Any) -> TaskLife:
    return replace(NOTHING_YET, state=state, **facts)


def test_every_state_is_in_the_table() -> None:
    """The transition table is total, and leads nowhere but to states."""
    assert {None, *TaskState} == TRANSITIONS.keys()
    assert set(TaskState) == AT_WORK | UNSTARTED | TERMINAL
    assert not AT_WORK & UNSTARTED


@pytest.mark.parametrize(
    ("before", "after", "legal"),
    [
        (None, S.QUEUED, True),
        (None, S.SCHEDULED, True),
        (None, S.COMPLETED, False),
        (S.SCHEDULED, S.QUEUED, True),
        (S.SCHEDULED, S.RUNNING, False),
        (S.QUEUED, S.RUNNING, True),
        (S.QUEUED, S.COMPLETED, False),
        (S.QUEUED, S.PROGRESS, False),
        (S.QUEUED, S.QUEUED, False),
        (S.RUNNING, S.COMPLETED, True),
        (S.RUNNING, S.RUNNING, True),
        (S.PROGRESS, S.INPUT_REQUIRED, True),
        (S.INPUT_REQUIRED, S.INPUT_RECEIVED, True),
        (S.RETRYING, S.RUNNING, True),
        (S.RETRYING, S.PROGRESS, False),
        (S.INTERRUPTED, S.RUNNING, True),
        (S.INTERRUPTED, S.COMPLETED, False),
        *((end, after, False) for end in sorted(TERMINAL) for after in TaskState),
    ],
)
def test_illegal_moves_are_refused(before: TaskState | None, after: TaskState, legal: bool) -> None:
    """TASK-1: what may follow what; nothing follows an end by itself."""
    assert legal is may_follow(before, after)
    first = NOTHING_YET if before is None else of_last(event(before), 1)
    if legal:
        assert after == step(first, event(after), 2).state
    else:
        with pytest.raises(IllegalMove, match=str(after)):
            step(first, event(after), 2)


@pytest.mark.parametrize("end", sorted(TERMINAL))
def test_only_what_failed_is_submitted_anew(end: TaskState) -> None:
    """A replay is a submission with a higher `run`; what was completed or cancelled stays so."""
    again = may_follow(end, S.QUEUED, again=True)

    assert (end in {S.FAILED, S.DEAD, S.TIMED_OUT}) is again


def test_a_life_is_folded_from_its_events() -> None:
    """Counts come from the events; the checkpoint is where it was written; a question is open until it is answered."""
    events = [
        event(S.QUEUED),
        event(S.RUNNING, attempt=1, instance="w-1", generation=7),
        event(S.PROGRESS, attempt=1, data={"checkpoint": 5}, instance="w-1"),
        event(S.INPUT_REQUIRED, attempt=1, checkpoint=3, instance="w-1", event_id="ask"),
    ]
    found = fold(enumerate(events, 1))
    assert (S.INPUT_REQUIRED, 4, 1, 3, "ask", "w-1", 7) == (
        found.state,
        found.sequence,
        found.attempt,
        found.checkpoint,
        found.asked,
        found.instance,
        found.generation,
    )
    assert step(found, event(S.INPUT_RECEIVED, attempt=1), 5).asked is None


def test_a_schedule_that_fires_after_the_end_changes_nothing() -> None:
    """A cancelled task stays cancelled although its schedule comes due, also where the schedule's event is gone."""
    whole = [event(S.SCHEDULED, due=9), event(S.CANCELLED), event(S.QUEUED, due=9)]
    for events in (whole, whole[1:]):
        found = fold(enumerate(events, 1))
        assert (S.CANCELLED, len(events)) == (found.state, found.sequence)


def test_a_schedule_that_fired_is_due() -> None:
    """What a schedule queued may begin at once, although its bytes still name the time."""
    assert 0 == fold([(1, event(S.SCHEDULED, due=9)), (2, event(S.QUEUED, due=9))]).due
    assert 9 == fold([(1, event(S.SCHEDULED, due=9))]).due


def test_a_replay_begins_anew() -> None:
    """After a replay the old checkpoint no longer counts."""
    events = [event(S.QUEUED), event(S.DEAD, checkpoint=2), event(S.QUEUED, run=2)]
    found = fold(enumerate(events, 1))

    assert (S.QUEUED, 2, None) == (found.state, found.run, found.checkpoint)


@given(st.data())
def test_the_last_event_tells_what_all_of_them_tell(data: st.DataObject) -> None:
    """Events carry the counts, so the last one alone gives them; and what is known goes on with what comes after it."""
    state: TaskState | None = None
    events: list[TaskEvent] = []
    attempt = lost = 0
    for _ in range(data.draw(st.integers(1, 12))):
        legal = sorted(TRANSITIONS[state]) if state not in TERMINAL else []
        if not legal:
            break
        state = data.draw(st.sampled_from(legal))
        if state is S.RUNNING:
            attempt += 1
            lost += data.draw(st.integers(0, 1))
        events.append(event(state, attempt=attempt, lost=lost))
    whole = fold(enumerate(events, 1))
    known = data.draw(st.integers(0, len(events)))
    assert whole == fold(enumerate(events[known:], known + 1), fold(enumerate(events[:known], 1)))
    last = of_last(events[-1], len(events))

    assert (last.state, last.attempt, last.lost, last.sequence) == (
        whole.state,
        whole.attempt,
        whole.lost,
        whole.sequence,
    )
    assert sum(one.state in TERMINAL for one in events) <= 1


@pytest.mark.parametrize("end", sorted(TERMINAL))
def test_what_has_ended_is_left_alone(end: TaskState) -> None:
    """A task that is handed out after its end is taken out of the queue."""
    assert LeaveAlone() == handle(life(end), IDEMPOTENT, now_ms=0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (NOTHING_YET, Start(1, 0, taken_over=False)),
        (life(S.QUEUED), Start(1, 0, taken_over=False)),
        (life(S.RETRYING, attempt=2, lost=1, due=5), Start(3, 1, taken_over=False)),
        (life(S.INTERRUPTED, attempt=2), Start(2, 0, taken_over=True)),
        (life(S.INTERRUPTED, attempt=0), Start(1, 0, taken_over=True)),
        (life(S.RETRYING, due=5000), PutOff(4.0)),
        (life(S.SCHEDULED, due=2000), PutOff(1.0)),
        (life(S.RUNNING, attempt=1), AskWorker()),
        (life(S.INPUT_REQUIRED, attempt=1), AskWorker()),
    ],
)
def test_what_a_delivery_leads_to(found: TaskLife, expected: object) -> None:
    """Attempts are counted from events: a put-back one keeps its number, a retried one gets the next."""
    assert expected == handle(found, ONCE, now_ms=1000)


def test_a_living_worker_keeps_its_task() -> None:
    """TASK-3: what was handed out again although its worker lives is put off."""
    assert PutOff(7.0) == handle(
        life(S.PROGRESS, attempt=1), ONCE, now_ms=0, worker_lives=True, look_again_s=7.0
    )


def test_a_lost_worker() -> None:
    """An idempotent task is taken over, its attempt unchanged; another one is unknown, for a person to decide."""
    lost = life(S.RUNNING, attempt=2, lost=1)
    assert Start(2, 2, taken_over=True) == handle(lost, IDEMPOTENT, now_ms=0, worker_lives=False)
    decision = handle(lost, ONCE, now_ms=0, worker_lives=False)
    assert isinstance(decision, End)
    assert (S.FAILED, Reason.OUTCOME_UNKNOWN, Executed.MAYBE, Reason.WORKER_LOST) == (
        decision.state,
        decision.failure.reason,
        decision.failure.executed,
        decision.failure.cause,
    )


def test_a_poison_task_is_dead() -> None:
    """Case 15: losing workers has a limit of its own."""
    decision = handle(life(S.RUNNING, lost=MAX_LOST - 1), IDEMPOTENT, now_ms=0, worker_lives=False)

    assert isinstance(decision, End)
    assert (S.DEAD, Reason.WORKER_LOST) == (decision.state, decision.failure.reason)


@pytest.mark.parametrize(
    ("found", "executed"), [(life(S.QUEUED), Executed.NO), (life(S.RETRYING, attempt=1), Executed.MAYBE)]
)
def test_what_is_too_late_is_not_begun(found: TaskLife, executed: Executed) -> None:
    """A task whose time is up in the queue ends as timed out, and says truly whether it was begun."""
    decision = handle(found, IDEMPOTENT, now_ms=1000, expires_at=1000)

    assert isinstance(decision, End)
    assert (S.TIMED_OUT, executed) == (decision.state, decision.failure.executed)


@pytest.mark.parametrize(
    ("failure", "rules", "end"),
    [
        (Failure.of(Reason.HANDLER_ERROR), ONCE, S.FAILED),
        (Failure.of(Reason.HANDLER_ERROR), IDEMPOTENT, None),
        (Failure.of(Reason.HANDLER_ERROR, executed=Executed.NO), ONCE, None),
        (Failure.of(Reason.SCHEMA, executed=Executed.NO), IDEMPOTENT, S.FAILED),
        (Failure.of(Reason.FORBIDDEN), IDEMPOTENT, S.FAILED),
        (Failure.of(Reason.REMOTE_4XX), IDEMPOTENT, S.FAILED),
        (Failure.of(Reason.IN_PROGRESS), IDEMPOTENT, None),
        (Failure.of(Reason.BUDGET_EXHAUSTED), IDEMPOTENT, S.FAILED),
        (Failure.of(Reason.OUTCOME_UNKNOWN), IDEMPOTENT, S.FAILED),
        (Failure.of(Reason.OVERLOADED), ONCE, None),
        (Failure.of(Reason.NO_RESPONDERS), ONCE, None),
        (Failure.of(Reason.DEADLINE), ONCE, S.TIMED_OUT),
        (Failure.of(Reason.DEADLINE), IDEMPOTENT, None),
        (Failure.of(Reason.REMOTE_5XX), ONCE, S.FAILED),
    ],
)
def test_what_follows_a_failure(failure: Failure, rules: TaskRules, end: TaskState | None) -> None:
    """RETRY-1: not done is tried again, may be done only if idempotent, and what could only fail again never."""
    decision = after_failure(failure, rules, attempt=1, jitter=0.5, now_ms=0)

    assert (end is None) is isinstance(decision, Retry)
    if end is not None:
        assert End(end, failure) == decision


def test_attempts_run_out() -> None:
    """TASK-5: the last attempt that fails leaves the task dead."""
    failure = Failure.of(Reason.HANDLER_ERROR)
    decisions = [
        after_failure(failure, IDEMPOTENT, attempt=attempt, jitter=0.5, now_ms=0)
        for attempt in range(1, MAX_ATTEMPTS + 1)
    ]

    assert [True] * (MAX_ATTEMPTS - 1) == [isinstance(one, Retry) for one in decisions[:-1]]
    assert End(S.DEAD, failure) == decisions[-1]


@given(st.integers(1, 50), st.floats(0, 1, exclude_max=True))
def test_backoff_grows_and_is_bounded(attempt: int, jitter: float) -> None:
    """A retry comes after half to one and a half of 1 s doubled each time, five minutes at most."""
    rules = TaskRules(idempotent=True, max_attempts=100)
    failure = Failure.of(Reason.HANDLER_ERROR)
    waits = []
    for one in (attempt, attempt + 1):
        decision = after_failure(failure, rules, attempt=one, jitter=jitter, now_ms=0)
        assert isinstance(decision, Retry)
        waits.append(decision.delay_s)

    assert all(earlier <= later for earlier, later in pairwise(waits))
    assert 0.5 <= waits[0] <= RETRY_CAP_S


def test_retry_after_is_obeyed_and_time_is_respected() -> None:
    """A far end's own wish counts; a retry that would come too late is none."""
    busy = Failure.of(Reason.REMOTE_429, retry_after_ms=40_000)

    assert Retry(40.0) == after_failure(busy, ONCE, attempt=1, jitter=0.5, now_ms=0)
    assert End(S.TIMED_OUT, busy) == after_failure(
        busy, ONCE, attempt=1, jitter=0.5, now_ms=0, expires_at=30_000
    )
    assert Code.RATE_LIMITED == busy.code
