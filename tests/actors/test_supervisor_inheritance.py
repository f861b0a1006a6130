"""More general providers in the table of a leader, and on a real server, for our callers and plain ones (ROUTE-4)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import reach
from actors.supervisor.commands import obey
from actors.supervisor.explain import explained
from actors.supervisor.governor import Governor
from actors.supervisor.letters import Moment
from actors.supervisor.seal import Seal
from reach.bus.keys import Role
from reach.errors import SchemaInvalid, Unreachable
from reach.policy.inherit import APART, MODE, PARENTS, Inheritance, Mode
from reach.wire import codec
from reach.wire.card import CapabilityCard, Card
from reach.wire.life import Gone
from reach.wire.outcomes import LaneOutcomes, Outcomes
from reach.wire.registration import Explain, PermitAsk, Register
from reach.wire.route import Lane
from tests.chaos.supervisor_rig import SupervisorRig, opened

EXACT, GENERAL = "invoice.extract", "invoice"


class Office:
    """A governor whose rule of inheritance is given."""

    def __init__(self, mode: Mode = Mode.FALLBACK) -> None:
        rule = Inheritance(mode, {GENERAL: ("document",)})
        self.governor = Governor(name="g", term=1, seal=Seal(b"key"), chance=lambda: 0.5, inheritance=rule)
        self.now = 1000.0

    @property
    def moment(self) -> Moment:
        return Moment(self.now, 1_700_000_000_000 + round(self.now * 1000))

    def join(self, agent: str, tag: str, **facts: Any) -> dict[str, int]:
        self.pass_time()
        card = Card(
            agent_id=agent,
            instance=f"{agent}-aaaaaaaa",
            generation=1,
            capabilities=(CapabilityCard(tag=tag, **facts),),
        )
        tickets = self.governor.register(Register(card=card), self.moment).tickets
        self.pass_time()
        return tickets

    def leave(self, agent: str) -> None:
        gone = Gone(instance=f"{agent}-aaaaaaaa", generation=1, at=1, cause="disconnected", capabilities=())
        self.governor.gone(gone, self.moment)
        self.pass_time()

    def pass_time(self) -> None:
        for _ in range(3):
            self.now += 0.05
            self.governor.tick(self.moment)

    def told(self, provider: str, capability: str, *, failed: int) -> None:
        lane = LaneOutcomes(provider=provider, capability=capability, failed=failed, failed_in_a_row=failed)
        digest = Outcomes(client="c", boot=1, seq=round(self.now * 1000), at=1, span_ms=1000, lanes=(lane,))
        self.governor.digest(digest, self.moment)
        self.pass_time()

    def lanes(self, capability: str = EXACT) -> dict[str, Lane]:
        return {lane.provider: lane for lane in self.governor.planner.entries[capability].lanes}

    def tiers(self, capability: str = EXACT) -> list[tuple[int, float]]:
        return [(one.priority, one.share) for one in self.governor.planner.entries[capability].tiers]


def test_a_stand_in_is_a_tier_of_its_own_and_serves_when_nobody_exact_does() -> None:
    """ROUTE-4: found whichever came first, and left when the exact one is gone."""
    office = Office()
    office.join("general", GENERAL)
    assert {EXACT: 1} == office.join("exact", EXACT)
    office.join("archive", "document")
    assert {"exact": None, "general": GENERAL, "archive": "document"} == {
        name: lane.serves for name, lane in office.lanes().items()
    }
    assert [(10, 1.0)] == office.tiers()
    office.leave("exact")
    assert [(APART + 10, 1.0)] == office.tiers()
    office.leave("general")
    assert [(2 * APART + 10, 1.0)] == office.tiers()
    assert {"general", "archive"} == office.lanes(GENERAL).keys()


def test_a_stand_in_holds_no_tickets_of_what_it_stands_in_for() -> None:
    """ROUTE-4: it is subscribed to its own name; where the exact lane's breaker is open, that stays the last resort."""
    office = Office()
    office.join("exact", EXACT)
    office.join("general", GENERAL)
    office.told("exact", EXACT, failed=10)
    assert [(APART + 10, 1.0)] == office.tiers()
    assert {"exact-aaaaaaaa": 1} == dict(office.governor.planner.plans[EXACT].tickets.counts)


