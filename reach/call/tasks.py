"""Tasks as their submitter sees them: submit, follow, wait, answer, cancel.

Submitting is one write, and what it returns is a handle that needs nothing but the events. Whoever ends a task also
tells the submitter's inbox: a hint, so that waiting for a result costs no consumer; who misses it reads the last
event. What nobody has begun is cancelled by one guarded write; what a worker has, by asking that worker.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from reach import ids
from reach.bus.feed import Begin
from reach.bus.guard import Inward, address_of
from reach.bus.taskstream import Outrun, TaskStream
from reach.call.prepare import prepare
from reach.call.task import Task
from reach.call.taskfeed import Filter, TaskFeed
from reach.errors import SchemaInvalid
from reach.faults import Reason
from reach.policy.dedupe import explicit_key
from reach.policy.fingerprint import digest
from reach.registry.structure import compile_check
from reach.wire import codec, names, subjects
from reach.wire.task import DEFAULT_TENANT, TaskEvent, TaskState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reach.bus.blobs import Blobs
    from reach.bus.connection import Connection
    from reach.bus.framing import Delivery
    from reach.call.options import Options
    from reach.registry.cards import CardDirectory
    from reach.wire.envelope import Envelope

TASK_TIMEOUT_S: Final = 86_400.0
"""The time of a task whose submitter does not say: a day, from when it may begin."""

MAX_DELAY_S: Final = 366 * 86_400.0
"""How far ahead a task may be scheduled."""

SUBMIT_S: Final = 10.0
"""How long a submission is tried across an outage."""

BLOB_BUCKET: Final = "reach_blobs_tasks"
_ROOM: Final = 8192


class Tasks:
    """The tasks of one client."""

    def __init__(self, connection: Connection, blobs: Blobs, directory: CardDirectory) -> None:
        self.connection = connection
        self.blobs = blobs
        self.stream = TaskStream(connection)
        self._directory = directory
        # One subject for all ends: the broker has a table of subjects, and each new one costs it a place there.
        self._notify = f"{connection.inbox}.{ids.new_id()}.e"
        self._waiting: WeakValueDictionary[str, Task] = WeakValueDictionary()
        self._ends = connection.subscribe(self._notify, self._on_end)

    async def submit(
        self,
        name: str,
        given: object,
        options: Options,
        *,
        callback: str | None,
        callback_states: Iterable[TaskState | str] | None = None,
        delay_s: float | None,
        at: datetime | None,
    ) -> Task:
        """Submit a task, and give its handle once the stream has it (TASK-2).

        Raises `ReachError`, and for mistakes of the program `TypeError`, `ValueError`, `NotOnTheWire`.
        """
        if callback is not None:
            _check_address(callback)
        states = None if callback_states is None else [TaskState(state).value for state in callback_states]
        if states is not None and callback is None:
            raise TypeError("callback_states are for a callback: give its address as well")
        now_ms = self.stream.now_ms()
        due = due_ms(now_ms, delay_s, at)
        envelope = self._envelope(name, given, options, from_ms=due or now_ms)
        self._check(name, envelope)
        tenant = envelope.tenant or DEFAULT_TENANT
        key = envelope.idempotency_key
        event = TaskEvent(
            task_id=ids.new_id() if key is None else explicit_key(tenant, key, name),
            state=TaskState.QUEUED if due is None else TaskState.SCHEDULED,
            capability=name,
            tenant=tenant,
            at=now_ms,
            source=envelope.source,
            due=due,
            envelope=envelope,
            callback=callback,
            callback_states=states,
        )
        task = Task(self, event.task_id, tenant=tenant, capability=name)
        task.reach_id = ids.reach_id_of(envelope.message_id)
        event.notify = self._notify
        is_first = self._waiting.setdefault(task.id, task) is task
        fingerprint = None if key is None else digest(envelope.payload)
        packed = await self._packed(event)
        headers = None if due is None else _schedule(event, due)
        try:
            task.sequence = await self.stream.append(
                event, after=0, packed=packed, headers=headers, patience_s=SUBMIT_S
            )
        except Outrun as outrun:
            if fingerprint is None or not outrun.entries:
                raise  # An id of 80 random bits that was there before: never seen.
            if is_first:
                del self._waiting[task.id]
            return self._same(task, outrun.entries[0].event, fingerprint)
        task.is_told = is_first
        return task

    def handle(self, task_id: str, *, tenant: str | None = None, capability: str | None = None) -> Task:
        """Give the handle of a task by its id. Raises `NameRefused`."""
        return Task(
            self,
            names.token(task_id, "task id"),
            tenant=names.token(tenant or DEFAULT_TENANT, "tenant"),
            capability=capability,
        )

    def events(self, wanted: Filter, begin: Begin) -> TaskFeed:
        """Follow the events of all tasks, or of some."""
        return TaskFeed(self, wanted, begin)

    async def whole(self, event: TaskEvent) -> TaskEvent:
        """Fetch what did not fit the event. Raises `ReachError`."""
        if event.blob is not None:
            body = await self.blobs.get(event.blob, limit=codec.MAX_BYTES)
            event.data = codec.unpack(body)["data"]
        return event

    def close(self) -> None:
        """Listen no more."""
        self._ends.drop()
        self.stream.close()

    # -- steps ---------------------------------------------------------------------------------------

    def _envelope(self, name: str, given: object, options: Options, *, from_ms: int) -> Envelope:
        now = asyncio.get_running_loop().time()
        call = prepare(
            name,
            given,
            options,
            kind="publish",
            source=self.connection.who,
            now=now,
            default_s=TASK_TIMEOUT_S,
        )
        envelope = call.envelope
        envelope.type = "task"
        # What surrounds a submission does not bound the task: it outlives its submitter.
        time_s = options.timeout_s or (envelope.timeout_ms or 0) / 1000 or TASK_TIMEOUT_S
        envelope.timeout_ms, envelope.expires_at = None, from_ms + int(time_s * 1000)
        return envelope

    def _check(self, name: str, envelope: Envelope) -> None:
        """Refuse parameters of the wrong structure, where the card is known: a worker would find it out later."""
        card = self._directory.known(name)
        check = None if card is None or card.input_schema is None else compile_check(card.input_schema)
        wrong = None if check is None else check(envelope.payload)
        if wrong is not None:
            raise SchemaInvalid(f"the parameters do not fit {name!r}: {wrong}")

    async def _packed(self, event: TaskEvent) -> bytes:
        """Pack a submission; a payload that does not fit waits in the blob store until its task is forgotten."""
        packed = event.pack()
        envelope = event.envelope
        if (
            envelope is None
            or envelope.blob is not None
            or len(packed) <= self.connection.max_payload - _ROOM
        ):
            return packed
        envelope.blob = await self.blobs.put(codec.pack(envelope.payload), bucket=BLOB_BUCKET)
        envelope.payload = {}
        return event.pack()

    def _same(self, task: Task, first: TaskEvent, fingerprint: str) -> Task:
        """Give the task that was submitted under the same key before. Raises `SchemaInvalid`/`KEY_REUSED`."""
        there = first.envelope
        if there is not None and there.blob is None and digest(there.payload) != fingerprint:
            raise SchemaInvalid(reason=Reason.KEY_REUSED)
        task.is_duplicate = True
        return task

    def _on_end(self, delivery: Delivery) -> None:
        event = TaskEvent.unpack(delivery.data)
        task = self._waiting.pop(event.task_id, None)
        if task is not None:
            task.told(event)


def due_ms(now_ms: int, delay_s: float | None, at: datetime | None) -> int | None:
    """When a task may begin, in epoch milliseconds; None for at once. Raises `ValueError`, `TypeError`."""
    if at is not None:
        if delay_s is not None:
            raise TypeError("give delay_s or at, not both")
        if at.tzinfo is None:
            raise ValueError("at needs a time zone to mean the same elsewhere: add one, such as datetime.UTC")
        delay_s = at.timestamp() - now_ms / 1000
        if delay_s <= 0:
            return None
    if not delay_s:
        return None
    if not 0 < delay_s <= MAX_DELAY_S:
        raise ValueError(f"a task is delayed by 0 to {MAX_DELAY_S:.0f} seconds (366 days), not {delay_s}")
    return now_ms + int(delay_s * 1000)


def _schedule(event: TaskEvent, due: int) -> dict[str, str]:
    """Give the headers by which the server itself queues the task when its time has come."""
    when = datetime.fromtimestamp(due / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "Nats-Schedule": f"@at {when}",
        "Nats-Schedule-Target": subjects.task_event(
            TaskState.QUEUED, event.tenant, event.task_id, event.capability
        ),
        "Nats-TTL": "never",  # It waits for longer than events are kept, where it must.
    }


def _check_address(callback: str) -> None:
    """Refuse what nothing could ever be sent to. Whether it is public is the platform's to say, when it sends."""
    try:
        address_of(callback)
    except Inward as error:
        raise SchemaInvalid(f"callback: {error}") from None
