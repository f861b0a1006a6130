"""What a leader makes of what it hears, without a bus: standings, tables, tickets, breakers, recovery."""

from typing import Any

import pytest

from actors.supervisor.governor import Governor
from actors.supervisor.letters import Letter, Moment
from actors.supervisor.recovery import Reading, take_over
from actors.supervisor.seal import Seal
from reach.bus.framing import Delivery
from reach.policy.sketch import Sketch
from reach.wire import codec
from reach.wire.card import CapabilityCard, Card
from reach.wire.life import Gone, Goodbye, Heartbeat, Suspicion
from reach.wire.outcomes import LaneOutcomes, LatencySketch, Outcomes
from reach.wire.registration import CARDS, ROUTES, Applied, CardEntry, PermitAsk, PermitOutcome, Register
from reach.wire.route import Lane, RouteEntry

CAP = "job.do"
OLD = 1_600_000_000_000
"""A generation of long ago: its instance is warm."""


class Desk:
    """A governor, and the time."""

    def __init__(self, *, term: int = 1) -> None:
        self.governor = Governor(name="g", term=term, seal=Seal(b"key"), chance=lambda: 0.5)
        self.now = 1000.0
        self.seq = 0
        self.written: dict[tuple[str, str], bytes] = {}

    @property
    def moment(self) -> Moment:
        return Moment(self.now, 1_700_000_000_000 + round(self.now * 1000))

    def card(self, name: str, *, agent: str = "reader", generation: int = OLD, **fields: Any) -> Card:
        capability = CapabilityCard(
            tag=CAP,
            **{k: fields.pop(k) for k in ("priority", "weight", "slow_ms", "cost_weight") if k in fields},
        )
        return Card(
            agent_id=agent, instance=name, generation=generation, capabilities=(capability,), **fields
        )

    def join(self, name: str, **fields: Any) -> dict[str, int]:
        """Register, and follow what the answer says."""
        self.now += 0.01  # A capability is worked out at most once in a while.
        card = self.card(name, **fields)
        answer = self.governor.register(Register(card=card), self.moment)
        self.follow(name, answer.tickets, answer.revision, generation=card.generation)
        return answer.tickets

    def follow(self, name: str, tickets: dict[str, int], revision: int, *, generation: int = OLD) -> None:
        applied = Applied(
            instance=name,
            generation=generation,
            term=self.governor.term,
            revision=revision,
            applied=True,
            tickets=tickets,
        )
        self.governor.applied(applied, self.moment)

    def beat(self, name: str, **fields: Any) -> None:
        generation = fields.pop("generation", OLD)
        self.governor.beat(
            Heartbeat(agent_id="reader", instance=name, generation=generation, at=1, **fields), self.moment
        )

    def pass_time(self, seconds: float, *, beating: tuple[str, ...] = ()) -> None:
        """Let time go by in ticks; everybody follows every order, and `beating` are heard of."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            for name in beating:
                self.beat(name)
            self.tick()

    def tick(self) -> list[Letter]:
        self.now += 0.01
        self.governor.tick(self.moment)
        letters, self.governor.outbox[:] = list(self.governor.outbox), []
        for letter in letters:
            if letter.subject.endswith(".membership"):
                name = letter.subject.split(".")[1]
                body = letter.body
                self.follow(name, body["tickets"], body["revision"], generation=body["generation"])
        for write in self.governor.scribe.take(self.now):
            self.written[write.bucket, write.key] = write.data
            self.governor.scribe.done(write.number)
        return letters

    def told(
        self, provider: str = "reader", *, ok: int = 0, failed: int = 0, ms: float = 5.0, **more: Any
    ) -> None:
        self.seq += 1
        sketch = Sketch()
        for _ in range(ok):
            sketch.add(ms)
        lane = LaneOutcomes(
            provider=provider,
            capability=CAP,
            ok=ok,
            failed=failed,
            latency=LatencySketch(**sketch.to_map()),
            **more,
        )
        told = Outcomes(client="c", boot=1, seq=self.seq, at=1, span_ms=1000, lanes=(lane,))
        self.governor.digest(told, self.moment)

    @property
    def entry(self) -> RouteEntry:
        return self.governor.planner.entries[CAP]

    def lane(self, provider: str = "reader") -> Lane:
        return next(lane for lane in self.entry.lanes if lane.provider == provider)

    def states(self, provider: str = "reader") -> dict[str, tuple[str, float]]:
        return {one.instance: (one.state, round(one.factor, 3)) for one in self.lane(provider).exceptions}

    def tickets(self) -> dict[str, int]:
        return dict(self.governor.planner.plans[CAP].tickets.counts)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_newcomer_beside_warm_ones_begins_with_a_fifth(desk: Desk) -> None:
    """LIFE-3: 0.2 for a minute, 0.5 until two, then all: 5 : 5 : 1, 2 : 2 : 1, 1 : 1 : 1."""
    desk.join("a")
    desk.join("b")
    born = desk.moment.at_ms
    desk.join("c", generation=born)
    seen = [desk.tickets()]
    for seconds in (61.0, 61.0):
        end = desk.now + seconds
        while desk.now < end:
            desk.now += 0.5
            for name in ("a", "b"):
                desk.beat(name)
            desk.beat("c", generation=born)
            desk.tick()
        seen.append(desk.tickets())
    assert [{"a": 5, "b": 5, "c": 1}, {"a": 2, "b": 2, "c": 1}, {"a": 1, "b": 1, "c": 1}] == seen


def test_an_only_instance_does_not_warm_up(desk: Desk) -> None:
    """LIFE-3: off when it would be the only one; and those that start together are equal."""
    assert {CAP: 1} == desk.join("a", generation=desk.moment.at_ms)
    assert {CAP: 1} == desk.join("b", generation=desk.moment.at_ms)
    assert {} == desk.states()


def test_missed_heartbeats_cost_share_then_all_then_the_place(desk: Desk) -> None:
    """LIFE-2: two missed × 0.3, three 0, a minute later out of the table; the card stays with how it ended."""
    desk.join("a")
    desk.join("b")
    desk.pass_time(21, beating=("b",))
    assert {"a": ("suspect", 0.3)} == desk.states()
    desk.pass_time(10, beating=("b",))
    assert {"a": ("unavailable", 0.0)} == desk.states()
    assert {"a": 0, "b": 1} == desk.tickets()
    desk.pass_time(61, beating=("b",))
    assert {"b": 1} == desk.tickets()
    kept = CardEntry.model_validate(codec.unpack(desk.written[CARDS, "a"]))
    assert (False, "expired") == (kept.present, kept.ended)


def test_an_expired_lease_is_told_once(desk: Desk) -> None:
    """LIFE-6, case 11: exactly one `gone` with cause lease, and a late heartbeat is no registration."""
    desk.join("a")
    desk.join("b")
    told = []
    for _ in range(200):
        desk.now += 0.5
        desk.beat("b")
        told += [letter for letter in desk.tick() if letter.subject.startswith("reach.gone.")]
    assert [("a", "lease", (CAP,))] == [
        (letter.body["instance"], letter.body["cause"], letter.body["capabilities"]) for letter in told
    ]
    desk.beat("a")
    assert "a" not in desk.tickets()
    assert ["ctl.a.register"] == [letter.subject for letter in desk.tick()]


def test_who_is_back_after_a_silence_warms_up(desk: Desk) -> None:
    """LIFE-3: heard again after three missed heartbeats it begins with a fifth."""
    desk.join("a")
    desk.join("b")
    desk.pass_time(35, beating=("b",))
    desk.beat("a")
    desk.tick()
    assert {"a": ("warmup", 0.2)} == desk.states()


def test_what_an_instance_says_of_itself_counts(desk: Desk) -> None:
    """LIFE-5: not ready is no calls, degraded a tenth, and well again is well."""
    for name in ("a", "b"):
        desk.join(name)
    desk.beat("a", ready=False)
    desk.tick()
    assert {"a": ("not_ready", 0.0)} == desk.states()
    desk.beat("a", health="degraded")
    desk.tick()
    assert {"a": ("degraded", 0.1)} == desk.states()
    desk.beat("a")
    desk.tick()
    assert {} == desk.states()


def test_who_has_too_much_to_do_is_withdrawn_until_it_is_well_below(desk: Desk) -> None:
    """LIFE-5: over 80 % of its processors out, back below 60 %; and the same by its queue."""
    for name in ("a", "b", "c"):
        desk.join(name)
    seen = []
    for cpu, queue in ((0.85, 0), (0.7, 0), (0.55, 0), (0.1, 101), (0.1, 60), (0.1, 50)):
        desk.beat("a", cpu=cpu, queue=queue)
        desk.tick()
        seen.append(desk.states().get("a", ("", 1.0))[0])
    assert ["busy", "busy", "", "busy", "busy", ""] == seen


def test_never_more_than_half_nor_the_last_is_thrown_out(desk: Desk) -> None:
    """Cases 8 and 28: one busy of one, or three of four: health is ignored, and that is told."""
    desk.join("a")
    desk.beat("a", cpu=0.99)
    letters = desk.tick()
    assert ({}, {"a": 1}) == (desk.states(), desk.tickets())
    assert ["reach.alert.panic"] == [letter.subject for letter in letters]
    for name in ("b", "c", "d"):
        desk.join(name)
    for name in ("b", "c"):
        desk.beat(name, cpu=0.99)
    desk.tick()
    assert {} == desk.states()
    desk.beat("c", cpu=0.1)
    desk.tick()
    assert {"a": ("busy", 0.0), "b": ("busy", 0.0)} == desk.states()


def test_a_suspicion_is_followed_by_pings_of_those_who_hold_tickets(desk: Desk) -> None:
    """Design 5: of a lane in doubt those are asked who may have the call; one by name where it was sent to one."""
    desk.join("a")
    desk.join("b")
    desk.join("s", agent="spare", priority=20)
    asked = Suspicion(capability=CAP, subject=f"cap.{CAP}", waited_ms=150)
    desk.governor.suspect(asked, Moment(desk.now + 1, desk.moment.at_ms))
    assert {"ctl.a.ping", "ctl.b.ping"} == {letter.subject for letter in desk.governor.outbox}
    desk.governor.outbox.clear()
    one = Suspicion(capability=CAP, subject=f"inst.s.{CAP}", waited_ms=150)
    desk.governor.suspect(one, Moment(desk.now + 1, desk.moment.at_ms))
    assert ["ctl.s.ping"] == [letter.subject for letter in desk.governor.outbox]


def test_a_silent_instance_is_steered_fenced_and_warmed_up(desk: Desk) -> None:
    """LIFE-4: steered after 1 s, fenced after 10, back with a fifth of its share."""
    for name in ("a", "b", "c"):
        desk.join(name)
    desk.now += 1
    desk.governor.suspect(Suspicion(capability=CAP, subject=f"cap.{CAP}", waited_ms=150), desk.moment)
    for name in ("b", "c"):
        desk.governor.pong(name, desk.moment)
    desk.now += 1.0
    desk.tick()
    assert {"a": ("steered", 0.0)} == desk.states()
    desk.now += 9.0
    for name in ("b", "c"):
        desk.beat(name)
    desk.tick()
    assert ["a"] == [fence.instance for fence in desk.governor.fences]
    desk.governor.pong("a", desk.moment)
    desk.tick()
    assert {"a": ("warmup", 0.2)} == desk.states()


def test_a_lane_that_is_silent_as_a_whole_is_not_cut_off(desk: Desk) -> None:
    """Case 28: when everybody is silent nobody's connection is ended."""
    for name in ("a", "b", "c"):
        desk.join(name)
    desk.now += 1
    desk.governor.suspect(Suspicion(capability=CAP, subject=f"cap.{CAP}", waited_ms=150), desk.moment)
    for _ in range(24):
        desk.now += 0.5
        for name in ("a", "b", "c"):
            desk.beat(name)
        desk.tick()
    assert [] == desk.governor.fences
    assert {} == desk.states()


