"""The calls: so many at once, each counted where it ended, and one instance lost on the way.

To know how many calls an instance holds when it is killed, it is stopped first (SIGSTOP, as if it hung), and nothing
new is sent until the others have answered everything: what is still open then is what it holds. What became of those
calls shows in their records: the first attempt ended with the instance, and another instance answered the second.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from examples.demo.documents import Document
from examples.demo.processes import Program
from reach.bus.connection import Connection
from reach.call.client import Bus
from reach.errors import LinkDown, ReachError
from reach.observe.records import MemorySink
from reach.wire import codec, subjects
from reach.wire.record import Attempt
from reach.wire.reply import Reply

CAPABILITY: Final = "invoice.extract"
INSTANCES: Final = 3
HELD_AT_LEAST: Final = 3
"""Calls that the instance holds when it is killed."""

_BEGIN_SHARE: Final = 0.2
_POLL_S: Final = 0.005
_SETTLE_S: Final = 0.02
_PING_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Reading:
    """How one document's call ended. `first` is its first attempt, where there was a second."""

    document: Document
    reply: Reply
    first: Attempt | None

    @property
    def invoice(self) -> dict[str, Any]:
        """What was read, as plain JSON; empty when it failed."""
        return self.reply.data if self.reply.ok and isinstance(self.reply.data, dict) else {}

    @property
    def number(self) -> str:
        """The invoice's number."""
        return str(self.invoice.get("number", ""))

    @property
    def supplier(self) -> str:
        """The seller's name."""
        return str((self.invoice.get("seller") or {}).get("name", ""))

    @property
    def total(self) -> str:
        """The grand total, as the document states it."""
        return str((self.invoice.get("totals") or {}).get("total") or "")

    @property
    def currency(self) -> str:
        """Its currency."""
        return str(self.invoice.get("currency") or "")


@dataclass(frozen=True, slots=True)
class Loss:
    """The instance that was killed, and how many calls it held."""

    instance: str
    pid: int
    held: int


@dataclass(slots=True)
class Progress:
    """How far it is; `lost` is set when an instance was killed."""

    total: int
    done: int = 0
    lost: Loss | None = None

    @property
    def share(self) -> float:
        """Share of the documents that are done."""
        return self.done / self.total if self.total else 1.0


@dataclass(slots=True)
class Reader:
    """Reads documents over one bus. `sink` is the memory of the bus's recorder."""

    bus: Bus
    sink: MemorySink
    concurrency: int
    timeout_s: float
    on_change: Callable[[Progress], None]
    progress: Progress = field(default_factory=lambda: Progress(0))
    _may_send: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, documents: Sequence[Document]) -> list[Reading]:
        """Read them all; in the order given."""
        self.progress.total = len(documents)
        self._may_send.set()
        readings: list[Reading | None] = [None] * len(documents)
        waiting = iter(enumerate(documents))
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self.concurrency, len(documents))):
                group.create_task(self._work(waiting, readings))
        return [reading for reading in readings if reading is not None]

    async def _work(self, waiting: Iterator[tuple[int, Document]], readings: list[Reading | None]) -> None:
        for place, document in waiting:
            readings[place] = await self._read_one(document)
            self.progress.done += 1
            self.on_change(self.progress)

    async def _read_one(self, document: Document) -> Reading:
        await self._may_send.wait()
        params = {"content": document.path.read_bytes(), "filename": document.name}
        reply = await self.bus.request(CAPABILITY, params, timeout_s=self.timeout_s)
        return Reading(document, reply, self._first_attempt(reply))

    def _first_attempt(self, reply: Reply) -> Attempt | None:
        """Look the call up in the records, which keep what became of each attempt."""
        if reply.attempt == 1:
            return None
        records = (record for record in reversed(self.sink.records) if record.reach_id == reply.reach_id)
        return next((record.attempts[0] for record in records), None)

    async def lose_one(self, agents: Sequence[Program], control: Connection) -> None:
        """Kill an instance when a fifth is done, while it holds enough calls; `control` may ask instances."""
        for victim in itertools.cycle(agents):
            if self.progress.share >= 1 or self.progress.lost is not None:
                return
            if self.progress.share >= _BEGIN_SHARE and await _held(victim, control) >= HELD_AT_LEAST:
                others = [agent for agent in agents if agent is not victim]
                await self._lose(victim, others, control)
            await asyncio.sleep(_POLL_S)

    async def _lose(self, victim: Program, others: Sequence[Program], control: Connection) -> None:
        """Stop it, count, and kill it if it holds enough; else let it go on."""
        self._may_send.clear()
        victim.freeze()
        try:
            for other in others:
                while await _held(other, control):  # noqa: ASYNC110 - it says so only when asked
                    await asyncio.sleep(_POLL_S)
            await asyncio.sleep(_SETTLE_S)  # The last answers have been sent; now they have come, too.
            held = self.bus.pending
            if held >= HELD_AT_LEAST:
                victim.kill()
                self.progress.lost = Loss(victim.facts["instance"], victim.pid, held)
                self.on_change(self.progress)
        finally:
            if self.progress.lost is None:
                victim.thaw()
            self._may_send.set()


async def _held(agent: Program, control: Connection) -> int:
    """Ask an instance how many calls it has in work; 0 when it does not say."""
    subject = subjects.ctl(agent.facts["instance"], "ping")
    try:
        answer = codec.unpack(await control.request(subject, codec.pack({}), timeout_s=_PING_S))
    except (LinkDown, ReachError):
        return 0
    held = answer.get("inflight")
    return held if isinstance(held, int) else 0
