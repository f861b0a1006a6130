"""A stream read in order, from anywhere, for as long as one likes: without a gap and without a duplicate.

A push consumer without a name delivers, numbers what it delivers, and beats while it has nothing. What does not
follow on (a number left out, beats that do not come, a link or a server that is new) ends that consumer; the next
one begins behind the last sequence that was handed on. Nothing is ever acknowledged. Flow control is the server's:
its requests wait in line with the messages, so a slow reader slows it down, and memory stays bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from reach import ids
from reach.bus.connection import LinkState
from reach.bus.translate import translate
from reach.errors import CallTimeout, LinkDown, ReachError, Unreachable

if TYPE_CHECKING:
    from reach.bus.connection import Connection
    from reach.bus.framing import Delivery
    from reach.bus.jetstream import JetStream

HEARTBEAT_S: Final = 2.0
"""How often a consumer beats while it has nothing to deliver."""

SILENCE_S: Final = 5.0
"""Without a beat for so long a consumer is given up."""

UNUSED_S: Final = 30.0
"""How long the server keeps a consumer that nobody listens to: longer than a reconnect takes."""

_NS: Final = 1_000_000_000
_CONTROL: Final = "100"
_RETRY_S: Final = (0.05, 0.2, 0.5, 1.0)


class Position(Struct, frozen=True, gc=False):
    """What a delivery says of itself: its sequence in the stream and in the consumer, when it was stored (epoch ms)."""

    stream_seq: int
    consumer_seq: int
    stored_ms: int
    pending: int
    delivered: int


def position(reply: str) -> Position | None:
    """Read the subject on which a delivery would be acknowledged; None for another one.

    `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<ns>.<pending>`, or with domain and account
    before the stream.
    """
    if not reply.startswith("$JS.ACK."):
        return None
    parts = reply.split(".")
    if len(parts) < 9:  # noqa: PLR2004 - see above
        return None
    at = 4 if len(parts) == 9 else 6  # noqa: PLR2004
    try:
        delivered, stream_seq, consumer_seq, stored_ns, pending = map(int, parts[at : at + 5])
    except ValueError:
        return None
    return Position(stream_seq, consumer_seq, stored_ns // 1_000_000, pending, delivered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Where to begin: at a sequence, at a time (epoch ms), at the start, or (nothing given) with what is new."""

    sequence: int | None = None
    time_ms: int | None = None

    def policy(self) -> dict[str, Any]:
        """Give the consumer's delivery policy."""
        if self.sequence is not None:
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, self.sequence)}
        if self.time_ms is not None:
            return {"deliver_policy": "by_start_time", "opt_start_time": _rfc3339(self.time_ms)}
        return {"deliver_policy": "new"}


class Arrived(Struct, frozen=True):
    """One message of the stream."""

    subject: str
    data: bytes
    headers: dict[str, str]
    position: Position


