"""A hashed lane with a key that everybody asks for: an alert (ROUTE-10)."""

from actors.supervisor.commands import obey
from reach.wire.outcomes import InstanceOutcomes
from tests.actors.test_supervisor_governor import CAP, Desk

NAMES = ("a", "b", "c", "d", "e")


def hashed(name: str = "consistent_hash") -> Desk:
    desk = Desk()
    for one in NAMES:
        desk.join(one)
    body: dict[str, object] = {"by": "t", "capability": CAP, "strategy": {"name": name, "key": "account"}}
    obey("set", body, desk.governor, desk.moment)
    desk.tick()
    return desk


def alerts(desk: Desk, hot: int) -> list[tuple[str, str]]:
    """Tell of 200 calls, so many of them at one instance; what is raised."""
    counts = {**dict.fromkeys(NAMES, (200 - hot) // 4), "a": hot}
    told = tuple(InstanceOutcomes(instance=name, calls=calls, failed=0) for name, calls in counts.items())
    desk.told(ok=200, instances=told)
    return [
        (letter.body["subject"], letter.body["message"])
        for letter in desk.tick()
        if letter.subject == "reach.alert.hot_spot"
    ]


def test_an_instance_with_more_than_three_times_its_share_raises_an_alert() -> None:
    """ROUTE-10: once for five minutes, with who and how much."""
    desk = hashed()
    assert [(f"reader {CAP}", "a has 3.5 times its share of the calls of a minute")] == alerts(desk, 140)
    desk.pass_time(10, beating=NAMES)
    assert [] == alerts(desk, 140)


def test_a_fair_lane_and_one_that_is_not_hashed_raise_none() -> None:
    """ROUTE-10: a share that is not by keys is the supervisor's own doing."""
    assert [] == alerts(hashed(), 60)
    assert [] == alerts(hashed("random"), 140)