def test_tiers_fall_at_once_and_return_gradually(desk: Desk) -> None:
    """ROUTE-1: the second tier takes over when the first has nobody, and hands back in steps."""
    desk.join("a")
    desk.join("s", agent="spare", priority=20)
    assert {"a": 1, "s": 0} == desk.tickets()
    desk.governor.gone(Gone(instance="a", generation=OLD, at=1), desk.moment)
    desk.tick()
    assert {"a": 0, "s": 1} == desk.tickets()
    assert [20] == [tier.priority for tier in desk.entry.tiers]
    desk.join("b")
    desk.tick()
    assert {"b": 1, "s": 4, "a": 0} == desk.tickets()
    desk.pass_time(121, beating=("b", "s"))
    assert (1, 0) == (desk.tickets()["b"], desk.tickets()["s"])


def test_a_goodbye_takes_an_instance_out_and_is_kept(desk: Desk) -> None:
    """LIFE-7: who leaves gets no more, and its card says that it left in order."""
    desk.join("a")
    desk.join("b")
    desk.governor.goodbye(Goodbye(agent_id="reader", instance="a", generation=OLD, at=1), desk.moment)
    desk.tick()
    assert {"a": ("draining", 0.0)} == desk.states()
    assert "goodbye" == CardEntry.model_validate(codec.unpack(desk.written[CARDS, "a"])).ended


