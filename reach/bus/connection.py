"""A connection that outlives its sockets.

nats-py closes for good on most `-ERR` lines, brings old subscriptions back by itself, and buffers what is
published while it is down. Calls need the opposite of each: every ended link is replaced by a new one (with
credentials read afresh, over all known servers), only what was asked to be *durable* is subscribed again
(membership in a queue group is not: its owner decides anew), and publishing without a link fails at once.
What the connection does not know: replies, deadlines, calls (`reach.bus.mux`).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from reach import ids
from reach.bus import brokertime
from reach.bus.asking import ask, ask_many
from reach.bus.brokertime import BrokerTime
from reach.bus.dial import LinkEvents, LoginFiles, dial
from reach.bus.framing import Delivery
from reach.bus.headers import encode_headers, too_large
from reach.bus.internals import NatsLink
from reach.bus.keys import Role
from reach.bus.renewal import renew
from reach.bus.subscription import Subscription
from reach.bus.why import short, why_not
from reach.chance import random
from reach.errors import CallTimeout, ConfigError, LinkDown
from reach.wire import names, subjects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from nats.js import JetStreamContext

    from reach.bus.settings import Settings

_log = logging.getLogger("reach.bus")

_BACKOFF_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_ROUND_TRIP_S = 5.0
_LOOK_AT_LOGIN_S = 1.0
_CANCEL_AGAIN_S = 0.05


class LinkState(StrEnum):
    """What a connection tells those who follow it."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    CLOSED = "closed"


