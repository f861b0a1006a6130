"""What is measured of calls, and where callers are, on a real server: from a handler's word to the table and back."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import reach
from reach.bus.keys import Role
from reach.wire.registration import RouteVerb
from reach.wire.route import Strategy
from tests.chaos.supervisor_rig import SupervisorRig, opened


@pytest.fixture
async def rig(own_system: Any, tmp_path: Path) -> AsyncIterator[SupervisorRig]:
    """A server with its buckets, and nobody on it yet."""
    async with opened(own_system, tmp_path) as rig:
        yield rig


def reader(agent_id: str, *, region: str = "", cost: float | None = None) -> reach.Agent:
    agent = reach.Agent(agent_id, region=region)

    @agent.capability("page.read", idempotent=True)
    async def read(ctx: reach.Context) -> str:
        if cost is not None:
            ctx.cost(cost)
        return region

    return agent


async def test_what_a_call_costs_takes_calls_away(rig: SupervisorRig) -> None:
    """ROUTE-2: a cent a call is half the weight, seconds later, for everybody."""
    async with rig.supervisor():
        await rig.serve(reader("dear", cost=0.01))
        await rig.serve(reader("cheap"))
        async with reach.connect(settings=rig.system.settings(Role.CALLER)) as bus:
            for _ in range(20):
                await bus.request("page.read", {}, target="dear")
            async with asyncio.timeout(20):
                while True:
                    entry = await rig.entry("page.read")
                    terms = {lane.provider: lane.terms for lane in entry.lanes} if entry is not None else {}
                    if terms["dear"].cost < 1:
                        break
                    await bus.request("page.read", {}, target="dear")
                    await asyncio.sleep(0.1)
        assert (0.5, 1.0) == (round(terms["dear"].cost, 3), terms["cheap"].cost)


async def test_a_nested_call_stays_in_its_agents_region(rig: SupervisorRig) -> None:
    """ROUTE-5: `local_first` counts from where the agent is, in whose handler the call is made."""
    front = reach.Agent("front", region="south")

    @front.capability("front.page")
    async def page(ctx: reach.Context) -> str:
        return str((await ctx.bus.request("page.read", {})).unwrap())

    async with rig.supervisor():
        await rig.serve(reader("reader", region="north"))
        await rig.serve(reader("reader", region="south"))
        await rig.serve(front)
        await rig.command(
            RouteVerb.SET, capability="page.read", strategy=Strategy(name="local_first").model_dump()
        )
        async with reach.connect(settings=rig.system.settings(Role.CALLER)) as bus:
            async with asyncio.timeout(10):  # Until its table and its cards are read.
                answers: list[str] = []
                while answers != ["south"] * 12:
                    await asyncio.sleep(0.05)
                    answers = [(await bus.request("front.page", {})).unwrap() for _ in range(12)]
