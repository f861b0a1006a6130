"""Whether a task that came out of the queue is begun here: decided from its events, and made true by one.

What was queued a moment ago, and came out for the first time, needs no reading: the guard of `running` is the
sequence at which it was queued. Everything else (handed out again, brought by a schedule, published by a script) is
looked up. Whoever writes in between makes the claim fail, and it is looked again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from reach.policy.tasklife import (
    NOTHING_YET,
    AskWorker,
    End,
    Handling,
    IllegalMove,
    LeaveAlone,
    PutOff,
    Start,
    TaskLife,
    fold,
    handle,
    of_last,
)
from reach.runtime.taskwriter import Fenced
from reach.wire.task import TaskState

if TYPE_CHECKING:
    from reach.bus.taskstream import Entry
    from reach.runtime.taskrun import TaskRun

_log = logging.getLogger("reach.tasks")

CLAIMS: Final = 5
"""How often it is looked again at a task that others write to, before it is put off."""

_LATER_S: Final = 1.0
_CLOCKS_MS: Final = 10_000  # By how much the clocks of brokers and workers may differ.


class Claim:
    """The claim of one run, which has `life` and `holds` from it."""

    def __init__(self, run: TaskRun) -> None:
        self._run = run

    async def won(self, *, first: bool) -> bool:
        """Write `running`; False where there is nothing to do here, and then the queue has been told.

        Raises `ReachError` when it cannot be found out: the message comes again.
        """
        run = self._run
        life = self._as_queued() if first else await self._history()
        lives: bool | None = None
        for _ in range(CLAIMS):
            if run.stopping:
                run.work.put_back()
                return False
            decision = self._decide(life, lives)
            if isinstance(decision, AskWorker):
                lives = await run.worker.lives(run.tenant, run.task_id)
                if lives is None:
                    break
                decision = self._decide(life, lives)
            lost = lives is False and isinstance(decision, Start | End)
            try:
                if isinstance(decision, Start):
                    await self._start(life, decision)
                else:
                    await self._not_started(life, decision)
            except Fenced as fenced:
                life, lives = await self._gone_on(life, fenced.entries), None
            else:
                if lost:
                    run.worker.teller.lost(run, life)
                return run.holds
        run.work.put_back(_LATER_S)
        return False

    def _decide(self, life: TaskLife, lives: bool | None) -> Handling:  # noqa: FBT001 - what is known of the worker
        run = self._run
        return handle(
            life,
            run.offered.rules,
            now_ms=run.worker.stream.now_ms(),
            expires_at=run.envelope.expires_at,
            worker_lives=lives,
            look_again_s=run.offered.ack_wait_s / 3,
        )

    def _as_queued(self) -> TaskLife:
        at = self._run.queued_at
        return of_last(self._run.submitted, at) if at else NOTHING_YET

    async def _gone_on(self, life: TaskLife, entries: list[Entry]) -> TaskLife:
        """Give the life with what others have written meanwhile, which the refused write has read already."""
        if not entries or entries[0].sequence <= life.sequence or not self._run.queued_at:
            return await self._history()  # Older events have ended with their time, or are of another task.
        try:
            return fold(((entry.sequence, entry.event) for entry in entries), life)
        except IllegalMove:
            return await self._history()

    async def _history(self) -> TaskLife:
        run = self._run
        entries = await run.worker.stream.since(run.tenant, run.task_id, 0)
        if entries and not run.queued_at and entries[0].event.at + _CLOCKS_MS < run.submitted.at:
            # Older than the message itself: of a queue that was there before this one, and counted from one, too.
            run.rename(f"{run.task_id}-{run.submitted.at}")
            entries = await run.worker.stream.since(run.tenant, run.task_id, 0)
        if not entries:
            return NOTHING_YET
        try:
            return fold((entry.sequence, entry.event) for entry in entries)
        except IllegalMove as error:
            _log.error("task %s has a history that cannot be (%s); its last event counts", run.task_id, error)
            return of_last(entries[-1].event, entries[-1].sequence)

    def _pen_at(self, life: TaskLife) -> None:
        writer = self._run.writer
        writer.sequence, writer.run, writer.checkpoint = life.sequence, life.run, life.checkpoint
        writer.attempt, writer.lost = life.attempt, life.lost

    async def _start(self, life: TaskLife, start: Start) -> None:
        run = self._run
        self._pen_at(life)
        run.writer.attempt, run.writer.lost = start.attempt, start.lost
        # What has no event yet gets its submission into this one, so that it is kept as any other.
        await run.writer.write(TaskState.RUNNING, first=run.submitted if life.state is None else None)
        run.life, run.holds = life, True

    async def _not_started(self, life: TaskLife, decision: Handling) -> None:
        run = self._run
        match decision:
            case LeaveAlone():
                run.work.done()
            case PutOff(delay_s):
                run.work.put_back(delay_s)
            case End(state, failure):
                self._pen_at(life)
                await run.conclude(state, error=failure, first=run.submitted if life.state is None else None)
            case _:
                run.work.put_back(_LATER_S)