def test_failures_of_all_callers_open_the_lane_and_the_next_tier_serves(desk: Desk) -> None:
    """BREAK-4: 60 % of 200 calls open the breaker; tickets go to the next tier; an alert says why."""
    desk.join("a")
    desk.join("s", agent="spare", priority=20)
    desk.told(ok=80, failed=120)
    letters = desk.tick()
    assert "open" == desk.lane().breaker.state
    assert {"a": 0, "s": 1} == desk.tickets()
    assert ["reach.alert.breaker"] == [one.subject for one in letters if "alert" in one.subject]


def test_what_is_not_the_lanes_fault_never_opens_it(desk: Desk) -> None:
    """BREAK-2, case 17: excused outcomes count for nothing, however many."""
    desk.join("a")
    for _ in range(20):
        desk.told(ok=5, excused=500)
    assert "closed" == desk.governor.planner.work_out(CAP, desk.now, 1).entry.lanes[0].breaker.state


def test_an_open_lane_probes_by_permits_and_closes(desk: Desk) -> None:
    """BREAK-3: after its wait five permits in all; five good outcomes close it."""
    desk.join("a")
    desk.join("s", agent="spare", priority=20)
    desk.told(failed=50, failed_in_a_row=50)
    desk.pass_time(13, beating=("a", "s"))
    assert "half_open" == desk.lane().breaker.state
    ask = PermitAsk(client="c", provider="reader", capability=CAP, expires_at=desk.moment.at_ms + 5000)
    answers = [desk.governor.permit(ask, desk.moment) for _ in range(50)]
    permits = [answer.permit for answer in answers if answer.permit]
    assert 5 == len(permits)
    for number in permits:
        outcome = PermitOutcome(client="c", provider="reader", capability=CAP, permit=number, failed=False)
        desk.governor.probed(outcome, desk.moment)
    assert "closed" == desk.lane().breaker.state


