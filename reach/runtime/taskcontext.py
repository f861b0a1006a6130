"""What the handler of a task sees: who asked, how to tell of progress, how to ask a person, how to survive a restart.

All of it are events of the task. Progress is written at most ten times a second, the latest one for certain; a
checkpoint is written when it is given, and is there again when the task is begun anew; a question waits for as long
as it takes, across restarts of the worker too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from reach.call.client import Bus
    from reach.runtime.taskrun import TaskRun

T = TypeVar("T")


class TaskContext:
    """The task that a handler works on."""

    __slots__ = ("_loop", "_run", "bus", "instance")

    def __init__(self, run: TaskRun, bus: Bus, instance: str) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self.bus = bus
        """Call other capabilities; trace, session, tenant and task are inherited."""
        self.instance = instance
        """This instance's name."""

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self._run.task_id

    @property
    def message_id(self) -> str:
        """The id of its submission."""
        return self._run.envelope.message_id

    @property
    def capability(self) -> str:
        """The capability that was submitted to."""
        return self._run.offered.name

    @property
    def tenant(self) -> str:
        """On whose behalf it runs."""
        return self._run.tenant

    @property
    def attempt(self) -> int:
        """Which try this is, from 1. A task that was put back, or whose worker was lost, keeps its number."""
        return self._run.attempt

    @property
    def source(self) -> str | None:
        """Who submitted it, as far as it said so."""
        return self._run.envelope.source

    @property
    def session_id(self) -> str | None:
        """The session that it belongs to."""
        return self._run.envelope.session_id

    @property
    def idempotency_key(self) -> str | None:
        """The submitter's idempotency key."""
        return self._run.envelope.idempotency_key

    @property
    def trace_id(self) -> str | None:
        """The W3C trace id."""
        trace = self._run.envelope.trace
        return None if trace is None else trace.trace_id

    @property
    def time_left_s(self) -> float:
        """Seconds until its time is up."""
        return max(0.0, self._run.deadline - self._loop.time())

    @property
    def stopping(self) -> bool:
        """Whether the worker is about to stop: a good moment for a last checkpoint."""
        return self._run.stopping

    @property
    def restored(self) -> Any:
        """The last checkpoint of the task; None when there was none."""
        return self._run.notes.restored

    async def progress(self, fraction: float | None = None, message: str = "", *, data: Any = None) -> None:
        """Tell how far it is: `fraction` from 0 to 1, and a sentence. Raises `ValueError`, `NotOnTheWire`."""
        await self._run.notes.progress(fraction, message, data)

    async def checkpoint(self, value: Any) -> None:
        """Keep `value` (anything that crosses the wire): should the task be begun anew, `restored` gives it back.

        It is kept when this returns. Raises `NotOnTheWire` for a value that cannot cross, `ReachError`.
        """
        await self._run.notes.keep(value)

    async def ask(self, question: str, *, schema: Any = None, timeout_s: float | None = None) -> Any:
        """Ask a person, or whoever answers tasks, and wait for the answer.

        `schema` is a type (a pydantic model, `bool`, `Literal["yes", "no"]` …) that the answer must fit; what does not
        fit is refused to whoever gave it. A task that is begun anew gets the answers that it had. Raises
        `TimeoutError` when none came within `timeout_s`; without it the task's own time is the bound.
        """
        return await self._run.asks.ask(question, schema, timeout_s)

    def cost(self, amount: float) -> None:
        """Add what this has cost, in the capability's own unit."""
        self._run.marks.cost = (self._run.marks.cost or 0.0) + amount

    def from_thread(self, call: Coroutine[Any, Any, T]) -> T:
        """Wait for one of the calls above in a handler that is a plain `def`: `ctx.from_thread(ctx.progress(0.5))`."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()
