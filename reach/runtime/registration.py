"""An instance's dealings with the supervisor: it registers on each link, follows orders, and says that it lives.

With a supervisor the answer to its registration says how many tickets it holds, and orders change that later. An
order is followed only if it is newer than the last one (`term`, `revision`) and carries the secret that the
instance was given. Without one the instance goes by the table that the last leader left, or by what it knows of
others (`reach.policy.standby`), and asks again every few seconds.

One task does all of it, one thing after the other, so that an order and a new link never overtake each other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from reach.chance import random
from reach.errors import CallTimeout, LinkDown, ReachError, SchemaInvalid
from reach.policy.lease import interval_s
from reach.runtime import alone
from reach.runtime.fitness import LOOK_S, Aside
from reach.wire import codec, subjects
from reach.wire.life import Goodbye, Heartbeat
from reach.wire.registration import (
    Applied,
    DrainOrder,
    MembershipOrder,
    Order,
    OrderVerb,
    Register,
    RegisterAgain,
    Registered,
    read_answer,
    read_message,
)

if TYPE_CHECKING:
    from reach.bus.connection import Connection
    from reach.bus.framing import Delivery
    from reach.registry.cards import CardDirectory
    from reach.runtime.fitness import Fitness
    from reach.runtime.job import Served
    from reach.runtime.membership import Membership
    from reach.wire.card import Card

_log = logging.getLogger("reach.agent")

ANSWER_S: Final = 1.0
"""How long a supervisor may take to answer; one that leads answers within milliseconds."""

RETRY_S: Final = (0.5, 1.0, 2.0, 5.0)
"""Pauses between registrations that nobody answered, spread by half."""

RELEASE_S: Final = 2.0
"""How long a leaving instance waits for the supervisor to put others in its place."""

_ROOM: Final = 4096
"""Bytes of a message that are not the card."""


class Registration:
    """One instance's membership over time."""

    def __init__(
        self,
        connection: Connection,
        membership: Membership,
        *,
        card: Card,
        served: list[Served],
        cards: CardDirectory,
        inflight: Callable[[], int],
        drain: Callable[[float | None], None],
        fitness: Fitness,
    ) -> None:
        self._connection = connection
        self._membership = membership
        self._card = card
        self._served = served
        self._cards = cards
        self._inflight = inflight
        self._drain = drain
        self._fitness = fitness
        self._aside = Aside(membership, cards, card.instance)
        self._term = self._revision = 0
        self._secret = ""
        self._lease_ttl_s = card.lease_ttl_s
        self.supervised = False
        """Whether a supervisor has answered on this link."""
        self._joined = False
        self._before: dict[str, int] | None = None
        """What was held on the link before, without a supervisor."""
        self._leaving = self._again = False
        self._link_of: tuple[str, int] = ("", 0)
        self._order: tuple[MembershipOrder, str] | None = None
        self._failures = self._unheard = 0
        self._retry_at = self._beat_at = self._told_at = 0.0
        self._wake = asyncio.Event()
        self._hear = partial(asyncio.get_running_loop().call_soon_threadsafe, self._wake.set)
        self._released = asyncio.Event()
        self._task: asyncio.Task[None] | None = None  # Owned: stop() ends and awaits it.
        self._loop = asyncio.get_running_loop()
        self._control = [
            connection.subscribe(subjects.ctl(card.instance, OrderVerb.MEMBERSHIP), self._on_membership),
            connection.subscribe(subjects.ctl(card.instance, OrderVerb.REGISTER), self._on_register),
            connection.subscribe(subjects.ctl(card.instance, OrderVerb.DRAIN), self._on_drain),
        ]

    # -- life -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take part; returns once it does. Raises `LinkDown` when the link ended meanwhile: the next one is used."""
        self._fitness.start()
        self._fitness.condition.on_change(self._hear)
        self._membership.listen(self._served)
        with suppress(LinkDown, CallTimeout):  # The task in a moment, or the next link, begins anew.
            await self._take_part()
        self._task = self._loop.create_task(self._keep(), name=f"registration of {self._card.instance}")

    def link_ended(self) -> None:
        """The link is gone, and with it every membership."""
        if self._joined:
            self._before = None if self.supervised else self._membership.held
        self._joined = self.supervised = False
        self._order = None
        self._membership.forget()

    def link_up(self) -> None:
        """There is a new link: take part in it. Who had no supervisor does so as before, until one answers."""
        self._failures, self._retry_at = 0, 0.0
        if self._before is not None:
            with suppress(LinkDown):  # Ended again already, which is told next.
                self._membership.join(self._served, self._before)
                self._joined = True
        self._wake.set()

    async def leave(self, reason: str = "stop") -> None:
        """Say goodbye; with a supervisor, wait a little until others are in place. Raises `LinkDown`."""
        self._leaving = True
        goodbye = Goodbye(
            agent_id=self._card.agent_id,
            instance=self._card.instance,
            generation=self._card.generation,
            at=_now_ms(),
            reason="drain" if reason == "drain" else "stop",
        )
        self._connection.publish(subjects.goodbye(self._card.instance), codec.pack(goodbye.model_dump()))
        if self.supervised and any(self._membership.held.values()):
            with suppress(TimeoutError):
                async with asyncio.timeout(RELEASE_S):
                    await self._released.wait()

    def withdraw(self, card: Card) -> None:
        """Take part no more in what this card says to be withdrawn."""
        self._card = card
        self._wake.set()

    async def _step_out(self) -> None:
        out = {one.tag for one in self._card.capabilities if one.withdrawn}
        if gone := [one.name for one in self._served if one.name in out]:
            self._served = [one for one in self._served if one.name not in out]
            self._again = True
            await self._membership.follow(dict.fromkeys(gone, 0), off_lane=tuple(gone))

    async def stop(self) -> None:
        """End: no more heartbeats, no more orders."""
        self._fitness.stop()
        self._fitness.condition.off_change(self._hear)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    # -- the one task ---------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            try:
                await self._do_what_is_due()
            except (LinkDown, CallTimeout) as error:
                _log.debug("%s: %s; again on the next link", self._card.instance, type(error).__name__)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
            self._wake.clear()

    async def _do_what_is_due(self) -> None:
        if not self._connection.connected:
            return
        await self._step_out()
        if not self._leaving and self._must_register():
            await self._take_part()
        if self._order is not None:
            await self._follow()
        self._look()
        if not self.supervised and not self._leaving and self._joined and self._fitness.told is not None:
            await self._aside.settle(self._fitness.told)

    def _must_register(self) -> bool:
        if self._again or not self._joined or self._link_of != _link_of(self._connection):
            return True
        return not self.supervised and self._loop.time() >= self._retry_at

    async def _take_part(self) -> None:
        """Register, and hold what the answer says; where nobody answers, what the table or others say."""
        self._again = False
        link = _link_of(self._connection)
        answer = await self._register()
        if link != _link_of(self._connection):
            return  # That was another link; it begins anew.
        if answer is None:
            await self._alone()
        else:
            await self._welcomed(answer)
        self._link_of = link

    async def _register(self) -> Registered | None:
        server, number = _link_of(self._connection)
        message = Register(
            card=self._fitting(), server=server, connection=number, tickets=self._membership.held
        )
        try:
            data = await self._connection.request(
                subjects.REGISTER,
                codec.pack(message.model_dump(mode="json", exclude_defaults=True)),
                timeout_s=ANSWER_S,
            )
            answer = read_answer(data, Registered)
        except LinkDown:
            raise
        except ReachError as error:
            if not isinstance(error, CallTimeout) and error.executed != "no":
                _log.warning("%s could not register: %s", self._card.instance, error)
            return None
        return None if answer.term < self._term else answer

    async def _welcomed(self, answer: Registered) -> None:
        self._failures = 0
        self.supervised = True
        self._aside.forget()
        self._term, self._revision = answer.term, answer.revision
        self._secret, self._lease_ttl_s = answer.secret, answer.lease_ttl_s
        if answer.status != "welcome":
            _log.warning(
                "%s takes no part: the supervisor says that it is %s", self._card.instance, answer.status
            )
        tickets = {one.name: answer.tickets.get(one.name, 0) for one in self._served}
        await self._hold(tickets, answer.off_lane)
        self._beat()

    async def _alone(self) -> None:
        pause_s = RETRY_S[min(self._failures, len(RETRY_S) - 1)]
        self._failures += 1
        self.supervised = False
        self._retry_at = self._loop.time() + pause_s * (0.5 + random())
        if self._joined:
            return  # What was held is held on: nobody says otherwise.
        await self._hold(await alone.tickets(self._connection, self._cards, self._card), ())

    async def _hold(self, tickets: dict[str, int], off_lane: tuple[str, ...]) -> None:
        if self._joined:
            await self._membership.follow(tickets, off_lane=off_lane)
        else:
            self._membership.join(self._served, tickets, off_lane=off_lane)
            self._joined = True
            await self._connection.flush()

    # -- orders ---------------------------------------------------------------------------------------

    def _on_membership(self, delivery: Delivery) -> None:
        order = self._heed(delivery, MembershipOrder)
        if isinstance(order, MembershipOrder):
            self._order = (order, delivery.reply)
            self._wake.set()

    def _on_register(self, delivery: Delivery) -> None:
        order = self._heed(delivery, RegisterAgain, ordered=False)
        if order is not None:
            self._again = True
            self._wake.set()

    def _on_drain(self, delivery: Delivery) -> None:
        order = self._heed(delivery, DrainOrder)
        if isinstance(order, DrainOrder):
            _log.info("%s is asked to leave", self._card.instance)
            self._drain(order.timeout_s)

    def _heed(self, delivery: Delivery, model: type[Order], *, ordered: bool = True) -> Order | None:
        """Read an order that must be followed; None, and the answer why, for one that must not."""
        try:
            order = read_message(codec.unpack(delivery.data), model)
        except SchemaInvalid as error:
            _log.warning("%s got an order that cannot be read: %s", self._card.instance, error)
            return None
        why = ""
        if order.generation != self._card.generation:
            why = "generation"
        elif ordered and (order.term, order.revision) <= (self._term, self._revision):
            why = "outdated"
        elif order.secret != self._secret and (ordered or self._secret):
            # A leader with another login, or nobody that may give orders: whoever leads will say who it is.
            why, self._again = "secret", True
            self._wake.set()
        elif not self._connection.connected:
            why = "unlinked"
        if not why:
            return order
        self._tell(delivery.reply, applied=False, why=why)
        return None

    async def _follow(self) -> None:
        """Follow the newest order, and say what is held then."""
        if self._order is None:
            return
        (order, reply), self._order = self._order, None
        if not self._joined or (order.term, order.revision) <= (self._term, self._revision):
            return
        self._term, self._revision = order.term, order.revision
        self.supervised = True
        await self._membership.follow(order.tickets, off_lane=order.off_lane)
        self._tell(reply, applied=True)
        if self._leaving and not any(self._membership.held.values()):
            self._released.set()

    def _tell(self, reply: str, *, applied: bool, why: str = "") -> None:
        if not reply:
            return
        answer = Applied(
            instance=self._card.instance,
            generation=self._card.generation,
            term=self._term,
            revision=self._revision,
            applied=applied,
            tickets=self._membership.held,
            why=why,
        )
        with suppress(LinkDown):  # Then everything begins anew.
            self._connection.publish(reply, codec.pack(answer.model_dump()))

    # -- signs of life --------------------------------------------------------------------------------

    def _look(self) -> None:
        """Say that we live when it is time, or when how we find ourselves has become another matter."""
        now = self._loop.time()
        if now >= self._beat_at or self._fitness.moved(measured_s=now - self._told_at):
            self._beat()

    def _beat(self) -> None:
        fit = self._fitness.look()
        beat = Heartbeat(
            agent_id=self._card.agent_id,
            instance=self._card.instance,
            generation=self._card.generation,
            at=_now_ms(),
            ready=fit.ready and not self._leaving,
            health=fit.health,
            inflight=self._inflight(),
            lease_ttl_s=self._lease_ttl_s,
            queue=fit.queue,
            cpu=fit.load.cpu,
            rss_bytes=fit.load.rss_bytes,
            loop_lag_ms=fit.load.loop_lag_ms,
            busy=fit.busy or "",
            term=self._term,
            revision=self._revision,
            tickets=self._membership.held,
        )
        try:
            self._connection.publish(subjects.heartbeat(self._card.instance), codec.pack(beat.model_dump()))
            self._unheard = 0
        except LinkDown:
            self._unheard += 1
        jitter = random()
        self._told_at = self._loop.time()
        self._beat_at = self._told_at + interval_s(self._lease_ttl_s, failures=self._unheard, jitter=jitter)

    def _fitting(self) -> Card:
        """Give the card, without its schemas where they would not fit into a message."""
        size = len(self._card.model_dump_json(exclude_defaults=True))
        if size <= self._connection.max_payload - _ROOM:
            return self._card
        bare: list[Any] = [
            one.model_copy(update={"input_schema": None, "output_schema": None})
            for one in self._card.capabilities
        ]
        return self._card.model_copy(update={"capabilities": tuple(bare)})


def _link_of(connection: Connection) -> tuple[str, int]:
    """Give the server and the number of the connection that is used now, as the server counts them."""
    facts = connection.server_info
    return str(facts.get("server_id", "")), int(facts.get("client_id", 0))


def _now_ms() -> int:
    return int(time.time() * 1000)