class Connection:
    """One client of NATS, across as many links as it takes. Open with `Connection.open`, end with `close`."""

    def __init__(
        self, settings: Settings, *, role: str, who: str | None = None, generation: int | None = None
    ) -> None:
        self.settings = settings
        self.role = role
        self.client_id = ids.new_id()
        self.who = names.token(who, "instance") if who else self.client_id
        self.generation = ids.generation() if generation is None else generation
        self.inbox = subjects.reply_inbox(self.client_id)
        self.link: NatsLink | None = None
        self.max_payload = 1024 * 1024
        """The broker's limit on one message in bytes, headers counted; the last broker's while there is none."""
        self.epoch = 0
        self.denials: list[Callable[[str], None]] = []
        self.faults = 0
        self._loop = asyncio.get_running_loop()
        self.subscriptions: dict[Subscription, None] = {}
        self._followers: list[Callable[[LinkState], None]] = []
        self.known_servers: list[str] = list(settings.servers)
        self._lost = asyncio.Event()
        self._up = asyncio.Event()
        self._closing = False
        self.leaving: NatsLink | None = None  # The link before, while it hands on what is under way.
        self._keeper: asyncio.Task[None] | None = None  # The one task; close() ends and awaits it.
        self.last_error = ""
        self._told = ""
        self.broker_time = BrokerTime()
        self.renewals = self._groups = 0
        self._server_leaves = False
        self._login = LoginFiles(settings)
        self._events = LinkEvents(
            lost=self._on_lost, error=self._on_link_error, fault=self._on_fault, lame_duck=self._on_lame_duck
        )

    @classmethod
    async def open(
        cls, settings: Settings, *, role: str, who: str | None = None, generation: int | None = None
    ) -> Connection:
        """Connect within `settings.connect_timeout_s`.

        Raises `Unreachable` naming the addresses that were tried and what to do, `ConfigError` for refused
        credentials.
        """
        connection = cls(settings, role=role, who=who, generation=generation)
        deadline = connection._loop.time() + settings.connect_timeout_s
        tries = 0
        while True:
            error = await connection._try_servers(deadline)
            if error is None:
                break
            pause = _BACKOFF_S[min(tries, len(_BACKOFF_S) - 1)]
            tries += 1
            told = why_not(error, settings, role)
            if isinstance(told, ConfigError) or connection._loop.time() + pause >= deadline:
                raise told
            await asyncio.sleep(pause)
        connection._keeper = asyncio.create_task(
            connection._keep(), name=f"reach connection {connection.who}"
        )
        return connection

    # -- state ---------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether publishing would work right now."""
        link = self.link
        return link is not None and link.is_up

    @property
    def server_info(self) -> dict[str, Any]:
        """The INFO of the server of the present (or last) link."""
        return {} if self.link is None else self.link.facts

    def on_state(self, follower: Callable[[LinkState], None]) -> None:
        """Call `follower` (which must be instant) on each change."""
        self._followers.append(follower)

    def off_state(self, follower: Callable[[LinkState], None]) -> None:
        """Stop telling a follower."""
        with suppress(ValueError):
            self._followers.remove(follower)

    async def wait_connected(self, timeout_s: float) -> bool:
        """Wait for a link at most `timeout_s`; whether there is one."""
        if not self._waiting_is_over() and timeout_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while not self._waiting_is_over():
                        await self._up.wait()
                        await asyncio.sleep(0)  # Whatever that was worth, time goes on.
        return self.connected

    def _waiting_is_over(self) -> bool:
        return self.connected or self._closing

    # -- publishing and subscribing ------------------------------------------------------------------

    def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Publish without waiting.

        Raises `LinkDown` when there is no link (nothing is buffered), `SchemaInvalid`/`TOO_LARGE` naming both
        sizes when the message with its headers is over the broker's limit, `NameRefused` for a bad header.
        """
        link = self.link
        if link is None:
            raise LinkDown
        block = encode_headers(headers) if headers else b""
        if len(block) + len(data) > link.max_payload:
            raise too_large(len(block) + len(data), link.max_payload)
        if block:
            link.send_with_headers(subject, reply, data, block)
        else:
            link.send(subject, reply, data)

    def subscribe(
        self, subject: str, handler: Callable[[Delivery], None], *, queue: str = "", durable: bool = True
    ) -> Subscription:
        """Subscribe; `handler` runs inside the read loop and must be instant.

        Raises `LinkDown` when there is no link and the subscription is not durable.
        """
        # While a link is renewed two are subscribed at once: a queue group of its own lets nothing arrive twice.
        # Inboxes have none, since the broker tells only plain subscriptions that nobody listens.
        self._groups += 1
        group = queue or ("" if subject.startswith(self.inbox) else f"{self.client_id}-{self._groups}")
        subscription = Subscription(self, subject, group, handler, durable=durable)
        link = self.link
        if link is not None and link.is_connected:
            subscription.start(link)
        elif not durable:
            raise LinkDown
        self.subscriptions[subscription] = None
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """No longer bring a subscription back (called by the subscription itself)."""
        self.subscriptions.pop(subscription, None)

    async def flush(self, timeout_s: float = _ROUND_TRIP_S) -> None:
        """Wait until the server has taken everything published so far. Raises `LinkDown`, `CallTimeout`."""
        link = self.link
        if link is None:
            raise LinkDown
        try:
            if self.leaving is not None:
                with suppress(LinkDown):
                    await self.leaving.round_trip(timeout_s)
            await link.round_trip(timeout_s)
        except TimeoutError:
            msg = f"the server did not answer a PING within {timeout_s} s"
            raise CallTimeout(msg) from None

    async def request(
        self, subject: str, data: bytes, *, timeout_s: float, headers: dict[str, str] | None = None
    ) -> bytes:
        """Ask once on the control plane (calls go through the mux). Raises `LinkDown`, `CallTimeout`, `Unreachable`."""
        return await ask(self, subject, data, timeout_s=timeout_s, headers=headers)

    def request_many(
        self, subject: str, data: bytes, *, timeout_s: float, stall_s: float | None = None
    ) -> AsyncIterator[bytes]:
        """Ask everybody, and yield answers until `timeout_s`, or until none came for `stall_s`.

        Yields nothing at all, at once, when nobody listens. Raises `LinkDown`.
        """
        return ask_many(self, subject, data, timeout_s=timeout_s, stall_s=stall_s)

    def jetstream(self) -> JetStreamContext:
        """Give nats-py's JetStream context of the present link. Raises `LinkDown`."""
        if self.link is None:
            raise LinkDown
        return self.link.jetstream()

    # -- life ----------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End for good; everything published before is sent. Followers hear CLOSED."""
        if self._closing:
            return
        self._closing = True
        self._lost.set()
        self._up.set()
        if self._keeper is not None:
            while not self._keeper.done():
                # Python 3.11's wait_for can swallow a cancellation in the moment in which it is done.
                self._keeper.cancel()
                await asyncio.wait({self._keeper}, timeout=_CANCEL_AGAIN_S)
        link, self.link = self.link, None
        if link is not None:
            link.write_out()
            await link.close()
            link.release_pongs()
        self.subscriptions.clear()
        self._tell(LinkState.CLOSED)

    async def _keep(self) -> None:
        """Replace each ended link with a new one, for as long as it takes."""
        while True:
            try:
                await self._keep_one()
            except Exception as error:  # noqa: BLE001 - told; but it must never be the last thing that it does
                self._on_fault(error)
                await asyncio.sleep(_BACKOFF_S[-1])

    async def _keep_one(self) -> None:
        """Look after the present link for a while; once it has ended, bring about the next one."""
        if self.link is not None and not await self._wait_lost():
            return
        self._lost.clear()
        self._up.clear()
        ended, self.link = self.link, None
        self._server_leaves = False
        if ended is not None:
            self.learn(ended)
            ended.abort()
            ended.release_pongs()
        for subscription in list(self.subscriptions):
            subscription.ended()
            if not subscription.durable:
                self.subscriptions.pop(subscription, None)
        self._tell(LinkState.DISCONNECTED)
        tries = 0
        while await self._try_servers(self._loop.time() + self.settings.connect_timeout_s) is not None:
            pause = _BACKOFF_S[min(tries, len(_BACKOFF_S) - 1)]
            tries += 1
            # Half to one and a half: a restarted server is not met by everybody at once.
            await asyncio.sleep(pause * (0.5 + random()))

    async def _wait_lost(self) -> bool:
        """Wait a while for the link to end; meanwhile renew it when its login was replaced or its server leaves."""
        try:
            async with asyncio.timeout(_LOOK_AT_LOGIN_S):
                await self._lost.wait()
        except TimeoutError:
            if self._login.replaced() or self._server_leaves:
                renewed = await renew(self, elsewhere=self._server_leaves)
                self.renewals += renewed
                self._server_leaves = self._server_leaves and not renewed
        return self._lost.is_set()

    def _on_lost(self, link: NatsLink) -> None:
        if link is self.link:
            self._up.clear()
            self._lost.set()

    def _on_lame_duck(self, link: NatsLink) -> None:
        if link is self.link:
            self._server_leaves = True

    async def _try_servers(self, deadline: float) -> Exception | None:
        """Try each known server once, each for its share of the time; None when a link is up."""
        error: Exception = ConfigError("no server is configured")
        servers = list(self.known_servers)
        for position, server in enumerate(servers):
            # One that accepts and says nothing must not cost the others their turn.
            share = (deadline - self._loop.time()) / (len(servers) - position)
            if share <= 0:
                break
            try:
                await self._connect(server, share)
            except Exception as failed:  # noqa: BLE001 - a damaged login alone has a dozen kinds; all are tried again
                error = failed
                self.last_error = short(failed)
            else:
                return None
        return error

    async def _connect(self, server: str, timeout_s: float) -> None:
        self.take(await self.dial(server, timeout_s))
        self._tell(LinkState.CONNECTED)

    async def dial(self, server: str, timeout_s: float) -> NatsLink:
        """Open a link to one server, without using it yet. Raises what `dial` raises."""
        name = f"reach:{self.role}:{self.who}:{self.generation}"
        return await dial(
            self.settings, server, name=name, inbox=self.inbox, timeout_s=timeout_s, events=self._events
        )

    def take(self, link: NatsLink) -> None:
        """Use a link from now on: what is subscribed is subscribed there."""
        self.link = link
        self.max_payload = link.max_payload
        self.epoch += 1
        self._told = ""
        if self.epoch > 1:
            _log.info("link to %s: up", self.settings.display)
        self.learn(link)
        for subscription in self.subscriptions:
            subscription.start(link)
        if self.role != Role.FENCER:  # Its account tells no time.
            with suppress(LinkDown):
                self.broker_time.ask(link, f"{self.inbox}.{ids.new_id()}.t")
        if link.is_connected:
            self._up.set()
        else:
            self._lost.set()

    def learn(self, link: NatsLink) -> None:
        """Note the servers that a link's server has told of; it tells of new ones while the link is up, too."""
        self.known_servers += [found for found in link.discovered if found not in self.known_servers]

    def _tell(self, state: LinkState) -> None:
        for follower in list(self._followers):
            try:
                follower(state)
            except Exception as error:  # noqa: BLE001 - one follower's fault must not cost the others their link
                self._on_fault(error)

    def _on_fault(self, error: BaseException) -> None:
        self.faults += 1
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        where = f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame is not None else "?"
        _log.error("a message handler of the bus failed: %s at %s", type(error).__name__, where)

    def _on_link_error(self, _link: NatsLink, error: Exception) -> None:
        text = str(error)
        self.last_error = short(error)
        if brokertime.SUBJECT.lower() in text.lower():
            return  # A broker that does not tell its time: ours is used.
        if "permissions violation" in text.lower():
            _log.warning("the broker refused: %s", text)
            for told in list(self.denials):
                told(text)
        elif not self._closing and self.last_error != self._told:
            # Once an outage: a server that is away refuses dozens of times before it is back.
            self._told = self.last_error
            _log.info("link to %s: %s", self.settings.display, self.last_error)