def test_a_permit_that_is_never_given_back_ends_with_its_call(desk: Desk) -> None:
    """BREAK-3, case 17: five callers die with their permits, and after their deadlines others may probe."""
    desk.join("a")
    desk.join("s", agent="spare", priority=20)
    desk.told(failed=50, failed_in_a_row=50)
    desk.pass_time(13, beating=("a", "s"))
    ask = PermitAsk(client="c", provider="reader", capability=CAP, expires_at=desk.moment.at_ms + 2000)
    assert 5 == len([1 for _ in range(9) if desk.governor.permit(ask, desk.moment).permit])
    desk.now += 2.1
    later = ask.model_copy(update={"expires_at": desk.moment.at_ms + 2000})
    assert 5 == len([1 for _ in range(9) if desk.governor.permit(later, desk.moment).permit])


def test_a_lane_that_only_plain_clients_call_does_not_stay_shut(desk: Desk) -> None:
    """Nobody of ours could probe it: when no digest came for a minute it closes by itself."""
    desk.join("a")
    desk.join("s", agent="spare", priority=20)
    desk.told(failed=50, failed_in_a_row=50)
    desk.tick()
    assert "open" == desk.lane().breaker.state
    desk.pass_time(120, beating=("a", "s"))
    assert "closed" == desk.lane().breaker.state


