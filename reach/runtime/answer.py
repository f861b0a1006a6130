"""How an agent answers: in kind, in one message or in frames, through the blob store where it must.

Msgpack is answered with msgpack and JSON with a whole JSON reply; a result that is too large for one message
goes into the blob store and the reply carries the reference in its place.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any

from reach import ids
from reach.errors import LinkDown, NotOnTheWire, ReachError, UpstreamFailure
from reach.faults import Advice, Executed, Reason
from reach.wire import codec
from reach.wire.envelope import VERSION
from reach.wire.frame import Frame
from reach.wire.reply import Failure, Reply

if TYPE_CHECKING:
    from reach.bus.blobs import Blobs
    from reach.bus.connection import Connection
    from reach.runtime.job import Job

_log = logging.getLogger("reach.agent")

ROOM = 2048
"""Bytes kept free in a message beside its data."""

BLOB_BUCKET = "reach_blobs_1h"

MAX_HELD_BYTES = 64 * 1024 * 1024
"""What the answers that are kept may hold in all: memory stays bounded however long the link is down."""

MAX_HELD = 4096
"""Answers that are kept while the link is down."""

HOLD_S = 30.0
"""How long an answer is kept: after that hardly any caller waits."""

MAX_MESSAGE = 2000
"""Most characters of a failure's message: a failure must always fit one message, whatever a handler raised."""


class Answers:
    """Sends replies and frames of one instance."""

    def __init__(
        self, connection: Connection, blobs: Blobs, *, provider: str, instance: str, generation: int
    ) -> None:
        self._connection = connection
        self._blobs = blobs
        self.provider = provider
        self.instance = instance
        self._generation = generation
        self._held: deque[tuple[float, str, bytes]] = deque()
        self._held_bytes = 0
        self.unsent = 0

    def reply(self, ok: bool, *, data: Any = None, error: Failure | None = None) -> Reply:  # noqa: FBT001
        """Build a reply in this instance's name."""
        return Reply(ok=ok, data=data, error=error, provider=self.provider, instance=self.instance)

    def refuse(
        self, reply_to: str, *, message_id: str, as_json: bool, failure: Failure, attempt: int = 1
    ) -> None:
        """Answer a request that no job was made of."""
        if not reply_to:
            return
        reply = self.reply(ok=False, error=failure)
        reply.message_id = message_id
        reply.attempt = attempt
        reply.reach_id = ids.reach_id_of(message_id) if message_id else ids.reach_id()
        self._publish(reply_to, codec.pack_json(reply.to_map(full=True)) if as_json else reply.pack())

    def good(self, reply_to: str, value: Any, message_id: str, attempt: int, latency_ms: float) -> bool:
        """Send a good result in one message of msgpack; False, and nothing sent, where it does not fit or cross."""
        if not codec.is_plain(value):
            return False
        who, where = self.provider, self.instance
        reply = Reply(True, value, None, message_id, VERSION, who, where, attempt, latency_ms)  # noqa: FBT003 - quicker
        try:
            data = reply.pack()
        except NotOnTheWire:
            return False
        if len(data) > self._connection.max_payload - ROOM:
            return False
        self._publish(reply_to, data)
        return True

    def send(self, job: Job, reply: Reply) -> None:
        """Send the one reply of a job. Raises `NotOnTheWire`, `TooLargeForOne`."""
        if job.as_json:
            data = codec.pack_json(reply.to_map(full=True))
        else:
            reply.data = codec.wire_form(reply.data)
            data = reply.pack()
        if len(data) > self._connection.max_payload - ROOM:
            raise TooLargeForOne(len(data))
        self._publish(job.reply_to, data)

    async def send_large(self, job: Job, reply: Reply) -> None:
        """Send a reply whose data goes through the blob store. Raises `ReachError` when there is none."""
        body = {"data": reply.data}
        packed = codec.pack_json(body) if job.as_json else codec.pack(body)
        check_size(job, len(packed))
        reply.blob = await self._blobs.put(packed, bucket=BLOB_BUCKET)
        reply.data = None
        self.send(job, reply)

    def accepted(self, job: Job) -> None:
        """Tell the caller which instance has its call, and whether a call inside it was made again."""
        job.accepted = True
        body = {"instance": self.instance, "generation": self._generation, "provider": self.provider}
        if job.marks.retried:
            body["retried"] = True
        self._frame(job, Frame(job.envelope.message_id, 0, "accepted", body))

    def data(self, job: Job, value: Any) -> int:
        """Send one datum of a stream; its size in bytes. Raises `NotOnTheWire`, `UpstreamFailure` when too large."""
        frame = Frame(job.envelope.message_id, job.sent_frames + 1, "data", value)
        packed = codec.pack(frame.to_map())
        most = self._connection.max_payload
        if len(packed) > most:
            message = (
                f"a part of the stream has {len(packed)} bytes; the broker takes {most}: yield smaller parts"
            )
            raise UpstreamFailure(message, reason=Reason.BAD_RESULT)
        job.sent_frames += 1
        self._publish(job.reply_to, packed)
        return len(packed)

    def ping(self, job: Job, *, answer_to: str) -> None:
        """Prove that a silent stream is alive; the broker tells `answer_to` when nobody is left to read it."""
        frame = Frame(job.envelope.message_id, job.sent_frames, "ping")
        with contextlib.suppress(LinkDown):  # What proves that we are alive now is worth nothing later.
            self._connection.publish(job.reply_to, codec.pack_plain(frame.to_map()), reply=answer_to)

    def end(self, job: Job, reply: Reply) -> None:
        """Send the clean end of a stream."""
        body = {key: value for key, value in reply.to_map().items() if key != "data"}
        self._frame(job, Frame(job.envelope.message_id, job.sent_frames + 1, "end", body))

    def error(self, job: Job, failure: Failure) -> None:
        """Send the failed end of a stream."""
        self._frame(job, Frame(job.envelope.message_id, job.sent_frames + 1, "error", failure.to_map()))

    def _frame(self, job: Job, frame: Frame) -> None:
        self._publish(job.reply_to, codec.pack_plain(frame.to_map()))

    def _publish(self, subject: str, data: bytes) -> None:
        try:
            self._connection.publish(subject, data)
        except LinkDown:
            # Only our own link may be down: the caller is still waiting, and the work is done.
            if len(self._held) < MAX_HELD and self._held_bytes + len(data) <= MAX_HELD_BYTES:
                self._held.append((monotonic() + HOLD_S, subject, data))
                self._held_bytes += len(data)
            else:
                self.unsent += 1

    def write_out(self) -> None:
        """Hand what was answered to the socket now, rather than at the next turn of the loop."""
        link = self._connection.link
        if link is not None:
            link.write_out()

    def send_held(self) -> None:
        """Send what could not be sent while the link was down, in order."""
        now = monotonic()
        held, self._held = self._held, deque()
        self._held_bytes = 0
        for until, subject, data in held:
            if until > now:
                self._publish(subject, data)
            else:
                self.unsent += 1


