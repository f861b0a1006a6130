"""Answers orders about tasks that no worker has: a cancellation is carried out here, an answer is refused.

Workers answer for what they have, and stay silent about the rest; so without this a script's `nats req task.cancel.…`
would wait in vain for a task that is queued, scheduled, or has ended. What is read is the stream, not our view of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from actors.tasks import judge
from actors.tasks.book import Book, Row
from reach.bus.framing import Delivery
from reach.bus.taskstream import QUEUE
from reach.errors import ReachError, SchemaInvalid, UpstreamRefusal
from reach.faults import Executed, Reason
from reach.policy.tasklife import AT_WORK, NOTHING_YET
from reach.runtime.message import answers_as_json
from reach.wire import codec, subjects
from reach.wire.envelope import Envelope
from reach.wire.reply import Failure, Reply
from reach.wire.task import DEFAULT_TENANT, TaskOrder, TaskState

if TYPE_CHECKING:
    from actors.tasks.watch import Watch
    from reach.bus.connection import Connection
    from reach.bus.taskstream import TaskStream

TRIES: Final = 5


class Orders:
    """See the module."""

    def __init__(self, connection: Connection, stream: TaskStream, book: Book, watch: Watch) -> None:
        self._connection = connection
        self._stream = stream
        self._book = book
        self._watch = watch

    async def cancel(self, delivery: Delivery) -> None:
        """Carry a cancellation out, unless a worker has the task. Raises `LinkDown`."""
        await self._answered(delivery, is_cancel=True)

    async def input(self, delivery: Delivery) -> None:
        """Refuse an answer that nobody waits for; questions who has a task are the workers'. Raises `LinkDown`."""
        await self._answered(delivery, is_cancel=False)

    async def _answered(self, delivery: Delivery, *, is_cancel: bool) -> None:
        _, _, tenant, task_id = delivery.subject.split(".")
        try:
            order = TaskOrder.read(delivery.data)
            if order.probe:
                return
            if is_cancel:
                reply = await self._cancelled(tenant, task_id, order)
            else:
                reply = await self._not_asked(tenant, task_id)
        except ReachError as error:
            reply = Reply(ok=False, error=Failure.of_error(error))
        if reply is not None and delivery.reply:
            as_json = answers_as_json(delivery.data)
            told = reply.to_map(full=True)
            self._connection.publish(delivery.reply, codec.pack_json(told) if as_json else codec.pack(told))

    async def _cancelled(self, tenant: str, task_id: str, order: TaskOrder) -> Reply | None:
        """Cancel what nobody has; None where a worker has it, who answers. Raises `ReachError`."""
        for _ in range(TRIES):
            row = await self._row(tenant, task_id) or await self._published_plainly(tenant, task_id)
            if row is None:
                raise _none(tenant, task_id)
            life = row.life
            if life.has_ended:
                return Reply(ok=True, data={"state": row.state.value, "attempt": life.attempt})
            if row.state in AT_WORK:
                ours = self._book.rows.get(row.key)
                if ours is not None and order.attempt in {None, life.attempt}:
                    ours.cancel_wanted = True  # Should its worker be gone, that is how it ends.
                    self._book.remind(ours, self._stream.now_ms() + 1000)
                return None
            if order.attempt is not None and order.attempt != life.attempt:
                raise UpstreamRefusal(
                    f"task {task_id} is at attempt {life.attempt}; the cancellation was meant for {order.attempt}",
                    reason=Reason.NOT_FOUND,
                    executed=Executed.NO,
                )
            if await self._watch.write(row, judge.cancelled(row)):
                return Reply(ok=True, data={"state": "cancelled", "attempt": life.attempt})
        return None

    async def _not_asked(self, tenant: str, task_id: str) -> Reply | None:
        row = await self._row(tenant, task_id)
        if row is None:
            raise _none(tenant, task_id)
        if row.state in AT_WORK:
            return None
        raise UpstreamRefusal(
            f"task {task_id} asks nothing: it is {row.state}", reason=Reason.NOT_FOUND, executed=Executed.NO
        )

    async def _row(self, tenant: str, task_id: str) -> Row | None:
        """Fold one task from the stream itself; None where it has no events. Raises `ReachError`."""
        fresh = Book()
        row = None
        for entry in await self._stream.since(tenant, task_id, 0):
            row = fresh.take(entry) or row
        return row

    async def _published_plainly(self, tenant: str, task_id: str) -> Row | None:
        """Find work that a script put into the queue, and that has no event yet: its id is its place there."""
        if not (task_id.startswith("q") and task_id[1:].isdecimal()):
            return None
        stored = await self._stream.jetstream.message(QUEUE, {"seq": int(task_id[1:])})
        if stored is None or _SOURCED in stored.headers:
            return None
        try:
            envelope = Envelope.read(stored.data) if stored.data else Envelope()
        except SchemaInvalid:
            return None
        if (envelope.tenant or DEFAULT_TENANT) != tenant:
            return None
        capability = stored.subject.removeprefix(subjects.task_submit(""))
        queued = replace(NOTHING_YET, state=TaskState.QUEUED)
        return Row(tenant, task_id, capability, queued, began_at=0, at=0, source=envelope.source)


_SOURCED: Final = b"\nNats-Stream-Source:"


def _none(tenant: str, task_id: str) -> UpstreamRefusal:
    return UpstreamRefusal(
        f"there is no task {task_id} (of tenant {tenant})", reason=Reason.NOT_FOUND, executed=Executed.NO
    )
