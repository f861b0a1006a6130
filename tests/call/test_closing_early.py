"""Callers that leave right after they have called."""

import asyncio
from time import monotonic

import pytest

import reach
from reach.bus.keys import Role
from reach.observe.records import NullSink, Recorder
from tests.runtime.fleet import Fleet, eventually


class Sleeper:
    """An agent whose handler takes half a minute unless somebody stops it."""

    def __init__(self) -> None:
        self.begun = 0
        self.stopped = 0
        self.agent = reach.Agent("sleeper")
        self.agent.capability("sleep.long")(self.sleep)

    async def sleep(self) -> None:
        self.begun += 1
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            self.stopped += 1
            raise


@pytest.mark.parametrize("leave", ["cancel", "close"])
async def test_a_call_that_is_left_at_once_does_not_run_on(fleet: Fleet, leave: str) -> None:
    """CALL-5: who cancels a call before it was accepted, or closes the bus over it, stops its handler all the same."""
    sleeper = Sleeper()
    await fleet.serve(sleeper.agent)
    recorder = Recorder(NullSink())
    async with reach.connect(settings=fleet.system.settings(Role.CALLER), recorder=recorder) as bus:
        calls = [asyncio.create_task(bus.request("sleep.long", timeout_s=30)) for _ in range(5)]
        await eventually(lambda: sleeper.begun == 5)  # Far less than the 25 ms after which an agent accepts.
        if leave == "cancel":
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
        began = monotonic()
    recorder.close()
    assert monotonic() - began < 1.0  # 150 ms, and slack for a busy machine.
    await asyncio.wait(calls)
    await eventually(lambda: sleeper.stopped == 5, within_s=3.0)
