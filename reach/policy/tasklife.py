"""The states of a task, which move may follow which, and what is to be done with a task that was handed out.

Everything here is decided from events. An event carries its counts, so a life is folded in one step from the last
event, or from all of them, with the same end; illegal moves raise. A task that comes out of the queue is started,
left alone, put off, or ended: by its events, never by how often the queue delivered it.

======================  ===============  ==========================================================
what                    number           where it comes from
======================  ===============  ==========================================================
attempts                3                ours: RETRY-4 allows a call 2, a task has the time for one more
workers lost            3                design, section 6: a poison task ends as `dead`
backoff                 1 s × 2^(n-1)    RETRY-4's form; at most 5 min, spread by half
======================  ===============  ==========================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from reach.faults import Code, Executed, Reason
from reach.policy.backoff import delay_s
from reach.wire.reply import Failure
from reach.wire.task import TERMINAL, TaskEvent, TaskState

MAX_ATTEMPTS: Final = 3
MAX_LOST: Final = 3
RETRY_BASE_S: Final = 1.0
RETRY_CAP_S: Final = 300.0

_S: Final = TaskState
_ENDS: Final = frozenset(TERMINAL)
_AT_WORK: Final = _ENDS | {
    _S.RUNNING,  # By another worker: the one before was lost.
    _S.PROGRESS,
    _S.INPUT_REQUIRED,
    _S.INPUT_RECEIVED,
    _S.RETRYING,
    _S.INTERRUPTED,
}
_PUT_BACK: Final = (_ENDS - {_S.COMPLETED}) | {_S.RUNNING, _S.QUEUED}

TRANSITIONS: Final[dict[TaskState | None, frozenset[TaskState]]] = {
    None: frozenset({_S.QUEUED, _S.SCHEDULED, _S.RUNNING}),  # Running: published to the queue by a script.
    _S.SCHEDULED: (_ENDS - {_S.COMPLETED}) | {_S.QUEUED},
    _S.QUEUED: (_ENDS - {_S.COMPLETED}) | {_S.RUNNING},
    _S.RUNNING: _AT_WORK,
    _S.PROGRESS: _AT_WORK,
    _S.INPUT_REQUIRED: _AT_WORK,
    _S.INPUT_RECEIVED: _AT_WORK,
    _S.RETRYING: _PUT_BACK,
    _S.INTERRUPTED: _PUT_BACK,
    # An end is the end, but what failed may be submitted once more by an operator.
    _S.FAILED: frozenset({_S.QUEUED}),
    _S.TIMED_OUT: frozenset({_S.QUEUED}),
    _S.DEAD: frozenset({_S.QUEUED}),
    _S.COMPLETED: frozenset(),
    _S.CANCELLED: frozenset(),
}
"""Which states may follow a state (behaviour TASK-1); None is a task without events."""

AT_WORK: Final = frozenset({_S.RUNNING, _S.PROGRESS, _S.INPUT_REQUIRED, _S.INPUT_RECEIVED})
"""States in which a worker has the task."""

UNSTARTED: Final = frozenset({_S.QUEUED, _S.SCHEDULED, _S.RETRYING, _S.INTERRUPTED})
"""States in which nobody has it: whoever is allowed to may end it by one write."""


class IllegalMove(ValueError):
    """A state that cannot follow the one before."""


class TaskLife(Struct, frozen=True, kw_only=True, gc=False):
    """Where a task stands. `sequence` is that of its last event in the stream, 0 before the first.

    `instance` and `generation` name the worker that has it, or had it last; `due` (epoch milliseconds) is when it may
    be started; `asked` is the event id of the question that waits for an answer.
    """

    state: TaskState | None = None
    sequence: int = 0
    event_id: str = ""
    attempt: int = 0
    lost: int = 0
    run: int = 1
    agent_id: str | None = None
    instance: str | None = None
    generation: int | None = None
    due: int = 0
    checkpoint: int | None = None
    asked: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the task is in one of its ends."""
        return self.state in TERMINAL


