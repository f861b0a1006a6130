"""Where an instance is subscribed: membership in queue groups *is* load balancing.

Being in `cap.<capability>` once is one ticket; leaving is unsubscribing, without losing what was already on its
way (design, section 5). Memberships end with their link and are asked for anew on the next one; broadcast,
direct and control subjects come back by themselves.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from reach.wire import subjects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from reach.bus.connection import Connection
    from reach.bus.framing import Delivery
    from reach.bus.subscription import Subscription
    from reach.runtime.job import Served

    Receive = Callable[[Served, Delivery], None]


MAX_TICKETS: Final = 64
"""Most tickets of one capability that one instance holds (design, section 5)."""


class Membership:
    """The request subscriptions of one instance."""

    def __init__(self, connection: Connection, *, agent_id: str, instance: str, receive: Receive) -> None:
        self._connection = connection
        self._agent_id = agent_id
        self._instance = instance
        self._receive = receive
        self._served: dict[str, Served] = {}
        self._tickets: dict[str, list[Subscription]] = {}
        self._lanes: dict[str, Subscription] = {}
        self._direct: list[Subscription] = []

    def join(self, served: Iterable[Served]) -> None:
        """Take part: one ticket a capability, its lane, and the durable subjects (once)."""
        capabilities = list(served)
        self._served = {one.name: one for one in capabilities}
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
            self._tickets[one.name] = [self._ticket(one)]

    def _ticket(self, served: Served) -> Subscription:
        return self._connection.subscribe(
            subjects.cap(served.name), partial(self._receive, served), queue=subjects.QUEUE, durable=False
        )

    def tickets(self, capability: str) -> int:
        """How many tickets of a capability are held: its weight among the instances."""
        return len(self._tickets.get(capability, ()))

    async def set_tickets(self, capability: str, count: int) -> bool:
        """Hold `count` tickets (0 to 64) of a capability from now on, without losing a message; whether it does.

        New ones count, and given-up ones bring nothing more, when this returns: so whoever moves weight between
        instances promotes first and withdraws then. It does nothing while there is no link (the next one begins
        with one ticket each) and after leaving. Raises `ValueError` for a capability that is not served here or a
        count out of range, `LinkDown` and `CallTimeout` when the broker did not confirm new tickets.
        """
        if not 0 <= count <= MAX_TICKETS:
            raise ValueError(f"an instance holds 0 to {MAX_TICKETS} tickets of a capability, not {count}")
        if capability not in self._served:
            served = ", ".join(self._served) or "nothing"
            raise ValueError(f"{self._instance} does not serve {capability!r}; it serves {served}")
        held = self._tickets.get(capability)
        if held is None:
            return False
        if count > len(held):
            held += [self._ticket(self._served[capability]) for _ in range(count - len(held))]
            await self._connection.flush()
        else:
            leaving = held[count:]
            del held[count:]
            await asyncio.gather(*(ticket.withdraw() for ticket in leaving))
        return True

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
