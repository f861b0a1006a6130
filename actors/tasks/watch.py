"""Looks after the tasks that are due: ends what nobody has when its time is up, and finds out whose worker is gone.

A worker is taken for gone when its instance has not been heard of for as long as the queue waits for a sign of life,
and nobody answered twice to the question who has the task. A silence that began with our own link proves nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final

from actors.tasks import judge
from reach.bus.framing import Delivery
from reach.bus.taskstream import Outrun
from reach.errors import CallTimeout, LinkDown, ReachError, Unreachable
from reach.policy.tasklife import AT_WORK, End, TaskRules
from reach.wire import subjects
from reach.wire.task import TaskEvent, TaskOrder, TaskState

if TYPE_CHECKING:
    from actors.tasks.book import Book, Row
    from reach.bus.connection import Connection
    from reach.bus.taskstream import TaskStream
    from reach.registry.cards import CardDirectory

_log = logging.getLogger("reach.tasks")

GONE_S: Final = 30.0
"""An instance that has not been heard of for so long may be gone: the lease, and the queue's own patience."""

PROBE_S: Final = 1.0
SILENT: Final = 2
"""How often nobody may answer before nobody has it."""

LOOK_MS: Final = 5_000
NO_CARD_MS: Final = 60_000
WHO: Final = "tasks"

Tell = Callable[[str, str, str], None]


class Watch:
    """See the module. `gone_s` is `GONE_S` but in tests."""

    def __init__(
        self,
        connection: Connection,
        stream: TaskStream,
        book: Book,
        cards: CardDirectory,
        *,
        tell: Tell,
        gone_s: float = GONE_S,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._book = book
        self._cards = cards
        self._tell = tell
        self._gone_s = gone_s
        self.look_ms = int(min(LOOK_MS, gone_s * 250))
        self._rules: dict[str, TaskRules] = {}
        self._unknown: dict[str, float] = {}
        self._heard: dict[str, float] = {}
        self._began = monotonic()
        self._subscription = connection.subscribe("reach.heartbeat.*", self._on_heartbeat)

    def close(self) -> None:
        """Listen no more."""
        self._subscription.drop()

    def link_changed(self) -> None:
        """Begin to count silence anew."""
        self._began = monotonic()

    def note(self, row: Row) -> None:
        """Take note of a task at work: what its agent says of it is learned while the agent is there."""
        if row.state in AT_WORK and row.capability not in self._rules:
            self._unknown.setdefault(row.capability, 0.0)

    def is_idempotent(self, capability: str) -> bool | None:
        """Say what is known of a capability; None as long as no agent has told."""
        rules = self._rules.get(capability)
        return None if rules is None else rules.idempotent

    async def learn(self) -> None:
        """Learn what agents say of the tasks that were noted."""
        now = monotonic()
        for capability in [name for name, again in self._unknown.items() if again <= now][:_LEARN]:
            self._unknown[capability] = now + NO_CARD_MS / 1000
            card = await self._cards.card_for(capability)
            if card is not None:
                self._rules[capability] = TaskRules(idempotent=card.idempotent)
                del self._unknown[capability]

    async def look_after(self, row: Row) -> None:
        """Do what is due for one task. Raises `LinkDown`, `ReachError` where it could not be done now."""
        now_ms = self._stream.now_ms()
        if row.state not in AT_WORK:
            end = judge.of_unstarted(row, now_ms=now_ms)
        elif await self._has_worker(row):
            row.silent = 0
            self._book.remind(row, now_ms + self.look_ms)
            return
        else:
            end = await self._after_loss(row, now_ms=now_ms)
        if end is not None:
            await self.write(row, end)

    async def write(self, row: Row, end: End) -> bool:
        """Write a task's end; False when somebody was first, and then the feed will say so. Raises as `append`."""
        life = row.life
        event = TaskEvent(
            task_id=row.task_id,
            state=end.state,
            capability=row.capability,
            tenant=row.tenant,
            attempt=life.attempt,
            lost=life.lost,
            run=life.run,
            checkpoint=life.checkpoint,
            source=WHO,
            error=end.failure,
        )
        try:
            await self._stream.append(event, after=life.sequence)
        except Outrun:
            return False
        _log.info("task %s (%s) is %s: %s", row.task_id, row.capability, end.state, end.failure.reason)
        if (notify := subjects.answerable(row.notify or "")) != "":
            self._connection.publish(notify, event.pack())
        if end.state in {TaskState.DEAD, TaskState.FAILED}:
            self._tell("task", row.capability, f"task {row.task_id} is {end.state}: {end.failure.message}")
        return True

    # -- steps ---------------------------------------------------------------------------------------

    async def _after_loss(self, row: Row, *, now_ms: int) -> End | None:
        row.silent += 1
        if row.silent < SILENT:
            self._book.remind(row, now_ms + self.look_ms)
            return None
        card = await self._cards.card_for(row.capability)
        if card is not None:
            self._rules[row.capability] = TaskRules(idempotent=card.idempotent)
        rules = self._rules.get(row.capability)
        end = judge.of_lost(row, rules, now_ms=now_ms)
        if end is None:
            waits = "no agent offers it now" if card is None else "the next free worker takes it over"
            self._tell("worker_lost", row.capability, f"task {row.task_id} has lost its worker: {waits}")
            self._book.remind(row, now_ms + NO_CARD_MS)
        return end

    async def _has_worker(self, row: Row) -> bool:
        instance = row.life.instance
        heard = max(self._began, self._heard.get(instance or "", 0.0))
        if monotonic() - heard < self._gone_s:
            return True
        probe = TaskOrder(probe=True, source=WHO).pack()
        try:
            await self._connection.request(
                subjects.task_input(row.tenant, row.task_id), probe, timeout_s=PROBE_S
            )
        except (CallTimeout, Unreachable):
            if not self._connection.connected:
                raise LinkDown from None
            return False
        return True

    def _on_heartbeat(self, delivery: Delivery) -> None:
        self._heard[delivery.subject.rpartition(".")[2]] = monotonic()
        if len(self._heard) > _MOST_INSTANCES:
            self._heard.clear()
            self._began = monotonic()


_MOST_INSTANCES: Final = 100_000
_LEARN: Final = 10

Trouble: Final = (ReachError, LinkDown)