def check_size(job: Job, size: int) -> None:
    """Refuse a result that is larger than its capability allows. Raises `UpstreamFailure`."""
    most = job.served.card.max_payload_bytes
    if size > most:
        message = f"the result has {size} bytes; {job.served.name} answers with at most {most}"
        raise UpstreamFailure(message, reason=Reason.BAD_RESULT)


def _tellable(failure: Failure) -> Failure:
    """Make what a handler put into its error fit to be told: short valid text, and a limit that can cross."""
    message = str(failure.message)
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + "…"
    failure.message = message.encode("utf-8", "replace").decode()
    if failure.limit is not None:
        try:
            too_long = len(codec.pack_json(failure.limit)) > MAX_MESSAGE
            failure.limit = None if too_long else codec.wire_form(failure.limit)
        except NotOnTheWire:
            failure.limit = None
    return failure


class TooLargeForOne(Exception):
    """A reply that does not fit one message."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes")
        self.size = size


def failure_of(error: BaseException) -> Failure | None:
    """Give what a caller may know of an exception of the handler; None for one that is not a handler's own.

    An error that came out of a nested call (it carries a `reach_id`) says nothing about *this* call's
    execution: the handler had begun, so `executed` is `yes`.
    """
    if isinstance(error, ReachError):
        failure = _tellable(Failure.of_error(error))
        if error.reach_id is not None:
            failure.executed = Executed.YES
            failure.retryable = False
            if failure.advice is Advice.WAIT:
                failure.advice = (
                    Advice.ASK_HUMAN
                )  # The nested call could be sent again; what led to it was done.
        return failure
    if isinstance(error, NotOnTheWire):
        return Failure.of(Reason.BAD_RESULT, f"the result cannot cross the wire: {error}")
    return None
