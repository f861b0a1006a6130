"""What is said to a worker about its tasks: an answer, a cancellation, the question who has a task.

Every worker hears every order, and only the one that has the task answers: with what became of it. A cancellation is
answered when the task has ended, with its end, whichever that was; an order that was meant for another attempt, or
for a question that is answered already, changes nothing and is told so.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from reach.bus.framing import Delivery
from reach.errors import LinkDown, ReachError, SchemaInvalid, UpstreamRefusal
from reach.faults import Executed, Reason
from reach.runtime.taskrun import EndedBy
from reach.wire import codec
from reach.wire.reply import Failure, Reply
from reach.wire.task import TaskOrder

if TYPE_CHECKING:
    from reach.bus.connection import Connection
    from reach.runtime.taskrun import TaskRun

Find = Callable[[str, str], "TaskRun | None"]
Spawn = Callable[[Coroutine[Any, Any, None]], object]


class Orders:
    """The orders to one worker."""

    def __init__(self, connection: Connection, find: Find, spawn: Spawn) -> None:
        self._connection = connection
        self._find = find
        self._spawn = spawn
        self._waiting: dict[TaskRun, list[Delivery]] = {}
        self._subscriptions = [
            connection.subscribe("task.input.*.*", self._on_input),
            connection.subscribe("task.cancel.*.*", self._on_cancel),
        ]

    def close(self) -> None:
        """Listen no more."""
        for subscription in self._subscriptions:
            subscription.drop()

    def ended(self, run: TaskRun) -> None:
        """Answer those who wanted a task to end."""
        for delivery in self._waiting.pop(run, ()):
            state = None if run.end is None else run.end.state.value
            self._answer(delivery, {"state": state, "attempt": run.attempt})

    def _on_input(self, delivery: Delivery) -> None:
        found = self._read(delivery)
        if found is None:
            return
        run, order = found
        if order.probe:
            if run.holds:  # Else it is this very worker that asks, or another one that does.
                self._answer(delivery, {"attempt": run.attempt})
        else:
            self._spawn(self._take(run, order, delivery))

    async def _take(self, run: TaskRun, order: TaskOrder, delivery: Delivery) -> None:
        try:
            await run.asks.take(order)
        except ReachError as error:
            self._refuse(delivery, error)
        else:
            self._answer(delivery, {"attempt": run.attempt})

    def _on_cancel(self, delivery: Delivery) -> None:
        found = self._read(delivery)
        if found is None:
            return
        run, order = found
        if order.attempt is not None and order.attempt != run.attempt:
            self._refuse(
                delivery,
                UpstreamRefusal(
                    f"task {run.task_id} is at attempt {run.attempt}; the cancellation was meant for {order.attempt}",
                    reason=Reason.NOT_FOUND,
                    executed=Executed.NO,
                ),
            )
            return
        self._waiting.setdefault(run, []).append(delivery)
        run.stop(EndedBy.CANCEL)

    def _read(self, delivery: Delivery) -> tuple[TaskRun, TaskOrder] | None:
        """Find the task that an order is about; None where it is not here."""
        _, _, tenant, task_id = delivery.subject.split(".")
        run = self._find(tenant, task_id)
        if run is None:
            return None
        try:
            return run, TaskOrder.read(delivery.data)
        except SchemaInvalid as error:
            self._refuse(delivery, error)
            return None

    def _answer(self, delivery: Delivery, data: dict[str, Any]) -> None:
        self._send(delivery, Reply(ok=True, data=data))

    def _refuse(self, delivery: Delivery, error: ReachError) -> None:
        self._send(delivery, Reply(ok=False, error=Failure.of_error(error)))

    def _send(self, delivery: Delivery, reply: Reply) -> None:
        if not delivery.reply:
            return
        as_json = not delivery.data or codec.is_json(delivery.data)
        try:
            self._connection.publish(
                delivery.reply, codec.pack_json(reply.to_map(full=True)) if as_json else reply.pack()
            )
        except LinkDown:
            return  # Whoever asked reads the events, or asks again.
