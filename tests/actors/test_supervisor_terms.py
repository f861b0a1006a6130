"""What makes a lane's weight, from what callers tell to what is explained (ROUTE-2)."""

import pytest

from actors.supervisor.commands import obey
from actors.supervisor.explain import explained
from reach.wire.registration import Explain, RouteAnswer
from tests.actors.test_supervisor_governor import CAP, Desk

HOUR_S = 3600.0


@pytest.fixture
def desk() -> Desk:
    """Two lanes of one instance each."""
    desk = Desk()
    desk.join("a")
    desk.join("b", agent="other")
    return desk


def settled(desk: Desk) -> None:
    """Let the figures be taken: they rest for five seconds."""
    desk.pass_time(6, beating=("a", "b"))


def terms(desk: Desk, provider: str = "reader") -> dict[str, float]:
    return {name: round(value, 3) for name, value in desk.lane(provider).terms.model_dump().items()}


def set_route(desk: Desk, **fields: object) -> RouteAnswer:
    body: dict[str, object] = {"by": "t", "capability": CAP, **fields}
    return obey("set", body, desk.governor, desk.moment)[0]


def explained_terms(desk: Desk, provider: str = "reader") -> str:
    answer = explained(desk.governor, Explain(by="t", capability=CAP), desk.moment)
    return "\n".join(next(lane.terms for lane in answer.lanes if lane.provider == provider))


@pytest.mark.parametrize(("failed", "expected"), [(0, 1.0), (1, 1.0), (3, 0.7), (8, 0.3)])
def test_health_follows_five_minutes_of_success(desk: Desk, failed: int, expected: float) -> None:
    """ROUTE-2: 1.0 from 99 %, 0.7 from 95 %, else 0.3; and after five minutes it is forgotten."""
    desk.told(ok=100 - failed, failed=failed)
    settled(desk)
    assert expected == terms(desk)["health"]
    desk.pass_time(331, beating=("a", "b"))
    desk.told(ok=100)
    settled(desk)
    assert 1.0 == terms(desk)["health"]


def test_a_measured_cost_weighs(desk: Desk) -> None:
    """ROUTE-2: 1 / (1 + 100 × cost of a call): a cent a call is a half."""
    desk.told(ok=100, cost=1.0)
    settled(desk)
    assert (0.5, 1.0) == (terms(desk)["cost"], terms(desk, "other")["cost"])
    assert "0.01 a call" in explained_terms(desk)


def test_what_a_card_says_of_its_cost_weighs_beside_the_cheapest_of_its_tier() -> None:
    """ROUTE-2: a half for twice as dear, 1 for the cheapest, and for who says nothing; other tiers are no measure."""
    desk = Desk()
    desk.join("a", cost_weight=2.0)
    desk.join("b", agent="other", cost_weight=4.0)
    desk.join("c", agent="silent")
    desk.join("d", agent="spare", priority=20, cost_weight=0.1)
    costs = {lane.provider: lane.terms.cost for lane in desk.entry.lanes}
    assert {"reader": 1.0, "other": 0.5, "silent": 1.0, "spare": 1.0} == costs
    assert "2 × the cheapest" in explained_terms(desk, "other")


def test_capacity_falls_with_the_hours_p99(desk: Desk) -> None:
    """ROUTE-2: a half at a second, whatever the last five minutes were like."""
    desk.told(ok=100, ms=1000.0)
    desk.pass_time(400, beating=("a", "b"))
    desk.told(ok=1, ms=5.0)
    settled(desk)
    assert abs(terms(desk)["capacity"] - 0.5) <= 0.02
    assert 5.5 > (desk.lane().figures.p99_ms or 0)


def test_quality_moves_slowly_and_begins_anew_when_reset(desk: Desk) -> None:
    """ROUTE-2: at most 5 % an hour towards what 24 hours deserve; `reset_quality` is 1 again."""
    for _ in range(13):
        desk.told(ok=1000)
        desk.pass_time(300, beating=("a", "b"))
    desk.told(ok=1000)
    settled(desk)
    after = desk.governor.planner.plans[CAP].entry
    moved = next(lane.terms.quality for lane in after.lanes if lane.provider == "reader")
    assert 1.03 <= moved <= 1.07
    assert "slow average of 24 h" in explained_terms(desk)
    answer = set_route(desk, reset_quality=("reader",))
    assert answer.in_force
    assert 1.0 == next(
        lane.terms.quality
        for lane in desk.governor.planner.plans[CAP].entry.lanes
        if lane.provider == "reader"
    )


def test_a_night_without_calls_moves_no_quality(desk: Desk) -> None:
    """ROUTE-2: the first failure of the morning is not charged with the night."""
    desk.told(ok=100)
    settled(desk)
    desk.pass_time(8 * HOUR_S, beating=())
    desk.join("a")
    desk.join("b", agent="other")
    desk.told(failed=5)
    settled(desk)
    assert terms(desk)["quality"] >= 0.98


@pytest.mark.parametrize("term", ["health", "cost", "capacity", "quality"])
def test_every_term_can_be_turned_off(desk: Desk, term: str) -> None:
    """ROUTE-2: it stands at 1 then, and says so."""
    desk.told(ok=80, failed=20, ms=1000.0, cost=5.0)
    settled(desk)
    set_route(desk, terms_off=(term,))
    assert 1.0 == terms(desk)[term]
    assert "turned off" in explained_terms(desk)