def test_the_last_lane_is_kept_as_the_last_resort(desk: Desk) -> None:
    """BREAK-5: with its only lane open a capability keeps its tickets, and says `last_resort`."""
    desk.join("a")
    desk.told(failed=50, failed_in_a_row=50)
    desk.tick()
    assert (True, {"a": 1}) == (desk.entry.last_resort, desk.tickets())


def test_success_and_latency_weigh(desk: Desk) -> None:
    """ROUTE-2: health by the success of 5 minutes, capacity by the P99 of the hour, from merged digests."""
    desk.join("a")
    desk.join("b", agent="other")
    desk.told(ok=97, failed=3, ms=1000.0)
    desk.told("other", ok=100, ms=5.0)
    desk.pass_time(6, beating=("a", "b"))
    reader, other = desk.lane(), desk.lane("other")
    assert (0.7, 1.0) == (reader.terms.health, other.terms.health)
    assert reader.terms.capacity == pytest.approx(0.5, abs=0.02)
    assert reader.figures.p99_ms == pytest.approx(1000, rel=0.06)
    assert 100 == reader.figures.calls


def test_slow_is_what_the_owner_says(desk: Desk) -> None:
    """BREAK-1: with `slow_ms` in the card, answers over it open the lane without a usual pace being known."""
    desk.join("a", slow_ms=50)
    desk.join("s", agent="spare", priority=20)
    desk.told(ok=100, ms=80.0)
    desk.tick()
    assert "open" == desk.lane().breaker.state


def test_figures_alone_do_not_write_the_table_all_the_time(desk: Desk) -> None:
    """Good traffic for twenty seconds is at most a new entry each five, though it is told each second."""
    desk.join("a")
    desk.tick()
    before = desk.entry.revision
    for _ in range(20):
        desk.told(ok=100, ms=5.0)
        desk.pass_time(1, beating=("a",))
    assert desk.entry.revision - before <= 4


def test_a_new_leader_goes_on_from_the_table(desk: Desk) -> None:
    """LIFE-8: instances, settings, breakers, exceptions and tiers are taken over; nobody is ordered about."""
    for name in ("a", "b", "c"):
        desk.join(name)
    desk.join("s", agent="spare", priority=20)
    desk.governor.planner.choices[CAP] = desk.governor.planner.choice(CAP).copy()
    desk.governor.planner.choices[CAP].weights["spare"] = 0.5
    desk.beat("a", ready=False)
    desk.governor.verdicts.breaker(("spare", CAP)).force_open(why="a test")
    desk.governor.planner.touch([CAP])
    desk.tick()
    successor = Desk(term=2)
    successor.now = 50.0
    cards = {key: data for (bucket, key), data in desk.written.items() if bucket == CARDS}
    routes = {key: data for (bucket, key), data in desk.written.items() if bucket == ROUTES}
    take_over(successor.governor, cards=cards, routes={**routes, "leader": b"x"}, moment=successor.moment)
    assert desk.tickets() == successor.tickets()
    assert {"a": ("not_ready", 0.0)} == successor.states()
    assert ("forced_open", 0.5) == (
        successor.lane("spare").breaker.state,
        successor.governor.planner.choice(CAP).weights["spare"],
    )
    assert desk.entry.supersedes(None)
    letters = successor.tick()
    assert [] == [letter.subject for letter in letters if letter.subject.endswith("membership")]
    assert {"ctl.a.ping", "ctl.b.ping", "ctl.c.ping", "ctl.s.ping"} == {
        letter.subject for letter in letters if letter.subject.endswith("ping")
    }