NOTHING_YET: Final = TaskLife()
"""A task without events."""


def may_follow(before: TaskState | None, after: TaskState, *, again: bool = False) -> bool:
    """Whether a move is legal; an end is left only by a submission that says so (`again`)."""
    if before in TERMINAL and not again:
        return False
    return after in TRANSITIONS[before]


def step(life: TaskLife, event: TaskEvent, sequence: int) -> TaskLife:
    """Give the life after one more event.

    Raises:
        IllegalMove: the event cannot follow; says what could.
    """
    state = event.state
    if not may_follow(life.state, state, again=event.run > life.run):
        could = ", ".join(sorted(TRANSITIONS[life.state])) or "nothing"
        raise IllegalMove(f"{state} cannot follow {life.state or 'nothing'}: what can is {could}")
    asked = life.asked
    if state is _S.INPUT_REQUIRED:
        asked = event.event_id
    elif state is not _S.PROGRESS:
        asked = None
    started_anew = state is _S.QUEUED and event.run > life.run
    checkpoint = None if started_anew else event.checkpoint or life.checkpoint
    if has_checkpoint(event):
        checkpoint = sequence
    return replace(
        of_last(event, sequence),
        agent_id=event.agent_id or life.agent_id,
        instance=event.instance or life.instance,
        generation=event.generation or life.generation,
        checkpoint=checkpoint,
        asked=asked,
    )


def of_last(event: TaskEvent, sequence: int) -> TaskLife:
    """Give the life that a last event alone tells of: it carries the counts."""
    return TaskLife(
        state=event.state,
        sequence=sequence,
        event_id=event.event_id,
        attempt=event.attempt,
        lost=event.lost,
        run=event.run,
        agent_id=event.agent_id,
        instance=event.instance,
        generation=event.generation,
        # What a schedule brought about has its time behind it, although its bytes still name it.
        due=0 if event.state is _S.QUEUED else event.due or 0,
        checkpoint=sequence if has_checkpoint(event) else event.checkpoint,
        asked=event.event_id if event.state is _S.INPUT_REQUIRED else None,
    )


def fold(events: Iterable[tuple[int, TaskEvent]], life: TaskLife = NOTHING_YET) -> TaskLife:
    """Give the life that events in order amount to; `life` is what the ones before them did.

    Events end with their time, and a schedule that has fired leaves none: so whatever comes first is taken as it is.
    A submission that comes due after its task has ended (the task was cancelled, its schedule fired all the same), or
    that is there twice, changes nothing but the sequence.

    Raises:
        IllegalMove: another event that cannot follow the one before.
    """
    for sequence, event in events:
        if life is NOTHING_YET:
            life = of_last(event, sequence)
            continue
        late = event.state is _S.QUEUED and life.state not in {None, _S.SCHEDULED}
        if late and not may_follow(life.state, event.state, again=event.run > life.run):
            life = replace(life, sequence=sequence)
        else:
            life = step(life, event, sequence)
    return life


def has_checkpoint(event: TaskEvent) -> bool:
    """Whether an event brings a checkpoint itself."""
    return event.state is _S.PROGRESS and type(event.data) is dict and "checkpoint" in event.data


# -------------------------------------------------------------------------------- a task out of the queue


class Start(Struct, frozen=True, gc=False):
    """Begin it, as this attempt. `taken_over` says that another worker had begun it before."""

    attempt: int
    lost: int
    taken_over: bool


@dataclass(frozen=True, slots=True)
class LeaveAlone:
    """It has ended: take it out of the queue."""


