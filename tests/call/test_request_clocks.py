"""Calls between machines whose clocks are set while they are connected."""

import pytest

import reach
from reach.bus.brokertime import BrokerTime
from tests.runtime.fleet import Fleet


def set_clock(clock: BrokerTime, ahead_s: float) -> None:
    """Leave a client as a step of its wall clock leaves it: sure of an offset that is wrong, and long ago asked."""
    clock.offset_ms += round(ahead_s * 1000)
    clock._asked -= 60


@pytest.mark.parametrize("whose", ["agent", "caller"])
@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
async def test_a_clock_that_is_set_costs_no_call(fleet: Fleet, whose: str, ahead_s: float) -> None:
    """CALL-2: a step of one side's clock makes no call stale for longer than it takes to ask the broker."""
    agent = reach.Agent("clocks")

    @agent.capability("clock.show")
    async def show() -> str:
        return "noon"

    instance = await fleet.serve(agent)
    bus = await fleet.connect()
    assert (await bus.request("clock.show")).unwrap() == "noon"
    wrong = instance.connection.broker_time if whose == "agent" else bus.connection.broker_time
    set_clock(wrong, ahead_s)
    for _ in range(3):
        reply = await bus.request("clock.show", timeout_s=5)
        assert reply.error is None
    made_stale = (ahead_s > 0) == (whose == "agent")
    assert made_stale == (abs(wrong.offset_ms) < 60_000)  # The other way round nothing is refused for it.
