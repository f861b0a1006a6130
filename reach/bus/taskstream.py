"""The events of tasks: appended one at a time under a guard, and read back.

Each event is written with the sequence that its writer believes to be the task's last, over all of the task's
subjects: a compare-and-set and an event in one write. When the guard refuses, or the acknowledgement is lost, the
writer looks at what came after that sequence: its own event (then it had won), somebody else's (then it was
outrun), or nothing (then it writes again). No other way leads to an event, but a schedule that comes due.
"""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from reach.bus.jetstream import GuardRefused, JetStream, Unacknowledged
from reach.errors import CallTimeout, LinkDown, Unreachable
from reach.faults import Executed
from reach.policy.tasklife import NOTHING_YET, TaskLife, fold
from reach.wire import subjects
from reach.wire.task import TaskEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from reach.bus.connection import Connection
    from reach.bus.jetstream import Stored

EVENTS: Final = "REACH_TASK_EVENTS"
QUEUE: Final = "REACH_TASKS"

PATIENCE_S: Final = 30.0
"""How long a write is tried, across outages, before it is given up."""

ABSENCE_S: Final = 2.0
"""How long the stream may be away, at a broker that is there."""

_AGAIN_S: Final = 0.02
_FRACTION: Final = re.compile(r"(\.\d{6})\d*")
_REFUSALS: Final = 3
_BY_SCHEDULE: Final = b"\nNats-Scheduler:"


class Entry(Struct, frozen=True):
    """One event where it stands: at `sequence` of the stream. `fired`: a schedule brought it, without a guard."""

    sequence: int
    event: TaskEvent
    fired: bool = False


class Outrun(Exception):
    """Somebody else wrote to this task first; `entries` is what came after the expected sequence."""

    def __init__(self, entries: list[Entry]) -> None:
        super().__init__(", ".join(entry.event.state for entry in entries))
        self.entries = entries


class TaskStream:
    """The events of all tasks, over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self.jetstream = JetStream(connection)
        self.now_ms: Callable[[], int] = connection.broker_time.now_ms
        """Gives the broker's time in epoch milliseconds."""

    async def append(
        self,
        event: TaskEvent,
        *,
        after: int,
        packed: bytes | None = None,
        headers: dict[str, str] | None = None,
        patience_s: float = PATIENCE_S,
        absence_s: float = ABSENCE_S,
    ) -> int:
        """Write an event as the task's next one after sequence `after` (0: its first); gives its own sequence.

        `packed` is the event as it goes, where its writer has packed it already.

        Raises:
            Outrun: the task has gone on meanwhile.
            CallTimeout: it could not be found out within `patience_s` whether it was written (`executed=maybe`).
            ReachError: no stream takes it for `absence_s`, or the broker refuses it; nothing was written.
            NotOnTheWire: its data cannot cross.
        """
        if packed is None:
            event.at = event.at or self.now_ms()
            packed = event.pack()
        subject = event.subject
        guard = (subjects.task_events(event.tenant, event.task_id), after)
        began = self._loop.time()
        deadline, there_by = began + patience_s, began + absence_s
        sent, refusals = False, 0
        while True:
            try:
                try:
                    return await self.jetstream.publish(subject, packed, guard=guard, headers=headers)
                except Unacknowledged:
                    sent = True
                    await self._linked(deadline)
                except GuardRefused:
                    refusals += 1
                found = await self._written(event, after)
                if found is not None:
                    return found
                if refusals >= _REFUSALS:
                    await self._shrunk(event, after)
                await asyncio.sleep(_AGAIN_S)  # Nothing came: the stream is still busy with one of us.
            except (LinkDown, CallTimeout):
                await self._linked(deadline)
            except Unreachable:
                # A server that has just started answers before its streams do.
                if self._loop.time() >= min(there_by, deadline):
                    raise
                await asyncio.sleep(_AGAIN_S * 5)
            if self._loop.time() >= deadline:
                raise CallTimeout(
                    f"the stream of events did not acknowledge {event.state} of task {event.task_id} "
                    f"within {patience_s:g} s",
                    executed=Executed.MAYBE if sent else Executed.NO,
                )

    async def last(self, tenant: str, task_id: str) -> Entry | None:
        """Read a task's last event; None where it has none. Raises as `JetStream.message`."""
        wish = {"last_by_subj": subjects.task_events(tenant, task_id)}
        stored = await self.jetstream.message(EVENTS, wish)
        return None if stored is None else _entry(stored)

    async def since(self, tenant: str, task_id: str, after: int, *, state: str = "*") -> list[Entry]:
        """Read a task's events behind sequence `after`, in order; `state` limits them to one. Raises as `last`."""
        wanted = subjects.task_event(state, tenant, task_id, ">")
        found: list[Entry] = []
        while True:
            stored = await self.jetstream.message(EVENTS, {"seq": after + 1, "next_by_subj": wanted})
            if stored is None:
                return found
            after = stored.sequence
            found.append(_entry(stored))

    async def at(self, sequence: int) -> Entry | None:
        """Read the event at a sequence; None where it is gone."""
        stored = await self.jetstream.message(EVENTS, {"seq": sequence})
        return None if stored is None else _entry(stored)

    async def life(self, tenant: str, task_id: str) -> TaskLife:
        """Fold all events of a task. Raises as `last`, and `IllegalMove` for a history that cannot be."""
        entries = await self.since(tenant, task_id, 0)
        return fold((entry.sequence, entry.event) for entry in entries) if entries else NOTHING_YET

    def close(self) -> None:
        """Listen no more."""
        self.jetstream.close()

    async def _written(self, event: TaskEvent, after: int) -> int | None:
        """Give the sequence of one's own event; None when nothing at all came. Raises `Outrun`."""
        entries = await self.since(event.tenant, event.task_id, after)
        for entry in entries:
            if entry.event.event_id == event.event_id:  # Of a schedule that has fired already, too.
                return entry.sequence
        if entries:
            raise Outrun(entries)
        return None

    async def _shrunk(self, event: TaskEvent, after: int) -> None:
        """Raise `Outrun` where the expected event is gone: older ones end with their time."""
        last = await self.last(event.tenant, event.task_id)
        if last is None or last.sequence < after:
            raise Outrun([] if last is None else [last])

    async def _linked(self, deadline: float) -> None:
        left = deadline - self._loop.time()
        if left > 0 and not self._connection.connected:
            await self._connection.wait_connected(left)
        else:
            await asyncio.sleep(_AGAIN_S)


def _entry(stored: Stored) -> Entry:
    event = TaskEvent.read(stored.subject, stored.data)
    if not event.at:  # A script's: the stream knows when.
        event.at = int(datetime.fromisoformat(_FRACTION.sub(r"\1", stored.time)).timestamp() * 1000)
    return Entry(stored.sequence, event, fired=_BY_SCHEDULE in stored.headers)


def entry_of(subject: str, data: bytes, sequence: int, stored_ms: int, *, fired: bool) -> Entry:
    """Give the entry that a delivery brings. Raises `SchemaInvalid` for what is no event."""
    event = TaskEvent.read(subject, data)
    event.at = event.at or stored_ms
    return Entry(sequence, event, fired=fired)
