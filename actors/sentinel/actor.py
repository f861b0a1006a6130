"""The sentinel: `$SYS` disconnects in, `reach.gone` out.

It watches on a connection of its own, as *fencer* in the system account, and tells on the platform's. What the
events mean is decided in `presence`. Where there is no login for the system account it says so and rests: then
leases and deadlines are the bound.
"""

from __future__ import annotations

import logging
from typing import Final

from actors.sentinel.presence import Presence, event_of
from reach.bus.connection import Connection, LinkState
from reach.bus.framing import Delivery
from reach.bus.keys import Role
from reach.errors import LinkDown, SchemaInvalid
from reach.runtime.actor import Actor, Message, on
from reach.runtime.child import RoleUnavailable
from reach.wire import codec, subjects
from reach.wire.life import Gone

_log = logging.getLogger("reach.sentinel")

CONNECTS: Final = "$SYS.ACCOUNT.*.CONNECT"
DISCONNECTS: Final = "$SYS.ACCOUNT.*.DISCONNECT"

_AGENT: Final = b'"reach:agent:'
"""What an event about an agent holds. Others (every call from a command line is two) are not decoded."""

LATE_S: Final = 0.05
"""A reminder that is this late was lost in a full mailbox: set another."""


class Sentinel(Actor):
    """Publishes `reach.gone.<instance>.<generation>` for agents whose connection ended and did not come back."""

    mailbox_capacity = 16_384  # A server that restarts ends, and begins, all connections at once.

    _fencer: Connection | None = None

    async def on_start(self) -> None:
        """Watch."""
        self._presence = Presence()
        self._reminder: float | None = None
        try:
            self._fencer = await self.connect(Role.FENCER)
        except RoleUnavailable as error:
            _log.warning("Crashed agents will be noticed by their lease only. %s", error)
            return
        self._fencer.on_state(self._on_state)
        self._fencer.subscribe(CONNECTS, self._take)
        self._fencer.subscribe(DISCONNECTS, self._take)
        await self._fencer.flush()

    async def on_stop(self) -> None:
        """Look away."""
        if self._fencer is not None:
            await self._fencer.close()

    # -- inside the fencer's read loop ----------------------------------------------------------------

    def _take(self, delivery: Delivery) -> None:
        if _AGENT in delivery.data:
            began = delivery.subject.endswith(".CONNECT")
            self.tell("connected" if began else "disconnected", {"event": delivery.data})

    def _on_state(self, state: LinkState) -> None:
        if state is LinkState.CONNECTED:
            self.tell("blind")

    # -- one at a time --------------------------------------------------------------------------------

    @on("connected", local=True)
    def connected(self, message: Message) -> None:
        """A connection began."""
        if (event := event_of(_decoded(message))) is not None:
            self._presence.connected(event)

    @on("disconnected", local=True)
    def disconnected(self, message: Message) -> None:
        """A connection ended: judge it when its pause is over."""
        if (event := event_of(_decoded(message))) is not None:
            at_ms = int(self.clock.time() * 1000)
            self._presence.disconnected(event, now=self.clock.monotonic(), at_ms=at_ms)
            self._remind()

    @on("blind", local=True)
    def blind(self, message: Message) -> None:  # noqa: ARG002 - that it came is all it says
        """Our own link was replaced: events were missed."""
        self._presence.forget_links()

    @on("judge", local=True)
    def judge(self, message: Message) -> None:  # noqa: ARG002 - "
        """Tell of those whose pause is over."""
        self._reminder = None
        now = self.clock.monotonic()
        for departure in self._presence.due(now=now):
            instance = departure.instance
            gone = Gone(
                instance=instance.name,
                generation=instance.generation,
                at=departure.at_ms,
                cause="kicked" if departure.kicked else "disconnected",
            )
            try:
                self.connection.publish(
                    subjects.gone(instance.name, instance.generation), codec.pack(gone.model_dump())
                )
                _log.info("%s is gone (%s)", instance.name, departure.reason)
            except LinkDown:
                if not self._presence.postpone(departure, now=now):
                    _log.warning("%s is gone, which could not be told: no link to NATS", instance.name)
        self._remind()

    def _remind(self) -> None:
        """See to it that `judge` comes when the next one is due."""
        due, now = self._presence.next_due(), self.clock.monotonic()
        if due is None or (self._reminder is not None and now < self._reminder + LATE_S):
            return
        self._reminder = due
        self.tell("judge", delay_s=max(0.001, due - now))


def _decoded(message: Message) -> dict[str, object]:
    try:
        return codec.unpack(message.body["event"])
    except SchemaInvalid:
        _log.warning("An event of the server could not be read.")
        return {}
