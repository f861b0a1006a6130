"""What remains of each attempt of a task beside its events: one record, and the counts of its worker (SEE-2, SEE-3).

The attempt of a worker that was lost is recorded by whichever worker finds that out: the lost one cannot.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

from reach import ids
from reach.faults import Code, Executed, Reason
from reach.observe.metrics import LONG_BUCKETS_S, Counter, Gauge, Histogram, result_of
from reach.wire import subjects
from reach.wire.record import Attempt, Outcome, ReachRecord
from reach.wire.reply import Failure
from reach.wire.task import TaskState

if TYPE_CHECKING:
    from reach.observe.metrics import Cell, Metrics, Spread
    from reach.observe.records import Recorder
    from reach.policy.tasklife import TaskLife
    from reach.runtime.taskrun import TaskRun

LOST: Final = "lost"
TAKEN_AWAY: Final = "taken_away"
GIVEN_UP: Final = "given_up"
"""What became of an attempt of which no end was written: its worker was lost, or taken for lost, or lost its link."""

_WHY: Final = {TAKEN_AWAY: Reason.INSTANCE_GONE, GIVEN_UP: Reason.DISCONNECTED}


@dataclass(frozen=True, slots=True)
class _Counts:
    """What is counted of one capability's attempts, at hand."""

    good: Cell
    running: Cell
    seconds: Spread


class TaskTeller:
    """Tells of the attempts of one worker."""

    def __init__(self, recorder: Recorder, metrics: Metrics) -> None:
        self._recorder = recorder
        self._attempts = Counter(
            "reach_task_attempts", "Attempts of tasks that ended here.", "capability", "result"
        )
        self._seconds = Histogram(
            "reach_task_seconds", "Time of an attempt of a task.", "capability", bounds=LONG_BUCKETS_S
        )
        self._running = Gauge("reach_tasks_running", "Tasks in work here.", "capability")
        for family in (self._attempts, self._seconds, self._running):
            metrics.add(family)
        self._counts: dict[str, _Counts] = {}

    def began(self, run: TaskRun) -> None:
        """Count an attempt that begins."""
        self._of(run.offered.name).running.n += 1

    def ended(self, run: TaskRun, *, began: float, unwritten: str | None) -> None:
        """Count an attempt that ended, and write its record. `began` is monotonic; `unwritten`: why it has no end."""
        name = run.offered.name
        failure, decision = _what_came_of(run, unwritten)
        took_ms = (monotonic() - began) * 1000
        counts = self._of(name)
        counts.running.n -= 1
        counts.seconds.counts[bisect_left(LONG_BUCKETS_S, took_ms / 1000)] += 1
        counts.seconds.total += took_ms / 1000
        if failure is None:
            counts.good.n += 1
        else:
            self._attempts.add(name, result_of(failure))
        if not self._recorder.wants(ok=failure is None):
            return
        outcome: Outcome = "ok"
        if failure is not None:
            outcome = "cancelled" if failure.reason is Reason.CANCELLED else "failed"
        author = run.worker.author
        attempt = Attempt(
            n=max(1, run.attempt),
            subject=subjects.task_submit(name),
            took_ms=took_ms,
            provider=author.agent_id,
            instance=author.instance,
            code=None if failure is None else failure.code.value,
            reason=None if failure is None else failure.reason.value,
            executed=None if failure is None else failure.executed.value,
            decision=decision,
        )
        record = self._record(run, attempt, outcome=outcome)
        record.at -= int(took_ms)
        record.latency_ms = took_ms
        record.phases = {"handler_ms": run.handler_s * 1000}
        if not run.resumed:
            record.phases["queue_ms"] = max(0.0, record.at - max(run.submitted.at, run.submitted.due or 0))
        self._recorder.put(record)

    def _of(self, name: str) -> _Counts:
        counts = self._counts.get(name)
        if counts is None:
            good = self._attempts.cell(name, "ok")
            counts = self._counts[name] = _Counts(good, self._running.cell(name), self._seconds.spread(name))
        return counts

    def lost(self, run: TaskRun, life: TaskLife) -> None:
        """Write the record of the attempt of a worker that is gone; `life` is the task as that one left it."""
        self._attempts.add(run.offered.name, Code.UNKNOWN.value)
        if not self._recorder.wants(ok=False):
            return
        attempt = Attempt(
            n=max(1, life.attempt),
            subject=subjects.task_submit(run.offered.name),
            provider=life.agent_id,
            instance=life.instance,
            code=Code.UNKNOWN.value,
            reason=Reason.WORKER_LOST.value,
            executed=Executed.MAYBE.value,
            decision=LOST,
        )
        self._recorder.put(self._record(run, attempt, outcome="failed"))

    def _record(self, run: TaskRun, attempt: Attempt, *, outcome: Outcome) -> ReachRecord:
        envelope = run.envelope
        return ReachRecord(
            reach_id=ids.reach_id_of(envelope.message_id),
            at=run.worker.stream.now_ms(),
            capability=run.offered.name,
            kind="task",
            outcome=outcome,
            code=attempt.code,
            reason=attempt.reason,
            provider=attempt.provider,
            instance=attempt.instance,
            node=run.worker.author.instance,
            retried=attempt.n > 1,
            caller=envelope.source,
            session_id=envelope.session_id,
            task_id=run.task_id,
            tenant=run.tenant,
            trace_id=None if envelope.trace is None else envelope.trace.trace_id,
            attempts=[attempt],
        )


def _what_came_of(run: TaskRun, unwritten: str | None) -> tuple[Failure | None, str]:
    """Give the failure of an attempt, and the word for what followed it."""
    last = run.writer.last
    if unwritten is not None or last is None:
        word = unwritten or GIVEN_UP
        return Failure.of(_WHY[word]), word
    failure = last.error
    if failure is None and last.state is not TaskState.COMPLETED:  # Put back by a worker that stops.
        failure = Failure.of(Reason.INSTANCE_GONE)
    return failure, last.state.value
