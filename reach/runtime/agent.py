"""An agent: capabilities as decorated functions, served concurrently with a limit for each.

The class collects what is served; `serve` brings one instance of it to life (connection, membership, NATS
service answers, pipeline) and takes it down again without losing a call (behaviour LIFE-7): say goodbye,
withdraw, finish what runs, answer what is queued, close.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reach import ids
from reach.bus.workqueue import ACK_WAIT_S
from reach.policy.bulkhead import Bulkhead
from reach.policy.tasklife import MAX_ATTEMPTS
from reach.runtime.condition import Condition
from reach.runtime.context import Context
from reach.runtime.instance import Instance
from reach.runtime.job import Served
from reach.runtime.offer import (
    ExecutorName,
    asked_for,
    check_numbers,
    check_rate,
    check_reads,
    executor_for,
    is_stream,
    of_its_own,
)
from reach.runtime.service import semver
from reach.runtime.signature import bind
from reach.runtime.taskoffer import MAX_PAYLOAD, OfferedTask, TaskOptions, offer_task
from reach.runtime.taskwriter import Author
from reach.runtime.worker import Worker
from reach.wire import names
from reach.wire.card import Batch, Cache, CapabilityCard, Card, Limits, Rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reach.bus.settings import Settings
    from reach.observe.records import Recorder

_log = logging.getLogger("reach.agent")

DEFAULT_TIMEOUT_S: Final = 15.0
"""How long a capability may take unless it says otherwise (behaviour CALL-1)."""

DRAIN_S: Final = 30.0
"""How long leaving may take before what still runs is ended (behaviour LIFE-7)."""

TASKS_SHARE: Final = 1 / 3
"""The part of that time in which running tasks may finish; the others are put back."""

F = TypeVar("F", bound=Callable[..., Any])
Hook = Callable[[], Awaitable[None] | None]


class Agent:
    """A named set of capabilities. Decorate functions with `capability`, then `run()` it."""

    def __init__(
        self,
        agent_id: str,
        *,
        version: str = "0.0.0",
        owner: str = "",
        display_name: str = "",
        region: str = "",
        labels: Mapping[str, str] | None = None,
        langs: Sequence[str] = (),
    ) -> None:
        """Name the agent.

        `agent_id` is one token of [A-Za-z0-9_-] and the *provider* in replies; `version` is semantic (2.3.1);
        `region`, `labels` and `langs` are what calls can require or prefer. Raises `NameRefused`, `ValueError`.
        """
        self.agent_id = names.token(agent_id, "agent id")
        self.version = semver(version)
        self.owner = owner
        self.display_name = display_name or agent_id
        self.region = region
        self.labels = dict(labels or {})
        self.langs = tuple(langs)
        self.condition = Condition()
        self._served: dict[str, Served] = {}
        self._tasks: dict[str, OfferedTask] = {}
        self._start_hooks: list[Hook] = []
        self._stop_hooks: list[Hook] = []
        self._instance: Instance | None = None

    def __repr__(self) -> str:
        return f"<Agent {self.agent_id} {self.version}: {', '.join(self.capabilities) or 'nothing yet'}>"

    @property
    def ready(self) -> bool:
        """Whether it takes calls. Set it to False and others are called, or nobody; what was taken is finished."""
        return self.condition.ready

    @ready.setter
    def ready(self, ready: bool) -> None:
        self.condition.ready = ready

    @property
    def degraded(self) -> bool:
        """Whether it serves less well than usual. Set it to True and it gets a tenth of its share."""
        return self.condition.degraded

    @degraded.setter
    def degraded(self, degraded: bool) -> None:
        self.condition.degraded = degraded

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Names of what it serves."""
        return (*self._served, *(name for name in self._tasks if name not in self._served))

    def capability(  # noqa: PLR0913 - the facts of a card, each by its name
        self,
        name: str,
        *,
        idempotent: bool = False,
        timeout_s: float | None = None,
        max_concurrency: int | None = None,
        priority: int = 10,
        weight: float = 1.0,
        cost_weight: float | None = None,
        description: str = "",
        executor: ExecutorName | None = None,
        max_payload_bytes: int = 32 * 1024 * 1024,
        queue: int = 0,
        prioritised: bool = False,
        limits: Limits | None = None,
        reads: bool = False,
        dedupe: bool = True,
        cache: Cache | None = None,
        batch: Batch | None = None,
        rate: Rate | None = None,
    ) -> Callable[[F], F]:
        """Serve a function as a capability.

        `async def` runs in the loop, `def` in a thread, or in a worker process with `executor="process"` (for
        computing; the function must be importable); generators are streams. `idempotent=True` says that doing
        it twice is the same as once: only then are timeouts retried. Of the calls over `max_concurrency` at most
        `queue` wait, the others are refused at once; `prioritised` keeps places free for `core` calls, and lets
        `offline` ones use half of them. `limits` bounds what one calling process has under way here: what is over it
        goes to another agent, then to the next tier; `rate` is for all callers together. `cost_weight` is how dear a
        call is beside other agents': twice as dear gets half of the calls.

        `reads=True` says that a call changes nothing (and so is idempotent): equal calls under way share one answer,
        `cache` lets an answer be given again, `batch` merges calls. `dedupe=False` lets a task repeat a write with
        the same parameters. A function may be a `task` of the same name as well: then calls with `mode="auto"` may
        become tasks. Raises `NameRefused`, `TypeError`, `ValueError` at decoration for what could not be served.
        """

        def serve(function: F) -> F:
            tag = names.capability(name)
            if tag in self._served:
                raise ValueError(f"{self.agent_id} already serves {tag!r}: give one of the two another name")
            check_numbers(tag, timeout_s=timeout_s, max_concurrency=max_concurrency, queue=queue)
            frame = inspect.currentframe()
            caller = frame.f_back.f_locals if frame is not None and frame.f_back is not None else {}
            handler = bind(
                function,
                capability=tag,
                context_types=(Context,),
                namespace=caller,
                offloaded=executor == "process",
            )
            check_reads(handler, reads=reads, cache=cache, batch=batch)
            check_rate(tag, rate)
            chosen, limit = executor_for(handler, executor, max_concurrency)
            card = CapabilityCard(
                tag=tag,
                description=description or inspect.getdoc(function) or "",
                kind="stream" if is_stream(handler) else "request",
                weight=weight,
                cost_weight=cost_weight,
                priority=priority,
                idempotent=idempotent or reads,
                timeout_s=timeout_s,
                max_concurrency=limit,
                max_payload_bytes=max_payload_bytes,
                input_schema=handler.input_schema,
                output_schema=handler.output_schema,
                limits=limits,
                reads=reads,
                dedupe=dedupe,
                cache=cache,
                batch=batch,
                rate=rate,
            )
            self._served[tag] = Served(
                card=card,
                handler=handler,
                executor=chosen,
                places=self._places(tag, limit, queue=queue, prioritised=prioritised),
                timeout_s=timeout_s or (120.0 if is_stream(handler) else DEFAULT_TIMEOUT_S),
                is_stream=is_stream(handler),
            )
            self._check_both(tag)
            return function

        return serve

    def _places(self, tag: str, limit: int, *, queue: int, prioritised: bool) -> Bulkhead:
        name = f"max_concurrency of {tag}"
        return Bulkhead(limit, queue_limit=queue, prioritised=prioritised, name=name, owner=self.agent_id)

    def task(  # noqa: PLR0913 - the facts of a card, each by its name
        self,
        name: str,
        *,
        idempotent: bool = False,
        timeout_s: float | None = None,
        max_concurrency: int | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        ack_wait_s: float = ACK_WAIT_S,
        description: str = "",
        executor: ExecutorName | None = None,
        max_payload_bytes: int = MAX_PAYLOAD,
    ) -> Callable[[F], F]:
        """Work on a function's tasks: submitted by `bus.submit`, kept until they are done, told of in events.

        The function is as for `capability`; a context is a `TaskContext`. `timeout_s` is the time of one attempt.
        `idempotent=True` says that it may be begun again: then failures are tried up to `max_attempts` times, and a
        task whose worker was lost is taken over (else its outcome is unknown, for a person to decide). A worker that
        is not heard of for `ack_wait_s` counts as lost. Raises `NameRefused`, `TypeError`, `ValueError`.
        """
        options = TaskOptions(
            idempotent=idempotent,
            timeout_s=timeout_s,
            max_concurrency=max_concurrency,
            max_attempts=max_attempts,
            ack_wait_s=ack_wait_s,
            description=description,
            max_payload_bytes=max_payload_bytes,
        )

        def offer(function: F) -> F:
            tag = names.capability(name)
            if tag in self._tasks:
                raise ValueError(f"{self.agent_id} already serves {tag!r}: give one of the two another name")
            frame = inspect.currentframe()
            caller = frame.f_back.f_locals if frame is not None and frame.f_back is not None else {}
            self._tasks[tag] = offer_task(
                function,
                tag=tag,
                options=options,
                namespace=caller,
                place=lambda handler: executor_for(handler, executor, max_concurrency),
                offloaded=executor == "process",
            )
            self._check_both(tag)
            return function

        return offer

    def _check_both(self, tag: str) -> None:
        """Refuse what is offered both ways, and idempotent only one way. Raises `ValueError`."""
        served, task = self._served.get(tag), self._tasks.get(tag)
        if served is not None and task is not None and served.card.idempotent != task.card.idempotent:
            raise ValueError(
                f"{tag!r} is the same work as a capability and as a task: say idempotent=True of both, or of neither"
            )

    def on_start(self, hook: Hook) -> Hook:
        """Run `hook` (sync or async, no arguments) before the first request is taken."""
        self._start_hooks.append(hook)
        return hook

    def on_stop(self, hook: Hook) -> Hook:
        """Run `hook` after the last answer was given."""
        self._stop_hooks.append(hook)
        return hook

    def card(self, instance: str, generation: int) -> Card:
        """Give the card of one instance."""
        return Card(
            agent_id=self.agent_id,
            instance=instance,
            generation=generation,
            version=self.version,
            display_name=self.display_name,
            owner=self.owner,
            capabilities=(
                *(
                    served.card.model_copy(update={"task": True}) if name in self._tasks else served.card
                    for name, served in self._served.items()
                ),
                *(task.card for name, task in self._tasks.items() if name not in self._served),
            ),
            supported_langs=self.langs,
            region=self.region,
            labels=self.labels,
            ready=self.ready,
            health=self.condition.health,
        )

    async def serve(
        self,
        *,
        settings: Settings | None = None,
        stop: asyncio.Event | None = None,
        ready: Callable[[Instance], None] | None = None,
        recorder: Recorder | None = None,
        drain_s: float = DRAIN_S,
    ) -> None:
        """Serve until `stop` is set or the task is cancelled, then leave without losing a call.

        `ready` is told once requests are taken. Raises `Unreachable`, `ConfigError` when there is no NATS to
        serve at, `ValueError` when there is nothing to serve.
        """
        if not self.capabilities:
            raise ValueError(
                f"{self.agent_id} serves nothing yet: decorate a function with "
                f"@agent.capability('some.name') before running it"
            )
        served = [of_its_own(one) for one in self._served.values()]
        instance = Instance(self, ids.instance_id(self.agent_id), served, recorder=recorder)
        await instance.open(settings)
        worker = self._worker(instance)
        try:
            for hook in self._start_hooks:
                await _call(hook)
            await instance.join()
            if worker is not None:
                await worker.start()
            if ready is not None:
                ready(instance)
            await _either(stop or asyncio.Event(), instance.drain_asked)
        finally:
            # A cancelled serve() drains too: whoever wants it gone at once kills the process.
            with_shield = asyncio.ensure_future(self._leave(instance, worker, drain_s))
            await _finish(with_shield)

    def _worker(self, instance: Instance) -> Worker | None:
        author = Author(agent_id=self.agent_id, instance=instance.name, generation=instance.generation)
        offered = [
            one.of_its_own(executor_for(one.handler, asked_for(one.executor), one.limit)[0])
            for one in self._tasks.values()
        ]
        return Worker(instance.connection, instance.bus, author, offered) if offered else None

    async def _leave(self, instance: Instance, worker: Worker | None, drain_s: float) -> None:
        try:
            if worker is not None:
                # First, and not beside it: what tasks call may be served here.
                await worker.leave(drain_s * TASKS_SHARE)
            await instance.leave(instance.drain_s or drain_s)
            for hook in self._stop_hooks:
                await _call(hook)
        finally:
            if worker is not None:
                await worker.close()
            await instance.close()

    def run(self) -> None:
        """Serve in this process until SIGTERM or SIGINT (`reach.run` for several agents)."""
        from reach.runtime.run import run  # noqa: PLC0415 - run knows agents; agents know it only here

        run(self)


async def _call(hook: Hook) -> None:
    outcome = hook()
    if inspect.isawaitable(outcome):
        await outcome


async def _either(*events: asyncio.Event) -> None:
    """Wait until one of them is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()


async def _finish(leaving: asyncio.Future[None]) -> None:
    """Wait for `leaving` even if this task is cancelled meanwhile, then pass the cancellation on."""
    cancelled: asyncio.CancelledError | None = None
    while not leaving.done():
        try:
            await asyncio.shield(leaving)
        except asyncio.CancelledError as error:
            if leaving.cancelled():
                raise
            cancelled = error
    leaving.result()
    if cancelled is not None:
        raise cancelled
