"""What an operator's word does to the entry in the idempotency store, and to later duplicates of the call.

==============  ====================================================================================
executed        the entry is done: duplicates get the operator's result, or that there is none known
not executed    the entry is gone, if it is still the very one that this was said of: a duplicate runs
retry           the same; whoever resolved it makes the call again, under the same key
==============  ====================================================================================

What is still under way at an instance that lives has no unknown outcome, and what is done was done: there nothing may
be said that its entry contradicts. Everything here may be done twice with the effect of once.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from reach.bus.idempotency import DONE_EN, Found, IdempotencyStore, Taken, Unavailable
from reach.bus.idempotency import Resolution as Word
from reach.bus.owners import Owners
from reach.errors import CallTimeout, UpstreamRefusal
from reach.faults import Executed, Reason
from reach.policy.idempotency import Owner
from reach.wire.idempotency import EntryState, IdempotencyEntry
from reach.wire.reply import Reply
from reach.wire.unknown import KeyStanding, Resolution, UnknownOutcome, Verdict

if TYPE_CHECKING:
    from reach.bus.connection import Connection

PATIENCE_S: Final = 4.0
"""How long it is looked whether an instance is there: a link that broke is back by then."""

_AGAIN_S: Final = 0.3
_TRIES: Final = 5


class Keys:
    """The entries of one platform's unknown outcomes."""

    def __init__(self, connection: Connection) -> None:
        self._store = IdempotencyStore(connection)
        self._owners = Owners(connection)

    async def close(self) -> None:
        """Ask no more."""
        await self._owners.close()
        self._store.close()

    async def standing(self, outcome: UnknownOutcome) -> KeyStanding | None:
        """Give how the entry of a call stands; None for a call without a key. Raises `CallTimeout`."""
        if outcome.store_key is None:
            return None
        found = await self._read(outcome.store_key)
        entry = None if found is None else found.entry
        if entry is None:
            return KeyStanding(state="absent")
        lives = None
        if entry.state is EntryState.RUNNING:
            lives = await self._lives(entry, patience_s=0.0)
        return KeyStanding(
            state=entry.state.value, owner=entry.instance, at=entry.done_at or entry.begun_at, lives=lives
        )

    async def admit(self, outcome: UnknownOutcome, verdict: Verdict) -> int:
        """Give the revision of the entry that a verdict would be about; 0 for none.

        Raises `UpstreamRefusal` where the entry says otherwise, `CallTimeout` where the store does not answer.
        """
        if outcome.store_key is None:
            return 0
        found = await self._read(outcome.store_key)
        entry = None if found is None else found.entry
        if found is None or entry is None:
            return 0
        if entry.state is EntryState.DONE and verdict is not Verdict.EXECUTED:
            raise _refused(
                f"it was executed after all: {entry.resolved_by or entry.instance} has said so meanwhile, and "
                "duplicates get that result. "
                "Right would be: executed"
            )
        if entry.state is EntryState.RUNNING and await self._lives(entry, patience_s=PATIENCE_S) is not False:
            raise _refused(
                f"it is still under way at {entry.instance}, as far as can be seen: it ends by itself, or with that "
                "instance. Ask again later, or end the instance first (reach drain)"
            )
        return found.revision

    async def apply(self, outcome: UnknownOutcome, said: Resolution) -> str:
        """Do what follows from a resolution, and say it. Raises `CallTimeout` where it has to be done later."""
        key = outcome.store_key
        if key is None:
            return "it had no idempotency entry"
        try:
            for _ in range(_TRIES):
                try:
                    if said.verdict is Verdict.EXECUTED:
                        return await self._done(key, outcome, said)
                    return await self._released(key, said)
                except Taken:
                    await asyncio.sleep(_AGAIN_S)
        except Unavailable as error:
            raise _later(error) from None
        raise CallTimeout("others write the idempotency entry again and again")

    # -- inside --------------------------------------------------------------------------------------

    async def _done(self, key: str, outcome: UnknownOutcome, said: Resolution) -> str:
        reply = None
        if said.result is not None:
            reply = Reply(ok=True, data=said.result, provider=outcome.provider, instance=outcome.instance)
        found = await self._store.resolve(key, Word.EXECUTED, reply, by=said.by, running=True)
        if found is None:
            before = await self._store.read(key)
            if before is not None and before.entry is not None:
                raise Taken(before)
            done = self._entry(outcome, said, reply)
            await self._store.update(key, done, revision=0 if before is None else before.revision)
            return "its idempotency entry was gone, and is done now"
        if found.entry is not None and found.entry.resolved_by == said.by:
            return "its idempotency entry is done"
        return "its idempotency entry was done already: that result stays"

    async def _released(self, key: str, said: Resolution) -> str:
        found = await self._store.read(key)
        if found is None or found.entry is None:
            return "its idempotency entry is gone"
        if found.revision != said.revision:
            return "its idempotency entry has been written anew since, and stays"
        await self._store.release(key, revision=found.revision)
        return "its idempotency entry is released"

    def _entry(self, outcome: UnknownOutcome, said: Resolution, reply: Reply | None) -> IdempotencyEntry:
        now_ms = self._store.now_ms()
        return IdempotencyEntry(
            state=EntryState.DONE,
            capability=outcome.capability,
            tenant=outcome.tenant,
            instance=outcome.instance or "",
            generation=0,
            digest=outcome.digest,
            begun_at=outcome.began_at,
            done_at=now_ms,
            executed=Executed.YES,
            implicit=outcome.idempotency_key is None,
            reply=Reply(ok=True, notice=DONE_EN) if reply is None else reply,
            idempotency_key=outcome.idempotency_key,
            message_id=outcome.message_id,
            source=outcome.source,
            session_id=outcome.session_id,
            task_id=outcome.task_id,
            resolved_by=said.by,
        )

    async def _read(self, key: str) -> Found | None:
        try:
            return await self._store.read(key)
        except Unavailable as error:
            raise _later(error) from None

    async def _lives(self, entry: IdempotencyEntry, *, patience_s: float) -> bool | None:
        """Whether the instance that has a call is there; None as long as that cannot be said."""
        until = monotonic() + patience_s
        while True:
            owner = await self._owners.state(entry.instance, entry.generation, lease_ttl_s=entry.lease_ttl_s)
            if owner is Owner.ALIVE:
                return True
            if owner in {Owner.GONE, Owner.IDLE}:
                return False
            if monotonic() >= until:
                return None
            await asyncio.sleep(_AGAIN_S)


def _refused(message: str) -> UpstreamRefusal:
    return UpstreamRefusal(message, reason=Reason.REMOTE_4XX, executed=Executed.NO)


def _later(error: Unavailable) -> CallTimeout:
    return CallTimeout(f"the store of idempotency keys is not available: {error.why}", executed=Executed.NO)
