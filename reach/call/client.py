"""`reach.connect()` and the bus it gives: how a program calls capabilities.

The bus is a thin face: it checks names and options, and hands everything to the pipelines
(`reach.call.outbound`, `reach.call.outflow`). A view made by `with_options` shares everything with the bus it
came from except its default options.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Unpack

import anyio.from_thread

from reach.bus.blobs import Blobs
from reach.bus.connection import Connection
from reach.bus.counters import SharedCounts
from reach.bus.keys import Role
from reach.bus.mux import Mux
from reach.bus.settings import Settings, resolve
from reach.bus.state import StateFolder
from reach.call import ambient
from reach.call.auto import Auto
from reach.call.budgets import Budgets, task_budget
from reach.call.inflow import StreamClocks
from reach.call.options import NO_OPTIONS, CallOptions, Options
from reach.call.outbound import Outbound
from reach.call.outflow import Outflow
from reach.call.quota import Quota
from reach.call.taskfeed import Filter, TaskFeed, begin_of
from reach.call.tasks import Tasks
from reach.call.unknowns import Unknowns, keeps_parameters
from reach.observe.metrics import Metrics
from reach.observe.records import Recorder, sink_for
from reach.registry.cards import CardDirectory
from reach.wire import names

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping
    from datetime import datetime
    from types import TracebackType

    from pydantic import BaseModel

    from reach.call.task import Task
    from reach.wire.envelope import Envelope
    from reach.wire.reply import Reply
    from reach.wire.task import TaskState

    Parameters = Envelope | BaseModel | Mapping[str, Any] | None


class Core:
    """The parts of one client: connection, reply side, knowledge of cards, blobs, record and metrics."""

    def __init__(
        self, connection: Connection, *, recorder: Recorder, metrics: Metrics, region: str = ""
    ) -> None:
        self.connection = connection
        self.recorder = recorder
        self.metrics = metrics
        self.mux = Mux(connection)
        self.directory = CardDirectory(connection)
        self.blobs = Blobs(connection)
        self.outbound = Outbound(
            connection=connection,
            mux=self.mux,
            directory=self.directory,
            blobs=self.blobs,
            recorder=recorder,
            metrics=metrics,
            region=region,
        )
        self.outflow = Outflow(self.outbound)
        self.unknowns = Unknowns(connection, keep_parameters=keeps_parameters(os.environ))
        self.outbound.teller.on_unknown = self.unknowns.add
        self.shared = SharedCounts(connection)
        self.quota = Quota(connection, self.shared, metrics)
        self.budgets = Budgets(self.shared, metrics, task_budget(os.environ))
        self.outbound.thrift.tolls += (self.budgets, self.quota)
        self.mux.serves = self.directory.serves
        self._tasks: Tasks | None = None  # Made at first use: it listens to an inbox of its own.
        self.auto = Auto(self)

    @property
    def tasks(self) -> Tasks:
        """This client's side of tasks."""
        if self._tasks is None:
            self._tasks = Tasks(self.connection, self.blobs, self.directory)
        return self._tasks

    async def close(self) -> None:
        """Settle what is open and end; the recorder is the owner's to close."""
        await self.outflow.close()
        await self.outbound.thrift.close()
        await self.unknowns.close()
        if self._tasks is not None:
            self._tasks.close()
        await self.budgets.close()
        await self.quota.close()
        self.shared.close()
        await self.outbound.guidance.close()
        await self.mux.part()
        self.mux.close()
        await self.directory.close()


