"""Taking work out of a queue: never more than there is room for, and never silently nothing.

A durable consumer for each capability is shared by all its workers. Each worker asks for as many messages as it has
free places, and asks again when a good part of them is free; what it asked for is counted, and forgotten when the
server says so (a request that ran out, a consumer that went away) or says nothing any more: requests carry a
heartbeat, so that a server that has forgotten them is noticed within seconds (case 3). What comes although there is
no room is handed back at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from reach import ids
from reach.bus.connection import LinkState
from reach.bus.feed import Position, position
from reach.errors import CallTimeout, ConfigError, LinkDown, ReachError
from reach.wire import subjects

if TYPE_CHECKING:
    from reach.bus.connection import Connection
    from reach.bus.framing import Delivery
    from reach.bus.jetstream import JetStream

_log = logging.getLogger("reach.tasks")

ACK_WAIT_S: Final = 30.0
"""How long a message may be out without a word of whoever has it: NATS's default."""

MAX_ACK_PENDING: Final = 100_000
"""Messages that may be out in all, over all workers: high, since it is no limit of ours (design, section 6)."""

MAX_WAITING: Final = 4096
"""Requests for messages that may wait at once, over all workers."""

EXPIRES_S: Final = 30.0
HEARTBEAT_S: Final = 2.0
SILENCE_S: Final = 5.0

_NS: Final = 1_000_000_000
_CONTROL: Final = "100"
_LOOK_S: Final = 1.0
_TELL_AT: Final = 2
_TROUBLE_S: Final = (0.2, 0.5, 1.0, 2.0)


class Work:
    """One message out of the queue. One of `done`, `put_back` is said in the end; `still_working` meanwhile."""

    __slots__ = ("_connection", "_reply", "data", "headers", "position", "received", "subject")

    def __init__(self, connection: Connection, delivery: Delivery, found: Position, reply: str) -> None:
        self._connection = connection
        self._reply = reply
        self.subject = delivery.subject
        self.data = delivery.data
        self.headers = delivery.headers or {}
        self.position = found
        self.received = delivery.received

    def done(self) -> bool:
        """Take it out of the queue; False without a link: then it comes again."""
        return self._say(b"+ACK")

    def still_working(self) -> bool:
        """Say that it is being worked on: its time begins anew."""
        return self._say(b"+WPI")

    def put_back(self, delay_s: float = 0.0) -> bool:
        """Have it handed out again, after `delay_s` seconds."""
        if delay_s <= 0:
            return self._say(b"-NAK")
        return self._say(b"-NAK " + json.dumps({"delay": int(delay_s * _NS)}).encode())

    def _say(self, word: bytes) -> bool:
        try:
            self._connection.publish(self._reply, word)
        except LinkDown:
            return False
        return True


def consumer_name(capability: str) -> str:
    """Give the name of a capability's consumer; names take no dots, and capabilities no `=`."""
    return capability.replace(".", "=")


