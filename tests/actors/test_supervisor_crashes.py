"""A handler whose processes die again and again: its capability is withdrawn, and its card says why (LIFE-9)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import reach
from reach.bus.framing import Delivery
from reach.bus.keys import Role
from reach.faults import Executed
from reach.policy.restart import Intensity
from reach.wire import codec
from tests.chaos.supervisor_rig import SupervisorRig, opened
from tests.runtime import crashing

SERVED = "crash.do"


@pytest.fixture
async def rig(own_system: Any, tmp_path: Path) -> AsyncIterator[SupervisorRig]:
    """A server with its buckets, and nobody on it yet."""
    async with opened(own_system, tmp_path) as rig:
        yield rig


def crasher(agent_id: str) -> reach.Agent:
    agent = reach.Agent(agent_id)
    agent.capability(SERVED, executor="process")(crashing.die)

    @agent.capability("crash.not")
    async def live() -> str:
        return "well"

    return agent


async def test_a_crash_loop_withdraws_the_capability_and_the_card_says_why(rig: SupervisorRig) -> None:
    """LIFE-9: three restarts in 60 s, then no more; what else the instance serves, and others, go on."""
    async with rig.supervisor():
        instance, _ = await rig.serve(crasher("one"))
        platform = await rig.connection(Role.PLATFORM)
        alerts: list[Delivery] = []
        platform.subscribe("reach.alert.withdrawn", alerts.append)
        await platform.flush()
        async with reach.connect(settings=rig.system.settings(Role.CALLER)) as bus:
            for _ in range(Intensity().max_restarts + 1):
                reply = await bus.request(SERVED, {}, target="one", timeout_s=30)
                assert reply.error is not None
                assert Executed.MAYBE is reply.error.executed
            async with asyncio.timeout(10):
                while instance.membership.tickets(SERVED) or not alerts:  # noqa: ASYNC110 - ordered from afar
                    await asyncio.sleep(0.01)
            kept = await rig.card(instance.name)
            assert kept is not None
            why = {one.tag: one.withdrawn for one in kept.card.capabilities}
            assert ("", True) == (why["crash.not"], "restarted 3 times in the last 60 s" in why[SERVED])
            assert "signal 9" in codec.unpack(alerts[0].data)["message"]
            assert 1 == instance.membership.tickets("crash.not")
            assert "well" == (await bus.request("crash.not", {})).data
            other, _ = await rig.serve(crasher("two"))
            assert 1 == other.membership.tickets(SERVED)
            reply = await bus.request(SERVED, {"how": "not"}, timeout_s=30)
            assert (True, "two") == (reply.ok, reply.provider)
            assert {other.name} == {card.instance for card in await bus.cards.instances(SERVED)}
            refused = await bus.connection.request(
                f"inst.{instance.name}.{SERVED}", codec.pack({}), timeout_s=5
            )
            assert "no" == codec.unpack(refused)["error"]["executed"]