@pytest.mark.parametrize(("answers", "tiers"), [(False, [(10, 1.0)]), (True, [(10, 0.2), (20, 0.8)])])
def test_what_was_gone_before_a_leader_came_does_not_fail_under_it(
    desk: Desk, answers: bool, tiers: list[tuple[int, float]]
) -> None:
    """ROUTE-1, LIFE-8: a start upon an old table is no recovery of what that shows; what had answered fails."""
    desk.join("old")
    desk.tick()
    successor = Desk(term=2)
    cards = {key: data for (bucket, key), data in desk.written.items() if bucket == CARDS}
    routes = {key: data for (bucket, key), data in desk.written.items() if bucket == ROUTES}
    take_over(successor.governor, cards=cards, routes=routes, moment=successor.moment)
    if answers:
        successor.governor.pong("old", successor.moment)
        gone = Gone(instance="old", generation=OLD, at=1, cause="disconnected", capabilities=())
        successor.governor.gone(gone, successor.moment)
    else:
        successor.now += 1
        successor.governor.absent("old", successor.moment)
    successor.tick()
    successor.join("s", agent="spare", priority=20)
    successor.tick()
    assert [(20, 1.0)] == [(one.priority, one.share) for one in successor.entry.tiers]
    successor.join("new")
    successor.tick()
    assert tiers == [(one.priority, one.share) for one in successor.entry.tiers]


def test_a_damaged_entry_is_left_out(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be read costs itself, not the others."""
    desk.join("a")
    desk.tick()
    successor = Desk(term=2)
    cards = {"a": desk.written[CARDS, "a"], "b": b"\x80", "c": b"\xc1"}
    take_over(successor.governor, cards=cards, routes={"cap.x": b"{"}, moment=successor.moment)
    assert {"a"} == successor.governor.roster.members.keys()
    assert "cannot be read, and is left out" in caplog.text


def test_a_reading_takes_batches_and_the_newest_of_each_key() -> None:
    """A bucket is read in batches until nothing is left; deleted keys are not there, older values neither."""
    reading = Reading("b")

    def answer(key: str, data: bytes, sequence: int, **headers: str) -> bool:
        told = {"Nats-Subject": f"$KV.b.{key}", "Nats-Sequence": str(sequence), **headers}
        return reading.take(Delivery(b"x", b"", data, told, 0.0))

    def end(**headers: str) -> bool:
        return reading.take(Delivery(b"x", b"", b"", headers, 0.0))

    assert b'"seq": 1,' in reading.request()
    assert not answer("k", b"old", 1)
    assert not answer("gone", b"x", 2)
    assert end(Status="204", **{"Nats-Num-Pending": "2"})
    assert b'"seq": 3,' in reading.request()
    answer("k", b"new", 3)
    answer("gone", b"", 4, **{"KV-Operation": "DEL"})
    assert not end(Status="204", **{"Nats-Num-Pending": "0"})
    assert (True, {"k": b"new"}) == (reading.done, reading.values)


def test_an_empty_bucket_is_read_too() -> None:
    """No message (404) is the end at once."""
    reading = Reading("b")
    reading.take(Delivery(b"x", b"", b"", {"Status": "404"}, 0.0))
    assert (True, {}) == (reading.done, reading.values)


def test_our_own_standstill_is_no_silence_of_others(desk: Desk) -> None:
    """A supervisor that itself stood still for 40 s does not expire everybody."""
    desk.join("a")
    desk.tick()
    desk.now += 40
    desk.tick()
    assert {} == desk.states()


def test_a_goodbye_of_another_generation_changes_nothing(desk: Desk) -> None:
    """LIFE-6: only the newest generation counts, for goodbyes and ends as for heartbeats."""
    desk.join("a", generation=OLD + 5)
    desk.governor.goodbye(Goodbye(agent_id="reader", instance="a", generation=OLD, at=1), desk.moment)
    desk.governor.gone(Gone(instance="a", generation=OLD, at=1), desk.moment)
    desk.tick()
    assert {} == desk.states()


def test_tasks_hold_no_tickets(desk: Desk) -> None:
    """A capability that is a task is pulled from a queue: nobody is subscribed for it."""
    card = Card(
        agent_id="worker",
        instance="w",
        generation=OLD,
        capabilities=(CapabilityCard(tag=CAP), CapabilityCard(tag="ledger.reconcile", kind="task")),
    )
    answer = desk.governor.register(Register(card=card), desk.moment)
    assert {CAP: 1} == answer.tickets
