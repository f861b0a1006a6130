"""What operators are told: shares with a canary, dry runs of breakers, limits that end, who leaves and who has left."""

import pytest

from actors.supervisor.commands import obey
from reach.wire.life import Gone, Goodbye
from reach.wire.registration import RouteAnswer, RouteVerb
from tests.actors.test_supervisor_governor import CAP, OLD, Desk


@pytest.fixture
def desk() -> Desk:
    """One leader, and two agents with an instance each."""
    desk = Desk()
    desk.join("a-1", agent="a", version="1.0.0")
    desk.join("b-1", agent="b", version="2.0.0")
    return desk


def ask(desk: Desk, verb: RouteVerb, **fields: object) -> RouteAnswer:
    """Have a command done."""
    return obey(verb, {"by": "a test", **fields}, desk.governor, desk.moment)[0]


def shares(answer: RouteAnswer) -> dict[str, float]:
    """Each lane's share in the entry that an answer gives."""
    assert answer.after is not None
    return {lane.provider: lane.share for lane in answer.after.lanes}


def states(desk: Desk) -> dict[str, str]:
    """Each instance's state."""
    answer = ask(desk, RouteVerb.INSTANCES)
    return {row.instance: row.state for row in answer.instances}


def leave(desk: Desk, name: str) -> None:
    """Say goodbye."""
    desk.governor.goodbye(
        Goodbye(agent_id=name.partition("-")[0], instance=name, generation=OLD, at=1), desk.moment
    )


def test_a_lane_tells_its_share(desk: Desk) -> None:
    """The entry says which part of the calls goes to each lane (ROUTE-2)."""
    answer = ask(desk, RouteVerb.SET, capability=CAP, weights={"a": 0.25})
    assert {"a": 0.2, "b": 0.8} == pytest.approx(shares(answer))


def test_a_share_counts_the_canary_in(desk: Desk) -> None:
    """ROUTE-6: 5 % to one version is 5 % to the lane that has it, whatever its weight."""
    canary = {"version": "2.0.0", "percent": 5.0}
    answer = ask(desk, RouteVerb.CANARY, capability=CAP, canary=canary)
    assert {"a": 0.95, "b": 0.05} == pytest.approx(shares(answer))
    explained = ask(desk, RouteVerb.EXPLAIN, capability=CAP)
    assert {"a": 0.95, "b": 0.05} == pytest.approx({lane.provider: lane.share for lane in explained.lanes})


def test_a_dry_run_shows_what_an_open_breaker_comes_to(desk: Desk) -> None:
    """ROUTE-7: the shares that would follow are shown, and nothing is changed."""
    answer = ask(desk, RouteVerb.OPEN, capability=CAP, provider="b", dry_run=True)
    assert {"a": 1.0, "b": 0.0} == shares(answer)
    held = ask(desk, RouteVerb.SHOW, capability=CAP)
    assert {"a": 0.5, "b": 0.5} == shares(held)


def test_a_dry_run_of_closing_shows_the_lane_back(desk: Desk) -> None:
    """A lane that is held open gets its share back when it is closed."""
    ask(desk, RouteVerb.OPEN, capability=CAP, provider="b")
    answer = ask(desk, RouteVerb.CLOSE, capability=CAP, provider="b", dry_run=True)
    assert {"a": 0.5, "b": 0.5} == shares(answer)


def test_a_limit_can_be_ended(desk: Desk) -> None:
    """What an operator set an operator can take back."""
    ask(desk, RouteVerb.SET, capability=CAP, limits={"a": 20, "b": 30})
    answer = ask(desk, RouteVerb.SET, capability=CAP, limits_off=["a"])
    assert answer.after is not None
    assert {"a": None, "b": 30} == {lane.provider: lane.limit for lane in answer.after.lanes}


def test_who_said_goodbye_has_left_when_its_connection_ends(desk: Desk) -> None:
    """Until then it finishes what it has: it is draining."""
    leave(desk, "b-1")
    desk.tick()
    assert {"a-1": "live", "b-1": "draining"} == states(desk)
    gone = Gone(instance="b-1", generation=OLD, at=1, cause="disconnected", capabilities=(CAP,))
    desk.governor.gone(gone, desk.moment)
    assert {"a-1": "live", "b-1": "left"} == states(desk)


def test_draining_twice_is_no_error(desk: Desk) -> None:
    """LIFE-7: a second hook, or one after a signal, is told who is leaving already; nobody is ordered twice."""
    leave(desk, "b-1")
    desk.tick()
    answer = ask(desk, RouteVerb.DRAIN, target="b")
    assert ("b-1 said goodbye before", ["b-1"]) == (
        answer.message,
        [row.instance for row in answer.instances],
    )
    assert [] == [letter for letter in desk.governor.outbox if letter.subject.endswith(".drain")]


def test_a_dry_run_of_draining_names_who_would_leave(desk: Desk) -> None:
    """Who would leave is named, and stays."""
    answer = ask(desk, RouteVerb.DRAIN, target="a", dry_run=True)
    assert ["a-1"] == [row.instance for row in answer.instances]
    desk.tick()
    assert {"a-1": "live", "b-1": "live"} == states(desk)