def test_by_weight_it_is_a_neighbour_at_six_tenths() -> None:
    """ROUTE-2, ROUTE-4: match 0.6 in the tier of its card."""
    office = Office(Mode.WEIGHT)
    office.join("exact", EXACT)
    office.join("general", GENERAL)
    found = office.lanes()
    assert (10, 0.6, 0.375) == (
        found["general"].priority,
        found["general"].terms.match,
        round(found["general"].share, 3),
    )


def test_what_callers_tell_of_it_is_told_of_what_it_serves() -> None:
    """BREAK-4: one breaker for a lane, whichever name it was called by; probes too."""
    office = Office()
    office.join("exact", EXACT)
    office.join("general", GENERAL)
    office.told("general", EXACT, failed=10)
    assert ("open", "open") == (
        office.lanes()["general"].breaker.state,
        office.lanes(GENERAL)["general"].breaker.state,
    )
    office.now += 15
    office.pass_time()
    ask = PermitAsk(client="c", provider="general", capability=EXACT, expires_at=office.moment.at_ms + 5000)
    assert office.governor.permit(ask, office.moment).permit is not None


def test_a_stream_does_not_stand_in_for_one_answer() -> None:
    """ROUTE-4: whoever asks for one answer cannot read parts."""
    office = Office()
    office.join("exact", EXACT)
    office.join("general", GENERAL, kind="stream")
    assert {"exact"} == office.lanes().keys()


def test_the_breaker_of_a_stand_in_is_where_it_serves() -> None:
    """BREAK-4: an operator is told where."""
    office = Office()
    office.join("exact", EXACT)
    office.join("general", GENERAL)
    body: dict[str, object] = {"by": "t", "capability": EXACT, "provider": "general"}
    with pytest.raises(SchemaInvalid, match="by the more general 'invoice'"):
        obey("open", body, office.governor, office.moment)
    obey("open", {**body, "capability": GENERAL}, office.governor, office.moment)
    office.pass_time()
    assert "forced_open" == office.lanes()["general"].breaker.state


def test_it_is_explained() -> None:
    """ROUTE-2: which name it serves by stands in the term `match`."""
    office = Office()
    office.join("exact", EXACT)
    office.join("general", GENERAL)
    answer = explained(office.governor, Explain(by="t", capability=EXACT), office.moment)
    found = {lane.provider: lane for lane in answer.lanes}
    assert any("the more general invoice" in term for term in found["general"].terms)
    assert "a better tier is in use" == found["general"].excluded


@pytest.mark.parametrize("mode", [Mode.OFF])
def test_turned_off_nobody_stands_in(mode: Mode) -> None:
    """ROUTE-4: it can be turned off."""
    office = Office(mode)
    office.join("exact", EXACT)
    office.join("general", GENERAL)
    assert {"exact"} == office.lanes().keys()


# ------------------------------------------------------------------------------------------ on a server


@pytest.fixture
async def rig(own_system: Any, tmp_path: Path) -> AsyncIterator[SupervisorRig]:
    """A server with its buckets, and nobody on it yet."""
    async with opened(own_system, tmp_path) as rig:
        yield rig


def serving(agent_id: str, tag: str) -> reach.Agent:
    found = reach.Agent(agent_id)

    @found.capability(tag, idempotent=True)
    async def do(x: int) -> int:
        return x + 1

    return found


async def test_a_call_is_served_by_a_more_general_name(
    rig: SupervisorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ROUTE-4: of a name that nobody registered, and when the exact provider is gone: degraded both times."""
    monkeypatch.setenv(PARENTS, "invoice=document")
    monkeypatch.delenv(MODE, raising=False)
    async with rig.supervisor():
        await rig.serve(serving("archive", "document"))
        _, end = await rig.serve(serving("exact", EXACT))
        async with reach.connect(settings=rig.system.settings(Role.CALLER)) as bus:
            reply = await bus.request("invoice.total", {"x": 1})
            assert (2, "archive", True, 1) == (
                reply.data,
                reply.provider,
                reply.degraded,
                reply.degrade_level,
            )
            reply = await bus.request(EXACT, {"x": 1})
            assert ("exact", False) == (reply.provider, reply.degraded)
            await end()
            for _ in range(5):
                reply = await bus.request(EXACT, {"x": 1}, timeout_s=5)
                assert (True, "archive", True) == (reply.ok, reply.provider, reply.degraded)
            unknown = await bus.request("weather.today", {"x": 1}, timeout_s=5)
            assert not unknown.ok
        plain = await rig.connection(Role.CALLER)
        with pytest.raises(Unreachable):
            await plain.request(f"cap.{EXACT}", codec.pack({"x": 1}), timeout_s=2)
