"""The worker of one instance: takes tasks out of the queue by free places, and answers what is said about them.

Each task runs in a task of its own (`reach.runtime.taskrun`); `leave` ends and awaits every one of them. What is
running is told to the queue at a third of the time after which it would be handed out again, by one timer for all.
Orders (an answer, a cancellation, the question who has a task) come on subjects of their own and take no place, so a
worker whose places are all taken obeys as fast as an idle one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from reach.bus.blobs import Blobs
from reach.bus.connection import LinkState
from reach.bus.taskstream import QUEUE, TaskStream
from reach.bus.workqueue import Work, WorkQueue
from reach.errors import CallTimeout, LinkDown, NameRefused, SchemaInvalid, Unreachable
from reach.runtime.taskorders import Orders
from reach.runtime.taskrun import EndedBy, TaskRun
from reach.runtime.tasktelling import TaskTeller
from reach.runtime.taskwriter import Author
from reach.wire import names, subjects
from reach.wire.envelope import Envelope
from reach.wire.task import DEFAULT_TENANT, TaskEvent, TaskOrder, TaskState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reach.bus.connection import Connection
    from reach.call.client import Bus
    from reach.runtime.taskoffer import OfferedTask

_log = logging.getLogger("reach.tasks")

PROBE_S: Final = 1.0
"""How long whoever has a task may take to say so; its loop has been silent to the queue for much longer."""

COME_BACK_S: Final = 5.0
"""How long workers may take to come back after an outage: their pauses between tries grow to 3 s."""

END_S: Final = 5.0
"""How long a handler that was stopped may take to end."""

_SOURCE: Final = "Nats-Stream-Source"
_SUBJECT_AT: Final = 4
_FIRED: Final = "Nats-Scheduler"


class Worker:
    """See the module."""

    def __init__(
        self, connection: Connection, bus: Bus, author: Author, offered: Sequence[OfferedTask]
    ) -> None:
        self.connection = connection
        self.bus = bus
        self.author = author
        self.offered = tuple(offered)
        self.stream = TaskStream(connection)
        self.blobs = Blobs(connection)
        self.teller = TaskTeller(bus.recorder, bus.metrics)
        self._runs: dict[tuple[str, str], TaskRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._queues: list[WorkQueue] = []
        self._orders = Orders(connection, self.run_of, self.spawn)
        self._beat: asyncio.TimerHandle | None = None
        self._beat_s = min(one.ack_wait_s for one in self.offered) / 3
        self.loop = asyncio.get_running_loop()
        self._back_at = -math.inf  # When the link was last lost, or came back.
        connection.on_state(self._on_state)

    @property
    def running(self) -> int:
        """Tasks in work."""
        return len(self._runs)

    def run_of(self, tenant: str, task_id: str) -> TaskRun | None:
        """Find a task in work here."""
        return self._runs.get((tenant, task_id))

    # -- life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take tasks from now on."""
        for offered in self.offered:
            await offered.executor.start()
            queue = WorkQueue(
                self.connection,
                self.stream.jetstream,
                stream=QUEUE,
                capability=offered.name,
                limit=offered.limit,
                room=lambda one=offered: one.limit - one.taken,  # type: ignore[misc]
                take=lambda work, one=offered: self._take(one, work),  # type: ignore[misc]
                ack_wait_s=offered.ack_wait_s,
            )
            self._queues.append(queue)
            queue.start()
        self._beat = self.loop.call_later(self._beat_s, self._tell_the_queue)

    async def leave(self, grace_s: float) -> None:
        """Take no more, and let what runs finish within `grace_s`; the rest is interrupted, and put back (TASK-3)."""
        for queue in self._queues:
            await queue.stop()
        for run in list(self._runs.values()):
            run.stopping = True
            if run.asks.waiting and run.offered.rules.idempotent:
                run.stop(EndedBy.STOP)  # A person may take days; the next worker asks the same.
        await self._wait(max(0.0, grace_s))
        for run in list(self._runs.values()):
            _log.warning("task %s is interrupted: it did not end within %g s", run.task_id, grace_s)
            run.stop(EndedBy.STOP)
        await self._wait(END_S)
        for task in self._at_work():
            task.cancel()
        await self._wait(END_S)

    def _at_work(self) -> set[asyncio.Task[None]]:
        """Give everything that still runs."""
        runs = {run.task for run in self._runs.values() if run.task is not None}
        return {task for task in (*self._tasks, *runs) if not task.done()}

    async def _wait(self, timeout_s: float) -> None:
        """Wait until nothing runs any more, at most so long."""
        at_work = self._at_work()
        if at_work:
            await asyncio.wait(at_work, timeout=timeout_s)

    async def close(self) -> None:
        """Listen no more, and give everything back."""
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None
        self.connection.off_state(self._on_state)
        self._orders.close()
        for queue in self._queues:
            queue.close()
        for offered in self.offered:
            await offered.executor.close()
        self.stream.close()

    # -- taking (in the read loop) --------------------------------------------------------------------

    def _take(self, offered: OfferedTask, work: Work) -> None:
        try:
            submitted, queued_at = self._read(offered, work)
        except (SchemaInvalid, NameRefused) as error:
            # Nobody can do it, and nobody waits that could be told: what a script published is no task.
            _log.error("work of %s cannot be read, and is taken out of the queue: %s", offered.name, error)
            work.done()
            return
        key = (submitted.tenant, submitted.task_id)
        running = self._runs.get(key)
        if running is not None:
            # Handed out again although it is in work here: its signs of life were lost.
            running.work = work
            work.still_working()
            return
        run = TaskRun(self, offered, work, submitted, queued_at=queued_at)
        self._runs[key] = run
        offered.taken += 1
        first = work.position.delivered == 1 and _FIRED not in work.headers
        run.task = self.loop.create_task(self._go(run, first=first))  # `leave` ends and awaits it.

    def _read(self, offered: OfferedTask, work: Work) -> tuple[TaskEvent, int]:
        """Give what was submitted, and where it stands among the events; 0 for work that was published plainly."""
        source = work.headers.get(_SOURCE)
        if source is not None:
            # <stream> <sequence> <filter> <where to> <the subject there>, and since 2.14 a mark of the server's.
            parts = source.split(" ")
            subject = parts[_SUBJECT_AT] if len(parts) > _SUBJECT_AT else ""
            return TaskEvent.read(subject, work.data), int(parts[1])
        envelope = Envelope.read(work.data) if work.data else Envelope()
        tenant = names.token(envelope.tenant or DEFAULT_TENANT, "tenant")
        task_id = f"q{work.position.stream_seq}"
        event = TaskEvent(
            task_id=task_id,
            state=TaskState.QUEUED,
            capability=offered.name,
            tenant=tenant,
            event_id=task_id,
            at=work.position.stored_ms,
            envelope=envelope,
            source=envelope.source,
        )
        return event, 0

    async def _go(self, run: TaskRun, *, first: bool) -> None:
        try:
            await run.go(first=first)
        except Exception as error:  # noqa: BLE001 - a mistake of ours: told, and the worker goes on
            _log.exception("work on task %s ended badly: %s", run.task_id, type(error).__name__)
        finally:
            if self._runs.get(run.key) is run:
                del self._runs[run.key]
            self._orders.ended(run)
            if not run.place_is_held:
                self._free(run.offered)

    def renamed(self, run: TaskRun, before: tuple[str, str]) -> None:
        """A task in work has another id from now on."""
        self._runs.pop(before, None)
        self._runs[run.key] = run

    def _free(self, offered: OfferedTask) -> None:
        offered.taken -= 1
        self._queues[self.offered.index(offered)].freed()

    def place_freed(self, run: TaskRun) -> None:
        """The handler of a task that has ended no longer occupies its place (a thread, late)."""
        self._free(run.offered)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside the read loop; `leave` waits for it."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("work on a task ended badly: %s", type(error).__name__, exc_info=error)

    def _on_state(self, state: LinkState) -> None:
        if state is not LinkState.CLOSED:
            self._back_at = self.loop.time()

    # -- signs of life --------------------------------------------------------------------------------

    def _tell_the_queue(self) -> None:
        for run in self._runs.values():
            run.work.still_working()
        self._beat = self.loop.call_later(self._beat_s, self._tell_the_queue)

    async def lives(self, tenant: str, task_id: str) -> bool | None:
        """Ask whether another worker has a task now; None when silence does not mean that none has.

        Raises `LinkDown` while nobody can be asked.
        """
        probe = TaskOrder(probe=True, source=self.author.instance).pack()
        subject = subjects.task_input(tenant, task_id)
        try:
            await self.connection.request(subject, probe, timeout_s=PROBE_S)
        except (CallTimeout, Unreachable):
            if not self.connection.connected:
                raise LinkDown from None
            # After an outage others may need longer than we did to come back.
            return None if self.loop.time() - self._back_at < COME_BACK_S else False
        return True
