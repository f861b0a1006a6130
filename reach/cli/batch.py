"""The lines of `reach pipe --tasks`: each is a task, submitted under a key of its own and waited for.

The key is the run's name and the line's number, so a line that is sent again, after a kill or a lost connection, is the
task that it was: nothing is done twice, and what ended meanwhile is answered at once.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from reach.chance import random
from reach.errors import LinkDown, ReachError
from reach.faults import Executed, Reason
from reach.policy.backoff import delay_s
from reach.wire.reply import Failure, Reply
from reach.wire.task import TaskState

if TYPE_CHECKING:
    from reach.call.client import Bus
    from reach.call.options import CallOptions
    from reach.call.task import Task

_WAIT_BASE_S: Final = 0.1
_WAIT_CAP_S: Final = 5.0


async def as_task(
    bus: Bus, capability: str, params: dict[str, Any], options: CallOptions, *, key: str, patience_s: float
) -> tuple[Reply, str | None]:
    """Submit a line and wait for its end: the answer, and the task's id where there is one."""
    chosen = options.copy()
    chosen["idempotency_key"] = key
    give_up_at = time.monotonic() + patience_s
    attempt = 1
    while True:
        try:
            task = await bus.submit(capability, params, **chosen)
            return await _answer(task), task.id
        except (ReachError, LinkDown) as error:
            failure = Failure.of_error(error) if isinstance(error, ReachError) else None
            may_repeat = failure is None or failure.retryable or failure.executed is not Executed.YES
            jitter = random()
            wait_s = delay_s(attempt, base_s=_WAIT_BASE_S, jitter=jitter, cap_s=_WAIT_CAP_S)
            if not may_repeat or _is_final(failure) or time.monotonic() + wait_s > give_up_at:
                return Reply(ok=False, error=failure or Failure.of(Reason.DISCONNECTED)), None
            attempt += 1
            await asyncio.sleep(wait_s)


async def _answer(task: Task) -> Reply:
    end = await task.end()
    if end.state is TaskState.COMPLETED:
        return Reply(ok=True, data=end.data, attempt=end.attempt, instance=end.instance)
    failure = end.error or Failure.of(Reason.UNMAPPED)
    return Reply(ok=False, error=failure, attempt=end.attempt, instance=end.instance)


def _is_final(failure: Failure | None) -> bool:
    """Whether the same key could only end in the same refusal."""
    return failure is not None and failure.reason in {
        Reason.KEY_REUSED,
        Reason.SCHEMA,
        Reason.TOO_LARGE,
        Reason.AUTH_DENIED,
    }
