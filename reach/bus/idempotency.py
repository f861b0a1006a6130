"""The store of idempotency keys: one entry a key in the bucket `reach_idempotency`, each write a compare-and-set.

A write names the revision that it follows. Three ends are told apart: it is there (its revision), somebody else wrote
first (`Taken`, with what is there now), and the store does not answer (`Unavailable`, nothing is known to be written).
An acknowledgement that was lost is none of them: the key is read again, and the writer's own nonce tells whether it was
its write. Everything is read from the stream's leader, so what was acknowledged is seen.

==============  ======  ==================================================================
what            number  where it comes from
==============  ======  ==================================================================
one question    1 s     ours: a stream answers in under a millisecond, or has no leader now
all of a write  2.5 s   ours: a new leader is there in two seconds
no stream       0.5 s   ours: a server that has just started answers before its streams do
kept            24 h    IDEM-5; ten minutes and one for implied keys (IDEM-4)
==============  ======  ==================================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from reach.bus.feed import Begin, Feed
from reach.bus.jetstream import GuardRefused, JetStream, Unacknowledged
from reach.errors import CallTimeout, LinkDown, ReachError, SchemaInvalid, Unreachable
from reach.faults import Executed, Reason
from reach.policy.dedupe import KEPT_S, WINDOW_S
from reach.wire.idempotency import BUCKET, EntryState, IdempotencyEntry
from reach.wire.reply import Reply

if TYPE_CHECKING:
    from reach.bus.connection import Connection
    from reach.bus.jetstream import Stored

STREAM: Final = f"KV_{BUCKET}"
_PREFIX: Final = f"$KV.{BUCKET}."

QUESTION_S: Final = 1.0
PATIENCE_S: Final = 2.5
ABSENCE_S: Final = 0.5

MISSING_S: Final = 2.0
"""How long a store that was never made is not asked for again."""

AWAY_S: Final = 0.5
"""How long one that did not answer is not: whoever comes meanwhile need not wait to hear the same."""

IMPLIED_KEPT_S: Final = WINDOW_S + 60.0
BLOB_MARGIN_S: Final = 300.0
"""An entry that points to a blob ends before the blob does."""

RELEASED_S: Final = 60
"""How long the word that a key was released stays in the bucket: nobody needs it, but it is how a key is deleted."""

_AGAIN_S: Final = 0.02
_SILENCE_S: Final = 2.5
_FORGOTTEN: Final = (b"\nKV-Operation:", b"\nNats-Marker-Reason:")
_DELETE: Final = {"KV-Operation": "DEL", "Nats-TTL": f"{RELEASED_S}s"}

DONE_EN: Final = "Somebody has found out that this was done; its result is not known."


class Found(Struct, frozen=True):
    """What is under a key at `revision`; `entry` is None where there was one that was released or has expired."""

    revision: int
    entry: IdempotencyEntry | None


class Taken(Exception):
    """Another write of the key came first; `found` is what is there now, None for nothing."""

    def __init__(self, found: Found | None) -> None:
        super().__init__("the key is free" if found is None else f"the key is at revision {found.revision}")
        self.found = found


class Unavailable(Exception):
    """The store did not do what it was asked.

    `missing` says that there is none here at all; `sent` that what was to be written may be there all the same, or
    arrive yet; `unreadable` that what is there is no entry as this version knows them.
    """

    def __init__(
        self, why: str, *, missing: bool = False, sent: bool = False, unreadable: bool = False
    ) -> None:
        super().__init__(why)
        self.why = why
        self.missing = missing
        self.sent = sent
        self.unreadable = unreadable


class Resolution(StrEnum):
    """What a person says of a call whose outcome is unknown."""

    EXECUTED = "executed"
    NOT_EXECUTED = "not_executed"
    RETRY = "retry"
    """Whether it was done is of no importance: it may be made again."""


class IdempotencyStore:
    """The entries, over one connection. Close it before the connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._jetstream = JetStream(connection)
        self._missing_until = self._away_until = 0.0

    def now_ms(self) -> int:
        """Give the broker's time in epoch milliseconds."""
        return self._connection.broker_time.now_ms()

    def close(self) -> None:
        """Settle what waits, and listen no more."""
        self._jetstream.close()

    # -- reading -------------------------------------------------------------------------------------

    async def read(self, key: str) -> Found | None:
        """Give what is under a key, None for nothing. Raises `Unavailable`."""
        self._be_there()
        try:
            stored = await self._jetstream.message(STREAM, {"last_by_subj": _PREFIX + key})
            return None if stored is None else _found(stored)
        except (LinkDown, ReachError) as error:
            raise self._unavailable(error) from None

    async def entries(
        self, state: EntryState | None = None
    ) -> AsyncIterator[tuple[str, int, IdempotencyEntry]]:
        """Give every entry there is (of one state): its key, its revision, and itself. Raises `Unavailable`."""
        feed = Feed(self._connection, self._jetstream, STREAM, [f"{_PREFIX}>"], Begin(sequence=1))
        try:
            await feed.open()
            arriving = aiter(feed)
            while not feed.caught_up:
                # What expires before it is handed out is waited for in vain.
                async with asyncio.timeout(_SILENCE_S):
                    one = await anext(arriving)
                if one.headers.get("KV-Operation") or one.headers.get("Nats-Marker-Reason"):
                    continue
                try:
                    entry = IdempotencyEntry.read(one.data)
                except SchemaInvalid:
                    continue  # Of a newer version, or nobody's: whoever asks for its key is told so.
                if state is None or entry.state is state:
                    yield one.subject.removeprefix(_PREFIX), one.position.stream_seq, entry
        except TimeoutError:
            return
        except (LinkDown, ReachError) as error:
            raise self._unavailable(error) from None
        finally:
            feed.close()

    # -- writing -------------------------------------------------------------------------------------

    async def create(self, key: str, entry: IdempotencyEntry, *, after: int = 0) -> int:
        """Write an entry under a key that holds none, or at revision `after` in place of what is there.

        Gives its revision. Raises `Taken`, `Unavailable`.
        """
        while True:
            try:
                return await self._write(key, entry.pack(), after=after, is_ours=_is(entry))
            except Taken as taken:
                # What was released, or has expired, left a word behind: the key is free, at that revision.
                rest = 0 if taken.found is None else taken.found.revision
                if rest == after or (taken.found is not None and taken.found.entry is not None):
                    raise
                after = rest

    async def update(self, key: str, entry: IdempotencyEntry, *, revision: int) -> int:
        """Write an entry in place of the one at `revision`, with the time that its state has. As `create`."""
        kept_s = _kept_s(entry)
        headers = None if kept_s is None else {"Nats-TTL": f"{int(kept_s)}s"}
        return await self._write(key, entry.pack(), after=revision, is_ours=_is(entry), headers=headers)

    async def release(self, key: str, *, revision: int) -> None:
        """Delete the entry at `revision`: the call may be made anew. Raises `Taken`, `Unavailable`."""
        await self._write(key, b"", after=revision, is_ours=_is_free, headers=_DELETE)

    async def resolve(
        self,
        key: str,
        how: Resolution,
        reply: Reply | None = None,
        *,
        by: str,
        running: bool = False,
    ) -> Found | None:
        """Let a person's word stand for an outcome that is unknown; gives what is there then, None for no entry.

        `executed` makes it done, with `reply` for later duplicates; the others delete it, so that the call may be made
        anew. `running` lets this be said of an entry that is still running, whose instance is known to be gone. An
        entry that is neither is left as it is. Raises `Taken` (somebody was first), `Unavailable`.
        """
        found = await self.read(key)
        if found is None or found.entry is None:
            return None
        entry = found.entry
        open_states = {EntryState.UNKNOWN, EntryState.RUNNING} if running else {EntryState.UNKNOWN}
        if entry.state not in open_states:
            return found
        if how is not Resolution.EXECUTED:
            await self.release(key, revision=found.revision)
            return await self.read(key)
        done = replace(
            entry,
            state=EntryState.DONE,
            done_at=self.now_ms(),
            executed=Executed.YES,
            reply=Reply(ok=True, notice=DONE_EN) if reply is None else reply,
            resolved_by=by,
        )
        return Found(await self.update(key, done, revision=found.revision), done)

    async def _write(
        self,
        key: str,
        data: bytes,
        *,
        after: int,
        is_ours: Callable[[Found | None], bool],
        headers: dict[str, str] | None = None,
    ) -> int:
        """Write at a revision, whatever becomes of the acknowledgement. Raises `Taken`, `Unavailable`."""
        self._be_there()
        subject = _PREFIX + key
        began, sent = self._loop.time(), False
        while True:
            try:
                return await self._jetstream.publish(
                    subject, data, guard=(subject, after), headers=headers, timeout_s=QUESTION_S
                )
            except Unacknowledged:
                sent = True
            except GuardRefused:
                pass
            except (LinkDown, ReachError) as error:
                if not isinstance(error, Unreachable) or self._loop.time() - began >= ABSENCE_S:
                    raise self._unavailable(error, sent=sent) from None
                await asyncio.sleep(_AGAIN_S)
                continue
            try:
                found = await self.read(key)
            except Unavailable as error:
                error.sent = sent
                raise
            if is_ours(found):
                return after if found is None else found.revision
            if (0 if found is None else found.revision) != after:
                raise Taken(found)
            if self._loop.time() - began >= PATIENCE_S:
                self._away_until = self._loop.time() + AWAY_S
                why = f"the stream {STREAM} does not acknowledge what is written to it"
                raise Unavailable(why, sent=sent)
            await asyncio.sleep(_AGAIN_S)

    # -- trouble -------------------------------------------------------------------------------------

    def _be_there(self) -> None:
        """Raise `Unavailable` while that is known."""
        now = self._loop.time()
        if now < self._missing_until:
            raise Unavailable(f"there is no bucket {BUCKET} here", missing=True)
        if now < self._away_until:
            raise Unavailable(f"the stream {STREAM} does not answer")

    def _unavailable(self, error: Exception, *, sent: bool = False) -> Unavailable:
        if isinstance(error, SchemaInvalid):
            return Unavailable(str(error), sent=sent, unreadable=True)
        if isinstance(error, LinkDown):
            return Unavailable("the agent's own link to the broker is down", sent=sent)
        missing = isinstance(error, Unreachable) or getattr(error, "reason", None) is Reason.NOT_FOUND
        if missing:
            self._missing_until = self._loop.time() + MISSING_S
            return Unavailable(f"there is no bucket {BUCKET} here: {error}", missing=True, sent=sent)
        if isinstance(error, CallTimeout):
            self._away_until = self._loop.time() + AWAY_S
            return Unavailable(f"the stream {STREAM} does not answer", sent=sent)
        return Unavailable(f"the stream {STREAM} refuses: {error}", sent=sent)


def _found(stored: Stored) -> Found:
    """Read what is stored under a key. Raises `SchemaInvalid` for what is no entry."""
    if any(word in stored.headers for word in _FORGOTTEN):
        return Found(stored.sequence, None)
    return Found(stored.sequence, IdempotencyEntry.read(stored.data))


def _kept_s(entry: IdempotencyEntry) -> float | None:
    if entry.state is not EntryState.DONE:
        return None  # No age ends what is running or unknown (IDEM-1).
    if entry.implicit:
        return IMPLIED_KEPT_S
    return KEPT_S - (BLOB_MARGIN_S if entry.reply is not None and entry.reply.blob is not None else 0.0)


def _is(entry: IdempotencyEntry) -> Callable[[Found | None], bool]:
    """Make the question whether what is found is this very write."""

    def ours(found: Found | None) -> bool:
        there = None if found is None else found.entry
        return there is not None and there.nonce == entry.nonce and there.state is entry.state

    return ours


def _is_free(found: Found | None) -> bool:
    return found is None or found.entry is None
