"""What a leading supervisor knows and decides, without the bus: messages in, letters and writes out.

Every method takes the time (`Moment`) and returns at once; what is to be said is put into `outbox`, what is to be
written into the scribe, whom to cut off into `fences`. The actor is the shell around it that speaks on the bus.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Literal

from actors.supervisor.alarms import Alarms
from actors.supervisor.cards import ENDS, keep
from actors.supervisor.doubt import Deed, Doubts
from actors.supervisor.judge import Judge
from actors.supervisor.letters import Fence, Letter, Moment
from actors.supervisor.orders import Orders, Told
from actors.supervisor.outcomes import Ledger
from actors.supervisor.planner import Planner
from actors.supervisor.roster import Member, Roster
from actors.supervisor.scribe import Scribe
from actors.supervisor.seal import Seal
from actors.supervisor.table import ALONE
from actors.supervisor.verdicts import Verdicts
from reach.policy.inherit import Inheritance
from reach.policy.lease import Answer, Change, Kind, State
from reach.policy.tier import eject
from reach.wire import subjects
from reach.wire.card import Card
from reach.wire.control import Ping
from reach.wire.life import Gone, Goodbye, Heartbeat, Suspicion
from reach.wire.outcomes import Outcomes
from reach.wire.registration import (
    Applied,
    MembershipOrder,
    OrderVerb,
    PermitAnswer,
    PermitAsk,
    PermitOutcome,
    Register,
    RegisterAgain,
    Registered,
)

ASKED_AT_ONCE: Final = 250
"""Instances that one tick asks whether they live, where everybody is asked."""

AGAIN_EACH_S: Final = 1.0
"""How often an instance that we do not know is told so."""


class Governor:
    """One leader's knowledge. `name` is the supervisor's, `term` its leadership's."""

    def __init__(
        self,
        *,
        name: str,
        term: int,
        seal: Seal,
        chance: Callable[[], float],
        inheritance: Inheritance = ALONE,
    ) -> None:
        self.name = name
        self.term = term
        self.seal = seal
        self.outbox: list[Letter] = []
        self.fences: list[Fence] = []
        self.scribe = Scribe()
        self.doubts = Doubts()
        self.roster = Roster(self.doubts)
        self.ledger = Ledger()
        self.verdicts = Verdicts(chance)
        self.orders = Orders()
        self.planner = Planner(
            roster=self.roster,
            ledger=self.ledger,
            verdicts=self.verdicts,
            orders=self.orders,
            scribe=self.scribe,
            inheritance=inheritance,
        )
        self.planner.term = term
        self._judge = Judge(self.roster, self.ledger, self.verdicts, self.planner)
        self._to_ask: deque[str] = deque()
        self._told_again: dict[str, float] = {}
        self._alarms = Alarms()
        self._ticked_at: float | None = None

    # -- instances ------------------------------------------------------------------------------------

    def register(self, message: Register, moment: Moment) -> Registered:
        """Take an instance in, and say what it holds from now on. Raises `ValueError` for a lease that is none."""
        card = message.card
        before = self.roster.members.get(card.instance)
        served = frozenset[str]() if before is None else frozenset(before.serves)
        heard = self.roster.register(message, now=moment.now, at_ms=moment.at_ms)
        if heard.answer is not Answer.WELCOME:
            status: Literal["outdated", "leaving"] = (
                "outdated" if heard.answer is Answer.OUTDATED else "leaving"
            )
            return Registered(status=status, term=self.term, supervisor=self.name)
        member = self.roster.members[card.instance]
        keep(self.scribe, member)
        self.planner.touch(served - member.serves.keys())
        for one in card.capabilities:
            if one.withdrawn:
                self.alert("withdrawn", f"{card.instance} {one.tag}", one.withdrawn, moment)
        if not message.tickets:
            self.orders.ended(card.instance)  # A new link begins with nothing.
        self._seat(member, moment)
        told = self.orders.answer(card.instance, message.tickets, moment.now)
        return Registered(
            status="welcome",
            term=self.term,
            revision=told.revision,
            tickets=told.tickets,
            off_lane=told.off_lane,
            secret=self.seal.secret(card.instance, card.generation),
            lease_ttl_s=card.lease_ttl_s,
            supervisor=self.name,
        )

    def _seat(self, member: Member, moment: Moment) -> None:
        """Decide on its tickets: exactly where that is quick, else as its neighbours, until it is put right."""
        for capability in member.serves:
            if self.planner.rested(capability, moment.now, lazy=True):
                self.planner.work_out(capability, moment.now, moment.at_ms)
            else:
                count = self.planner.newcomer(capability, member, moment.now)
                self.orders.add(capability, member.name, count)
                self.planner.touch([capability], lazy=True)

    def beat(self, beat: Heartbeat, moment: Moment) -> None:
        """Take in a heartbeat."""
        heard, changed = self.roster.beat(beat, moment.now)
        if heard.answer is Answer.REGISTER_AGAIN:
            self._register_again(beat.instance, beat.generation, moment)
            return
        if heard.answer is not Answer.WELCOME:
            return
        if beat.tickets is not None:
            followed = beat.revision if beat.term == self.term else -1
            self.orders.confirm(beat.instance, beat.tickets, followed, moment.now)
        if changed:
            self.planner.touch(self.roster.members[beat.instance].serves)

    def applied(self, applied: Applied, moment: Moment) -> None:
        """Take in what came of an order."""
        if self.roster.leases.generation(applied.instance) != applied.generation:
            return
        followed = applied.revision if applied.term == self.term else -1
        self.orders.confirm(applied.instance, applied.tickets, followed, moment.now)
        self._order_due(moment)

    def goodbye(self, goodbye: Goodbye, moment: Moment) -> None:
        """An instance leaves in good order."""
        change = self.roster.leases.goodbye(goodbye.instance, generation=goodbye.generation, now=moment.now)
        self._changed([] if change is None else [change], moment)
        self.settle(moment)

    def gone(self, gone: Gone, moment: Moment) -> None:
        """An instance's connection ended and did not come back."""
        change = self.roster.leases.gone(gone.instance, generation=gone.generation, now=moment.now)
        self.roster.unlinked(gone.instance, gone.generation)
        if change is not None:
            self.orders.ended(gone.instance)
        self._changed([] if change is None else [change], moment)
        self.settle(moment)

    # -- doubts ---------------------------------------------------------------------------------------

    def suspect(self, suspicion: Suspicion, moment: Moment) -> None:
        """A caller was left waiting: ask those who may have its call whether they live."""
        asked = self.doubts.suspect(self._suspects(suspicion), moment.now)
        self._ping(asked, moment)

    def _suspects(self, suspicion: Suspicion) -> Iterable[str]:
        kind, _, rest = suspicion.subject.partition(".")
        lanes = self.roster.lanes(suspicion.capability)
        one = rest.partition(".")[0]
        if kind == "inst":
            names: Iterable[str] = [one] if one in self.roster.members else []
        elif kind == "lane":
            names = lanes.get(one, {})
        else:
            names = self.orders.held_of(suspicion.capability)
        return [name for name in names if self.roster.leases.weight(name) > 0]

    def _ping(self, instances: Iterable[str], moment: Moment) -> None:
        body = Ping(at=moment.at_ms).model_dump()
        self.outbox += [Letter(subjects.ctl(name, "ping"), body, "pong") for name in instances]

    def pong(self, instance: str, moment: Moment) -> None:
        """An instance answered."""
        if self.roster.alive(instance, moment.now):
            self.planner.touch(self.roster.members[instance].serves)

    def absent(self, instance: str, moment: Moment) -> None:
        """Nobody listens where an instance would be asked: without a link for a while it is gone."""
        generation = self.roster.leases.generation(instance)
        if generation is None or not self.doubts.absent(instance, moment.now):
            return
        change = self.roster.leases.gone(instance, generation=generation, now=moment.now)
        self.orders.ended(instance)
        self._changed([] if change is None else [change], moment)

    def _doubtful(self, moment: Moment) -> None:
        for deed, instance in self.doubts.due(moment.now):
            member = self.roster.members.get(instance)
            if member is None:
                self.doubts.forget(instance)
            elif deed is Deed.PING:
                self._ping([instance], moment)
            elif deed is Deed.STEER:
                self.roster.watch(instance)
                self.planner.touch(member.serves)
            elif self._may_fence(member):
                fence = Fence(instance, member.generation, member.server, member.connection)
                self.fences.append(fence)
                self.alert(
                    "fenced", instance, "it did not answer for ten seconds: its connection is ended", moment
                )

    def _may_fence(self, member: Member) -> bool:
        """Whether the panic rule lets it be cut off, in everything that it serves."""
        for capability in member.serves:
            lane = self.roster.lanes(capability).get(member.card.agent_id, {})
            there = [name for name in lane if self.roster.leases.weight(name) > 0]
            silent = [name for name in there if self.doubts.state(name) in {"steered", "fenced"}]
            if eject(there, silent).panic:
                return False
        return True

    # -- outcomes -------------------------------------------------------------------------------------

    def digest(self, told: Outcomes, moment: Moment) -> None:
        """Add a client's digest up, and judge its lanes."""
        self._judged(self._judge.digest(told, moment), moment)
        for lane, what in self._judge.hot:
            self.alert("hot_spot", " ".join(lane), what, moment)
        self._judge.hot.clear()

    def permit(self, ask: PermitAsk, moment: Moment) -> PermitAnswer:
        """Answer a caller that wants to probe a lane."""
        return self._judge.permit(ask, moment)

    def probed(self, outcome: PermitOutcome, moment: Moment) -> None:
        """Take in what became of a probe."""
        self._judged(self._judge.probed(outcome, moment), moment)

    def _judged(self, lanes: Iterable[tuple[str, str]], moment: Moment) -> None:
        """Tell callers at once whose breaker is in another state now."""
        for provider, capability in lanes:
            breaker = self.verdicts.breaker((provider, capability))
            if breaker.state == "open":
                self.alert("breaker", f"{provider} {capability}", breaker.why or "", moment)
            self.planner.work_out(capability, moment.now, moment.at_ms)

    # -- time -----------------------------------------------------------------------------------------

    def tick(self, moment: Moment) -> None:
        """Do what is due; to be called each 50 ms."""
        last, self._ticked_at = self._ticked_at, moment.now
        if last is not None and moment.now - last > 1:
            self.roster.leases.forgive(moment.now)  # It was us who did not listen.
        self._changed(self.roster.leases.due(moment.now), moment)
        if self._to_ask:
            self._ask_some(moment)
        self._doubtful(moment)
        self._judged(self.verdicts.turn(moment.now), moment)
        self.planner.step(moment.now, moment.at_ms)
        for capability, provider in self.planner.panics:
            self.alert(
                "panic",
                f"{provider} {capability}",
                "most of the lane looks unwell: health is ignored",
                moment,
            )
        self._order_due(moment)

    def settle(self, moment: Moment) -> None:
        """Work out what was touched, and order what follows, without waiting for the next tick."""
        self.planner.step(moment.now, moment.at_ms)
        self._order_due(moment)

    def _order_due(self, moment: Moment) -> None:
        for told in self.orders.due(moment.now, reachable=self._reachable()):
            self._order(told)

    def _reachable(self) -> Callable[[str], bool]:
        leases, state = self.roster.leases, State
        return lambda name: leases.state(name) not in {state.UNAVAILABLE, state.REMOVED}

    def _order(self, told: Told) -> None:
        member = self.roster.members.get(told.instance)
        if member is None:
            return
        order = MembershipOrder(
            term=self.term,
            revision=told.revision,
            generation=member.generation,
            secret=self.seal.secret(member.name, member.generation),
            tickets=told.tickets,
            off_lane=told.off_lane,
        )
        subject = subjects.ctl(member.name, OrderVerb.MEMBERSHIP)
        self.outbox.append(Letter(subject, order.model_dump(), "applied"))

    def ask_all(self, moment: Moment) -> None:
        """Ask everybody who is known whether they live."""
        self._to_ask.extend(self.roster.members)
        self._ask_some(moment)

    def _ask_some(self, moment: Moment) -> None:
        """Ask the next few: ten thousand answers at once would make operators and newcomers wait."""
        some = [self._to_ask.popleft() for _ in range(min(ASKED_AT_ONCE, len(self._to_ask)))]
        there = [name for name in some if self.roster.leases.weight(name) > 0]
        self._ping(self.doubts.suspect(there, moment.now), moment)

    def resync(self, moment: Moment) -> None:
        """Rebuild the table from the instances that answer: whoever is there registers again."""
        self.ask_all(moment)
        for member in self.roster.members.values():
            self._register_again(member.name, member.generation, moment)
        self.outbox.append(Letter("$SRV.INFO", {}, "info"))
        self.planner.entries.clear()
        self.planner.touch([*self.planner.plans])

    def look_around(self) -> None:
        """Ask who is there at all: some came while nobody led, and would register only when they try again."""
        self.outbox.append(Letter("$SRV.PING", {}, "here"))

    def noticed(self, agent_id: str, instance: str) -> bool:
        """Take in that somebody is there; whether it is a stranger, who is asked for its card."""
        if self.roster.leases.generation(instance) is not None:
            return False
        self.outbox.append(Letter(f"$SRV.INFO.{agent_id}.{instance}", {}, "info"))
        return True

    def found(self, card: Card, moment: Moment) -> None:
        """Somebody answered the question who is there."""
        known = self.roster.leases.generation(card.instance)
        if known is None or known < card.generation:
            self._register_again(card.instance, card.generation, moment)

    # -- inside ---------------------------------------------------------------------------------------

    def _changed(self, changes: Iterable[Change], moment: Moment) -> None:
        """Follow what became of leases: the table, the card's end, and what callers hear of it."""
        for change in changes:
            member = self.roster.end(change, moment.at_ms)
            if member is None:
                continue
            self.planner.touch(member.serves)
            if change.kind in ENDS:
                if member.unproven:
                    self.planner.never_there(member)
                keep(self.scribe, member, ended=change.kind)
            if change.kind in {Kind.EXPIRED, Kind.LOST}:
                gone = Gone(
                    instance=member.name,
                    generation=member.generation,
                    at=moment.at_ms,
                    cause="lease",
                    capabilities=tuple(member.serves),
                )
                self.outbox.append(Letter(subjects.gone(member.name, member.generation), gone.model_dump()))
            if change.kind is Kind.REMOVED:
                self.orders.forget(member.name)

    def _register_again(self, instance: str, generation: int, moment: Moment) -> None:
        if moment.now - self._told_again.get(instance, -AGAIN_EACH_S) < AGAIN_EACH_S:
            return
        if len(self._told_again) > 100_000:  # noqa: PLR2004 - whoever beats and never registers
            self._told_again.clear()
        self._told_again[instance] = moment.now
        order = RegisterAgain(
            term=self.term,
            revision=self.orders.next_revision(),
            generation=generation,
            secret=self.seal.secret(instance, generation),
        )
        self.outbox.append(Letter(subjects.ctl(instance, OrderVerb.REGISTER), order.model_dump()))

    def alert(self, kind: str, subject: str, message: str, moment: Moment) -> None:
        """Tell a person, once for many times."""
        alert = self._alarms.raise_one(kind, subject, message, now=moment.now, at_ms=moment.at_ms)
        if alert is not None:
            self.outbox.append(Letter(subjects.alert(kind), alert.model_dump()))
