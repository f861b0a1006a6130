"""Finds calls with a key that an instance took with it, and that nobody repeats: else they would stand there for ever.

Every now and then, of what has stood for a while: what is unknown is entered in the list, unless it is there; what is
running at an instance that is gone becomes unknown, as by an agent that meets it, and is entered the next time. So the
callers' own entries come first, which have the parameters. What is idempotent is whoever's who repeats it; when that
has not happened for as long as results are kept, it is released. Several platforms may sweep: each write follows the
revision that it is about, and an entry is stored under an id that is the same for all of them.

===============  =============  ==========================================================================
what             number         where it comes from
===============  =============  ==========================================================================
a turn           each 20 s      ours: listed within a minute; spread by a quarter, as platforms start together
left alone       half of that   ours: a caller who is told of it enters it within a second
read, written    500 a turn     ours: half a second of a store's time
owners asked     100 a turn     ours: all at once, 4 s each at the most
===============  =============  ==========================================================================
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import anyio

from actors.unknowns.book import Book, as_it_may_be
from actors.unknowns.left import Left, Owned
from reach.bus.feed import Begin, Feed
from reach.bus.idempotency import STREAM, Found, IdempotencyStore, Taken, Unavailable
from reach.bus.jetstream import JetStream, Unacknowledged
from reach.bus.owners import Owners
from reach.chance import uniform
from reach.errors import LinkDown, NameRefused, ReachError, SchemaInvalid
from reach.faults import Reason
from reach.policy.idempotency import Owner, as_unknown
from reach.wire import codec, names, subjects
from reach.wire.idempotency import BUCKET, EntryState, IdempotencyEntry
from reach.wire.registration import read_message
from reach.wire.unknown import UnknownOutcome

if TYPE_CHECKING:
    from reach.bus.connection import Connection

_log = logging.getLogger("reach.unknowns")

SWEEP_S: Final = 20.0
SPREAD: Final = 0.25
MOST_READ: Final = 500
MOST_WRITTEN: Final = 500
MOST_ASKED: Final = 100

PATIENCE_S: Final = 4.0
"""How long it is looked whether an instance is there: a link that broke is back by then."""

_AGAIN_S: Final = 0.5
_LATER_S: Final = 5.0
_PREFIX: Final = f"$KV.{BUCKET}."


class Sweep:
    """What one platform sees of the store. `each_s` is how often it looks."""

    def __init__(self, connection: Connection, book: Book, *, each_s: float) -> None:
        self._connection = connection
        self._jetstream = JetStream(connection)
        self._store = IdempotencyStore(connection)
        self._owners = Owners(connection)
        self._book = book
        self._each_s = each_s
        self._left = Left()
        self._asked: Owned | None = None
        self._reading = anyio.CancelScope()

    async def close(self) -> None:
        """Ask no more."""
        await self._owners.close()
        self._store.close()
        self._jetstream.close()

    async def follow(self) -> None:
        """Take in which keys are written, for ever."""
        while True:
            feed = Feed(
                self._connection,
                self._jetstream,
                STREAM,
                [f"{_PREFIX}>"],
                Begin(sequence=self._left.begin()),
                headers_only=True,
            )
            try:
                await feed.open()
                with anyio.CancelScope() as self._reading:
                    async for arrived in feed:
                        found = arrived.position
                        key = arrived.subject.removeprefix(_PREFIX)
                        self._left.take(key, found.stream_seq, found.stored_ms, arrived.headers)
            except (ReachError, LinkDown) as error:
                _log.info("the store of idempotency keys is swept later: %s", error)
            finally:
                feed.close()
            await asyncio.sleep(_LATER_S)

    async def work(self) -> None:
        """Look every now and then, for ever. The book has to have the whole list."""
        while True:
            await asyncio.sleep(self._each_s * uniform(1 - SPREAD, 1 + SPREAD))
            if not self._connection.connected:
                continue
            try:
                await self._turn()
            except (Unavailable, Unacknowledged, ReachError, LinkDown) as error:
                _log.info("the store of idempotency keys is swept later: %s", error)
            except Exception:  # noqa: BLE001 - the list itself does not depend on it
                _log.exception("the store of idempotency keys was not swept")

    # -- a turn --------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        before_ms = self._store.now_ms() - int(self._each_s * 500)
        for key in self._left.unread(before_ms, MOST_READ):
            found = await self._read(key)
            if found is not None:
                await self._look(key, found)
        gone = await self._gone()
        for key in self._left.keys_of(gone, self._store.now_ms(), MOST_WRITTEN) if gone else ():
            await self._end(key, gone)
        if self._left.reads_again:
            self._reading.cancel()

    async def _look(self, key: str, found: Found) -> None:
        """See to what stands under a key, or hold who has it."""
        entry = found.entry
        if entry is not None and entry.state is EntryState.RUNNING and _may_be_asked(entry):
            self._left.learn(key, found.revision, entry)
            return
        if entry is not None and entry.state is EntryState.UNKNOWN:
            await self._enter(key, found.revision, entry)
        self._left.drop(key, found.revision)

    async def _enter(self, key: str, revision: int, entry: IdempotencyEntry) -> None:
        """Put what is unknown on the list, as its caller would, unless it is there."""
        try:
            outcome = of_entry(key, revision, entry)
            if self._book.has(outcome):
                return
            data = codec.pack(outcome.model_dump(exclude_none=True))
            subject, headers = subjects.unknown(outcome.tenant), {"Nats-Msg-Id": outcome.reach_id}
            await self._jetstream.publish(subject, data, headers=headers)
        except (SchemaInvalid, NameRefused) as error:
            _log.warning("the idempotency entry %s is not listed: no call has it so: %s", key, error)
            return
        _log.info("%s: a call that %s had is listed", outcome.capability, entry.instance)

    async def _end(self, key: str, gone: set[Owned]) -> None:
        """Write what becomes of a running entry whose owner is gone; whoever writes it meanwhile is right."""
        found = await self._read(key)
        if found is None:
            return
        entry = found.entry
        if entry is None or entry.state is not EntryState.RUNNING or _owner(entry) not in gone:
            await self._look(key, found)
            return
        try:
            if entry.idempotent:
                await self._store.release(key, revision=found.revision)
            else:
                ending = as_unknown(entry, cause=Reason.INSTANCE_GONE.value, now_ms=self._store.now_ms())
                await self._store.update(key, ending, revision=found.revision)
        except Taken:
            return
        self._left.drop(key, found.revision)

    async def _read(self, key: str) -> Found | None:
        """Give what is under a key; None for nothing, or nothing that can be read, which is held no more."""
        try:
            found = await self._store.read(key)
        except Unavailable as error:
            if not error.unreadable:
                raise
            _log.info("the idempotency entry %s is left alone: %s", key, error)
            found = None
        if found is None:
            self._left.forget(key)
        return found

    # -- owners --------------------------------------------------------------------------------------

    async def _gone(self) -> set[Owned]:
        """Ask for some of those who have calls; gives those that are gone."""
        asked = self._left.owners(self._store.now_ms(), after=self._asked, most=MOST_ASKED)
        if not asked:
            return set()
        self._asked = asked[-1]
        found = await asyncio.gather(*(self._is_gone(owner) for owner in asked))
        return {owner for owner, gone in zip(asked, found, strict=True) if gone}

    async def _is_gone(self, owner: Owned) -> bool:
        instance, generation, lease_ttl_s = owner
        until = monotonic() + PATIENCE_S
        while True:
            state = await self._owners.state(instance, generation, lease_ttl_s=lease_ttl_s)
            if state is not Owner.SILENT or monotonic() >= until:
                return state is Owner.GONE
            await asyncio.sleep(_AGAIN_S)


def of_entry(key: str, revision: int, entry: IdempotencyEntry) -> UnknownOutcome:
    """Give the list's entry for what is unknown under a key. Raises `SchemaInvalid`, `NameRefused`.

    All platforms give it the same id.
    """
    names.token(entry.tenant, "tenant")
    said: dict[str, Any] = {
        "reach_id": f"run_{key[:16]}_{revision}",
        "message_id": entry.message_id or "",
        "tenant": entry.tenant,
        "capability": entry.capability,
        "cause": entry.cause or "",
        "at": entry.done_at or entry.begun_at,
        "began_at": entry.begun_at,
        "provider": entry.agent_id,
        "instance": entry.instance,
        "source": entry.source,
        "session_id": entry.session_id,
        "task_id": entry.task_id,
        "idempotency_key": entry.idempotency_key,
        "store_key": key,
        "digest": entry.digest,
    }
    outcome = as_it_may_be(read_message(said, UnknownOutcome), entry.tenant)
    if outcome.store_key is None:
        raise SchemaInvalid("its key does not follow from what it says")
    return outcome


def _may_be_asked(entry: IdempotencyEntry) -> bool:
    """Whether what an entry calls its owner can be a name; any agent may write entries."""
    try:
        names.token(entry.instance, "instance")
    except NameRefused:
        return False
    return True


def _owner(entry: IdempotencyEntry) -> Owned:
    return entry.instance, entry.generation, entry.lease_ttl_s
