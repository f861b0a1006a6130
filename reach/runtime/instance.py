"""One start of one agent: its connection, memberships and pipeline, from birth to a loss-free end."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from reach import ids
from reach.bus.connection import Connection, LinkState
from reach.bus.keys import Role
from reach.bus.settings import Settings, resolve
from reach.call import ambient
from reach.call.client import Bus, Core, default_recorder
from reach.errors import LinkDown, SchemaInvalid
from reach.observe.metrics import Metrics
from reach.runtime.answer import Answers
from reach.runtime.executor import ProcessExecutor
from reach.runtime.fitness import Fitness, limits_of
from reach.runtime.inbound import Inbound
from reach.runtime.membership import Membership
from reach.runtime.once import Once
from reach.runtime.registration import Registration
from reach.runtime.service import Service
from reach.runtime.stall import StallGuard
from reach.wire import codec, subjects

if TYPE_CHECKING:
    from reach.bus.framing import Delivery
    from reach.observe.records import Recorder
    from reach.runtime.agent import Agent
    from reach.runtime.job import Served

_log = logging.getLogger("reach.agent")

WITHDRAW_S: Final = 5.0
"""How long withdrawing may take before leaving goes on without it."""


class Instance:
    """A running instance. `name` is `<agent_id>-<8 characters>`, `generation` its start in epoch milliseconds."""

    def __init__(
        self, agent: Agent, name: str, served: list[Served], *, recorder: Recorder | None = None
    ) -> None:
        self._agent = agent
        self.name = name
        self.generation = ids.generation()
        self.served = served
        self.started_at = time.time()
        self._own_recorder = recorder is None
        self._recorder = recorder
        self._leaving = False
        self._linked = True
        self._service: Service | None = None  # Until it takes requests.
        self._registration: Registration | None = None  # "
        self.drain_asked = asyncio.Event()
        """Set when the supervisor asks this instance to leave; `drain_s` is then how long that may take."""
        self.drain_s: float | None = None

    @property
    def agent_id(self) -> str:
        """The agent's name."""
        return self._agent.agent_id

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What it serves: requests, and then tasks."""
        return self._agent.capabilities

    @property
    def bus(self) -> Bus:
        """A bus over this instance's own connection."""
        return self._bus

    @property
    def connection(self) -> Connection:
        """This instance's connection."""
        return self._connection

    @property
    def membership(self) -> Membership:
        """Where it is subscribed."""
        return self._membership

    @property
    def inflight(self) -> int:
        """Requests in work."""
        return self._inbound.inflight

    def _taken(self) -> list[tuple[tuple[str, ...], float]]:
        return [((one.name, "agent"), one.places.used) for one in self.served]

    def _waiting(self) -> list[tuple[tuple[str, ...], float]]:
        return [((one.name,), one.places.queued) for one in self.served]

    def _queued(self) -> int:
        return sum(one.places.queued for one in self.served)

    async def open(self, settings: Settings | None) -> None:
        """Connect. Raises `Unreachable`, `ConfigError`."""
        found = settings or resolve(role=Role.AGENT)
        recorder = self._recorder if self._recorder is not None else default_recorder()
        self._recorder = recorder
        try:
            self._connection = await Connection.open(
                found, role=Role.AGENT.value, who=self.name, generation=self.generation
            )
        except BaseException:
            self._close_recorder()
            raise
        region = self._agent.region or os.environ.get("REACH_REGION", "")
        self._core = Core(self._connection, recorder=recorder, metrics=Metrics(), region=region)
        self._bus = Bus(self._core)
        ambient.note(self._bus)
        self._answers = answers = Answers(
            self._connection,
            self._core.blobs,
            provider=self.agent_id,
            instance=self.name,
            generation=self.generation,
        )
        self._guard = StallGuard(self._connection)
        self._once = Once(
            self._connection,
            self._core.blobs,
            agent_id=self.agent_id,
            instance=self.name,
            generation=self.generation,
        )
        self._inbound = Inbound(
            answers=answers,
            blobs=self._core.blobs,
            bus=self._bus,
            guard=self._guard,
            once=self._once,
            broker_time=self._connection.broker_time,
            inbox=f"{self._connection.inbox}.reader",
        )
        self._core.outbound.judge.on_retry = self._inbound.on_retry
        self._membership = Membership(
            self._connection, agent_id=self.agent_id, instance=self.name, receive=self._inbound.receive
        )
        self._control = [
            self._connection.subscribe(subjects.ctl(self.name, "cancel"), self._on_cancel),
            self._connection.subscribe(subjects.ctl(self.name, "credit"), self._on_credit),
            self._connection.subscribe(subjects.ctl(self.name, "ping"), self._on_ping),
            self._connection.subscribe(f"{self._connection.inbox}.reader.*", self._inbound.reader_is_gone),
        ]

    async def join(self) -> None:
        """Take requests from now on."""
        self._core.metrics.inflight.follow(self._taken)
        self._core.metrics.queue_depth.follow(self._waiting)
        for one in self.served:
            one.tally = self._core.metrics.served_tally(one.name)
            if isinstance(one.executor, ProcessExecutor):
                one.executor.on_crash_loop = partial(self._withdraw, one.name)
            await one.executor.start()
        self._card = card = self._agent.card(self.name, self.generation)
        self._service = Service(self._connection, card, stats=lambda: self.served)
        self._service.start()
        self._guard.start()
        self._registration = Registration(
            self._connection,
            self._membership,
            card=card,
            served=self.served,
            cards=self._bus.cards,
            inflight=lambda: self.inflight,
            drain=self._on_drain,
            fitness=Fitness(self._agent.condition, queue=self._queued, limits=limits_of(os.environ)),
        )
        self._connection.on_state(self._on_state)
        await self._registration.start()

    async def leave(self, drain_s: float) -> None:
        """Stop taking requests, and finish what was taken, within `drain_s` seconds."""
        self._leaving = True
        began = asyncio.get_running_loop().time()
        if self._connection.connected and self._registration is not None:
            try:
                async with asyncio.timeout(WITHDRAW_S):
                    await self._registration.leave("drain" if self.drain_asked.is_set() else "stop")
                    if self._service is not None:
                        self._service.stop()
                    await self._membership.withdraw()
                    await self._membership.leave()
            except (LinkDown, TimeoutError):
                _log.warning("%s could not withdraw in order: the link is down", self.name)
        if self._registration is not None:
            await self._registration.stop()
        left_s = drain_s - (asyncio.get_running_loop().time() - began)
        if not await self._inbound.wait_idle(max(0.0, left_s)):
            _log.warning("%s ends %d calls that were not done within %s s", self.name, self.inflight, drain_s)
        await self._inbound.close()

    async def close(self) -> None:
        """Close everything; what was published before is sent."""
        self._connection.off_state(self._on_state)
        if self._registration is not None:
            await self._registration.stop()
        for one in self.served:
            await one.executor.close()
        await self._inbound.close()
        await self._once.close()
        ambient.forget(self._bus)
        await self._guard.stop()
        await self._core.close()
        await self._connection.close()
        self._close_recorder()

    def _close_recorder(self) -> None:
        if self._own_recorder and self._recorder is not None:
            self._recorder.close()

    # -- control -------------------------------------------------------------------------------------

    def _on_state(self, state: LinkState) -> None:
        if state is LinkState.DISCONNECTED:
            self._linked = False
            if not self._leaving:
                _log.warning(
                    "%s lost its link to %s and tries again", self.name, self._connection.settings.display
                )
            if self._registration is not None:
                self._registration.link_ended()
            self._guard.link_ended()
        elif state is LinkState.CONNECTED:
            if not self._linked:
                self._linked = True
                _log.warning("%s has its link back", self.name)
            self._answers.send_held()
            if not self._leaving and self._registration is not None:
                self._registration.link_up()

    def _withdraw(self, capability: str, why: str) -> None:
        """Take no more calls of a capability whose handler cannot be kept alive; its card says why (LIFE-9)."""
        _log.error("%s withdraws %s: %s", self.name, capability, why)
        offered = tuple(
            one.model_copy(update={"withdrawn": why}) if one.tag == capability else one
            for one in self._card.capabilities
        )
        self._card = self._card.model_copy(update={"capabilities": offered})
        if self._service is not None and self._registration is not None:
            self._service.show(self._card)
            self._registration.withdraw(self._card)

    def _on_drain(self, timeout_s: float | None) -> None:
        """The supervisor wants us to leave."""
        self.drain_s = timeout_s
        self.drain_asked.set()

    def _on_cancel(self, delivery: Delivery) -> None:
        message_id = _field(delivery, "message_id")
        if isinstance(message_id, str):
            attempt = _field(delivery, "attempt")
            self._inbound.cancel(message_id, attempt if isinstance(attempt, int) else None)

    def _on_credit(self, delivery: Delivery) -> None:
        stream_id, size = _field(delivery, "stream_id"), _field(delivery, "bytes")
        if isinstance(stream_id, str) and isinstance(size, int):
            self._inbound.credit(stream_id, size)

    def _on_ping(self, delivery: Delivery) -> None:
        if delivery.reply:
            body = {
                "instance": self.name,
                "generation": self.generation,
                "at": _field(delivery, "at") or 0,
                "ready": self._agent.ready and not self._leaving,
                "inflight": self.inflight,
            }
            answer = codec.pack_json(body) if codec.is_json(delivery.data) else codec.pack(body)
            self._connection.publish(delivery.reply, answer)


def _field(delivery: Delivery, name: str) -> object:
    try:
        return codec.unpack(delivery.data).get(name) if delivery.data else None
    except SchemaInvalid:
        return None