@dataclass(frozen=True, slots=True)
class PutOff:
    """Not now: hand it out again after `delay_s`."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class AskWorker:
    """Another worker has it: find out whether that one still lives, and decide again."""


@dataclass(frozen=True, slots=True)
class End:
    """Write this end, and take it out of the queue."""

    state: TaskState
    failure: Failure


Handling = Start | LeaveAlone | PutOff | AskWorker | End


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRules:
    """What its owner said of a task. `idempotent`: doing it twice is the same as once."""

    idempotent: bool = False
    max_attempts: int = MAX_ATTEMPTS
    max_lost: int = MAX_LOST


def handle(
    life: TaskLife,
    rules: TaskRules,
    *,
    now_ms: int,
    expires_at: int | None = None,
    worker_lives: bool | None = None,
    look_again_s: float = 5.0,
) -> Handling:
    """Decide about a task that the queue has handed out (TASK-3, TASK-5; design, section 6).

    `expires_at` is the end of its time in epoch milliseconds. `worker_lives` is what is known about the worker that
    has it: None is "not asked yet".
    """
    if life.has_ended:
        return LeaveAlone()
    if life.due > now_ms:
        return PutOff((life.due - now_ms) / 1000)
    if life.state in AT_WORK:
        if worker_lives is None:
            return AskWorker()
        if worker_lives:
            return PutOff(look_again_s)
        return _after_loss(life, rules, late=expires_at is not None and now_ms >= expires_at)
    if expires_at is not None and now_ms >= expires_at:
        executed = Executed.NO if life.attempt == 0 else Executed.MAYBE
        return End(_S.TIMED_OUT, Failure.of(Reason.DEADLINE, executed=executed))
    attempt = life.attempt if life.state is _S.INTERRUPTED else life.attempt + 1
    return Start(max(attempt, 1), life.lost, taken_over=life.state is _S.INTERRUPTED)


def _after_loss(life: TaskLife, rules: TaskRules, *, late: bool) -> Handling:
    if not rules.idempotent:
        # It may have been done: nobody may do it again, and a person must look (RETRY-2).
        return End(_S.FAILED, Failure.of(Reason.OUTCOME_UNKNOWN, cause=Reason.WORKER_LOST))
    lost = life.lost + 1
    if lost >= rules.max_lost:
        message = f"{lost} workers were lost while they had this task; no further one is risked"
        return End(_S.DEAD, Failure.of(Reason.WORKER_LOST, message))
    if late:
        return End(_S.TIMED_OUT, Failure.of(Reason.DEADLINE))
    return Start(life.attempt, lost, taken_over=True)


# ---------------------------------------------------------------------------------- a task that has failed


@dataclass(frozen=True, slots=True)
class Retry:
    """Try once more after `delay_s`."""

    delay_s: float


def after_failure(
    failure: Failure,
    rules: TaskRules,
    *,
    attempt: int,
    jitter: float,
    now_ms: int,
    expires_at: int | None = None,
) -> Retry | End:
    """Decide what follows an attempt that failed. `jitter` is uniform in [0, 1).

    What is known not to have been done is tried again, and what may have been only if it is idempotent (RETRY-1);
    mistakes in the parameters, and refusals, never are.
    """
    may_repeat = failure.executed is Executed.NO or rules.idempotent
    if not may_repeat or _is_final(failure):
        return End(_S.TIMED_OUT if failure.reason is Reason.DEADLINE else _S.FAILED, failure)
    if attempt >= rules.max_attempts:
        return End(_S.DEAD, failure)
    wait_s = delay_s(attempt, base_s=RETRY_BASE_S, jitter=jitter, cap_s=RETRY_CAP_S)
    wait_s = max(wait_s, (failure.retry_after_ms or 0) / 1000)
    if expires_at is not None and now_ms + wait_s * 1000 >= expires_at:
        return End(_S.TIMED_OUT, failure)
    return Retry(wait_s)


def _is_final(failure: Failure) -> bool:
    """Whether trying again could only end in the same."""
    if failure.code is Code.SCHEMA_INVALID:
        return True
    if failure.code is Code.UPSTREAM_4XX:
        return failure.reason is not Reason.IN_PROGRESS
    return failure.reason in {Reason.CANCELLED, Reason.BUDGET_EXHAUSTED, Reason.OUTCOME_UNKNOWN}
