"""Answers what operators ask of the list: which there are, all about one, and what became of it.

A resolution is one message, guarded: of several operators the first one's is stored, the others hear who that was and
when. What follows from it is done then; a platform that does not get that far leaves it to whichever comes next.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from actors.unknowns.book import Book, Row, as_it_may_be
from reach.bus.jetstream import GuardRefused, JetStream, Unacknowledged
from reach.errors import CallTimeout, LinkDown, ReachError, SchemaInvalid, UpstreamRefusal
from reach.faults import Executed, Reason
from reach.wire import codec, subjects
from reach.wire.audit import AuditEntry
from reach.wire.registration import read_message
from reach.wire.unknown import (
    COMMANDS,
    ListUnknowns,
    Resolution,
    ResolveUnknown,
    ShowUnknown,
    UnknownAnswer,
    UnknownOutcome,
    UnknownVerb,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.unknowns.keys import Keys
    from reach.bus.connection import Connection

_log = logging.getLogger("reach.unknowns")

STREAM: Final = "REACH_UNKNOWN"


class Desk:
    """See the module."""

    def __init__(
        self,
        connection: Connection,
        jetstream: JetStream,
        book: Book,
        keys: Keys,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._connection = connection
        self._jetstream = jetstream
        self._book = book
        self._keys = keys
        self._now_ms = now_ms

    async def answer(self, verb: str, asked: dict[str, Any]) -> UnknownAnswer:
        """Answer one question. Raises `ReachError`, `LinkDown`."""
        try:
            known = UnknownVerb(verb)
        except ValueError:
            told = ", ".join(UnknownVerb)
            raise SchemaInvalid(
                f"reach.unknowns.{verb} means nothing; right would be one of {told}"
            ) from None
        command = read_message(asked, COMMANDS[known])
        match command:
            case ListUnknowns():
                return self._list(command)
            case ResolveUnknown():
                return await self._resolve(command)
            case ShowUnknown():
                return await self._show(command)
            case _:
                raise TypeError(f"{known} has no answer")

    def _list(self, asked: ListUnknowns) -> UnknownAnswer:
        rows, before = self._book.search(asked)
        return UnknownAnswer(
            rows=tuple(row.told() for row in rows), before=before, open=self._book.open, message=""
        )

    async def _show(self, asked: ShowUnknown) -> UnknownAnswer:
        row = self._row(asked.id)
        whole = await self._whole(row)
        told = row.told().model_copy(update={"outcome": whole})
        return UnknownAnswer(rows=(told,), open=self._book.open, key=await self._keys.standing(whole))

    # -- resolving -----------------------------------------------------------------------------------

    async def _resolve(self, asked: ResolveUnknown) -> UnknownAnswer:
        row = self._row(asked.id)
        whole = await self._whole(row)
        _check(asked, whole)
        if row.resolution is not None:
            return await self._again(asked, row, whole)
        revision = await self._keys.admit(whole, asked.verdict)
        said = Resolution(
            reach_id=whole.reach_id,
            tenant=whole.tenant,
            verdict=asked.verdict,
            by=asked.by,
            at=self._now_ms(),
            note=asked.note,
            result=asked.result,
            store_key=whole.store_key,
            revision=revision,
        )
        if not await self._write(said):
            return await self._again(asked, row, whole)
        self._audit(said, f"{whole.capability} is resolved as {said.verdict}")
        return self._told(row, whole, f"resolved as {said.verdict}: {await self._applied(row, asked)}")

    async def _applied(self, row: Row, asked: ResolveUnknown) -> str:
        """Do what follows from a row's resolution, as far as that can be done now, and say it.

        Raises `CallTimeout` for a call that is to be made again now, and cannot be as long as its entry stands.
        """
        try:
            return await self.apply(row)
        except Trouble as error:
            _log.info("what follows from the resolution of %s is done later: %s", row.outcome.reach_id, error)
            if asked.verdict is not Verdict.RETRY:
                return "its idempotency entry cannot be written now, and follows"
            raise CallTimeout(
                "it is resolved as retry, and its idempotency entry cannot be released now: nothing was sent. "
                "Right would be the same in a while, with --again",
                executed=Executed.NO,
            ) from None

    async def _again(self, asked: ResolveUnknown, row: Row, whole: UnknownOutcome) -> UnknownAnswer:
        """Answer who comes second: who was first; the same person's same word is no second one."""
        first = row.resolution
        if first is None:
            raise CallTimeout("somebody has resolved it this moment: ask again", executed=Executed.NO)
        told = f"{first.by} resolved it as {first.verdict} at {_time(first.at)}"
        if asked.again and not first.applied:
            await self._applied(row, asked)
        if (first.by, first.verdict, first.result) == (asked.by, asked.verdict, asked.result) and (
            asked.verdict is not Verdict.RETRY or asked.again
        ):
            return self._told(row, whole, told)
        if asked.again and first.verdict is asked.verdict is Verdict.RETRY:
            return self._told(row, whole, told)
        more = ". To send it once more under the same key: --again" if first.verdict is Verdict.RETRY else ""
        raise UpstreamRefusal(told + more, reason=Reason.REMOTE_4XX, executed=Executed.NO)

    async def apply(self, row: Row) -> str:
        """Do what follows from a row's resolution, and write down that it is done. Raises `ReachError`, `LinkDown`."""
        said = row.resolution
        if said is None:
            raise RuntimeError(f"{row.outcome.reach_id} is not resolved")
        applied = await self._keys.apply(row.outcome, said)
        subject = subjects.unknown_resolved(said.tenant, said.reach_id)
        done = said.model_copy(update={"applied": applied})
        data = codec.pack(done.model_dump(exclude_none=True))
        try:
            sequence = await self._jetstream.publish(subject, data, guard=(subject, row.resolved_at))
        except (GuardRefused, Unacknowledged):
            return applied  # Another platform has written it; or it is done again, which changes nothing.
        self._book.resolve(done, sequence)
        return applied

    async def _write(self, said: Resolution) -> bool:
        """Store a resolution as the first one; False where there is one already. Raises `ReachError`, `LinkDown`."""
        subject = subjects.unknown_resolved(said.tenant, said.reach_id)
        data = codec.pack(said.model_dump(exclude_none=True))
        try:
            sequence = await self._jetstream.publish(subject, data, guard=(subject, 0))
        except (GuardRefused, Unacknowledged):
            stored = await self._jetstream.message(STREAM, {"next_by_subj": subject, "seq": 1})
            if stored is None:
                raise CallTimeout("the list did not acknowledge: look again whether it is resolved") from None
            first, sequence = read_message(codec.unpack(stored.data), Resolution), stored.sequence
            if (first.by, first.at, first.verdict) != (said.by, said.at, said.verdict):
                self._book.resolve(first, sequence)
                return False
        self._book.resolve(said, sequence)
        return True

    def _told(self, row: Row, whole: UnknownOutcome, message: str) -> UnknownAnswer:
        told = row.told().model_copy(update={"outcome": whole})
        return UnknownAnswer(message=message, rows=(told,), open=self._book.open)

    def _audit(self, said: Resolution, message: str) -> None:
        entry = AuditEntry(
            at=said.at,
            who=said.by,
            what="outcome.resolve",
            target=said.reach_id,
            why=said.note,
            message=message,
            before="unknown",
            after=said.verdict.value,
            writer=self._connection.who,
        )
        self._connection.publish(subjects.audit(said.tenant), codec.pack(entry.model_dump()))

    # -- reading -------------------------------------------------------------------------------------

    def _row(self, name: str) -> Row:
        row = self._book.find(name)
        if row is None:
            raise UpstreamRefusal(
                f"{name} is not on the list of unknown outcomes; `reach outcomes ls --all` shows what is",
                reason=Reason.NOT_FOUND,
                executed=Executed.NO,
            )
        return row

    async def _whole(self, row: Row) -> UnknownOutcome:
        """Give an entry with its parameters, which the book does not hold."""
        stored = await self._jetstream.message(STREAM, {"seq": row.sequence})
        if stored is None:
            return row.outcome
        return as_it_may_be(read_message(codec.unpack(stored.data), UnknownOutcome), row.outcome.tenant)


def _check(asked: ResolveUnknown, whole: UnknownOutcome) -> None:
    """Refuse what makes no sense. Raises `SchemaInvalid`, `UpstreamRefusal`."""
    if asked.result is not None and asked.verdict is not Verdict.EXECUTED:
        raise SchemaInvalid(f"a result goes with executed, not with {asked.verdict}")
    if asked.verdict is not Verdict.RETRY or whole.kind == "task":
        return
    if whole.kind in {"stream", "publish"}:
        raise SchemaInvalid(
            f"it was called as a {whole.kind}, which is not sent again from here. "
            "Right would be not-executed, and then to call as its caller did"
        )
    if whole.kind == "local":
        raise SchemaInvalid(
            f"{whole.capability} is a function that its own program runs: it cannot be called from here. "
            "Right would be executed or not-executed, and then to run that program again"
        )
    if whole.parameters is None:
        raise SchemaInvalid(
            "its parameters were not kept (too large, REACH_UNKNOWN_PARAMETERS=off, or its caller did not enter it): "
            "it cannot be sent again from here. Right would be not-executed, and then to make the call as its caller "
            "did"
        )


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")[:19] + " UTC"


Trouble: Final = (ReachError, LinkDown)
"""What may come of asking and writing while the bus is not well."""
