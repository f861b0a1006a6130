"""Budgets of rounds and tasks: spent exactly, told in full, and never spent on what was not done (GUARD-4)."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import reach
from reach.bus.keys import Role
from reach.call.budgets import TASK_CALLS, task_budget
from reach.call.client import Bus
from reach.faults import Executed, Reason
from tests.runtime.fleet import Fleet, eventually

_numbers = count()


def agent() -> reach.Agent:
    """An agent that works, one that refuses, and one that calls others for the task."""
    worker = reach.Agent("worker")

    @worker.capability("work.do", idempotent=True)
    async def do(ctx: reach.Context) -> str:
        ctx.cost(0.25)
        return "done"

    @worker.capability("work.refuse")
    async def refuse() -> None:
        raise reach.NotExecuted

    @worker.capability("work.more", idempotent=True)
    async def more(ctx: reach.Context, calls: int) -> int:
        replies = [await ctx.bus.request("work.do") for _ in range(calls)]
        return sum(reply.ok for reply in replies)

    return worker


def task_id() -> str:
    """A task of this test."""
    return f"budget-{next(_numbers)}"


async def spend(bus: Bus, calls: int, capability: str = "work.do", **options: Any) -> list[reach.Reply]:
    return await asyncio.gather(*(bus.request(capability, **options) for _ in range(calls)))


def good(replies: list[reach.Reply]) -> int:
    return sum(reply.ok for reply in replies)


def limit_of(reply: reach.Reply) -> dict[str, Any]:
    assert reply.error is not None
    assert (Reason.BUDGET_EXHAUSTED, Executed.NO) == (reply.error.reason, reply.error.executed)
    assert reply.error.limit is not None
    return reply.error.limit


async def test_a_round_ends_its_loop_by_its_budget(fleet: Fleet) -> None:
    """GUARD-4: `round.left` says beforehand what there is; the fourth of three calls is refused with what is left."""
    await fleet.serve(agent())
    bus = await fleet.connect()
    async with reach.round(budget=reach.Budget(calls=3, cost=10)) as this:
        assert (3, 10.0) == (this.left.calls, this.left.cost)
        assert 3 == good(await spend(bus, 5))
        assert (0, 9.25) == (this.left.calls, this.left.cost)
        refused = await bus.request("work.do")

    assert {
        "name": "budget: calls",
        "owner": "this round",
        "used": 3,
        "allowed": 3,
        "left": {"calls": 0, "cost": 9.25},
    } == limit_of(refused)
    assert (await bus.request("work.do")).ok


async def test_an_inner_round_spends_the_outer_one_too(fleet: Fleet) -> None:
    """GUARD-4: what a round inside a round spends is spent for both; its own bound is its own."""
    await fleet.serve(agent())
    bus = await fleet.connect()
    async with reach.round(budget=reach.Budget(calls=5)) as outer:
        async with reach.round(budget=reach.Budget(by_capability={"work.*": 2})) as inner:
            assert 2 == good(await spend(bus, 4))
            assert (3, {"work.*": 0}) == (inner.left.calls, inner.left.by_capability)
        assert 3 == outer.left.calls
        assert 3 == good(await spend(bus, 9))


async def test_what_was_not_done_costs_nothing(fleet: Fleet) -> None:
    """GUARD-4: a call that nobody did, whoever refused it, gives its unit back."""
    await fleet.serve(agent())
    bus = await fleet.connect()
    async with reach.round(budget=reach.Budget(calls=2)) as this:
        assert 0 == good(await spend(bus, 2, "work.refuse", retry=False))
        assert 0 == good(await spend(bus, 2, "work.nobody"))
        assert 2 == this.left.calls


async def test_a_task_has_its_budget_over_all_callers(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """GUARD-4: two callers of one task make exactly its calls together; another task has its own."""
    monkeypatch.setenv("REACH_TASK_BUDGET_CALLS", "30")
    await fleet.serve(agent())
    buses, task = [await fleet.connect(), await fleet.connect()], task_id()
    one, other = await asyncio.gather(*(spend(bus, 25, task_id=task) for bus in buses))

    assert 30 == good(one) + good(other)
    assert f"task {task}" == limit_of(next(reply for reply in one + other if not reply.ok))["owner"]
    assert 5 == good(await spend(buses[0], 5, task_id=task_id()))


async def test_handlers_spend_their_tasks_budget(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """GUARD-4, CALL-4: calls that a handler makes for a task are the task's."""
    monkeypatch.setenv("REACH_TASK_BUDGET_CALLS", "10")
    await fleet.serve(agent())
    bus = await fleet.connect()
    task = task_id()

    assert 6 == (await bus.request("work.more", {"calls": 6}, task_id=task)).unwrap()
    assert 2 == (await bus.request("work.more", {"calls": 6}, task_id=task)).unwrap()
    assert 0 == limit_of(await bus.request("work.do", task_id=task))["left"]["calls"]


