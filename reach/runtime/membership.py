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
    from collections.abc import Callable, Collection, Iterable, Mapping

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

    def join(
        self,
        served: Iterable[Served],
        tickets: Mapping[str, int] | None = None,
        *,
        off_lane: Collection[str] = (),
    ) -> None:
        """Take part, on a new link: the durable subjects (once), the lanes, and these tickets by capability.

        One ticket each where `tickets` is None, none of a capability that it does not name; `off_lane` are those
        whose lane's queue group is stayed out of. Raises `LinkDown`.
        """
        self.listen(served)
        for name in self._served:
            if name not in off_lane:
                self._join_lane(name)
            count = 1 if tickets is None else min(tickets.get(name, 0), MAX_TICKETS)
            held = self._tickets.setdefault(name, [])
            held += [self._ticket(self._served[name]) for _ in range(count - len(held))]

    def listen(self, served: Iterable[Served]) -> None:
        """Take what is addressed to everybody, or to this instance; once is enough."""
        capabilities = list(served)
        self._served = {one.name: one for one in capabilities}
        if self._direct:
            return
        for one in capabilities:
            handler = partial(self._receive, one)
            for subject in (subjects.everyone(one.name), subjects.inst(self._instance, one.name)):
                self._direct.append(self._connection.subscribe(subject, handler))

    def _join_lane(self, capability: str) -> None:
        if capability not in self._lanes:
            self._lanes[capability] = self._connection.subscribe(
                subjects.lane(self._agent_id, capability),
                partial(self._receive, self._served[capability]),
                queue=subjects.QUEUE,
                durable=False,
            )

    @property
    def held(self) -> dict[str, int]:
        """The tickets that are held, by capability; what is served and not named here takes no part at all."""
        return {name: len(tickets) for name, tickets in self._tickets.items()}

    async def follow(self, tickets: Mapping[str, int], *, off_lane: Collection[str] = ()) -> None:
        """Hold these tickets from now on: more first, then fewer; a capability that is not named stays as it is.

        What was given up brings nothing more when this returns. Raises `LinkDown` and `CallTimeout` when the
        broker did not confirm.
        """
        wanted = {name: min(count, MAX_TICKETS) for name, count in tickets.items() if name in self._served}
        back = [name for name in wanted if name not in off_lane and name not in self._lanes]
        for name in back:
            self._join_lane(name)
        more = [name for name, count in wanted.items() if count > self.tickets(name)]
        for name in more:
            held = self._tickets.setdefault(name, [])
            held += [self._ticket(self._served[name]) for _ in range(wanted[name] - len(held))]
        if more or back:
            await self._connection.flush()
        leaving = [self._lanes.pop(name) for name in off_lane if name in self._lanes]
        for name, count in wanted.items():
            held = self._tickets.get(name, [])
            leaving += held[count:]
            del held[count:]
        if leaving:
            await asyncio.gather(*(subscription.withdraw() for subscription in leaving))

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
