"""The pen of whoever has a task: its events, one after the other, each under the guard of the one before.

While a worker has a task nobody else writes to it, except to take it away. So a write that is refused has one of two
meanings: an event of its own is there already (its acknowledgement was lost, or its writer was cancelled half-way),
or the task was ended or taken over by somebody else, and this worker must let go of it (`Fenced`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from reach.bus.taskstream import PATIENCE_S, Outrun
from reach.errors import CallTimeout, RateLimited, Unreachable
from reach.policy.tasklife import has_checkpoint
from reach.runtime.turn import Turn
from reach.wire import codec
from reach.wire.task import TERMINAL, TaskEvent, TaskState

if TYPE_CHECKING:
    from reach.bus.blobs import Blobs
    from reach.bus.taskstream import Entry, TaskStream
    from reach.wire.reply import Failure

BLOB_BUCKET: Final = "reach_blobs_tasks"
ROOM: Final = 8192
"""Bytes kept free in a message beside an event's data."""

AS_LONG_AS_IT_TAKES_S: Final = 3600.0
"""How long the end of a task is tried to be written: the work is done, and only this says so."""


_AGAIN_S: Final = 0.2


class Fenced(Exception):
    """Somebody else has the task, or ended it: `ended` says which, `entries` what came behind one's own last event."""

    def __init__(self, entries: list[Entry]) -> None:
        super().__init__(", ".join(entry.event.state for entry in entries))
        self.entries = entries
        self.state = entries[-1].event.state if entries else None
        self.ended = any(entry.event.state in TERMINAL for entry in entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who writes: one instance."""

    agent_id: str
    instance: str
    generation: int


class TaskWriter:
    """Writes the events of one task. `sequence` is that of the last one, as far as is known."""

    def __init__(
        self,
        stream: TaskStream,
        blobs: Blobs,
        author: Author,
        *,
        tenant: str,
        task_id: str,
        capability: str,
        sequence: int,
        max_payload: int,
    ) -> None:
        self._stream = stream
        self._blobs = blobs
        self._author = author
        self._tenant = tenant
        self.task_id = task_id
        self._capability = capability
        self._most = max_payload - ROOM
        self._turn = Turn()
        self.sequence = sequence
        self.packed = b""
        """The last event as it was written."""
        self.last: TaskEvent | None = None
        self.attempt = 0
        self.lost = 0
        self.run = 1
        self.checkpoint: int | None = None

    async def write(
        self,
        state: TaskState,
        *,
        data: Any = None,
        error: Failure | None = None,
        due: int | None = None,
        first: TaskEvent | None = None,
    ) -> TaskEvent:
        """Write the next event; `first` is the submission that a task without events begins with.

        Raises:
            Fenced: the task is somebody else's, or has ended.
            NotOnTheWire: the data cannot cross.
            ReachError: it could not be written.
        """
        event = TaskEvent(
            task_id=self.task_id,
            state=state,
            capability=self._capability,
            tenant=self._tenant,
            agent_id=self._author.agent_id,
            instance=self._author.instance,
            generation=self._author.generation,
            data=codec.wire_form(data),
            error=error,
            due=due,
        )
        if first is not None:
            event.envelope, event.callback, event.notify = first.envelope, first.callback, first.notify
            event.source, event.callback_states = first.source, first.callback_states
        if not self._turn.take_now():
            await self._turn.take()
        try:
            event.attempt, event.lost, event.run = self.attempt, self.lost, self.run
            event.checkpoint = self.checkpoint
            patience_s = AS_LONG_AS_IT_TAKES_S if state in TERMINAL else PATIENCE_S
            if event.data is not None:
                await self._kept(event, patience_s)
            event.at = self._stream.now_ms()
            self.packed = event.pack()
            while True:
                try:
                    self.sequence = await self._stream.append(
                        event,
                        after=self.sequence,
                        packed=self.packed,
                        patience_s=patience_s,
                        absence_s=patience_s,
                    )
                except Outrun as outrun:
                    self._look(outrun)
                else:
                    if has_checkpoint(event):
                        self.checkpoint = self.sequence
                    self.last = event
                    return event
        finally:
            self._turn.give_back()

    def _look(self, outrun: Outrun) -> None:
        """Go on behind events of one's own, and behind submissions that came twice. Raises `Fenced`."""
        for entry in outrun.entries:
            event = entry.event
            ours = event.instance == self._author.instance and event.generation == self._author.generation
            if not ours and event.state is not TaskState.QUEUED:
                raise Fenced(outrun.entries)
            if ours and event.state in TERMINAL:
                raise Fenced(outrun.entries)
            if has_checkpoint(event):
                self.checkpoint = entry.sequence
        self.sequence = outrun.entries[-1].sequence if outrun.entries else 0

    async def _kept(self, event: TaskEvent, patience_s: float) -> None:
        """Claim-check an event, across outages of the store."""
        deadline = asyncio.get_running_loop().time() + patience_s
        while True:
            try:
                await self._claim_check(event)
            except (Unreachable, CallTimeout, RateLimited):
                if asyncio.get_running_loop().time() >= deadline:
                    raise
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    async def _claim_check(self, event: TaskEvent) -> None:
        """Let what does not fit one message wait in the blob store, for as long as the task is kept."""
        if event.data is None or type(event.data) in {int, float, bool}:
            return
        body = codec.pack({"data": event.data})
        if len(body) > self._most:
            event.blob = await self._blobs.put(body, bucket=BLOB_BUCKET)
            data = event.data if type(event.data) is dict else {}
            kept = {"question": data["question"]} if "question" in data else {}
            if "checkpoint" in data:
                kept["checkpoint"] = None  # It is one, and lies in the blob.
            event.data = kept or None
