"""What an agent says of work that it does not do, and of handlers that fail: to callers and to its own log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reach.faults import Reason
from reach.runtime.workers import HandlerRaised
from reach.wire import codec
from reach.wire.reply import Failure

if TYPE_CHECKING:
    from reach.policy.bulkhead import Full
    from reach.runtime.job import Job, Served


def overloaded(served: Served, full: Full) -> Failure:
    """Say that there is no place, whose limit that is, how much of it is used, and when to come again (ERR-6)."""
    again_ms = full.retry_after_ms(served.mean_ms)
    return Failure.of(Reason.OVERLOADED, full.message, retry_after_ms=again_ms, limit=full.to_limit())


def too_large(job: Job, size: int) -> Failure | None:
    """Refuse a payload over the card's limit; an envelope is not counted."""
    most = job.served.card.max_payload_bytes
    size = min(size, len(codec.pack(job.envelope.payload)) if job.envelope.frames else size)
    if size <= most:
        return None
    message = f"the payload has {size} bytes; {job.served.name} takes at most {most}"
    return Failure.of(Reason.TOO_LARGE, message)


def where(error: BaseException) -> str:
    """Name an exception and its place, also of one that was raised in a worker process."""
    return str(error) if isinstance(error, HandlerRaised) else where_raised(error)


def where_raised(error: BaseException) -> str:
    """Name an exception's type and the line that raised it: enough to find the bug, without any value in it."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None:
        return type(error).__name__
    code = frame.tb_frame.f_code
    return f"{type(error).__name__} at {code.co_filename}:{frame.tb_lineno} in {code.co_name}"
