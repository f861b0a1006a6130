"""Never twice: what a call with a key meets at this instance, before and after its handler (IDEM-1 to IDEM-6).

`meet` answers a call that was made before, waits with one that is under way here or elsewhere, or makes it the *lead*
of its key at this instance; a lead then takes a place, and `begin` writes the entry. Nobody who waits holds a place,
and of all that wait here for one key only one asks the store. What ends is told to all of them from memory.

A call has a key when its caller gave one, or by itself inside a task, when its capability is not idempotent (IDEM-4).
Broadcasts have none: each instance is asked for itself. Streams have none by themselves, and are refused with one,
since what they sent is not kept.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from reach.bus.idempotency import Taken, Unavailable
from reach.bus.owners import Owners
from reach.faults import Executed, Reason
from reach.policy import dedupe
from reach.policy.deadline import attempt_share_s
from reach.policy.fingerprint import digest
from reach.policy.idempotency import (
    Asking,
    Begin,
    Give,
    Owner,
    Refuse,
    Wait,
    decide,
    end_of,
    given_again,
    in_progress,
    still_running,
    unknown,
)
from reach.runtime.keeper import TAKEN_OVER, Keeper, Kept, Run
from reach.wire.idempotency import EntryState, IdempotencyEntry
from reach.wire.reply import Failure, Reply
from reach.wire.task import DEFAULT_TENANT

if TYPE_CHECKING:
    from reach.bus.blobs import Blobs
    from reach.bus.connection import Connection
    from reach.runtime.job import Job

LEASE_TTL_S: Final = 30.0
"""How long an instance that is not heard of counts as being there (LIFE-1)."""

MAX_WAITING: Final = 4096
"""Calls with a key that one instance has before it refuses more: most of them only wait."""

NO_STREAM: Final = (
    "a stream takes no idempotency key, because its parts are not kept and could not be given again: leave the key "
    "out, or ask for one answer"
)


class Once:
    """The calls of one instance that have a key."""

    def __init__(
        self, connection: Connection, blobs: Blobs, *, agent_id: str, instance: str, generation: int
    ) -> None:
        self._connection = connection
        self._agent_id = agent_id
        self._instance = instance
        self._generation = generation
        self._loop = asyncio.get_running_loop()
        self._runs: dict[str, Run] = {}
        self._waiting = 0
        self._owners: Owners | None = None
        self.keeper = Keeper(connection, blobs, written=self._drop)

    async def close(self) -> None:
        """Write what is not written yet, and ask no more."""
        await self.keeper.close()
        if self._owners is not None:
            await self._owners.close()

    # -- which calls ---------------------------------------------------------------------------------

    def concerns(self, job: Job, subject: str) -> bool:
        """Whether a call that came on `subject` has a key."""
        if subject.startswith("all."):
            return False
        envelope, card = job.envelope, job.served.card
        if envelope.idempotency_key is not None:
            return True
        if job.served.is_stream or not envelope.dedupe or not card.dedupe:
            return False
        return dedupe.may_be_implicit(None, idempotent=card.idempotent, task_id=envelope.task_id, dedupe=True)

    def refusal(self, job: Job) -> Failure | None:
        """Why a call with a key is not looked at, or None."""
        if job.in_frames:
            return Failure.of(Reason.SCHEMA, f"{job.served.name}: {NO_STREAM}")
        if job.envelope.idempotency_key == "":
            return Failure.of(
                Reason.SCHEMA, "idempotency_key is a text that is not empty: leave it out for none"
            )
        if self._waiting >= MAX_WAITING:
            return Failure.of(
                Reason.OVERLOADED,
                f"{self._instance} has {self._waiting} calls with idempotency keys under way",
                retry_after_ms=1000,
                limit={
                    "name": "calls with idempotency keys",
                    "owner": self._instance,
                    "used": self._waiting,
                    "allowed": MAX_WAITING,
                },
            )
        return None

    # -- before it may run ---------------------------------------------------------------------------

    async def meet(self, job: Job) -> Reply | Failure | None:
        """Answer a call from what is known, waiting for it while it runs; None where it leads, with `job.run` set.

        `job.envelope` holds its parameters. Raises `ReachError` for parameters that cannot be digested.
        """
        found = digest(job.envelope.payload)
        key = _key_of(job, found)
        until = _until(job)
        self._waiting += 1
        try:
            while (run := self._runs.get(key.text)) is not None:
                if run.digest != found and run.begun:
                    return Failure.of(Reason.KEY_REUSED)
                left_s = until - monotonic()
                if left_s <= 0 or not await _has_ended(run, left_s):
                    return self._still_runs(job, run)
                told = run.ended.result()
                if told is not None and run.digest == found:
                    if isinstance(told, Failure):
                        return told
                    return given_again(told, implicit=run.implicit, language=_language(job))
        finally:
            self._waiting -= 1
        job.run = self._runs[key.text] = Run(key.text, implicit=key.implicit, digest=found, loop=self._loop)
        return None

    async def look(self, job: Job, run: Run) -> Reply | Failure | None:
        """Look for the entry of a lead until it is known what to do: the answer, or None where it may begin.

        What it answers is told to all who wait here for the same.
        """
        began, until = monotonic(), _until(job)
        self._waiting += 1
        try:
            while True:
                entry, revision = await self._found(run)
                owner = await self._owner(entry, until)
                now = monotonic()
                asking = self._asking(job, run, waited_s=now - began, left_s=until - now)
                decision = decide(entry, revision, owner, asking)
                match decision:
                    case Begin():
                        run.revision = decision.after
                        return None
                    case Wait():
                        await asyncio.sleep(decision.look_s)
                    case Refuse(failure, declare=True):
                        if await self._declared(run, entry, revision, failure):
                            return self._tell(run, failure)
                    case Refuse(failure):
                        # Others have more time than this one, and go on waiting.
                        return self._tell(run, failure, others=failure.reason is not Reason.IN_PROGRESS)
                    case Give(reply):
                        return self._tell(run, reply)
        except Unavailable as error:
            return self._without_store(job, run, error)
        except BaseException:
            self.leave(run)
            raise
        finally:
            self._waiting -= 1

    async def begin(self, job: Job, run: Run) -> Failure | None:
        """Write the entry of a lead that has its place; a failure where it must not run.

        Raises `Taken` where somebody else was first: then it has to look again.
        """
        if run.unkept:
            return None
        entry = self._entry(job, run)
        try:
            await self.keeper.begin(run, entry, after=run.revision)
        except Taken as taken:
            run.seen = taken.found
            raise
        except Unavailable as error:
            if error.sent:
                self.keeper.doubt(run.key, entry)  # It may arrive yet.
            return self._without_store(job, run, error)
        except BaseException:
            self.leave(run)
            raise
        return None

    def leave(self, run: Run) -> None:
        """A lead goes without having run: whoever waits looks for itself."""
        self._drop(run)
        run.settle(None)

    # -- when it has run -----------------------------------------------------------------------------

    async def end(self, run: Run, reply: Reply, *, idempotent: bool) -> Reply:
        """Keep how a lead's handler ended, and tell whoever waits; gives the reply that its caller gets.

        Cancelling whoever waits for this does not stop it.
        """
        ending = self.keeper.spawn(self._end(run, reply, idempotent=idempotent), name=f"end of {run.key}")
        told: Reply = await asyncio.shield(ending)
        return told

    async def _end(self, run: Run, reply: Reply, *, idempotent: bool) -> Reply:
        failure = reply.error
        state = end_of(None if failure is None else failure.executed, idempotent=idempotent)
        kept = Kept.NOT_KEPT
        if run.entry is not None:
            try:
                reply, kept = await self.keeper.end(run, state, reply)
            except BaseException:
                # It stays among our runs: else its entry would look as if nobody had ever begun.
                run.settle(unknown(Reason.UNMAPPED))
                raise
        if state is not EntryState.DONE:
            run.settle(
                unknown(failure.reason) if failure is not None and state is EntryState.UNKNOWN else None
            )
        elif kept is Kept.NOT_OURS:
            run.settle(None)
            reply = replace(reply, durable=False, notice=TAKEN_OVER)
        else:
            reply = reply if kept is Kept.WRITTEN else replace(reply, durable=False)
            run.settle(reply)
        if kept is not Kept.LATER or state is EntryState.RELEASED:
            self._drop(run)
        return reply

    # -- inside --------------------------------------------------------------------------------------

    def _drop(self, run: Run) -> None:
        if self._runs.get(run.key) is run:
            del self._runs[run.key]

    def _tell(self, run: Run, told: Reply | Failure, *, others: bool = True) -> Reply | Failure:
        """Answer a lead that need not run, and (`others`) those that wait here for the same."""
        self._drop(run)
        run.settle(told if others else None)
        return told

    def _still_runs(self, job: Job, run: Run) -> Failure:
        """Say of a call that waited for a lead here that its time is over."""
        asking = self._asking(job, run, waited_s=0.0, left_s=0.0)
        entry = run.entry or run.there
        return in_progress(self._entry(job, run), asking) if entry is None else still_running(entry, asking)

    async def _found(self, run: Run) -> tuple[IdempotencyEntry | None, int]:
        """Give the entry of a key and its revision: what a refused write has shown, or what the store says."""
        found, run.seen = run.seen, None
        if found is None:
            found = await self.keeper.store.read(run.key)
        run.there = None if found is None else found.entry
        return (None, 0) if found is None else (found.entry, found.revision)

    async def _owner(self, entry: IdempotencyEntry | None, until: float) -> Owner:
        """Give what is known of whoever has a call; silence, where that takes longer than there is time."""
        if entry is None or entry.state is not EntryState.RUNNING:
            return Owner.ALIVE
        if entry.instance == self._instance and entry.generation == self._generation:
            return Owner.IDLE  # Else it would be among our runs.
        if self._owners is None:
            self._owners = Owners(self._connection)
        asking = self._owners.state(entry.instance, entry.generation, lease_ttl_s=entry.lease_ttl_s)
        try:
            async with asyncio.timeout(max(0.0, until - monotonic())):
                return await asking
        except TimeoutError:
            return Owner.SILENT

    async def _declared(
        self, run: Run, entry: IdempotencyEntry | None, revision: int, failure: Failure
    ) -> bool:
        """Write that the outcome of a call is unknown; False where somebody wrote something else meanwhile."""
        if entry is None:
            return False
        try:
            await self.keeper.declare_unknown(run.key, entry, revision=revision, cause=failure.cause)
        except Taken as taken:
            run.seen = taken.found
            return False
        except Unavailable:
            return True  # Whoever asks next finds it as we did.
        return True

    def _without_store(self, job: Job, run: Run, error: Unavailable) -> Failure | None:
        """Say what becomes of a lead while the store is away: None where it runs all the same (IDEM-6)."""
        if job.served.card.idempotent or (run.implicit and error.missing):
            run.unkept = True
            return None
        message = (
            f"{job.served.name} was not done: its calls are remembered so that none is done twice, and the store of "
            f"idempotency keys is not available ({error.why})."
        )
        failure = Failure.of(Reason.DISCONNECTED, message, executed=Executed.NO)
        self._tell(run, failure)
        return failure

    def _entry(self, job: Job, run: Run) -> IdempotencyEntry:
        envelope, card = job.envelope, job.served.card
        return IdempotencyEntry(
            state=EntryState.RUNNING,
            capability=job.served.name,
            tenant=envelope.tenant or DEFAULT_TENANT,
            instance=self._instance,
            generation=self._generation,
            digest=run.digest,
            begun_at=self.keeper.store.now_ms(),
            agent_id=self._agent_id,
            lease_ttl_s=LEASE_TTL_S,
            implicit=run.implicit,
            idempotent=card.idempotent,
            idempotency_key=envelope.idempotency_key,
            message_id=envelope.message_id,
            source=envelope.source,
            session_id=envelope.session_id,
            task_id=envelope.task_id,
        )

    def _asking(self, job: Job, run: Run, *, waited_s: float, left_s: float) -> Asking:
        return Asking(
            capability=job.served.name,
            digest=run.digest,
            idempotent=job.served.card.idempotent,
            waited_s=waited_s,
            left_s=left_s,
            usual_ms=job.served.mean_ms,
            now_ms=self.keeper.store.now_ms(),
            language=_language(job),
            message_id=job.envelope.message_id,
        )


def _key_of(job: Job, fingerprint: str) -> dedupe.Key:
    """Give the key of a call that `concerns` says has one. Raises `ValueError` for one that has none."""
    envelope, card = job.envelope, job.served.card
    key = dedupe.key_of(
        tenant=envelope.tenant or DEFAULT_TENANT,
        capability=job.served.name,
        idempotency_key=envelope.idempotency_key,
        idempotent=card.idempotent,
        session_id=envelope.session_id,
        task_id=envelope.task_id,
        fingerprint=fingerprint,
        dedupe=card.dedupe and envelope.dedupe,
    )
    if key is None:
        raise ValueError(f"a call of {job.served.name} without a key is not remembered")
    return key


def _until(job: Job) -> float:
    """Until when a call may wait: a margin before its deadline, so that its caller hears where it runs (CALL-3)."""
    return job.received + attempt_share_s(job.deadline - job.received, may_retry=False)


async def _has_ended(run: Run, left_s: float) -> bool:
    """Wait for a run; whether it has ended within `left_s`."""
    await asyncio.wait({run.ended}, timeout=left_s)
    return run.ended.done()


def _language(job: Job) -> str:
    """Give the language that a call asks for, English where it asks for none."""
    for wish in (job.envelope.require, job.envelope.prefer):
        if wish is not None and isinstance(wish.get("lang"), str):
            return str(wish["lang"])
    return "en"
