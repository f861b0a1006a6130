"""Agents that say that they are not ready, not at their best, or have too much to do: on a real server (LIFE-5)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import reach
from reach.bus.keys import Role
from reach.runtime.fitness import RSS_LIMIT
from reach.runtime.instance import Instance
from tests.chaos.supervisor_rig import SupervisorRig, agent, opened


@pytest.fixture
async def rig(own_system: Any, tmp_path: Path) -> AsyncIterator[SupervisorRig]:
    """A server with its buckets, and nobody on it yet."""
    async with opened(own_system, tmp_path) as rig:
        yield rig


async def eventually(condition: Callable[[], bool], *, within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - it follows from what another process orders
            await asyncio.sleep(0.01)


def held(*instances: Instance) -> list[int]:
    return [one.membership.tickets("job.do") for one in instances]


async def test_an_agent_that_is_not_ready_gets_no_calls_until_it_is(rig: SupervisorRig) -> None:
    """LIFE-5: weight 0 within a moment, though it were the only one; then its share again."""
    async with rig.supervisor():
        one, two = agent("one"), agent("two")
        first, _ = await rig.serve(one)
        second, _ = await rig.serve(two)
        one.ready = False
        await eventually(lambda: held(first, second) == [0, 1])
        assert "not_ready" == (await rig.rows())[first.name].state
        async with reach.connect(settings=rig.system.settings(Role.CALLER)) as bus:
            assert {"two"} == {(await bus.request("job.do", {})).provider for _ in range(10)}
            two.ready = False
            await eventually(lambda: held(first, second) == [0, 0])
            assert not (await bus.request("job.do", {}, timeout_s=2)).ok
            one.ready = True
            await eventually(lambda: held(first, second) == [1, 0])
            assert "one" == (await bus.request("job.do", {})).provider


async def test_an_agent_that_begins_unready_gets_no_calls(rig: SupervisorRig) -> None:
    """LIFE-5: its first registration says so."""
    async with rig.supervisor():
        late = agent("late")
        late.ready = False
        instance, _ = await rig.serve(late)
        assert [0] == held(instance)
        await asyncio.to_thread(setattr, late, "ready", True)
        await eventually(lambda: held(instance) == [1])


async def test_a_degraded_agent_keeps_a_tenth(rig: SupervisorRig) -> None:
    """LIFE-5: ten tickets to one, and in the table."""
    async with rig.supervisor():
        one = agent("crew")
        first, _ = await rig.serve(one)
        second, _ = await rig.serve(agent("crew"))
        one.degraded = True
        await eventually(lambda: held(first, second) == [1, 10])
        assert "degraded" == (await rig.rows())[first.name].state
        one.degraded = False
        await eventually(lambda: held(first, second) == [1, 1])


async def test_an_instance_over_its_limit_of_memory_says_so(
    rig: SupervisorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LIFE-5: by its own measure, which nobody else can take; the panic rule keeps the last one."""
    async with rig.supervisor():
        light, _ = await rig.serve(agent("crew"))
        monkeypatch.setenv(RSS_LIMIT, "1")
        heavy, _ = await rig.serve(agent("crew"))
        await eventually(lambda: held(light, heavy) == [1, 0])
        row = (await rig.rows())[heavy.name]
        assert ("busy", True) == (row.state, row.why.endswith("MB of memory"))
        only, _ = await rig.serve(agent("alone", "job.alone"))
        await asyncio.sleep(1.5)  # It has judged itself, and told.
        assert 1 == only.membership.tickets("job.alone")


async def test_without_a_supervisor_it_steps_aside_by_itself(
    rig: SupervisorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LIFE-5: who is not ready always, who has too much to do where somebody else is there."""
    alone = agent("alone", "job.alone")
    monkeypatch.setenv(RSS_LIMIT, "1")
    only, _ = await rig.serve(alone)
    monkeypatch.delenv(RSS_LIMIT)
    one = agent("one")
    first, _ = await rig.serve(one)
    assert [1] == held(first)
    one.ready = False
    await eventually(lambda: held(first) == [0])
    one.ready = True
    await eventually(lambda: held(first) == [1])
    monkeypatch.setenv(RSS_LIMIT, "1")
    heavy, _ = await rig.serve(agent("two"))
    await eventually(lambda: held(first, heavy) == [1, 0])
    assert 1 == only.membership.tickets("job.alone")