async def test_a_tasks_cost_is_everybodys(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """GUARD-4: what one caller's calls have cost bounds another's."""
    monkeypatch.setenv("REACH_TASK_BUDGET_COST", "1")
    await fleet.serve(agent())
    one, other, task = await fleet.connect(), await fleet.connect(), task_id()
    for _ in range(4):
        assert (await one.request("work.do", task_id=task)).ok
    refused = await one.request("work.do", task_id=task)
    assert ("budget: cost", 1.0, 1.0) == tuple(limit_of(refused)[key] for key in ("name", "used", "allowed"))
    await eventually(lambda: not one._core.budgets._tasks["default", task]._asking)
    elsewhere = [await other.request("work.do", task_id=task) for _ in range(2)]
    assert not elsewhere[1].ok


async def test_a_process_gives_back_what_it_holds(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """GUARD-4: a caller that leaves, or makes no call for a second, keeps no calls from the others."""
    monkeypatch.setenv("REACH_TASK_BUDGET_CALLS", "640")
    await fleet.serve(agent())
    one, other, task = await fleet.connect(), await fleet.connect(), task_id()
    assert (await one.request("work.do", task_id=task)).ok
    held = one._core.budgets._tasks["default", task]
    assert held._chunks is not None
    assert held._chunks.held == 9
    await eventually(lambda: held._chunks is not None and held._chunks.held == 0)
    await eventually(lambda: held._asking is None)

    assert 639 == sum([good(await spend(other, 50, task_id=task)) for _ in range(14)])


@pytest.fixture
async def own_fleet(own_system: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Agents and callers on a server that the test may take parts away from."""
    await asyncio.to_thread(own_system.provision)
    fleet = Fleet(own_system, tmp_path)
    try:
        yield fleet
    finally:
        await fleet.close()


async def test_without_a_store_a_task_spends_a_share(
    own_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GUARD-4: where calls cannot be counted together each process spends a quarter, and the record says so."""
    fleet = own_fleet
    monkeypatch.setenv("REACH_TASK_BUDGET_CALLS", "8")
    await fleet.serve(agent())
    platform = await fleet.connect(Role.PLATFORM)
    await platform.connection.request("$JS.API.STREAM.DELETE.REACH_COUNTERS", b"", timeout_s=5)
    bus = await fleet.connect()
    replies = await spend(bus, 5, task_id=task_id())

    assert 2 == good(replies)
    await eventually(lambda: len(fleet.records) == 5)
    assert ["done local_share"] * 2 == [one.attempts[-1].decision for one in fleet.records if one.ok]


def test_the_default_is_said_by_the_environment() -> None:
    """Settings: 10 000 calls, no cost, no seconds; 0 is no bound; what is no number is refused in words."""
    assert reach.Budget(calls=TASK_CALLS) == task_budget({})
    assert reach.Budget(cost=2.5) == task_budget(
        {"REACH_TASK_BUDGET_CALLS": "0", "REACH_TASK_BUDGET_COST": "2.5"}
    )
    with pytest.raises(
        reach.ConfigError, match=r"REACH_TASK_BUDGET_SECONDS is 'soon'\. Right would be a number"
    ):
        task_budget({"REACH_TASK_BUDGET_SECONDS": "soon"})
    # Rounded down it would be 0, and no bound.
    with pytest.raises(
        reach.ConfigError, match=r"REACH_TASK_BUDGET_CALLS is '0\.5'\. Right would be a whole number"
    ):
        task_budget({"REACH_TASK_BUDGET_CALLS": "0.5"})


async def test_a_round_takes_a_budget_only() -> None:
    """GUARD-4: what is no budget is told so before anything is called."""
    with pytest.raises(TypeError, match=r"as in reach\.Budget\(calls=5\), not 5"):
        async with reach.round(budget=5):  # type: ignore[arg-type]
            pass
