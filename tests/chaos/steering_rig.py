"""Callers of a supervised capability: in this process, and in processes of their own that report what they see."""

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import reach
from reach.bus.keys import Role
from reach.call.client import Bus
from reach.observe.records import NullSink, Recorder
from reach.wire.reply import Reply
from tests.chaos.stress_rig import patient
from tests.chaos.supervisor_rig import ROOT, SupervisorRig

CAPABILITY = "job.do"


async def connected(rig: SupervisorRig) -> Bus:
    """Connect a caller that knows who serves `job.do` and what the table says of it."""
    connecting = reach.connect(
        settings=rig.system.settings(Role.CALLER), recorder=Recorder(NullSink(), rate_per_s=1)
    )
    bus = patient(await rig.entered(connecting))
    await bus.request(CAPABILITY, {})
    assert await bus._core.outbound.routes.ready(5)
    await bus.cards.instances(CAPABILITY)
    return bus


async def told(bus: Bus, condition: Callable[[Any], Any], *, within_s: float = 5.0) -> float:
    """Wait until what a caller knows of the table's entry meets a condition; how long that took, in seconds."""
    began = monotonic()
    async with asyncio.timeout(within_s):
        while True:
            entry = bus._core.outbound.routes.entry(CAPABILITY)
            if entry is not None and condition(entry):
                return monotonic() - began
            await asyncio.sleep(0.005)


async def spread(bus: Bus, calls: int, *, width: int = 50, **options: Any) -> list[Reply]:
    """Make calls, some at a time."""
    replies: list[Reply] = []

    async def some(number: int) -> None:
        for _ in range(number):
            replies.append(await bus.request(CAPABILITY, {"x": 1}, timeout_s=5, **options))  # noqa: PERF401 - as they end

    await asyncio.gather(*(some(calls // width) for _ in range(width)))
    return replies


def counted(replies: list[Reply], by: Callable[[Reply], Any]) -> dict[Any, float]:
    """Give the percentage of replies by what they say."""
    found = Counter(by(reply) for reply in replies)
    return {name: 100 * count / len(replies) for name, count in sorted(found.items(), key=str)}


class CallerProgram:
    """A caller in a process of its own: calls at a steady rate, and tells what it sees, line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(json.loads(line))

    async def heard(self, condition: Callable[[dict[str, Any]], Any], *, within_s: float) -> dict[str, Any]:
        """Wait for a line that meets a condition."""
        at = 0
        async with asyncio.timeout(within_s):
            while True:
                for line in self.lines[at:]:
                    at += 1
                    if condition(line):
                        return line
                await asyncio.sleep(0.005)

    async def end(self) -> list[dict[str, Any]]:
        """End it; gives all that it told."""
        if self.process.returncode is None:
            self.process.terminate()
        await self.process.wait()
        await self._reading
        return self.lines


async def caller_program(
    rig: SupervisorRig, *, per_s: float = 50.0, priority: str = "normal"
) -> CallerProgram:
    """Start a caller in a process of its own; it calls when this returns."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("steering_caller.py")),
        str(per_s),
        priority,
        stdout=asyncio.subprocess.PIPE,
        env={**rig.system.env, "PYTHONPATH": str(ROOT), "REACH_RECORDS": "off"},
        stderr=asyncio.subprocess.DEVNULL if os.environ.get("QUIET") else None,
    )
    program = CallerProgram(process)
    rig.at_end(program.end)
    await program.heard(lambda line: "ready" in line, within_s=60)
    return program