class Feed:
    """The messages of `stream` on `subjects`, in order. Iterate over it; `close` it when done.

    `headers_only` leaves their data where it is: each is empty then.
    `alive` says whether the stream was heard within the last seconds: by a message or by a beat.
    """

    def __init__(
        self,
        connection: Connection,
        jetstream: JetStream,
        stream: str,
        subjects: list[str],
        begin: Begin,
        *,
        headers_only: bool = False,
    ) -> None:
        self._connection = connection
        self._jetstream = jetstream
        self._stream = stream
        self._subjects = subjects
        self._begin = begin
        self._headers_only = headers_only
        self._last = 0
        """The last sequence that was handed on, or behind which the feed began."""
        self._known = False
        self._line: _Line | None = None
        self._heard = 0.0

    @property
    def alive(self) -> bool:
        """Whether the stream was heard of lately; False says that something may have been missed so far."""
        line = self._line
        heard = self._heard if line is None else max(self._heard, line.heard)
        return monotonic() - heard < SILENCE_S

    @property
    def caught_up(self) -> bool:
        """Whether everything that was there has been handed on."""
        return self._line is not None and self._line.pending == 0

    async def open(self) -> None:
        """Begin. Raises `ReachError` when there is no such stream here, or no link within a few seconds."""
        await self._consume(patience_s=5.0)

    async def __aiter__(self) -> AsyncIterator[Arrived]:
        """Give what comes, for ever; while the stream cannot be reached it waits (see `alive`)."""
        while True:
            line = self._line
            if line is None:
                await self._consume()
                continue
            arrived = await line.next()
            if arrived is None:
                self._heard = max(self._heard, line.heard)
                self._end_line()
                continue
            self._last, self._known = arrived.position.stream_seq, True
            yield arrived

    def close(self) -> None:
        """Listen no more; the server forgets the consumer by itself."""
        self._end_line()

    # -- consumers -----------------------------------------------------------------------------------

    async def _consume(self, patience_s: float | None = None) -> None:
        """Make the next consumer, for as long as it takes."""
        tries = 0
        deadline = None if patience_s is None else monotonic() + patience_s
        while True:
            try:
                if await self._connection.wait_connected(1.0):
                    await self._make()
                    return
            except (LinkDown, CallTimeout, Unreachable) as error:
                final = isinstance(error, _NoStream) or (deadline is not None and monotonic() >= deadline)
                if deadline is not None and final:
                    raise translate(error) from None
            else:
                if deadline is not None and monotonic() >= deadline:
                    raise translate(LinkDown())
            await asyncio.sleep(_RETRY_S[min(tries, len(_RETRY_S) - 1)])
            tries += 1

    async def _make(self) -> None:
        inbox = f"{self._connection.inbox}.{ids.new_id()}.f"
        line = _Line(self._connection, inbox)
        begin = Begin(sequence=self._last + 1) if self._known else self._begin
        wish = {
            "stream_name": self._stream,
            "config": {
                **begin.policy(),
                "deliver_subject": inbox,
                "filter_subjects": self._subjects,
                "ack_policy": "none",
                "replay_policy": "instant",
                "flow_control": True,
                "idle_heartbeat": int(HEARTBEAT_S * _NS),
                "inactive_threshold": int(UNUSED_S * _NS),
                "mem_storage": True,
                "num_replicas": 1,
                "headers_only": self._headers_only,
            },
        }
        try:
            answer = await self._jetstream.api(f"CONSUMER.CREATE.{self._stream}", wish)
        except BaseException:
            line.close()
            raise
        error = answer.get("error")
        if error is not None:
            line.close()
            raise _refused(self._stream, error)
        if not self._known:
            # From here on it goes by sequence, so that a server that is new asks for nothing twice.
            self._last, self._known = int(answer["delivered"]["stream_seq"]), True
        line.pending = int(answer.get("num_pending", 0))
        self._line = line

    def _end_line(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


class _Line:
    """One consumer's deliveries. Ends by itself when they do not follow on."""

    def __init__(self, connection: Connection, inbox: str) -> None:
        self._connection = connection
        self._arrived: asyncio.Queue[Arrived | str | None] = asyncio.Queue()
        self._next = 1
        self._ended = False
        self.heard = monotonic()
        self.pending = 0
        self._subscription = connection.subscribe(inbox, self._on_delivery, durable=False)
        connection.on_state(self._on_state)
        self._timer = asyncio.get_running_loop().call_later(SILENCE_S, self._look)

    async def next(self) -> Arrived | None:
        """Give the next message, None at the line's end."""
        while True:
            item = await self._arrived.get()
            if isinstance(item, str):
                try:
                    self._connection.publish(item, b"")
                except LinkDown:
                    return None
                continue
            if item is not None:
                self.pending = item.position.pending
            return item

    def close(self) -> None:
        """Listen no more."""
        self._timer.cancel()
        self._connection.off_state(self._on_state)
        self._subscription.drop()

    def _on_delivery(self, delivery: Delivery) -> None:
        self.heard = monotonic()
        headers = delivery.headers or {}
        reply = delivery.raw_reply.decode("utf-8", "replace")
        status = headers.get("Status")
        if status == _CONTROL:
            if reply:
                self._arrived.put_nowait(reply)  # A flow control request: answered when its turn comes.
            elif (stalled := headers.get("Nats-Consumer-Stalled")) is not None:
                self._arrived.put_nowait(stalled)
            if int(headers.get("Nats-Last-Consumer") or 0) >= self._next:
                self._end()  # The consumer says that it delivered what never came.
            return
        found = position(reply)
        if status is not None or found is None or found.consumer_seq != self._next:
            self._end()
            return
        self._next += 1
        if not self._ended:
            self._arrived.put_nowait(Arrived(delivery.subject, delivery.data, headers, found))

    def _on_state(self, state: LinkState) -> None:
        if state is not LinkState.CONNECTED:
            self._end()

    def _look(self) -> None:
        if monotonic() - self.heard >= SILENCE_S:
            self._end()
            return
        left = SILENCE_S - (monotonic() - self.heard)
        self._timer = asyncio.get_running_loop().call_later(left, self._look)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._arrived.put_nowait(None)


class _NoStream(Unreachable):
    """JetStream itself says that it cannot be read."""


def _refused(stream: str, error: dict[str, Any]) -> ReachError:
    return _NoStream(
        f"stream {stream} cannot be read: {error.get('description', 'it says no')}. "
        "Right would be `reach up`, or the platform started once at your own NATS."
    )


def _rfc3339(time_ms: int) -> str:
    return (
        datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
