"""One message to an actor, and how it is answered.

What came as JSON is answered as JSON, everything else as msgpack; a refusal is a Reply with `ok` false, so that
whoever asked learns at once and in structure why nothing came of it. A request is answered at most once.
"""

from __future__ import annotations

from typing import Any

from reach.bus.connection import Connection
from reach.bus.framing import Delivery
from reach.errors import NotExecuted, NotOnTheWire, ReachError, SchemaInvalid, UpstreamFailure
from reach.faults import Executed, Reason
from reach.wire import codec
from reach.wire.reply import Failure, Reply


class Message:
    """What a handler gets.

    Attributes:
        subject: Where it was published; of a local message, its name.
        body: The decoded map; empty when nothing was sent.
        headers: Of the message; None when it has none.
        received: When it was parsed, in seconds of the loop's clock; 0.0 of a local message.
    """

    __slots__ = ("_answered", "_as_json", "_connection", "_inbox", "body", "headers", "received", "subject")

    def __init__(
        self,
        subject: str,
        body: dict[str, Any],
        *,
        delivery: Delivery | None = None,
        connection: Connection | None = None,
    ) -> None:
        self.subject = subject
        self.body = body
        self.headers = None if delivery is None else delivery.headers
        self.received = 0.0 if delivery is None else delivery.received
        self._inbox = "" if delivery is None else delivery.reply
        self._as_json = delivery is not None and answers_as_json(delivery.data)
        self._connection = connection
        self._answered = False

    def __repr__(self) -> str:
        kind = "request" if self.is_request else "event"
        return f"<{kind} {self.subject}>"

    @property
    def is_request(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self._inbox)

    @property
    def waits(self) -> bool:
        """Whether somebody waits for an answer that was not given yet."""
        return self.is_request and not self._answered

    def reply(self, body: dict[str, Any]) -> None:
        """Answer. May be called after the handler has returned, too.

        Raises:
            RuntimeError: this is no request, or it was answered before.
            NotOnTheWire: the body cannot cross; nothing was answered.
            LinkDown: there is no connection right now.
            UpstreamFailure: the body is over the broker's limit (`BAD_RESULT`); nothing was answered.
        """
        if self._connection is None or not self._inbox:
            raise RuntimeError(f"{self.subject} is an event: nobody waits for an answer (see `is_request`)")
        if self._answered:
            raise RuntimeError(f"this request on {self.subject} was answered before: one request, one answer")
        data = codec.pack_json(body) if self._as_json else codec.pack(body)
        try:
            self._connection.publish(self._inbox, data)
        except SchemaInvalid as error:  # To the broker it is a message too large, to the sender a bad result.
            raise UpstreamFailure(error.message, reason=Reason.BAD_RESULT) from error
        self._answered = True

    def refuse(self, failure: Failure) -> None:
        """Answer with a failure. Raises as `reply` does."""
        self.reply(Reply(ok=False, error=failure).to_map())


def answers_as_json(data: bytes) -> bool:
    """Whether a request is answered as JSON: it came so, or came empty, as people's tools send it."""
    return not data or codec.is_json(data)


def read(delivery: Delivery, connection: Connection) -> Message:
    """Decode what arrived. Raises `SchemaInvalid`."""
    body = codec.unpack(delivery.data) if delivery.data else {}
    return Message(delivery.subject, body, delivery=delivery, connection=connection)


def unread(delivery: Delivery, connection: Connection) -> Message:
    """Give a message that is only to be refused, its body not looked at."""
    return Message(delivery.subject, {}, delivery=delivery, connection=connection)


def failure_of(error: Exception) -> Failure:
    """Give what the sender of a request may know of its handler's exception; never its text.

    A `ReachError` says itself what it is, unless it came out of a call that the handler made: then the
    handler had begun, and what is known about that call's execution is not known about this request's.
    """
    if isinstance(error, NotExecuted):
        return Failure.of(Reason.HANDLER_ERROR, executed=Executed.NO, retryable=True)
    if isinstance(error, ReachError):
        failure = Failure.of_error(error)
        if error.reach_id is not None:
            failure.executed, failure.retryable = Executed.YES, False
        return failure
    if isinstance(error, NotOnTheWire):
        return Failure.of(Reason.BAD_RESULT, f"The answer cannot cross the wire: {error}")
    return Failure.of(Reason.HANDLER_ERROR)


def ends_request_only(error: Exception) -> bool:
    """Whether an exception of a request's handler is its answer, rather than a failure of the whole actor."""
    return isinstance(error, ReachError | NotExecuted | NotOnTheWire)
