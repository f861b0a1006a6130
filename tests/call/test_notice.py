"""When a caller's user is told that answers are not the usual ones (BREAK-6)."""

import logging

import pytest

import reach
from reach.policy.degrade import NOTICE_EN
from tests.runtime.fleet import Fleet


async def served(fleet: Fleet, well: list[bool]) -> reach.Bus:
    """Give a caller of an agent that answers while `well` says so."""
    agent = reach.Agent("shop")

    @agent.capability("shop.price")
    async def price() -> str:
        if not well[0]:
            raise reach.NotExecuted
        return "usual"

    await fleet.serve(agent)
    bus = await fleet.connect()
    return bus.with_options(fallback="unusual", retry=False)


async def test_the_third_degraded_reply_in_a_row_carries_one_sentence(fleet: Fleet) -> None:
    """BREAK-6: the third has it, the fourth does not: at most one in ten minutes."""
    bus = await served(fleet, [False])
    replies = [await bus.request("shop.price") for _ in range(5)]
    assert [True] * 5 == [reply.degraded for reply in replies]
    assert [None, None, NOTICE_EN, None, None] == [reply.notice for reply in replies]


async def test_a_usual_reply_ends_the_run(fleet: Fleet) -> None:
    """BREAK-6: three in a row, not three in all."""
    well = [False]
    bus = await served(fleet, well)
    replies = []
    for is_well in (False, False, True, False, False, False):
        well[0] = is_well
        replies.append(await bus.request("shop.price"))
    assert [None] * 5 + [NOTICE_EN] == [reply.notice for reply in replies]


async def test_each_caller_and_each_capability_counts_for_itself(fleet: Fleet) -> None:
    """BREAK-6: of two agents of one process that ask by turns, each is told at its own third."""
    bus = await served(fleet, [False])
    told = []
    for _ in range(3):
        for agent_id in ("north", "south"):
            with reach.context(agent_id=agent_id):
                told.append((agent_id, (await bus.request("shop.price")).notice is not None))
    assert [("north", False), ("south", False)] * 2 + [("north", True), ("south", True)] == told


async def test_what_lasts_is_an_alert(fleet: Fleet, caplog: pytest.LogCaptureFixture, monkeypatch) -> None:
    """BREAK-6: the people on duty are told when it lasts for a minute."""
    monkeypatch.setattr("reach.policy.degrade.LASTS_S", 0.0)
    bus = await served(fleet, [False])
    with caplog.at_level(logging.WARNING, logger="reach.call"):
        for _ in range(5):
            await bus.request("shop.price")
    alerts = [line for line in caplog.messages if line.startswith("answers of shop.price have been degraded")]
    assert 1 == len(alerts)
    assert "(3 in a row)" in alerts[0]
