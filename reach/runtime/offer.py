"""From a decorated function to what is offered: its executor, its places, its card.

What the decorator was told is checked here, at decoration, and named in full when it cannot be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from reach.policy.bulkhead import Bulkhead
from reach.registry.face import Kind
from reach.runtime.executor import AsyncExecutor, Executor, ProcessExecutor, ThreadExecutor
from reach.runtime.job import Served

if TYPE_CHECKING:
    from reach.runtime.signature import Handler
    from reach.wire.card import Batch, Cache, Rate

MAX_ASYNC: Final = 64
"""Default `max_concurrency` of coroutines and streams (behaviour GUARD-1)."""

MAX_THREADS: Final = 20
"""Default `max_concurrency` of functions that run in threads (behaviour GUARD-1)."""

ExecutorName = Literal["async", "thread", "process"]


def check_numbers(tag: str, *, timeout_s: float | None, max_concurrency: int | None, queue: int) -> None:
    """Refuse numbers that no capability can have. Raises `ValueError`."""
    if timeout_s is not None and not timeout_s > 0:
        raise ValueError(f"timeout_s of {tag!r} is a positive number of seconds, not {timeout_s}")
    if max_concurrency is not None and max_concurrency < 1:
        raise ValueError(f"max_concurrency of {tag!r} is at least 1, not {max_concurrency}")
    if queue < 0:
        raise ValueError(f"queue of {tag!r} is 0 or more, not {queue}")


def check_reads(handler: Handler, *, reads: bool, cache: Cache | None, batch: Batch | None) -> None:
    """Refuse to share answers of what may change something, or has no one answer. Raises `ValueError`."""
    tag = handler.capability
    for option, wanted in (("reads=True", reads), ("cache=", cache), ("batch=", batch)):
        if wanted and is_stream(handler):
            raise ValueError(f"{tag!r} is a stream, which is never shared: leave out {option}")
        if wanted and not reads:
            raise ValueError(
                f"{option} of {tag!r} gives one answer to several calls, so the capability must change nothing: "
                "say reads=True if it does not"
            )
    if batch is None:
        return
    if batch.into == tag:
        raise ValueError(
            f"batch= of {tag!r} goes into {tag!r} itself: name the capability that takes many at once"
        )
    properties = None if handler.input_schema is None else handler.input_schema.get("properties", {})
    if properties is not None and batch.by not in properties:
        there = ", ".join(map(repr, properties)) or "none"
        raise ValueError(
            f"batch= of {tag!r} goes by {batch.by!r}, which is no parameter of it: it has {there}"
        )


def check_rate(tag: str, rate: Rate | None) -> None:
    """Refuse a rate that bounds nothing. Raises `ValueError`."""
    if rate is not None and rate.calls is rate.concurrent is None:
        raise ValueError(f"rate= of {tag!r} bounds nothing: say calls=, concurrent=, or both")


def is_stream(handler: Handler) -> bool:
    """Whether it gives its answer in parts."""
    return handler.kind in {Kind.STREAM, Kind.SYNC_STREAM}


def of_its_own(offered: Served) -> Served:
    """Give a capability to one instance: with slots, counters and an executor that no other start shares."""
    shape = offered.places
    executor, limit = executor_for(offered.handler, asked_for(offered.executor), shape.limit)
    places = Bulkhead(
        limit,
        queue_limit=shape.queue_limit,
        prioritised=shape.prioritised,
        name=shape.name,
        owner=shape.owner,
    )
    return Served(
        card=offered.card,
        handler=offered.handler,
        executor=executor,
        places=places,
        timeout_s=offered.timeout_s,
        is_stream=offered.is_stream,
    )


def asked_for(executor: Executor) -> ExecutorName | None:
    """Give what an executor was asked for by."""
    return "process" if isinstance(executor, ProcessExecutor) else None


def executor_for(
    handler: Handler, asked: ExecutorName | None, max_concurrency: int | None
) -> tuple[Executor, int]:
    """Give where a handler runs, and how many at once. Raises `ValueError` for what cannot be."""
    in_loop = handler.kind in {Kind.ASYNC, Kind.STREAM}
    if asked == "process":
        limit = max_concurrency or 2
        return ProcessExecutor(handler.function, limit=limit), limit
    if in_loop:
        if asked == "thread":
            raise ValueError(
                f"{handler.capability!r} is `async def`, which runs in the loop: make it `def` for threads"
            )
        return AsyncExecutor(), max_concurrency or MAX_ASYNC
    if asked == "async":
        raise ValueError(
            f"{handler.capability!r} is a plain `def`, which would block the loop: make it `async def`"
        )
    limit = max_concurrency or MAX_THREADS
    return ThreadExecutor(limit), limit
