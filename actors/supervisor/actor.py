"""The supervisor: many may run, one leads; it hears instances and callers, and writes the routing table.

This is the shell on the bus. Who leads is decided in `leader`, what a leader knows and does in `governor`; here
messages are read, handed over, and what comes out of it is published. Nothing waits: questions are published with
an inbox of ours as reply subject, and answers come as messages like any other. A follower subscribes to nothing but
its own inbox, so that an instance that finds no leader is told so at once ("no responders").

What comes in floods (heartbeats, digests) is gathered in the read loop and taken in each tick.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from typing import Final, TypeVar

from pydantic import BaseModel

from actors.supervisor.answers import (
    EXPECTED,
    LEADER,
    LOOK,
    body_of,
    card_of,
    claim,
    contained,
    read_as,
    read_batch,
    refusal_of,
    seen,
    service_of,
    stored,
)
from actors.supervisor.audits import Audits
from actors.supervisor.boottime import boottime
from actors.supervisor.commands import obey
from actors.supervisor.fencing import Fencer
from actors.supervisor.governor import Governor
from actors.supervisor.leader import Election, Hold, Look, Step
from actors.supervisor.letters import Moment
from actors.supervisor.post import Post
from actors.supervisor.recovery import Reading, TakeOver
from actors.supervisor.seal import Seal
from reach import ids
from reach.bus.framing import Delivery
from reach.bus.keys import Role
from reach.bus.subscription import Subscription
from reach.chance import random
from reach.errors import LinkDown
from reach.policy.inherit import Inheritance
from reach.runtime.actor import Actor, Message, every, on
from reach.runtime.child import RoleUnavailable
from reach.runtime.message import read, unread
from reach.wire import subjects
from reach.wire.life import Gone, Goodbye, Heartbeat, Suspicion
from reach.wire.outcomes import Outcomes
from reach.wire.registration import (
    CARDS,
    ROUTES,
    Applied,
    PermitAsk,
    PermitOutcome,
    Register,
    read_message,
)

_log = logging.getLogger("reach.supervisor")

TICK_S: Final = 0.05
MOST_GATHERED: Final = 100_000

M = TypeVar("M", bound=BaseModel)


class Supervisor(Actor):
    """Leads, or waits until it may."""

    mailbox_capacity = 65_536  # Ten thousand instances that register together.

    async def on_start(self) -> None:
        """Listen to our own inbox; the first tick looks who leads."""
        self._id = ids.new_id()
        self._election = Election(self._id)
        self._seal = Seal.of(self.connection.settings)
        self._audits = Audits()
        self._inheritance = Inheritance.of(os.environ)
        self._stepped_at = -math.inf
        self._governor: Governor | None = None
        self._readings: dict[str, Reading] = {}
        self._taking: TakeOver | None = None
        self._leading: list[Subscription] = []
        self._beats, self._digests = list[bytes](), list[bytes]()
        self._inbox = f"{self.connection.inbox}.supervisor-{self._id}"
        self._post = Post(self.connection, f"{self._inbox}.to")
        self._own = [
            self.connection.subscribe(f"{self._inbox}.key.*", self._hear_of_the_key),
            self.connection.subscribe(f"{self._inbox}.to.>", self._take("answered")),
        ]
        try:
            self._post.fencer = Fencer(await self.connect(Role.FENCER))
        except RoleUnavailable as error:
            _log.warning("Instances that hang are steered around, and cannot be cut off. %s", error)

    async def on_stop(self) -> None:
        """Let go of the leader's key, so that somebody else need not wait for its end."""
        if self._election.leads(boottime()) and self.connection.connected:
            headers = {"KV-Operation": "DEL", EXPECTED: str(self._election.last_sequence)}
            self.connection.publish(LEADER, b"", headers=headers)
        self._step_down()
        for subscription in self._own:
            subscription.drop()
        if self._post.fencer is not None:
            await self._post.fencer.close()

    # -- time -----------------------------------------------------------------------------------------

    @every(TICK_S, immediately=True)
    def tick(self) -> None:
        """Lead, or look whether we may."""
        if not self.connection.connected:
            return
        moment = self._moment()
        self._stay(moment.now)
        self._post.audits(self._audits, moment.now)
        if not self._election.leads(moment.now):
            self._step_down()
            return
        self._go_on(moment)
        if (governor := self._governor) is None:
            return
        self._take_in(governor, moment)
        governor.tick(moment)
        self._send(governor, moment)

    def _moment(self) -> Moment:
        return Moment(boottime(), int(self.clock.time() * 1000))

    def _take_in(self, governor: Governor, moment: Moment) -> None:
        for beat in read_batch(self._beats, Heartbeat):
            contained(governor.beat, beat, moment)
        for digest in read_batch(self._digests, Outcomes):
            contained(governor.digest, digest, moment)

    # -- leading --------------------------------------------------------------------------------------

    def _stay(self, now: float) -> None:
        """Renew the key when it is due; asked at every message, since a tick waits its turn in the mailbox."""
        if now - self._stepped_at >= TICK_S / 2:
            self._stepped_at = now
            self._do(self._election.step(now))

    def _do(self, step: Step | None) -> None:
        match step:
            case Look():
                self.connection.publish(LOOK, b"", reply=f"{self._inbox}.key.look")
            case Hold(expected):
                entry = claim(self._id, self._election.term, int(self.clock.time() * 1000))
                headers = {"Nats-TTL": "2s", EXPECTED: str(expected)}
                self.connection.publish(LEADER, entry, reply=f"{self._inbox}.key.hold", headers=headers)

    def _step_up(self) -> None:
        """We lead: read what there is; instances are heard once that is known."""
        _log.info("supervisor %s leads (term %d)", self._id, self._election.term)
        self._readings = {bucket: Reading(bucket) for bucket in (CARDS, ROUTES)}
        for bucket in self._readings:
            self._read_on(bucket)

    def _read_on(self, bucket: str) -> None:
        reading = self._readings[bucket]
        reply = f"{self._inbox}.to.read.{self._election.term}.{bucket}"
        self.connection.publish(reading.subject, reading.request(), reply=reply)

    def _govern(self) -> None:
        moment = self._moment()
        governor = Governor(
            name=self._id,
            term=self._election.term,
            seal=self._seal,
            chance=random,
            inheritance=self._inheritance,
        )
        cards, routes = self._readings[CARDS].values, self._readings[ROUTES].values
        self._readings = {}
        self._taking = TakeOver(governor, cards=cards, routes=routes, moment=moment)
        self._go_on(moment)

    def _go_on(self, moment: Moment) -> None:
        """Take over some more; from the end of that on we are heard and answer."""
        if self._taking is None or not self._taking.go_on(moment):
            return
        governor, self._taking = self._taking.governor, None
        self._governor = governor
        subscribe = self.connection.subscribe
        self._leading = [
            subscribe("reach.heartbeat.*", self._gather(self._beats)),
            subscribe("reach.outcomes.*", self._gather(self._digests)),
            subscribe(subjects.REGISTER, self._take("register")),
            subscribe("reach.goodbye.*", self._take("goodbye")),
            subscribe(subjects.GONE_ALL, self._take("gone")),
            subscribe("reach.suspect.>", self._take("suspect")),
            subscribe("reach.permit.>", self._take("permit")),
            subscribe("reach.route.*", self._take("command")),
        ]
        _log.info("%d instances taken over", len(governor.roster.members))
        self._send(governor, moment)

    def _step_down(self) -> None:
        if not self._leading and not self._readings and self._governor is None and self._taking is None:
            return
        _log.warning("supervisor %s leads no more", self._id)
        for subscription in self._leading:
            subscription.drop()
        self._leading, self._readings, self._governor, self._taking = [], {}, None, None
        self._beats.clear()
        self._digests.clear()

    # -- inside the read loop -------------------------------------------------------------------------

    def _take(self, name: str) -> Callable[[Delivery], None]:
        def take(delivery: Delivery) -> None:
            self.tell(name, {"delivery": delivery})

        return take

    def _hear_of_the_key(self, delivery: Delivery) -> None:
        """Take in at once what became of the leader's key: a full mailbox must not cost the leadership."""
        if delivery.subject.endswith(".look"):
            self._do(self._election.looked(seen(delivery), boottime()))
            return
        sequence = stored(delivery)
        if sequence is None:
            self._election.refused(boottime())
        elif self._election.held(sequence, boottime()):
            self.tell("elected")

    def _gather(self, into: list[bytes]) -> Callable[[Delivery], None]:
        def gather(delivery: Delivery) -> None:
            if len(into) < MOST_GATHERED:
                into.append(delivery.data)

        return gather

    # -- one at a time --------------------------------------------------------------------------------

    @on("elected", local=True)
    def elected(self, message: Message) -> None:  # noqa: ARG002 - that it came is all it says
        """The leader's key is ours."""
        self._step_up()

    @on("answered", local=True)
    def answered(self, message: Message) -> None:
        """Something that we asked was answered."""
        delivery: Delivery = message.body["delivery"]
        kind, _, rest = delivery.subject.removeprefix(f"{self._inbox}.to.").partition(".")
        governor = self._governor
        match kind:
            case "read":
                self._read(rest, delivery)
            case "audited":
                if stored(delivery) is not None:
                    self._audits.stored(int(rest))
            case "write" if governor is not None:
                self._written(rest, delivery, governor)
            case "applied" if governor is not None and not delivery.no_responders:
                applied = read_as(delivery.data, Applied)
                if applied is not None:
                    contained(governor.applied, applied, self._moment())
                    self._send(governor, self._moment())
            case "pong" if governor is not None:
                (governor.absent if delivery.no_responders else governor.pong)(rest, self._moment())
                self._send(governor, self._moment())
            case "here" if governor is not None:
                name = service_of(delivery)
                if name is not None and governor.noticed(*name):
                    self._send(governor, self._moment())
            case "info" if governor is not None:
                card = card_of(delivery)
                if card is not None:
                    governor.found(card, self._moment())
            case _:
                return

    def _read(self, rest: str, delivery: Delivery) -> None:
        term, _, bucket = rest.partition(".")
        reading = self._readings.get(bucket)
        if reading is None or term != str(self._election.term):
            return
        if reading.take(delivery):
            self._read_on(bucket)
        if all(one.done for one in self._readings.values()):
            self._govern()

    def _written(self, rest: str, delivery: Delivery, governor: Governor) -> None:
        term, _, number = rest.partition(".")
        if term != str(governor.term):
            return
        if stored(delivery) is not None:
            governor.scribe.done(int(number))
        else:
            governor.scribe.again(int(number))
            self._election.doubt()

    @on("register", local=True)
    def register(self, message: Message) -> None:
        """An instance asks to take part."""
        self._answer(message, Register, lambda governor, told, moment: governor.register(told, moment))

    @on("permit", local=True)
    def permit(self, message: Message) -> None:
        """A caller asks to probe, or gives its permit back."""
        delivery: Delivery = message.body["delivery"]
        if delivery.reply:
            self._answer(message, PermitAsk, lambda governor, told, moment: governor.permit(told, moment))
        else:
            self._hear(message, PermitOutcome, lambda governor: governor.probed)

    @on("goodbye", local=True)
    def goodbye(self, message: Message) -> None:
        """An instance leaves."""
        self._hear(message, Goodbye, lambda governor: governor.goodbye)

    @on("gone", local=True)
    def gone(self, message: Message) -> None:
        """An instance's connection ended."""
        self._hear(message, Gone, lambda governor: governor.gone)

    @on("suspect", local=True)
    def suspect(self, message: Message) -> None:
        """A caller was left waiting."""
        self._hear(message, Suspicion, lambda governor: governor.suspect)

    @on("command", local=True)
    def command(self, message: Message) -> None:
        """An operator wants something."""
        delivery: Delivery = message.body["delivery"]
        if (governor := self._governor) is None:
            return
        verb, moment = delivery.subject.rpartition(".")[2], self._moment()

        def done(request: Message) -> BaseModel:
            answer, audit = obey(verb, request.body, governor, moment)
            if audit is not None:
                self._audits.put(audit)
            return answer

        self._respond(delivery, done)
        self._post.audits(self._audits, moment.now)
        self._send(governor, moment)

    # -- answering and sending ------------------------------------------------------------------------

    def _answer(
        self, message: Message, model: type[M], done: Callable[[Governor, M, Moment], BaseModel]
    ) -> None:
        """Answer a request by what `done` gives."""
        delivery, governor = message.body["delivery"], self._governor
        if governor is None:
            return  # We lead no more: whoever asks hears nothing, and asks again.
        moment = self._moment()
        self._stay(moment.now)
        self._respond(delivery, lambda request: done(governor, read_message(request.body, model), moment))
        self._send(governor, moment)

    def _respond(self, delivery: Delivery, done: Callable[[Message], BaseModel]) -> None:
        request = unread(delivery, self.connection)
        try:
            request = read(delivery, self.connection)
            answer = body_of(done(request))
            if request.waits:
                request.reply(answer)
        except LinkDown:
            raise
        except Exception as error:  # noqa: BLE001 - one request that fails must not end who leads
            refusal = refusal_of(error, delivery.subject)
            if request.waits:
                request.refuse(refusal)

    def _hear(
        self, message: Message, model: type[M], taken: Callable[[Governor], Callable[[M, Moment], None]]
    ) -> None:
        """Take in something that nobody waits for an answer to."""
        governor = self._governor
        if governor is None:
            return
        moment = self._moment()
        told = read_as(message.body["delivery"].data, model)
        if told is not None:
            self._stay(moment.now)
            contained(taken(governor), told, moment)
            self._send(governor, moment)

    def _send(self, governor: Governor, moment: Moment) -> None:
        """Publish what the governor has to say and to write, as long as we may."""
        if not self._election.leads(moment.now):
            return
        self._post.letters(governor.outbox)
        self._post.fences(governor.fences)
        self._post.writes(governor, guard=self._election.guard(moment.now), now=moment.now)
