"""What an instance holds while nobody leads."""

from typing import Any

import pytest

from reach.policy.standby import tickets_alone
from reach.wire.route import Breaker, Canary, Lane, RouteEntry, Terms, TierShare


def entry(*lanes: Lane, tiers: tuple[int, ...] = (10,), **fields: Any) -> RouteEntry:
    shares = tuple(TierShare(priority=tier, share=1 / len(tiers)) for tier in tiers)
    return RouteEntry(capability="job.do", term=1, revision=1, at=1, lanes=lanes, tiers=shares, **fields)


def alone(
    priority: int = 10, *, known: int | None = None, table: RouteEntry | None = None, **fields: Any
) -> int:
    asked = {"agent_id": "reader", "version": "1.0.0", "labels": {}, **fields}
    return tickets_alone(priority=priority, entry=table, lowest_known=known, **asked)


@pytest.mark.parametrize(
    ("priority", "known", "tickets"), [(10, None, 1), (20, None, 1), (20, 20, 1), (20, 10, 0), (10, 20, 1)]
)
def test_without_a_table_the_best_known_tier_serves(priority: int, known: int | None, tickets: int) -> None:
    """Design 5: one ticket if its priority is the lowest known, else standby."""
    assert tickets == alone(priority, known=known)


@pytest.mark.parametrize(
    ("priority", "tiers", "tickets"), [(10, (10,), 1), (20, (10,), 0), (20, (10, 20), 1), (5, (10,), 1)]
)
def test_with_a_table_the_tiers_in_use_serve(priority: int, tiers: tuple[int, ...], tickets: int) -> None:
    """It goes by what the last leader wrote; a tier better than any in use serves."""
    assert tickets == alone(priority, table=entry(tiers=tiers))


@pytest.mark.parametrize("state", ["open", "half_open", "forced_open"])
def test_a_barred_lane_stays_out(state: Any) -> None:
    """An instance whose lane's breaker was open does not come back by a reconnect; as last resort it does."""
    lane = Lane(provider="reader", breaker=Breaker(state=state))
    assert (0, 1) == (alone(table=entry(lane)), alone(table=entry(lane, last_resort=True)))


def test_a_lane_that_an_operator_took_out_stays_out() -> None:
    """A traffic weight of 0 holds without a leader too."""
    assert 0 == alone(table=entry(Lane(provider="reader", terms=Terms(traffic=0.0))))


def test_a_canary_stands_by() -> None:
    """One ticket would be more than the few percent that a canary was given."""
    canary = Canary(version="2.0.0", percent=5.0)
    table = entry(canary=canary)
    assert (0, 1) == (alone(table=table, version="2.0.0"), alone(table=table))


def test_a_table_in_which_nobody_served_says_nothing() -> None:
    """Without a tier in use it is as if there were no table."""
    assert (1, 0) == (alone(table=entry(tiers=())), alone(20, known=10, table=entry(tiers=())))