class Bus:
    """Calls capabilities. Get one from `reach.connect()`; handlers find one in `ctx.bus`."""

    def __init__(self, core: Core, options: Options | None = None) -> None:
        self._core = core
        self._options = options or NO_OPTIONS

    def request(
        self, capability: str, env: Parameters = None, **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, Reply]:
        """Call a capability and give its reply; a call that failed is a reply too (`reply.ok`, `reply.error`).

        `capability` is `"invoice.extract"` or `"cap.invoice.extract"`; `env` the parameters as a dict or pydantic
        model, or an `Envelope`; options as in `CallOptions`. Raises `NameRefused`, `NotOnTheWire`, `TypeError`,
        `ValueError` for mistakes of the program only.
        """
        name = names.capability(capability)
        chosen = self._options.merged(options) if options else self._options
        if chosen.mode == "auto":
            return self._core.auto.request(name, env, chosen)
        # Not `async def` itself: one coroutine less for each call.
        return self._core.outbound.request(name, env, chosen)

    def stream(
        self,
        capability: str,
        env: Parameters = None,
        *,
        clocks: StreamClocks | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncGenerator[Any, None]:
        """Call a capability that answers in parts, and iterate over them.

        Raises the matching `ReachError` where the stream fails; leaving the loop early cancels it at the far end.
        `clocks` bounds first byte, silence and the whole; `timeout_s` the whole alone.
        """
        name = names.capability(capability)
        chosen = self._options.merged(options)
        return self._core.outflow.stream(name, env, chosen, clocks=clocks or StreamClocks())

    def broadcast(
        self, capability: str, env: Parameters = None, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[Reply, None]:
        """Call every instance of a capability, and iterate over their replies as they come.

        Raises `ValueError` for an `idempotency_key`: each instance does it for itself.
        """
        name = names.capability(capability)
        return self._core.outflow.broadcast(name, env, self._options.merged(options))

    async def publish(self, capability: str, env: Parameters = None, **options: Unpack[CallOptions]) -> None:
        """Send an event to one instance and do not wait; unheard ones are counted (`bus.unheard`) and logged."""
        name = names.capability(capability)
        await self._core.outflow.publish(name, env, self._options.merged(options))

    async def submit(
        self,
        capability: str,
        env: Parameters = None,
        *,
        callback: str | None = None,
        callback_states: Iterable[TaskState | str] | None = None,
        delay_s: float | None = None,
        at: datetime | None = None,
        **options: Unpack[CallOptions],
    ) -> Task:
        """Submit a task and give its handle, as soon as the stream of tasks has accepted it.

        `delay_s` or `at` say when it may begin; `timeout_s` is its whole time from then on (a day where left out). With
        an `idempotency_key` the task that was submitted under it before is given (`is_duplicate`). `callback` is an
        address that is told of its end, or of the `callback_states` instead. Raises `ReachError` when it was not
        accepted.
        """
        name = names.capability(capability)
        chosen = self._options.merged(options)
        return await self._core.tasks.submit(
            name, env, chosen, callback=callback, callback_states=callback_states, delay_s=delay_s, at=at
        )

    def task(self, task_id: str, *, tenant: str | None = None) -> Task:
        """Give the handle of a task that somebody submitted. Raises `NameRefused`."""
        return self._core.tasks.handle(task_id, tenant=tenant or self._options.tenant)

    def task_events(
        self,
        *,
        state: TaskState | str | Iterable[TaskState | str] | None = None,
        capability: str | None = None,
        tenant: str | None = None,
        task_id: str | None = None,
        since: str | int | datetime | None = None,
    ) -> TaskFeed:
        """Follow events of tasks: `async for event in bus.task_events(state="completed", capability="ledger.*")`.

        `since` is "now" (the default), "start", a sequence or a time. Iterating raises `ReachError` where there is no
        stream of events; it goes on across outages, without a gap or a duplicate (`alive` tells of them).
        """
        wanted = Filter.of(state=state, capability=capability, tenant=tenant, task_id=task_id)
        return self._core.tasks.events(wanted, begin_of(since))

    def with_options(self, **options: Unpack[CallOptions]) -> Bus:
        """Give a light view of this bus whose calls have these options unless they say otherwise."""
        return Bus(self._core, self._options.merged(options))

    @property
    def cards(self) -> CardDirectory:
        """What is known of the agents that are there."""
        return self._core.directory

    @property
    def connection(self) -> Connection:
        """The connection below."""
        return self._core.connection

    @property
    def metrics(self) -> Metrics:
        """Counters of this client's calls."""
        return self._core.metrics

    @property
    def recorder(self) -> Recorder:
        """Takes the records of this client's calls."""
        return self._core.recorder

    @property
    def unknowns(self) -> Unknowns:
        """What is told of this client's calls whose outcome is unknown; `len` of it has not been acknowledged yet."""
        return self._core.unknowns

    @property
    def pending(self) -> int:
        """Calls that wait for an answer right now."""
        return len(self._core.mux)

    @property
    def unheard(self) -> int:
        """Events that nobody was there to hear."""
        return self._core.mux.unheard


class Connecting:
    """What `reach.connect()` returns: `async with reach.connect() as bus:`."""

    def __init__(
        self, settings: Settings, *, role: Role, recorder: Recorder | None, metrics: Metrics | None
    ) -> None:
        self._settings = settings
        self._role = role
        self._recorder = recorder
        self._metrics = metrics
        self._connection: Connection | None = None
        self._bus: Bus | None = None
        self._core: Core | None = None

    async def __aenter__(self) -> Bus:
        self._connection = await Connection.open(self._settings, role=self._role.value)
        own = self._recorder is None
        recorder = self._recorder if self._recorder is not None else default_recorder()
        self._core = Core(
            self._connection,
            recorder=recorder,
            metrics=self._metrics or Metrics(),
            region=os.environ.get("REACH_REGION", ""),
        )
        self._own_recorder = recorder if own else None
        self._bus = Bus(self._core)
        ambient.note(self._bus)
        return self._bus

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bus is not None:
            ambient.forget(self._bus)
        if self._core is not None:
            await self._core.close()
        if self._connection is not None:
            await self._connection.close()
        if self._core is not None and self._own_recorder is not None:
            self._own_recorder.close()

    _own_recorder: Recorder | None = None


def connect(
    url: str | None = None,
    *,
    role: Role = Role.CALLER,
    settings: Settings | None = None,
    recorder: Recorder | None = None,
    metrics: Metrics | None = None,
) -> Connecting:
    """Connect to NATS: `url`, else REACH_URL, else the local server that `reach up` started.

    Use it as `async with reach.connect() as bus:`. Raises `ConfigError` at once for settings that cannot work, and
    `Unreachable` on entering when no server answers within its `connect_timeout_s` (5 s).
    """
    return Connecting(settings or resolve(url, role=role), role=role, recorder=recorder, metrics=metrics)


def default_recorder() -> Recorder:
    """Give the recorder that `REACH_RECORDS` asks for (see `reach.observe.records`)."""
    home = StateFolder.locate()
    return Recorder(
        sink_for(os.environ.get("REACH_RECORDS"), folder=home.path if home.path.is_dir() else None)
    )


class _DefaultBus:
    """One bus a process for touched functions in sync code, on a loop of its own in a background thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._portal_owner: Any = None
        self._portal: Any = None
        self._bus: Bus | None = None
        self._context: Any = None

    def get(self) -> tuple[Any, Bus]:
        """Give the portal into the loop and its bus; connects on first use."""
        with self._lock:
            if self._bus is None:
                self._portal_owner = anyio.from_thread.start_blocking_portal("asyncio")
                self._portal = self._portal_owner.__enter__()
                try:
                    self._context = self._portal.wrap_async_context_manager(connect())
                    self._bus = self._context.__enter__()
                except BaseException:
                    self._portal_owner.__exit__(None, None, None)
                    self._portal_owner = self._portal = None
                    raise
            return self._portal, self._bus

    def close(self) -> None:
        """End it; the next use connects anew."""
        with self._lock:
            if self._bus is not None:
                self._context.__exit__(None, None, None)
                self._portal_owner.__exit__(None, None, None)
                self._bus = self._portal = self._portal_owner = self._context = None


background = _DefaultBus()
"""The process-wide bus for synchronous code."""
