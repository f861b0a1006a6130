"""JetStream over our own connection: publish with acknowledgement, and read single messages.

nats-py's client waits for each acknowledgement through its request machinery and knows nothing of links that are
replaced; here one inbox takes all acknowledgements of a client, a future each, and a link that ends settles all of
them at once. What is told apart is what matters to whoever guards a write: refused by its guard, and not known to
have arrived. Reading asks the stream's leader, so that what was acknowledged is seen.
"""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
from nats.js.errors import APIError

from reach import ids
from reach.bus.connection import LinkState
from reach.bus.headers import encode_headers, too_large
from reach.bus.translate import denied_subject, translate
from reach.bus.wheel import DeadlineWheel
from reach.errors import CallTimeout, LinkDown, ReachError, Unreachable, UpstreamRefusal
from reach.faults import Executed, Reason

if TYPE_CHECKING:
    from reach.bus.connection import Connection
    from reach.bus.framing import Delivery

ACK_TIMEOUT_S: Final = 5.0
"""How long a stream may take to acknowledge, or to answer."""

_WRONG_SEQUENCE: Final = frozenset(
    {10071, 10164}
)  # 10164: a cluster is still busy with another write of the subject.
_NO_MESSAGE: Final = 10037
_EXPECTED: Final = (
    b"NATS/1.0\r\n"
    b"Nats-Expected-Last-Subject-Sequence: %d\r\n"
    b"Nats-Expected-Last-Subject-Sequence-Subject: %b\r\n"
)


class GuardRefused(Exception):
    """A guarded write was refused: the subject has another last sequence than was expected."""


class Unacknowledged(Exception):
    """A write was sent, and whether it arrived is not known."""


