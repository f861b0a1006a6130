"""What a running handler tells: progress, and checkpoints.

Progress is for those who watch, so of what comes faster than ten times a second only the latest is written; it is
written with the next event at the latest. A checkpoint is for the task itself, so it is written at once, and has
been when `keep` returns.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from reach.errors import ReachError
from reach.runtime.taskwriter import Fenced
from reach.wire import codec
from reach.wire.task import TaskState

if TYPE_CHECKING:
    from reach.runtime.taskrun import TaskRun

_log = logging.getLogger("reach.tasks")

PROGRESS_EVERY_S: Final = 0.1
"""Progress is written at most this often."""


class Notes:
    """The notes of one run. `restored` is the last checkpoint."""

    def __init__(self, run: TaskRun) -> None:
        self._run = run
        self._held: dict[str, Any] | None = None
        self._told_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.restored: Any = None

    @property
    def held(self) -> bool:
        """Whether progress waits to be written."""
        return self._held is not None

    async def restore(self, sequence: int) -> None:
        """Read the checkpoint that the task has. Raises `ReachError`."""
        worker = self._run.worker
        entry = await worker.stream.at(sequence)
        if entry is None:
            return  # Older than events are kept.
        data = entry.event.data
        if entry.event.blob is not None:
            most = self._run.offered.card.max_payload_bytes
            data = codec.unpack(await worker.blobs.get(entry.event.blob, limit=most))["data"]
        self.restored = data.get("checkpoint") if type(data) is dict else None

    async def progress(self, fraction: float | None, message: str, data: Any) -> None:
        """Tell of progress: at once, or with the next that may be written."""
        if fraction is not None and not 0 <= fraction <= 1:
            raise ValueError(f"progress is a fraction from 0 to 1, not {fraction}")
        self._run.must_be_inside()
        told = {"fraction": fraction, "message": message or None, "data": codec.wire_form(data)}
        self._held = {key: value for key, value in told.items() if value is not None}
        loop = asyncio.get_running_loop()
        wait_s = self._told_at + PROGRESS_EVERY_S - loop.time()
        if wait_s <= 0:
            await self.flush()
        elif self._timer is None:
            self._timer = loop.call_later(wait_s, self._soon)

    async def keep(self, value: Any) -> None:
        """Write a checkpoint, together with the progress that was held back."""
        self._run.must_be_inside()
        held, self._held = self._held or {}, None
        await self._run.say(TaskState.PROGRESS, {**held, "checkpoint": value})
        self.restored = value

    async def flush(self) -> None:
        """Write the progress that was held back."""
        held, self._held = self._held, None
        self.close()
        if held is not None:
            self._told_at = asyncio.get_running_loop().time()
            await self._run.say(TaskState.PROGRESS, held)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _soon(self) -> None:
        self._timer = None
        if self._held is not None and self._run.inside:
            self._run.worker.spawn(self._flush_quietly())

    async def _flush_quietly(self) -> None:
        try:
            await self.flush()
        except Fenced:
            pass  # The run has been told, and ends.
        except ReachError as error:
            _log.warning("progress of task %s was not written: %s", self._run.task_id, error)
