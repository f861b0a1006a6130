"""Where an instance is subscribed: membership in queue groups *is* load balancing.

Being in `cap.<capability>` once is one ticket; leaving is unsubscribing, without losing what was already on its
way (design, section 5). Memberships end with their link and are asked for anew on the next one; broadcast,
direct and control subjects come back by themselves.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from reach.wire import subjects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from reach.bus.connection import Connection
    from reach.bus.internals import Delivery
    from reach.bus.subscription import Subscription
    from reach.runtime.job import Served

    Receive = Callable[[Served, Delivery], None]


class Membership:
    """The request subscriptions of one instance."""

    def __init__(self, connection: Connection, *, agent_id: str, instance: str, receive: Receive) -> None:
        self._connection = connection
        self._agent_id = agent_id
        self._instance = instance
        self._receive = receive
        self._tickets: dict[str, list[Subscription]] = {}
        self._lanes: dict[str, Subscription] = {}
        self._direct: list[Subscription] = []

    def join(self, served: Iterable[Served]) -> None:
        """Take part: one ticket a capability, its lane, and the durable subjects (once)."""
        capabilities = list(served)
        if not self._direct:
            for one in capabilities:
                handler = partial(self._receive, one)
                for subject in (subjects.everyone(one.name), subjects.inst(self._instance, one.name)):
                    self._direct.append(self._connection.subscribe(subject, handler))
        for one in capabilities:
            handler = partial(self._receive, one)
            lane = subjects.lane(self._agent_id, one.name)
            self._lanes[one.name] = self._connection.subscribe(
                lane, handler, queue=subjects.QUEUE, durable=False
            )
            self._tickets[one.name] = [
                self._connection.subscribe(
                    subjects.cap(one.name), handler, queue=subjects.QUEUE, durable=False
                )
            ]

    def forget(self) -> None:
        """The link has ended, and with it every membership."""
        self._tickets.clear()
        self._lanes.clear()

    async def withdraw(self) -> None:
        """Leave every queue group without losing a message; direct subjects stay for what is addressed to us."""
        leaving = [subscription for group in self._tickets.values() for subscription in group]
        leaving.extend(self._lanes.values())
        self.forget()
        await asyncio.gather(*(subscription.withdraw() for subscription in leaving))

    async def leave(self) -> None:
        """Leave the direct subjects too."""
        direct, self._direct = self._direct, []
        await asyncio.gather(*(subscription.withdraw() for subscription in direct))
