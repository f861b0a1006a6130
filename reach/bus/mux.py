"""Who waits for which answer.

One wildcard subscription a client receives every reply and frame; a table maps its last token to the call
that waits. Calls are settled by an answer, by their deadline, by the broker (nobody listens, permission
denied), by the link's end, or by word that the instance which had accepted them is gone: at once each time,
so that no call waits for a timeout whose outcome is already known (cases 5 and 8). After `close` the table is
empty.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from reach.bus.connection import LinkState
from reach.bus.pending import Pending
from reach.bus.pulse import Pulse
from reach.bus.suspicion import SUSPICION_S, Suspicions
from reach.bus.translate import denied_subject
from reach.bus.wheel import DeadlineWheel
from reach.errors import LinkDown, SchemaInvalid
from reach.faults import Executed, Reason
from reach.wire import codec, subjects
from reach.wire.frame import Frame
from reach.wire.reply import Failure, Reply

if TYPE_CHECKING:
    from reach.bus.connection import Connection
    from reach.bus.framing import Delivery


GONE_AFTER_S = 0.45
"""How old a call that nobody has accepted must be for the end of an instance to be its end, too. An instance is
judged gone 500 ms after its connection ended: younger calls were sent when it was no longer there to take them."""

RETELL_S = (1.0, 3.0)
"""Pauses before cancellations from before an outage are told once more, in seconds."""

PART_S = 0.15
"""How old a call may be whose acceptance is waited for when its client closes; agents accept after 25 ms."""

_SOON_S = 0.25
"""A call that must be over so soon has its place on the wheel at once: nobody looks at it before."""

_MAX_HEADS = 10_000
"""Subjects whose frame is remembered."""

MAX_UNTOLD = 1000
"""Cancellations that are kept while the link is down; producers end at their own deadlines otherwise."""


class Mux:
    """The reply side of one client."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.on_retried: Callable[[Any], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._prefix = connection.inbox + "."
        self._cut = len(self._prefix)
        # Young calls, oldest first. Most are answered before anybody looks: they never see the wheel.
        self._young: dict[bytes, Pending] = {}
        self._elder: dict[bytes, Pending] = {}
        self._look: asyncio.TimerHandle | None = None
        self._heads: dict[str, bytes] = {}
        self._by_instance: dict[str, set[bytes]] = {}
        # Cancelled before anybody had accepted: told as soon as acceptance arrives. Bounded by the wheel.
        self._orphans: dict[bytes, Pending] = {}
        self._untold: deque[tuple[str, str, int]] = deque(maxlen=MAX_UNTOLD)
        self._counter = 0
        self._wheel = DeadlineWheel[bytes](self._loop, self._on_due)
        self.serves: Callable[[str, str], bool] = _unknown
        """Whether an agent serves a capability, as far as the caller knows (set by the caller)."""
        self.suspicions = Suspicions(connection)
        self.pulse = Pulse(connection)
        self.unheard = 0
        self.late = 0
        self._closed = False
        self._inbox = connection.subscribe(self._prefix + "*", self._on_message)
        self._gone = connection.subscribe(subjects.GONE_ALL, self._on_gone)
        connection.on_state(self._on_state)
        connection.denials.append(self._on_denied)

    def __len__(self) -> int:
        return len(self._young) + len(self._elder)

    def open(self, message_id: str, capability: str, subject: str, *, now: float, deadline: float) -> Pending:
        """Reserve a place for an answer from loop time `now` until `deadline`."""
        self._counter += 1
        token = b"%x" % self._counter
        pending = Pending(token, message_id, capability, subject, self._loop.create_future(), deadline, now)
        self._young[token] = pending
        if deadline - now < _SOON_S:
            pending.slot = self._wheel.add(token, deadline)
        if self._look is None:
            self._look = self._loop.call_at(now + SUSPICION_S, self._look_after)
        return pending

    def send(self, pending: Pending, data: bytes, *, watch: bool = True) -> None:
        """Publish the request of `pending`, which fits one message. Raises `LinkDown`; the place stays open.

        `watch` it where an answer or a frame is owed soon: silence is then told as a suspicion.
        """
        pending.sent = pending.opened
        pending.watched = watch
        link = self._connection.link
        if link is None:
            raise LinkDown
        head = self._heads.get(pending.subject) or self._head(pending.subject)
        link.put(b"%b%b %d\r\n%b\r\n" % (head, pending.token, len(data), data))

    def _head(self, subject: str) -> bytes:
        """Give what the frame of each request on `subject` begins with."""
        if len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
        head = self._heads[subject] = f"PUB {subject} {self._prefix}".encode()
        return head

    def _look_after(self) -> None:
        """Take the calls that are no longer young: they get a place on the wheel, and silence is told."""
        self._look = None
        now = monotonic()
        grown = []
        for pending in self._young.values():
            if pending.opened + SUSPICION_S > now:
                self._look = self._loop.call_at(pending.opened + SUSPICION_S, self._look_after)
                break
            grown.append(pending)
        for pending in grown:
            del self._young[pending.token]
            self._elder[pending.token] = pending
            if not pending.slot:
                pending.slot = self._wheel.add(pending.token, pending.deadline)
            if pending.watched and pending.accepted is None and not pending.future.done():
                more_s = self.suspicions.patience.get(pending.capability)
                if more_s is None:
                    self._suspect(pending)
                else:
                    self._loop.call_later(more_s, self._suspect, pending)

    def _suspect(self, pending: Pending) -> None:
        """Tell of a call that has waited too long for its first frame, if it still does."""
        if pending.accepted is None and not pending.future.done() and not self._closed:
            self.suspicions.tell(pending, monotonic())
            self.pulse.ask()

    def _open_calls(self) -> list[Pending]:
        return [*self._elder.values(), *self._young.values()]

    def close_one(self, pending: Pending) -> None:
        """Give a place back."""
        if (
            self._young.pop(pending.token, None) is not None
            or self._elder.pop(pending.token, None) is not None
        ):
            if pending.slot:
                self._wheel.discard(pending.token, pending.slot)
            pending.on_frame = pending.on_reply = None
        if pending.accepted is not None:
            self._forget_acceptance(pending)

    def cancel(self, pending: Pending) -> None:
        """Give a call up: its place is freed and whoever accepted it is told, now or when acceptance arrives."""
        self.close_one(pending)
        if pending.cancelled:
            return
        # A future that its waiter's cancellation took along is as open as before.
        is_open = pending.future.cancelled() or not pending.future.done()
        if pending.accepted is not None:
            pending.cancelled = True
            self._tell_cancel(pending.accepted, pending.message_id, pending.attempt)
        elif pending.sent and is_open:
            pending.cancelled = True
            self._orphans[pending.token] = pending
            pending.slot = self._wheel.add(pending.token, monotonic() + 5.0)

    def credit(self, instance: str, stream_id: str, size: int) -> None:
        """Allow a producer `size` more bytes."""
        body = codec.pack_plain({"stream_id": stream_id, "bytes": size})
        try:
            self._connection.publish(subjects.ctl(instance, "credit"), body)
        except LinkDown:
            return  # the stream is judged by the disconnect itself

    async def part(self) -> None:
        """Give up what is open, and stay for those who are only now about to say that they have a call.

        To be done before `close`: without it, a call that is left a moment after it was sent would run on at the
        agent until its deadline, since nobody knows yet whom to tell.
        """
        for pending in self._open_calls():
            if pending.sent:
                self.cancel(pending)
                pending.settle(Failure.of(Reason.DISCONNECTED, executed=Executed.MAYBE))
        while self._acceptance_is_near():  # noqa: ASYNC110 - at most twenty turns, once in a client's life
            await asyncio.sleep(PART_S / 20)

    def _acceptance_is_near(self) -> bool:
        return self._connection.connected and any(
            monotonic() - orphan.sent < PART_S for orphan in self._orphans.values()
        )

    def close(self) -> None:
        """Settle everything and stop listening."""
        if self._closed:
            return
        self._closed = True
        for pending in self._open_calls():
            # Nobody will read their answers any more: whoever has them may stop.
            if pending.accepted is not None and not pending.cancelled:
                self._tell_cancel(pending.accepted, pending.message_id, pending.attempt)
        self._fail_all(Failure.of(Reason.DISCONNECTED, executed=Executed.MAYBE))
        self._wheel.close()
        if self._look is not None:
            self._look.cancel()
            self._look = None
        self._orphans.clear()
        self._inbox.drop()
        self._gone.drop()
        self._connection.off_state(self._on_state)
        if self._on_denied in self._connection.denials:
            self._connection.denials.remove(self._on_denied)

    # -- what arrives --------------------------------------------------------------------------------

    def _on_message(self, delivery: Delivery) -> None:
        token = delivery.raw_subject[self._cut :]
        pending = self._young.get(token) or self._elder.get(token)
        if pending is None:
            self._on_stray(token, delivery)
            return
        if delivery.headers is not None and delivery.no_responders:
            pending.settle(Failure.of(Reason.NO_RESPONDERS))
            return
        try:
            answer = Reply.read(delivery.data)
        except SchemaInvalid:
            pending.settle(Failure.of(Reason.NON_JSON_BODY))
            return
        if isinstance(answer, dict):
            self._on_frame(pending, answer, len(delivery.data))
        elif pending.on_reply is not None:
            pending.on_reply(answer)
        else:
            pending.settle(answer)

    def _on_frame(self, pending: Pending, body: dict[str, Any], size: int) -> None:
        try:
            frame = Frame.from_map(body)
        except ValueError:
            pending.settle(Failure.of(Reason.NON_JSON_BODY))
            return
        if frame.kind == "accepted":
            self._accept(pending, frame)
        if pending.on_frame is not None:
            pending.on_frame(frame, size)
        elif frame.kind == "error":
            pending.settle(frame.failure())

    def _accept(self, pending: Pending, frame: Frame) -> None:
        body = frame.body if isinstance(frame.body, dict) else {}
        instance, generation = body.get("instance"), body.get("generation")
        # The first word counts: only one instance was handed the request.
        if pending.accepted is None and isinstance(instance, str) and isinstance(generation, int):
            pending.accepted = instance
            pending.generation = generation
            self._by_instance.setdefault(instance, set()).add(pending.token)
        if body.get("retried") is True:
            pending.retried = True
            if pending.within is not None and self.on_retried is not None:
                self.on_retried(pending.within)

    def _on_stray(self, token: bytes, delivery: Delivery) -> None:
        """An answer to a call that no longer waits: a late reply, or the acceptance of a cancelled call."""
        orphan = self._orphans.get(token)
        if orphan is None:
            if delivery.no_responders:
                self.unheard += 1
            else:
                self.late += 1
            return
        try:
            frame = Frame.from_map(codec.unpack(delivery.data))
        except (ValueError, SchemaInvalid):
            self._drop_orphan(token)
            return
        if frame.kind == "accepted" and isinstance(frame.body, dict):
            self._tell_cancel(str(frame.body.get("instance")), orphan.message_id, orphan.attempt)
        if frame.kind != "ping":
            self._drop_orphan(token)

    def _drop_orphan(self, token: bytes) -> None:
        orphan = self._orphans.pop(token, None)
        if orphan is not None:
            self._wheel.discard(token, orphan.slot)

    def _tell_cancel(self, instance: str, message_id: str, attempt: int) -> None:
        body = codec.pack_plain({"message_id": message_id, "attempt": attempt})
        try:
            self._connection.publish(subjects.ctl(instance, "cancel"), body)
        except LinkDown:
            self._untold.append((instance, message_id, attempt))  # told as soon as there is a way

    def _forget_acceptance(self, pending: Pending) -> None:
        tokens = self._by_instance.get(pending.accepted or "")
        if tokens is not None:
            tokens.discard(pending.token)
            if not tokens:
                del self._by_instance[pending.accepted or ""]

    # -- what ends calls without an answer -----------------------------------------------------------

    def _on_due(self, token: bytes) -> None:
        pending = self._elder.get(token) or self._young.get(token)
        if pending is not None:
            pending.settle(Failure.of(Reason.DEADLINE))
            return
        self._orphans.pop(token, None)

    def _on_state(self, state: LinkState) -> None:
        if state is LinkState.CONNECTED:
            untold, self._untold = list(self._untold), deque(maxlen=MAX_UNTOLD)
            if untold:
                self._retell(untold, RETELL_S)
        if state is not LinkState.CONNECTED:
            self._orphans.clear()
            self._fail_all(Failure.of(Reason.DISCONNECTED, executed=Executed.MAYBE))

    def _retell(self, untold: list[tuple[str, str, int]], pauses_s: tuple[float, ...]) -> None:
        """Tell agents of cancellations, and again: they may find the server later than we do."""
        if self._closed:
            return
        for instance, message_id, attempt in untold:
            self._tell_cancel(instance, message_id, attempt)
        if pauses_s:
            self._loop.call_later(pauses_s[0], self._retell, untold, pauses_s[1:])

    def _fail_all(self, failure: Failure) -> None:
        for pending in self._open_calls():
            if pending.sent:
                pending.settle(failure)

    def _on_denied(self, text: str) -> None:
        denied = denied_subject(text)
        if denied is None:
            return
        operation, subject = denied
        if operation != "publish":
            return
        message = f"the broker does not let this client publish to {subject}"
        for pending in self._open_calls():
            if pending.subject.lower() == subject.lower():
                pending.settle(Failure.of(Reason.AUTH_DENIED, message))

    def _on_gone(self, delivery: Delivery) -> None:
        """Judge the calls of an ended instance: accepted ones, and those nobody has accepted in good time."""
        _, _, instance, generation = delivery.subject.split(".")
        for token in list(self._by_instance.get(instance, ())):
            pending = self._elder.get(token) or self._young.get(token)
            if pending is not None and str(pending.generation) == generation:
                pending.settle(Failure.of(Reason.INSTANCE_GONE))
        addressed = subjects.inst(instance, "")
        agent_id = instance.rpartition("-")[0]
        now = monotonic()
        for pending in self._open_calls():
            if pending.accepted is not None or not pending.sent:
                continue
            in_doubt = now - pending.sent > GONE_AFTER_S and self.serves(agent_id, pending.capability)
            if in_doubt or pending.subject.startswith(addressed):
                pending.settle(Failure.of(Reason.INSTANCE_GONE))


def _unknown(_agent_id: str, _capability: str) -> bool:
    return False