class _PubAck(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    val: str = ""
    error: dict[str, Any] | None = None


class _Asked(msgspec.Struct, gc=False, eq=False):
    """Something that was sent, and waits for its answer on `reply`."""

    answer: asyncio.Future[Delivery]
    subject: str
    reply: bytes
    slot: int


@dataclass(frozen=True, slots=True)
class Stored:
    """One message of a stream. `headers` is the raw block; `time` is when it was stored, in RFC 3339."""

    subject: str
    sequence: int
    data: bytes
    headers: bytes
    time: str


class JetStream:
    """JetStream as one client sees it. Close it before its connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        domain = connection.settings.jetstream_domain
        self.prefix = f"$JS.{domain}.API." if domain else "$JS.API."
        inbox = f"{connection.inbox}.{ids.new_id()}."
        self._inbox = inbox.encode()
        self._count = 0
        self._waiting: dict[bytes, _Asked] = {}
        self._loop = asyncio.get_running_loop()
        self._wheel: DeadlineWheel[bytes] = DeadlineWheel(self._loop, self._on_due)
        self._subscription = connection.subscribe(f"{inbox}*", self._on_answer)
        connection.on_state(self._on_state)
        connection.denials.append(self._on_denied)

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        guard: tuple[str, int] | None = None,
        headers: dict[str, str] | None = None,
        timeout_s: float = ACK_TIMEOUT_S,
    ) -> int:
        """Publish to a stream, and give the sequence that it was stored at.

        `guard` is `(subjects, sequence)`: the write is refused unless that is the last sequence of all those subjects.

        Raises:
            GuardRefused: it is not.
            Unacknowledged: no acknowledgement came, or the link ended before it did.
            LinkDown: there is no link; nothing was sent.
            ReachError: no stream takes the subject (`Unreachable`), the broker forbids it, or refuses it otherwise.
        """
        block = encode_headers(headers) if headers else b""
        if guard is not None:
            block = _EXPECTED % (guard[1], guard[0].encode()) + (block[10:] or b"\r\n")
        asked = self._send(subject, data, block, timeout_s)
        try:  # As `_ask` does it: one coroutine less for each event.
            delivery = await asked.answer
        except _NoAnswerError:
            raise Unacknowledged from None
        finally:
            self._settle(asked)
        return _acknowledged(subject, delivery).seq

    async def count(self, subject: str, by: int, *, timeout_s: float = ACK_TIMEOUT_S) -> int:
        """Add to a counter (a stream with `allow_msg_counter`), and give what it is now: exact, however many add to it.

        Raises what `publish` raises; `Unacknowledged` when it is not known whether it was added.
        """
        block = encode_headers({"Nats-Incr": str(by)})
        delivery = await self._ask(subject, b"", block, timeout_s)
        if delivery is None:
            raise Unacknowledged
        return int(_acknowledged(subject, delivery).val)

    async def api(
        self, verb: str, body: dict[str, Any], *, timeout_s: float = ACK_TIMEOUT_S
    ) -> dict[str, Any]:
        """Ask JetStream's own API; gives its answer, with `error` in it where it is one.

        Raises `LinkDown`, `CallTimeout`, `Unreachable` (JetStream is off), `UpstreamRefusal` (not allowed).
        """
        delivery = await self._ask(self.prefix + verb, json.dumps(body).encode(), b"", timeout_s)
        if delivery is None:
            raise CallTimeout(f"JetStream did not answer to {verb}", executed=Executed.NO, retryable=True)
        if delivery.no_responders:
            raise Unreachable(
                f"JetStream does not answer to {verb}: it is off at this broker, or what is asked for was never made",
                executed=Executed.NO,
            )
        answer: dict[str, Any] = json.loads(delivery.data)
        return answer

    async def message(
        self, stream: str, wish: dict[str, Any], *, timeout_s: float = ACK_TIMEOUT_S
    ) -> Stored | None:
        """Read one message: `{"last_by_subj": pattern}`, or `{"seq": n, "next_by_subj": pattern}`. None: there is none.

        Raises what `api` raises, and `ReachError` for what the stream answers else.
        """
        answer = await self.api(f"STREAM.MSG.GET.{stream}", wish, timeout_s=timeout_s)
        error = answer.get("error")
        if error is not None:
            if error.get("err_code") == _NO_MESSAGE:
                return None
            raise _unexecuted(error)
        found = answer["message"]
        return Stored(
            subject=found["subject"],
            sequence=found["seq"],
            data=base64.b64decode(found.get("data", "")),
            headers=base64.b64decode(found.get("hdrs", "")),
            time=found["time"],
        )

    def close(self) -> None:
        """Settle what waits, and listen no more."""
        self._give_up(None)
        self._wheel.close()
        self._subscription.drop()
        self._connection.off_state(self._on_state)
        if self._on_denied in self._connection.denials:
            self._connection.denials.remove(self._on_denied)

    # -- one question --------------------------------------------------------------------------------

    async def _ask(self, subject: str, data: bytes, block: bytes, timeout_s: float) -> Delivery | None:
        """Send, and wait for the one answer; None when none came. Raises `LinkDown`, `ReachError`."""
        asked = self._send(subject, data, block, timeout_s)
        try:
            return await asked.answer
        except _NoAnswerError:
            return None
        finally:
            self._settle(asked)

    def _send(self, subject: str, data: bytes, block: bytes, timeout_s: float) -> _Asked:
        """Send something, and keep a place for its answer. Raises `LinkDown`, `ReachError`."""
        link = self._connection.link
        if link is None:
            raise LinkDown
        size = len(block) + len(data)
        if size > link.max_payload:
            raise too_large(size, link.max_payload)
        self._count += 1
        reply = b"%b%d" % (self._inbox, self._count)
        answer: asyncio.Future[Delivery] = self._loop.create_future()
        if block:
            link.send_with_headers(subject, reply.decode(), data, block)
        else:
            link.send(subject, reply.decode(), data)
        slot = self._wheel.add(reply, self._loop.time() + timeout_s)
        asked = self._waiting[reply] = _Asked(answer, subject, reply, slot)
        return asked

    def _settle(self, asked: _Asked) -> None:
        """Give the place back."""
        del self._waiting[asked.reply]
        self._wheel.discard(asked.reply, asked.slot)

    def _on_answer(self, delivery: Delivery) -> None:
        waiting = self._waiting.get(delivery.raw_subject)
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_result(delivery)

    def _on_due(self, reply: bytes) -> None:
        waiting = self._waiting.get(reply)
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_exception(_NoAnswerError())

    def _on_state(self, state: LinkState) -> None:
        if state is not LinkState.CONNECTED:
            self._give_up(None)

    def _on_denied(self, text: str) -> None:
        denied = denied_subject(text)
        if denied is not None and denied[0] == "publish":
            self._give_up(denied[1].lower())

    def _give_up(self, denied: str | None) -> None:
        """Settle everything that waits, or what waits on a subject that is denied."""
        for asked in self._waiting.values():
            if asked.answer.done():
                continue
            if denied is None:
                asked.answer.set_exception(_NoAnswerError())
            elif asked.subject.lower() == denied:
                message = f"the broker does not let this client publish to {asked.subject}"
                asked.answer.set_exception(UpstreamRefusal(message, reason=Reason.AUTH_DENIED))


class _NoAnswerError(Exception):
    """Settles a question that nothing will answer any more."""


def _acknowledged(subject: str, delivery: Delivery) -> _PubAck:
    """Read what a stream answered. Raises `GuardRefused`, `Unreachable`, `ReachError`."""
    if delivery.no_responders:
        raise Unreachable(
            f"no stream takes {subject}: JetStream is off at this broker, or the platform never made its streams. "
            "Right would be `reach up`, or the platform started once at your own NATS.",
            executed=Executed.NO,
        )
    ack = _ack(delivery.data)
    if ack.error is None:
        return ack
    if ack.error.get("err_code") in _WRONG_SEQUENCE:
        raise GuardRefused
    raise _unexecuted(ack.error)


def _ack(data: bytes) -> _PubAck:
    try:
        return _read_ack(data)
    except msgspec.MsgspecError:
        return _PubAck(error={"code": 500, "description": "the acknowledgement cannot be read"})


_read_ack: Final = msgspec.json.Decoder(_PubAck).decode


def _unexecuted(error: dict[str, Any]) -> ReachError:
    """Give JetStream's own error as one of ours: what a stream refuses, nobody has done."""
    try:
        APIError.from_error(error)
    except APIError as refused:
        found = translate(refused)
        found.executed = Executed.NO
        return found
    return translate(APIError())
