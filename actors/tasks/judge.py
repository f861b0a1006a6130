"""What the tasks actor writes of a task by itself, if anything: decided from what stands of it, and what is known.

A worker that has a task looks after its time itself. What is left is what nobody has (it ends when its time is up),
and what somebody had who is gone: as any worker would that gets it out of the queue, but without waiting for one to
come by. Whether doing it again is safe is the agents' to say; as long as no agent has said so, only time ends it.
"""

from __future__ import annotations

from actors.tasks.book import Row
from reach.faults import Executed, Reason
from reach.policy.tasklife import AT_WORK, End, TaskRules, handle
from reach.wire.reply import Failure
from reach.wire.task import TaskState


def of_unstarted(row: Row, *, now_ms: int) -> End | None:
    """Judge a task that nobody has: its time may be up."""
    if row.state in AT_WORK or row.life.has_ended or now_ms < row.ends_at:
        return None
    return End(TaskState.TIMED_OUT, Failure.of(Reason.DEADLINE, executed=_executed(row)))


def of_lost(row: Row, rules: TaskRules | None, *, now_ms: int) -> End | None:
    """Judge a task whose worker is gone. None: another one will take it over, or only time can tell."""
    if row.state not in AT_WORK:
        return None
    if row.cancel_wanted:
        return End(TaskState.CANCELLED, Failure.of(Reason.CANCELLED, executed=Executed.MAYBE))
    late = bool(row.expires_at) and now_ms >= row.expires_at
    if rules is None:
        return End(TaskState.TIMED_OUT, Failure.of(Reason.DEADLINE)) if late else None
    decision = handle(row.life, rules, now_ms=now_ms, expires_at=row.expires_at or None, worker_lives=False)
    return decision if isinstance(decision, End) else None


def cancelled(row: Row) -> End:
    """Give the end of a task that nobody has and that is wanted no more."""
    return End(TaskState.CANCELLED, Failure.of(Reason.CANCELLED, executed=_executed(row)))


def _executed(row: Row) -> Executed:
    return Executed.NO if row.life.attempt == 0 else Executed.MAYBE
