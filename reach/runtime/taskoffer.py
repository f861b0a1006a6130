"""The tasks that an agent offers, from the decorated function to the worker of one of its instances."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from reach.bus.workqueue import ACK_WAIT_S
from reach.policy.tasklife import MAX_ATTEMPTS, TaskRules
from reach.registry.face import Kind
from reach.runtime.signature import bind
from reach.runtime.taskcontext import TaskContext
from reach.wire.card import CapabilityCard

if TYPE_CHECKING:
    from reach.runtime.executor import Executor
    from reach.runtime.signature import Handler

MIN_ACK_WAIT_S: Final = 1.0
"""The least `ack_wait_s`: a sign of life each third of it must arrive in time."""

MAX_PAYLOAD: Final = 32 * 1024 * 1024


@dataclass(slots=True)
class OfferedTask:
    """One task capability of one agent. `taken` counts places, threads that cannot be stopped included."""

    card: CapabilityCard
    handler: Handler
    executor: Executor
    limit: int
    rules: TaskRules
    timeout_s: float | None = None
    ack_wait_s: float = ACK_WAIT_S
    taken: int = 0
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.card.tag

    def of_its_own(self, executor: Executor) -> OfferedTask:
        """Give the same offer to one instance, with places and an executor that no other start shares."""
        return replace(self, executor=executor, taken=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """What an agent's owner says of a task; see `Agent.task`."""

    idempotent: bool = False
    timeout_s: float | None = None
    max_concurrency: int | None = None
    max_attempts: int = MAX_ATTEMPTS
    ack_wait_s: float = ACK_WAIT_S
    description: str = ""
    max_payload_bytes: int = MAX_PAYLOAD

    def check(self, tag: str) -> None:
        """Raise `ValueError` for what cannot be."""
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ValueError(f"timeout_s of {tag!r} is a positive number of seconds, not {self.timeout_s}")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ValueError(f"max_concurrency of {tag!r} is at least 1, not {self.max_concurrency}")
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts of {tag!r} is at least 1, not {self.max_attempts}")
        if not self.ack_wait_s >= MIN_ACK_WAIT_S:
            raise ValueError(f"ack_wait_s of {tag!r} is at least {MIN_ACK_WAIT_S:g} s, not {self.ack_wait_s}")


def offer_task(
    function: Callable[..., Any],
    *,
    tag: str,
    options: TaskOptions,
    namespace: Mapping[str, object],
    place: Callable[[Handler], tuple[Executor, int]],
    offloaded: bool,
) -> OfferedTask:
    """Read a function as a task. Raises `TypeError`, `ValueError` for what could not be one."""
    options.check(tag)
    handler = bind(
        function, capability=tag, context_types=(TaskContext,), namespace=namespace, offloaded=offloaded
    )
    if handler.kind in {Kind.STREAM, Kind.SYNC_STREAM}:
        raise TypeError(
            f"{tag!r} is a generator, and a task has one result: tell parts by `await ctx.progress(…, data=part)`"
        )
    executor, limit = place(handler)
    card = CapabilityCard(
        tag=tag,
        description=options.description or inspect.getdoc(function) or "",
        kind="task",
        idempotent=options.idempotent,
        timeout_s=options.timeout_s,
        max_concurrency=limit,
        max_payload_bytes=options.max_payload_bytes,
        input_schema=handler.input_schema,
        output_schema=handler.output_schema,
    )
    return OfferedTask(
        card=card,
        handler=handler,
        executor=executor,
        limit=limit,
        rules=TaskRules(idempotent=options.idempotent, max_attempts=options.max_attempts),
        timeout_s=options.timeout_s,
        ack_wait_s=options.ack_wait_s,
    )
