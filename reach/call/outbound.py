"""The pipeline of a call: one function whose body is the order (design: prepare, admit, choose, send, judge, tell).

`request` is the whole life of a call that wants one answer; `stream`, `broadcast` and `publish` (in
`reach.call.outflow`) share its steps. Every call ends in a reply by its deadline and in exactly one record,
whatever ends it, cancellation included.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING

from reach.bus.connection import LinkState
from reach.call.call import Answered, Call, Outlived
from reach.call.checks import Checks
from reach.call.choose import Excluded, Route, choose
from reach.call.claim import ClaimCheck
from reach.call.context import NOTHING_AROUND
from reach.call.guidance import Guidance
from reach.call.hedged import hedged
from reach.call.judge import Judge
from reach.call.lanes import Lanes
from reach.call.permits import AskFirst
from reach.call.prepare import deadline_by, prepare
from reach.call.rounds import GivingUp, join_round, leave_round
from reach.call.telling import Teller
from reach.call.thrift import Thrift
from reach.chance import random
from reach.errors import LinkDown
from reach.faults import Executed, Reason
from reach.policy.deadline import attempt_share_s, card_timeout_s
from reach.policy.retry import Retry
from reach.wire import subjects
from reach.wire.record import Attempt, CallKind
from reach.wire.reply import Failure, Reply

if TYPE_CHECKING:
    from reach.bus.blobs import Blobs
    from reach.bus.connection import Connection
    from reach.bus.mux import Mux
    from reach.bus.pending import Pending
    from reach.call.lanes import AnyPermit, Lane
    from reach.call.options import Options
    from reach.observe.metrics import Metrics
    from reach.observe.records import Recorder
    from reach.registry.cards import CardDirectory
    from reach.wire.card import CapabilityCard

_log = logging.getLogger("reach.call")

MAX_OPEN_CALLS = 4096
"""Calls of one capability that one process may have open (behaviour GUARD-1); it protects the process."""

MOST_ASKED = 3  # Lanes that one call asks to probe, at most.
MAX_ROUTES = 10_000  # Capabilities whose queue-group route is remembered; it saves a few microseconds a call.


class Outbound:
    """The calling side of one client."""

    def __init__(
        self,
        *,
        connection: Connection,
        mux: Mux,
        directory: CardDirectory,
        blobs: Blobs,
        recorder: Recorder,
        metrics: Metrics,
        region: str = "",
    ) -> None:
        self.connection = connection
        self.mux = mux
        self.directory = directory
        self.claims = ClaimCheck(connection, blobs)
        self.recorder = recorder
        self.metrics = metrics
        self.lanes = Lanes(metrics)
        self.judge = Judge(connection, self.lanes, metrics, directory=directory)
        self.guidance = Guidance(
            connection, mux, directory=directory, lanes=self.lanes, metrics=metrics, region=region
        )
        self.routes, self.steering = self.guidance.routes, self.guidance.steering
        self.teller = Teller(
            directory=directory, routes=self.routes, recorder=recorder, metrics=metrics, node=connection.who
        )
        self.thrift = Thrift(self)
        mux.on_retried = self.judge.announce
        self.loop = asyncio.get_running_loop()
        self._open: dict[str, int] = {}
        self._routes: dict[str, Route] = {}
        self._checks = Checks()
        connection.on_state(self._on_state)
        metrics.inflight.follow(self.under_way)

    @property
    def open_calls(self) -> int:
        """Calls that hold a slot right now."""
        return sum(self._open.values())

    def under_way(self) -> list[tuple[tuple[str, ...], float]]:
        """Give the calls that hold a slot right now, by capability, as the metrics have it."""
        return [((capability, "caller"), held) for capability, held in self._open.items()]

    async def request(
        self, capability: str, given: object, options: Options, *, made: Call | None = None
    ) -> Reply:
        """Make one call, or what is `made` already; a failed one is a reply, too. Raises for mistakes of programs."""
        # 1 prepare
        call = self.prepare(capability, given, options, kind="request") if made is None else made
        giving_up, asks = None, call.thrifty
        outcome: Reply | Failure
        try:
            if call.around.round is not None:
                giving_up = GivingUp(call)
                join_round(call, giving_up)
            # 2 admit
            if asks or not self.admit_known(call):
                asks = True
                await self.admit(call)
            while True:
                # 3 choose
                try:
                    route = self.choose(call)
                except AskFirst as first:
                    route = await self.ask(call, first.lane)
                # 4 send: one publish, one future, one deadline
                pending = self.publish_small(call, route) or await self.publish(call, route)
                try:
                    if options.hedge:
                        pending = await hedged(self, call, pending)
                    outcome = await pending.future
                    if isinstance(outcome, Reply) and outcome.blob is not None:
                        outcome = await self.claims.fetched(call, outcome)
                except asyncio.CancelledError:
                    self.mux.cancel(pending)
                    call.attempts[-1].instance = pending.accepted or route.instance
                    raise
                self.note(call, pending, outcome)
                # 5 judge
                if isinstance(outcome, Reply) and outcome.ok:
                    break
                decision, outcome = self.judge.judge(call, outcome)
                if not isinstance(decision, Retry):
                    break
                await asyncio.sleep(decision.delay_s)
        except Outlived as ended:
            outcome = ended.failure
        except Answered as early:
            outcome = early.reply
        except asyncio.CancelledError:
            reply = self.teller.tell_cancelled(call)
            if giving_up is None or not giving_up.was_all():
                raise
            return reply
        finally:
            self.release(call)
            if call.going_on is not None:
                self.mux.cancel(call.going_on)
            if asks:
                self.thrift.leave(call)
            if giving_up is not None:
                leave_round(call)
        # 6 tell
        reply = self.teller.tell(call, outcome)
        if not call.attempts and not (call.saved is not None and call.saved.sent):
            # Refused here, before anything was awaited: who calls in a tight loop must not keep the loop to itself.
            await asyncio.sleep(0)
        return reply

    # -- 1 prepare -----------------------------------------------------------------------------------

    def prepare(
        self,
        capability: str,
        given: object,
        options: Options,
        *,
        kind: CallKind,
        default_s: float | None = None,
    ) -> Call:
        """Build the call; `default_s`, else its card when known, says how long it may take."""
        card = self.directory.known(capability)
        call = prepare(
            capability,
            given,
            options,
            kind=kind,
            source=self.connection.who,
            now=monotonic(),
            default_s=card_timeout_s(card) if default_s is None else default_s,
            card=card,
        )
        if capability in self.directory.thrifty:
            call.thrifty = True
        return call

    def _on_state(self, state: LinkState) -> None:
        if state is LinkState.CONNECTED:
            self.judge.link_back = monotonic()

    # -- 2 admit -------------------------------------------------------------------------------------

    def admit_known(self, call: Call) -> bool:
        """Let a call in whose capability is known, while there is a link; False where somebody must be asked."""
        card = call.card
        if card is None or not self.connection.connected:
            return False
        if card.input_schema is not None:
            self._check(call, card)
        self._take_slot(call)
        call.admitted = monotonic()
        return True

    async def admit(self, call: Call) -> None:
        """Let the call in, or end it without a message: link, card, structure, thrift, slot.

        Raises `Outlived`, and `Answered` where somebody else's answer is the call's too.
        """
        if not (call.thrifty and call.card is not None):  # Such a call may need no link at all.
            await self.linked(call)
        card = self.directory.known(call.capability)
        if card is None:
            card = await self.directory.card_for(call.capability) or await self.guidance.inherited(
                call.capability
            )
            said = call.options.timeout_s is not None or call.envelope.timeout_ms is not None
            if card is not None and not said and call.kind != "stream":
                # The first call of a capability learns its timeout only now.
                call.deadline = deadline_by(call, card)
        call.card = card
        if card is not None:
            self._check(call, card)
            call.thrifty = call.thrifty or card.is_thrifty
        if call.thrifty:
            await self.thrift.admit(call)
        self._take_slot(call)
        call.admitted = monotonic()

    async def linked(self, call: Call) -> None:
        """Wait for a link where there is none. Raises `Outlived`."""
        if not self.connection.connected:
            await self._wait_for_link(call)
        self.guidance.start()

    def _check(self, call: Call, card: CapabilityCard) -> None:
        """Check the structure of the parameters against the card's schema. Raises `Outlived`."""
        wrong = self._checks.wrong(card, call.envelope.payload)
        if wrong is not None:
            raise Outlived(Failure.of(Reason.SCHEMA, wrong))

    def _take_slot(self, call: Call) -> None:
        held = self._open.get(call.capability, 0)
        if held >= MAX_OPEN_CALLS:
            limit = {
                "name": "open calls of one capability",
                "owner": "this process",
                "used": held,
                "allowed": MAX_OPEN_CALLS,
            }
            message = f"this process already has {held} open calls of {call.capability}"
            raise Outlived(Failure.of(Reason.OVERLOADED, message, retry_after_ms=100, limit=limit))
        self._open[call.capability] = held + 1
        call.holds_slot = True

    async def _wait_for_link(self, call: Call) -> None:
        if not await self.connection.wait_connected(call.deadline - monotonic()):
            # The caller reads the calm sentence (ERR-4); whoever runs the program finds the cause here.
            where, why = self.connection.settings.display, self.connection.last_error or "closed"
            _log.warning("no connection to NATS at %s (%s) [%s]", where, why, call.reach_id)
            raise Outlived(Failure.of(Reason.DISCONNECTED))

    def release(self, call: Call) -> None:
        """Give everything back that the call holds: its slot, its place at a lane, its permit."""
        if call.holds_slot:
            call.holds_slot = False
            held = self._open.get(call.capability, 0) - 1
            if held > 0:
                self._open[call.capability] = held
            else:
                self._open.pop(call.capability, None)
        self.leave_lane(call)

    def finish(self, call: Call) -> None:
        """Give everything back at the end of a call, its tolls too."""
        self.release(call)
        self.thrift.leave(call)

    def leave_lane(self, call: Call) -> None:
        """Give the place at a lane back, and the permit, of a call whose outcome says nothing of it."""
        if call.route is not None:
            permit = self._leave_lane(call)
            if permit is not None and call.lane is not None:
                self.lanes.left(call.lane, monotonic(), permit)

    def _leave_lane(self, call: Call) -> AnyPermit | None:
        """Give the place at a lane back that was addressed by name; gives the permit that came with it."""
        route, call.route = call.route, None
        if route is None or route.lane is None:
            return None
        self.lanes.leave(route.lane, route.instance)
        call.lane = route.lane
        return route.permit

    # -- 3 choose ------------------------------------------------------------------------------------

    def choose(self, call: Call) -> Route:
        """Give the subject of the next attempt. Raises `Outlived` where there is nobody, or nobody may be asked."""
        envelope, capability = call.envelope, call.capability
        lanes = self.lanes
        if (
            not call.options.carried
            and call.avoid is None
            and capability not in lanes.troubled
            and capability not in lanes.shunned
            and capability not in self.steering.special
            and (call.card is None or call.card.limits is None)
            and not (envelope.target or envelope.require or envelope.prefer)
        ):
            usual = self._routes.get(capability)
            return self._first_route(call) if usual is None else usual
        now = monotonic()
        self.guidance.follow(capability)
        plan = self.steering.plan_for(call)
        route = (
            self.steering.choose(call, plan, now)
            if plan is not None
            else choose(
                call,
                self.directory.cards(capability),
                lanes=lanes,
                now=now,
                pick=random(),
            )
        )
        if isinstance(route, Failure):
            raise Outlived(route)
        if isinstance(route, Excluded):
            failure = Failure.of(Reason.NO_RESPONDERS)
            failure.message += f" No instance of {capability!r} meets what the call requires: {route.why}."
            raise Outlived(failure)
        return self._take(call, route)

    def _take(self, call: Call, route: Route) -> Route:
        """Take the call's place where it goes to."""
        call.level = route.level
        if route.lane is not None:
            self.lanes.enter(route.lane, route.instance)
            call.route = route
        return route

    def _first_route(self, call: Call) -> Route:
        """Give the queue group's subject, kept from now on: while nothing speaks against it, NATS picks."""
        if len(self._routes) >= MAX_ROUTES:
            self._routes.clear()
        route = self._routes[call.capability] = Route(subjects.cap(call.capability))
        self.guidance.follow(call.capability)
        return self.choose(call) if call.capability in self.steering.special else route

    async def chosen(self, call: Call) -> Route:
        """Choose, and ask the leader where that has to be."""
        try:
            return self.choose(call)
        except AskFirst as first:
            return await self.ask(call, first.lane)

    async def ask(self, call: Call, lane: Lane) -> Route:
        """Ask the leader for a probe's place at a lane; without one choose again. Raises `Outlived`."""
        for _ in range(MOST_ASKED):
            permit = await self.guidance.permits.ask(lane, deadline=call.deadline)
            if permit is not None:
                return self._take(call, self.steering.probe(call.capability, lane, permit))
            try:
                return self.choose(call)
            except AskFirst as again:
                lane = again.lane
        return self.choose(call)

    # -- 4 send --------------------------------------------------------------------------------------

    def publish_small(self, call: Call, route: Route) -> Pending | None:
        """Send what fits one message, while there is a link; None where `publish` has to see to that first."""
        may_retry = call.may_retry_timeouts
        call.envelope.frames = True
        due = self._stamp(call, may_retry=may_retry)
        data = call.envelope.pack()
        if len(data) > self.claims.inline_bytes(call.card) or not self.connection.connected:
            return None
        return self._send(call, route, data, due, watch=True)

    async def publish(self, call: Call, route: Route, *, whole: bool = False, frames: bool = True) -> Pending:
        """Send the envelope; the answer is awaited on the place that is returned.

        `whole` gives this attempt all the time that is left; without `frames` the answer is one message.
        """
        if not self.connection.connected:
            # Whoever waits for the link takes nobody's place (CALL-6).
            self.release(call)
            await self._wait_for_link(call)
            self._take_slot(call)
        may_retry = not whole and call.may_retry_timeouts
        call.envelope.frames = frames
        due = self._stamp(call, may_retry=may_retry)
        data = call.envelope.pack()
        if len(data) > self.claims.inline_bytes(call.card):
            data = await self.claims.pack(call, data, stamp=lambda: self._stamp(call, may_retry=may_retry))
        return self._send(call, route, data, due, watch=frames)

    def _send(self, call: Call, route: Route, data: bytes, due: float, *, watch: bool) -> Pending:
        envelope = call.envelope
        now = monotonic()
        pending = self.mux.open(envelope.message_id, call.capability, route.subject, now=now, deadline=due)
        if call.around is not NOTHING_AROUND:
            pending.within = call.around.marks
        if envelope.attempt != 1:
            pending.attempt = envelope.attempt
        number, started_ms = len(call.attempts) + 1, (now - call.began) * 1000
        call.attempts.append(Attempt(number, route.subject, started_ms, 0.0, None, route.instance))
        try:
            self.mux.send(pending, data, watch=watch)
        except LinkDown:
            pending.settle(Failure.of(Reason.DISCONNECTED))
        return pending

    def _stamp(self, call: Call, *, may_retry: bool) -> float:
        """Write the time that this attempt has into the envelope; loop time of its deadline. Raises `Outlived`."""
        now = monotonic()
        share_s = attempt_share_s(call.deadline - now, may_retry=may_retry)
        if share_s <= 0:
            raise Outlived(Failure.of(Reason.DEADLINE, executed=Executed.NO))
        envelope, given_s = call.envelope, share_s
        if envelope.idempotency_key is not None and call.goes_on:
            given_s = attempt_share_s(call.deadline - now, may_retry=False)
        left_ms = int(given_s * 1000)
        envelope.attempt = len(call.attempts) + (2 if call.around.again else 1)
        envelope.timeout_ms = left_ms or 1
        envelope.expires_at = self.connection.broker_time.about_ms(now) + left_ms
        return now + share_s

    def note(self, call: Call, pending: Pending, outcome: Reply | Failure, *, at: int = -1) -> None:
        """Give the place of the attempt `at` back, and note what became of it: for the record, and of its lane."""
        attempt = call.attempts[at]
        now = monotonic()
        attempt.took_ms = took_ms = (now - pending.opened) * 1000
        permit = None if call.route is None else self._leave_lane(call)
        if isinstance(outcome, Reply):
            self.mux.close_one(pending)
            attempt.instance = outcome.instance or pending.accepted or attempt.instance
            attempt.provider = provider = outcome.provider
            call.handler_ms = outcome.latency_ms
            if outcome.retried:
                call.inner_retried = True
            failure = outcome.error
            if outcome.duplicate:
                self.judge.spare(call, attempt, outcome, permit)
                return
            if failure is None and provider is not None:
                call.lane = lane = self.lanes.of(call.capability, provider)
                lane.tally.attempts.n += 1
                if outcome.cost is not None:
                    lane.account.cost += outcome.cost
                    call.cost += outcome.cost
                self.lanes.good(lane, now, outcome.latency_ms, permit, first=attempt.n == 1)
                if lane.account.peers is not None and attempt.instance is not None:
                    lane.account.answered(attempt.instance)
                    lane.outliers.succeeded(attempt.instance, now)
                attempt.decision = "done"
                return
        else:
            failure = outcome
            if pending.retried:
                call.inner_retried = True
            if failure.reason is not Reason.DEADLINE or call.goes_on:
                self.mux.close_one(pending)
                call.going_on = pending if failure.reason is Reason.DEADLINE else call.going_on
            else:
                self.mux.cancel(pending)
            attempt.instance = pending.accepted or attempt.instance
        if attempt.provider is None and attempt.instance is not None:
            attempt.provider = attempt.instance.rpartition("-")[0]
        self.metrics.attempt_finished(call.capability, attempt.provider, failure)
        if failure is None:
            attempt.decision = "done"
            return
        attempt.code, attempt.reason, attempt.executed = failure.code, failure.reason, failure.executed
        if isinstance(outcome, Reply) and outcome.cost is not None:
            call.cost += outcome.cost
        if (
            failure.reason is Reason.DEADLINE
            and permit is None
            and not self.mux.pulse.heard_since(pending.opened)
        ):
            return  # The broker said nothing at all: whose silence this was is not known.
        self.judge.blame(call, attempt, failure, now, took_ms, permit)
