"""What this client tells the supervisor: how its calls ended, lane by lane, once a second while there are any.

The counting is done where calls end (`reach.call.account`); here it is put together and sent. A digest asks for no
answer, but the broker says so when nobody hears it: then nobody leads, and the routing table is one that nobody keeps.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from reach.chance import random
from reach.errors import LinkDown
from reach.wire import codec, subjects
from reach.wire.outcomes import LaneOutcomes, Outcomes

if TYPE_CHECKING:
    from collections.abc import Callable

    from reach.bus.connection import Connection
    from reach.bus.framing import Delivery
    from reach.bus.subscription import Subscription
    from reach.call.lanes import Lanes

EACH_S: Final = 1.0
"""How often it is told (design, section 3)."""

MOST_LANES: Final = 200
"""Lanes in one message; of a lane's some 2 kB most are latencies."""


class Digests:
    """Tells how the calls of one client ended. `heard` is told whether anybody leads."""

    def __init__(self, connection: Connection, lanes: Lanes, *, heard: Callable[[bool], None]) -> None:
        self._connection = connection
        self._lanes = lanes
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._boot = time.time_ns() // 1_000_000
        self._seq = 0
        self._told_at = self._loop.time()
        self._sent_at = 0.0
        self._unheard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._reply = f"{connection.inbox}.digests.{self._boot}"
        self._subscription: Subscription | None = None
        self._each: list[Callable[[], None]] = []
        self._closed = False

    def start(self) -> None:
        """Begin to tell, if that was not done before."""
        if self._timer is None and not self._closed:
            self._subscription = self._connection.subscribe(self._reply, self._on_answer)
            # Clients that were started together do not all tell in the same moment.
            self._timer = self._loop.call_later(EACH_S * (0.5 + random() / 2), self._tick)

    def also(self, action: Callable[[], None]) -> None:
        """Have something else done each second."""
        self._each.append(action)

    def close(self) -> None:
        """Tell what is left, and end."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.tell()
        if self._subscription is not None:
            self._subscription.drop()
            self._subscription = None

    def tell(self) -> int:
        """Tell what was counted since the last time; how many lanes that were."""
        now = self._loop.time()
        if not self._connection.connected:
            return 0  # It is told when there is a way.
        told = [
            lane.account.take(lane.capability, lane.provider, now=now, slow_ms=lane.breaker.slow_ms)
            for lane in self._lanes
            if lane.provider and not lane.account.empty
        ]
        if told and self._unheard_at <= self._sent_at:
            self._heard(True)  # noqa: FBT003 - nobody has said that the last one was not heard
        for at in range(0, len(told), MOST_LANES):
            self._send(tuple(told[at : at + MOST_LANES]), max(1, int((now - self._told_at) * 1000)))
            self._sent_at = now
        self._told_at = now
        return len(told)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(EACH_S, self._tick)
        self.tell()
        for action in self._each:
            action()

    def _send(self, lanes: tuple[LaneOutcomes, ...], span_ms: int) -> None:
        self._seq += 1
        digest = Outcomes(
            client=self._connection.client_id,
            boot=self._boot,
            seq=self._seq,
            at=time.time_ns() // 1_000_000,
            span_ms=span_ms,
            lanes=lanes,
        )
        body = digest.model_dump(mode="json", exclude_defaults=True)
        try:
            self._connection.publish(
                subjects.outcomes(self._connection.client_id), codec.pack(body), reply=self._reply
            )
        except LinkDown:
            return  # That second is lost: figures are made of many.

    def _on_answer(self, delivery: Delivery) -> None:
        if delivery.no_responders:
            self._unheard_at = self._loop.time()
            self._heard(False)  # noqa: FBT003 - see `heard`
