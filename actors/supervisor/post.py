"""Publishing what a governor has to say and to write; what finds no link stays for the next time."""

from __future__ import annotations

import logging

from actors.supervisor.answers import EXPECTED, GUARDED
from actors.supervisor.audits import Audits
from actors.supervisor.fencing import Fencer
from actors.supervisor.governor import Governor
from actors.supervisor.letters import Fence, Letter
from reach.bus.connection import Connection
from reach.errors import SchemaInvalid
from reach.wire import codec, subjects
from reach.wire.registration import ROUTES

_log = logging.getLogger("reach.supervisor")


class Post:
    """Publishes; answers come to `<inbox>.<kind>…`. `fencer` is None where nobody can be cut off."""

    def __init__(self, connection: Connection, inbox: str) -> None:
        self._connection = connection
        self._inbox = inbox
        self.fencer: Fencer | None = None

    def letters(self, outbox: list[Letter]) -> None:
        """Publish letters, and take them out of the box. Raises `LinkDown`; what is left then was not published."""
        sent = 0
        try:
            for letter in outbox:
                data = codec.pack(letter.body) if letter.body else b""
                self._publish(letter.subject, data, reply=self._reply_to(letter))
                sent += 1
        finally:
            del outbox[:sent]

    def fences(self, fences: list[Fence]) -> None:
        """End connections, where we can. Raises `LinkDown`."""
        ends = fences.copy()
        fences.clear()
        for fence in ends:
            if self.fencer is not None:
                self.fencer.cut(fence)

    def writes(self, governor: Governor, *, guard: int | None, now: float) -> None:
        """Write what is due: nothing while `guard`, which the table's writes must name, is None. Raises `LinkDown`."""
        governor.scribe.late(now)
        if guard is None:
            return
        for write in governor.scribe.take(now):
            published = self._publish(
                f"$KV.{write.bucket}.{write.key}",
                write.data,
                reply=f"{self._inbox}.write.{governor.term}.{write.number}",
                headers={EXPECTED: str(guard), **GUARDED} if write.bucket == ROUTES else None,
            )
            if not published:
                governor.scribe.done(write.number)

    def audits(self, audits: Audits, now: float) -> None:
        """Publish what is to be kept of who changed what, to be stored. Raises `LinkDown`; it is due again then."""
        for number, entry in audits.due(now) if len(audits) else ():
            self._publish(
                subjects.audit("default"),
                codec.pack(entry.model_dump()),
                reply=f"{self._inbox}.audited.{number}",
                headers={"Nats-Msg-Id": f"{self._inbox}.{number}"},
            )

    def _publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: dict[str, str] | None = None
    ) -> bool:
        """Publish, or say why that can never be: what is too large for the broker must not stop the rest."""
        try:
            self._connection.publish(subject, data, reply=reply, headers=headers)
        except SchemaInvalid as error:
            _log.error("What belongs to %s cannot be published: %s", subject, error)
            return False
        return True

    def _reply_to(self, letter: Letter) -> str:
        match letter.asks:
            case "pong":
                return f"{self._inbox}.pong.{letter.subject.split('.')[1]}"
            case None:
                return ""
            case kind:
                return f"{self._inbox}.{kind}"
