"""Writing down what becomes of calls that have a key: before their handler starts, and at its end (IDEM-1, IDEM-5).

Nothing here belongs to a request: each write is a task of the keeper's, so that neither a caller who leaves nor a
deadline undoes it. What cannot be written when a handler has ended is written later, for as long as the instance lives;
meanwhile duplicates at this instance get it from memory. A write that is refused because somebody else has the call by
then stays unwritten, and whoever asked is told so.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from reach.bus.idempotency import Found, IdempotencyStore, Taken, Unavailable
from reach.chance import random
from reach.errors import CallTimeout, LinkDown, ReachError, Unreachable
from reach.faults import Executed, Reason
from reach.policy.backoff import delay_s
from reach.policy.idempotency import Late, as_unknown, late_word
from reach.runtime.answer import ROOM
from reach.wire import codec
from reach.wire.idempotency import EntryState, IdempotencyEntry
from reach.wire.reply import Failure, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from reach.bus.blobs import Blobs
    from reach.bus.connection import Connection

_log = logging.getLogger("reach.agent")

BLOB_BUCKET: Final = "reach_blobs_24h"

RETRY_BASE_S: Final = 0.1
RETRY_CAP_S: Final = 5.0
"""Pauses between writes to a store that does not answer: double from the first, at most the second, spread by half."""

MAX_DOUBTFUL: Final = 10_000
"""Entries that may have arrived, and must not stay; more than a store can lose the words of."""

CLOSE_S: Final = 5.0
"""How long an instance that ends tries to write what is not written yet."""

ENTRY_ROOM: Final = 2 * ROOM
"""Bytes of a message that are not the stored reply: names, digest, headers."""

TAKEN_OVER: Final = (
    "This was done, but it had been handed to another instance meanwhile: repeating it with the same "
    "idempotency key gives that one's result."
)


class Run:
    """One call that this instance leads under its key: it looks, waits and runs for all of the instance's duplicates.

    `entry` and `revision` are there once it has begun. `ended` is set when duplicates may go on: with what they are
    told, or with None when they have to look again.
    """

    __slots__ = (
        "begun",
        "digest",
        "ended",
        "entry",
        "implicit",
        "key",
        "outlived",
        "revision",
        "seen",
        "there",
        "unkept",
    )

    def __init__(self, key: str, *, implicit: bool, digest: str, loop: asyncio.AbstractEventLoop) -> None:
        self.key = key
        self.implicit = implicit
        self.digest = digest
        self.entry: IdempotencyEntry | None = None
        self.revision = 0
        self.begun = False
        self.there: IdempotencyEntry | None = None
        """What it was seen to wait for."""
        self.seen: Found | None = None
        self.unkept = False
        """Whether it runs without an entry, since the store is not there (IDEM-6)."""
        self.outlived = False
        """Whether its handler goes on in a thread although its caller has been answered."""
        self.ended: asyncio.Future[Reply | Failure | None] = loop.create_future()

    def settle(self, told: Reply | Failure | None) -> None:
        """Let duplicates go on."""
        if not self.ended.done():
            self.ended.set_result(told)


class Kept(Enum):
    """What became of the last write of a run."""

    WRITTEN = "written"
    LATER = "later"
    """The store does not answer: it is written when it does."""
    NOT_KEPT = "not_kept"
    """There is no store."""
    NOT_OURS = "not_ours"
    """Somebody else has the call, or a person has decided."""


class Keeper:
    """The entries of one instance's calls."""

    def __init__(self, connection: Connection, blobs: Blobs, *, written: Callable[[Run], None]) -> None:
        """Keep entries over a connection; `written` is told of each end that could only be written later."""
        self._connection = connection
        self._blobs = blobs
        self._written = written
        self._loop = asyncio.get_running_loop()
        self._store: IdempotencyStore | None = None
        self._tasks: set[asyncio.Task[Any]] = set()  # Owned: close() ends and awaits them.
        self._doubtful: dict[tuple[str, str], None] = {}
        self._clearing: asyncio.Task[Any] | None = None  # Among the tasks.
        self.unwritten = 0
        """Ends that the store has not taken yet."""

    @property
    def store(self) -> IdempotencyStore:
        """The store; made when the first call needs it."""
        if self._store is None:
            self._store = IdempotencyStore(self._connection)
        return self._store

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Start what must not end with the request that it is for."""
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Write what can still be written, and end."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_S)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        if self.unwritten:
            _log.error("%d results of calls with a key could not be kept: the store is away", self.unwritten)
        if self._store is not None:
            self._store.close()

    # -- begin ---------------------------------------------------------------------------------------

    async def begin(self, run: Run, entry: IdempotencyEntry, *, after: int) -> None:
        """Write the running entry of a run, after revision `after`; also when whoever waits for it leaves.

        Raises `Taken`, `Unavailable`; cancelled, the entry is taken back once it is there.
        """
        writing = self.spawn(self._begin(run, entry, after), name=f"begin of {entry.capability}")
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            writing.add_done_callback(lambda _: self.doubt(run.key, entry))
            raise

    async def _begin(self, run: Run, entry: IdempotencyEntry, after: int) -> None:
        run.revision = await self.store.create(run.key, entry, after=after)
        run.entry, run.begun = entry, True

    # -- what must not stay --------------------------------------------------------------------------

    def doubt(self, key: str, entry: IdempotencyEntry) -> None:
        """Make sure, for as long as it takes, that an entry whose handler never started does not stay."""
        if len(self._doubtful) >= MAX_DOUBTFUL:
            del self._doubtful[next(iter(self._doubtful))]
        self._doubtful[key, entry.nonce] = None
        if self._clearing is None or self._clearing.done():
            self._clearing = self.spawn(self._clear(), name="release of what never began")
            self._clearing.add_done_callback(self._cleared)

    def _cleared(self, ended: asyncio.Task[Any]) -> None:
        if self._clearing is ended:
            self._clearing = None

    async def _clear(self) -> None:
        tries = 0
        while self._doubtful:
            key, nonce = next(iter(self._doubtful))
            try:
                await self._release(key, nonce, revision=0)
            except Unavailable as error:
                if not error.missing:
                    await self._pause(tries)
                    tries += 1
                    continue
            tries = 0
            self._doubtful.pop((key, nonce), None)

    async def _release(self, key: str, nonce: str, *, revision: int) -> None:
        """Delete the running entry of a run, if it is there: at `revision`, or wherever. Raises `Unavailable`."""
        while True:
            if not revision:
                found = await self.store.read(key)
                there = None if found is None else found.entry
                ours = there is not None and there.nonce == nonce and there.state is EntryState.RUNNING
                if found is None or not ours:
                    return
                revision = found.revision
            try:
                await self.store.release(key, revision=revision)
            except Taken:
                revision = 0
            else:
                return

    # -- end -----------------------------------------------------------------------------------------

    async def end(self, run: Run, state: EntryState, reply: Reply) -> tuple[Reply, Kept]:
        """Write how a run ended; gives the reply as it is kept, a large one's data in a blob.

        `reply` is in wire form. What the store does not take now is written later.
        """
        try:
            return await self._try_end(run, state, reply)
        except Unavailable as error:
            _log.warning("what became of a call under %s is kept later: %s", run.key, error)
        self.unwritten += 1
        self.spawn(self._end_later(run, state, reply), name=f"late end of {run.key}")
        return reply, Kept.LATER

    async def declare_unknown(
        self, key: str, entry: IdempotencyEntry, *, revision: int, cause: str | None
    ) -> None:
        """Write that nobody knows what became of a call whose instance is gone. Raises `Taken`, `Unavailable`."""
        ending = as_unknown(entry, cause=cause, now_ms=self.store.now_ms())
        await self.store.update(key, ending, revision=revision)

    async def _end_later(self, run: Run, state: EntryState, reply: Reply) -> None:
        tries = 0
        while True:
            await self._pause(tries)
            tries += 1
            with suppress(Unavailable):
                await self._try_end(run, state, reply)
                self.unwritten -= 1
                self._written(run)
                return

    async def _try_end(self, run: Run, state: EntryState, reply: Reply) -> tuple[Reply, Kept]:
        """Write an end after whatever is there, where that is still ours to end. Raises `Unavailable`."""
        if state is EntryState.RELEASED:
            if run.entry is not None:
                await self._release(run.key, run.entry.nonce, revision=run.revision)
            return reply, Kept.WRITTEN
        if state is EntryState.DONE:
            reply = await self._stowed(reply)
        ending = _ending(run, state, reply, now_ms=self.store.now_ms())
        revision = run.revision
        while True:
            try:
                await self.store.update(run.key, ending, revision=revision)
            except Taken as taken:
                there = None if taken.found is None else taken.found.entry
                if late_word(there, ending.nonce, state) is Late.LEAVE:
                    return reply, Kept.NOT_OURS
                revision = 0 if taken.found is None else taken.found.revision
            else:
                return reply, Kept.WRITTEN

    async def _stowed(self, reply: Reply) -> Reply:
        """Put data that fits no entry into the blob store, or say that it was lost. Raises `Unavailable`."""
        if reply.blob is not None or len(reply.pack()) <= self._connection.max_payload - ENTRY_ROOM:
            return reply
        try:
            blob = await self._blobs.put(codec.pack({"data": reply.data}), bucket=BLOB_BUCKET)
        except (LinkDown, Unreachable, CallTimeout) as error:
            raise Unavailable(str(error)) from None
        except ReachError as error:
            # A blob store that is full, or none at all: that it was done is kept, what came of it is not.
            message = f"this was done, but its result could not be kept: {error.message}"
            return replace(reply, ok=False, data=None, error=Failure.of(Reason.BAD_RESULT, message))
        return replace(reply, data=None, blob=blob)

    async def _pause(self, tries: int) -> None:
        """Wait before the next try."""
        jitter = random()
        await asyncio.sleep(delay_s(tries + 1, base_s=RETRY_BASE_S, jitter=jitter, cap_s=RETRY_CAP_S))


def _ending(run: Run, state: EntryState, reply: Reply, *, now_ms: int) -> IdempotencyEntry:
    if run.entry is None:
        raise RuntimeError(f"the call under {run.key} never had an entry that could end")
    failure = reply.error
    return replace(
        run.entry,
        state=state,
        done_at=now_ms,
        executed=Executed.YES if failure is None else failure.executed,
        reply=reply if state is EntryState.DONE else None,
        cause=failure.reason.value if failure is not None and state is EntryState.UNKNOWN else None,
    )