class WorkQueue:
    """One capability's part of the queue.

    `limit` is the number of places here, `room()` how many of them are free now. `take` is called in the read loop
    with each message, and has taken a place when it returns.
    """

    def __init__(
        self,
        connection: Connection,
        jetstream: JetStream,
        *,
        stream: str,
        capability: str,
        limit: int,
        room: Callable[[], int],
        take: Callable[[Work], None],
        ack_wait_s: float = ACK_WAIT_S,
    ) -> None:
        self._connection = connection
        self._jetstream = jetstream
        self._stream = stream
        self._subject = subjects.task_submit(capability)
        self._consumer = consumer_name(capability)
        self._limit = limit
        self._room = room
        self._take = take
        self.ack_wait_s = ack_wait_s
        self._prefix = f"{connection.inbox}.{ids.new_id()}.w"
        self._open: set[str] = set()
        self._asked = 0
        self._count = 0
        self._heard = monotonic()
        self._wake = asyncio.Event()
        self._pulling = False
        self._made = False
        self._troubled = False
        self._keeper: asyncio.Task[None] | None = None  # stop() ends and awaits it.
        self._subscription = connection.subscribe(f"{self._prefix}.*", self._on_delivery)
        connection.on_state(self._on_state)

    async def ensure(self) -> None:
        """Make the consumer, or change it in place, and verify it.

        Raises:
            ConfigError: it is there with what cannot be changed; says what, and the cure.
            ReachError: JetStream does not answer.
            LinkDown: there is no link.
        """
        wanted: dict[str, Any] = {
            "durable_name": self._consumer,
            "name": self._consumer,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": int(self.ack_wait_s * _NS),
            "max_deliver": -1,
            "filter_subject": self._subject,
            "replay_policy": "instant",
            "max_ack_pending": MAX_ACK_PENDING,
            "max_waiting": MAX_WAITING,
        }
        verb = f"CONSUMER.CREATE.{self._stream}.{self._consumer}.{self._subject}"
        answer = await self._jetstream.api(
            verb, {"stream_name": self._stream, "config": wanted, "action": ""}
        )
        error = answer.get("error")
        if error is not None:
            raise ConfigError(
                f"Consumer {self._consumer} of stream {self._stream} cannot be made as it must be: "
                f"{error.get('description', 'it says no')}. If no worker needs it as it is, remove it with "
                f"`nats consumer rm {self._stream} {self._consumer}`; its messages stay. Without the stream "
                "itself, right would be `reach up`, or the platform started once at your own NATS."
            )
        kept = answer["config"]
        differ = [name for name, value in wanted.items() if kept.get(name, value) != value]
        if differ:
            raise ConfigError(
                f"Consumer {self._consumer} of stream {self._stream} keeps its own {', '.join(differ)}: remove it "
                f"with `nats consumer rm {self._stream} {self._consumer}`; its messages stay."
            )
        self._made = True

    def start(self) -> None:
        """Ask for work from now on."""
        self._pulling = True
        self._keeper = asyncio.create_task(self._keep(), name=f"reach work {self._consumer}")

    def freed(self) -> None:
        """A place has become free."""
        if self._made and not self._troubled and self._pulling:
            try:
                self._ask()
            except LinkDown:
                self._wake.set()

    async def stop(self) -> None:
        """Ask no more, and hand back what still comes of what was asked for."""
        self._pulling = False
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
            self._keeper = None
        # The server forgets requests that nobody listens for; else what is handed back would come here again.
        await self._subscription.withdraw()

    def close(self) -> None:
        """Listen no more."""
        self._connection.off_state(self._on_state)
        self._subscription.drop()

    # -- asking --------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Ask whenever there is room, and look after the consumer, for as long as it takes."""
        tries = 0
        while True:
            try:
                await self._connection.wait_connected(_LOOK_S)
                if self._troubled:
                    self._troubled = False
                    await asyncio.sleep(_TROUBLE_S[0])
                if not self._made:
                    await self.ensure()
                tries = 0
                self._ask()
                await self._woken()
            except (LinkDown, CallTimeout):
                await asyncio.sleep(_TROUBLE_S[0])
            except (ReachError, ConfigError) as error:
                if tries == _TELL_AT:  # A server that has just started needs a moment.
                    _log.warning("no tasks of %s are taken yet: %s", self._consumer, error)
                await asyncio.sleep(_TROUBLE_S[min(tries, len(_TROUBLE_S) - 1)])
                tries += 1

    async def _woken(self) -> None:
        try:
            async with asyncio.timeout(_LOOK_S):
                await self._wake.wait()
        except TimeoutError:
            if self._asked and monotonic() - self._heard > SILENCE_S:
                # The server has forgotten what we asked for: without this, silence would last for ever.
                self._forget()
                self._made = False
        self._wake.clear()

    def _ask(self) -> None:
        """Ask for what there is room for; for a small part of it only when nothing else is asked for."""
        missing = min(self._room(), self._limit) - self._asked
        if missing <= 0 or (self._asked and missing * 4 < self._limit):
            return
        self._count += 1
        inbox = f"{self._prefix}.{self._count}"
        wish = {
            "batch": missing,
            "expires": int(EXPIRES_S * _NS),
            "idle_heartbeat": int(HEARTBEAT_S * _NS),
        }
        subject = f"{self._jetstream.prefix}CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        self._connection.publish(subject, json.dumps(wish).encode(), reply=inbox)
        if not self._asked:
            self._heard = monotonic()
            self._open.clear()
        self._open.add(inbox)
        self._asked += missing

    def _forget(self) -> None:
        self._open.clear()
        self._asked = 0
        self._wake.set()

    # -- in the read loop ----------------------------------------------------------------------------

    def _on_delivery(self, delivery: Delivery) -> None:
        self._heard = monotonic()
        headers = delivery.headers or {}
        status = headers.get("Status")
        if status is not None and delivery.subject.startswith(self._prefix):
            self._on_status(delivery.subject, status, headers)
            return
        reply = delivery.raw_reply.decode("utf-8", "replace")
        found = position(reply)
        if found is None:
            return
        # The server serves the requests in turn; only the sum matters.
        self._asked = max(0, self._asked - 1)
        work = Work(self._connection, delivery, found, reply)
        if not self._pulling or self._room() <= 0:
            work.put_back()
            return
        self._take(work)
        self.freed()  # Of what was asked for, this is here.

    def _on_status(self, inbox: str, status: str, headers: dict[str, str]) -> None:
        if status == _CONTROL or inbox not in self._open:
            return
        pending = headers.get("Nats-Pending-Messages")
        if pending is not None:  # It ran out, and says what it did not bring.
            self._open.discard(inbox)
            self._asked = max(0, self._asked - int(pending))
        else:  # No such consumer any more, leadership has moved, too many requests wait.
            self._made = False
            self._troubled = True
            self._forget()
        self._wake.set()

    def _on_state(self, state: LinkState) -> None:
        if state is not LinkState.CONNECTED:
            self._forget()
        else:
            self._wake.set()
