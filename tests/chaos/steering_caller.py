"""A caller, a program of its own: calls `job.do` at a steady rate and prints each change of a breaker, and each call.

Lines are JSON: `{"at": monotonic s, "provider": …, "state": …}` when a lane's breaker is another now, and
`{"at": …, "ok": …, "by": …, "reason": …, "level": …}` for each call.
"""

import asyncio
import json
import signal
import sys
from time import monotonic
from typing import Any

import reach
from tests.chaos.stress_rig import patient


def say(**facts: Any) -> None:
    """Print a line."""
    print(json.dumps({"at": monotonic(), **facts}), flush=True)  # noqa: T201 - that is how it is heard


async def watch(bus: reach.Bus) -> None:
    """Tell of breakers."""
    seen: dict[str, str] = {}
    lanes = bus._core.outbound.lanes
    while True:
        for lane in lanes.known("job.do"):
            state = lane.breaker.state.value
            if seen.get(lane.provider, "closed") != state:
                seen[lane.provider] = state
                say(provider=lane.provider, state=state, told=lane.told)
        await asyncio.sleep(0.005)


async def call(bus: reach.Bus, priority: Any) -> None:
    """Make one call."""
    reply = await bus.request("job.do", {"x": 1}, timeout_s=3, priority=priority)
    error = reply.error
    say(
        ok=reply.ok,
        by=reply.provider,
        instance=reply.instance,
        level=reply.degrade_level,
        reason=None if error is None else error.reason.value,
        ms=reply.latency_ms,
    )


async def main(per_s: float, priority: str) -> None:
    """Call until told to end."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with reach.connect() as bus, asyncio.TaskGroup() as group:
        patient(bus)
        await bus.request("job.do", {})
        await bus._core.outbound.routes.ready(5)
        watching = group.create_task(watch(bus))
        say(ready=True)
        began, number = monotonic(), 0
        while not over.is_set():
            group.create_task(call(bus, priority))
            number += 1
            ahead_s = number / per_s - (monotonic() - began)
            if ahead_s > 0:
                await asyncio.sleep(ahead_s)
        watching.cancel()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]), sys.argv[2]))
