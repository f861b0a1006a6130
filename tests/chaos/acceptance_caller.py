"""A caller of the acceptance tests, a program of its own, that takes orders: a bus of ours, or a bare NATS client.

It makes calls at a steady rate, or as many at a time as it is told, and keeps of each a line
`[at, ms, end, by, instance, level, attempt, key]`: when it began (monotonic s), how long it took, `ok` or the reason
of its failure, and what the reply said. Of breakers it keeps each change: `[at, provider, state]`. PLAIN=1 makes it
a client that knows NATS and nothing else.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import nats
import nats.errors

import reach
from reach.bus.keys import Role
from reach.bus.settings import resolve
from reach.observe.records import NullSink, Recorder
from reach.runtime.run import in_loop
from tests.chaos.stress_orders import obey

TOO_LATE_S = 0.05
"""A pause of its own loop that is worth telling: a bound on time may have been missed by it."""

Line = list[Any]
CallOne = Callable[[str, dict[str, Any]], Awaitable[Line]]


class Orders:
    """What may be asked of the program."""

    def __init__(self, call: CallOne, bus: reach.Bus | None) -> None:
        self._call = call
        self._bus = bus
        self._lines: list[Line] = []
        self._states: list[Line] = []
        self._over = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []
        self._number = 0
        self._late_s = 0.0
        self._watching = asyncio.create_task(self._watch("job.do")) if bus is not None else None

    async def know(self, capability: str) -> dict[str, Any]:
        """Learn what the table and the cards say of a capability, as a caller has after its first calls."""
        await self._call(capability, {"key": f"know-{os.getpid()}"})
        if self._bus is None:
            return {}
        known = await self._bus._core.outbound.routes.ready(5)
        await self._bus.cards.instances(capability)
        return {"known": known}

    async def steady(self, capability: str, per_s: float, **params: Any) -> dict[str, Any]:
        """Begin to call at a steady rate."""
        self._over.clear()
        self._running.append(asyncio.create_task(self._steadily(capability, per_s, params)))
        return {}

    async def wide(self, capability: str, workers: int, **params: Any) -> dict[str, Any]:
        """Begin to call with so many at a time, each its next call when the last has ended."""
        self._over.clear()
        self._running.extend(
            asyncio.create_task(self._one_after_another(capability, params)) for _ in range(workers)
        )
        return {}

    async def number(self, capability: str, calls: int, workers: int, **params: Any) -> dict[str, Any]:
        """Make so many calls, and come back when they have ended."""
        left = iter(range(calls))

        async def some() -> None:
            for _ in left:
                await self._one(capability, params)

        await asyncio.gather(*(some() for _ in range(workers)))
        return {}

    async def keys(self, capability: str, keys: list[str], workers: int) -> dict[str, Any]:
        """Make one call for each key."""
        left = iter(keys)

        async def some() -> None:
            for key in left:
                self._lines.append([*await self._call(capability, {"key": key}), key])

        await asyncio.gather(*(some() for _ in range(workers)))
        return {}

    async def stop(self) -> dict[str, Any]:
        """Make no more, and wait for those under way."""
        self._over.set()
        await asyncio.gather(*self._running)
        self._running.clear()
        return {}

    async def take(self) -> dict[str, Any]:
        """Give what was kept since the last time."""
        lines, states, late_s = self._lines, self._states, self._late_s
        self._lines, self._states, self._late_s = [], [], 0.0
        return {"lines": lines, "states": states, "late_s": late_s}

    async def status(self) -> dict[str, Any]:
        """Give what breakers and the table say now."""
        if self._bus is None:
            return {}
        core = self._bus._core.outbound
        entry = core.routes.entry("job.do")
        return {
            "who": self._bus.connection.who,
            "revision": None if entry is None else entry.revision,
            "states": {lane.provider: lane.breaker.state.value for lane in core.lanes.known("job.do")},
        }

    async def _steadily(self, capability: str, per_s: float, params: dict[str, Any]) -> None:
        began, number = monotonic(), 0
        async with asyncio.TaskGroup() as group:
            while not self._over.is_set():
                group.create_task(self._one(capability, params))
                number += 1
                ahead_s = number / per_s - (monotonic() - began)
                self._late_s = max(self._late_s, -ahead_s)
                if ahead_s > 0:
                    await asyncio.sleep(ahead_s)
                elif number % 64 == 0:
                    await asyncio.sleep(0)

    async def _one_after_another(self, capability: str, params: dict[str, Any]) -> None:
        while not self._over.is_set():
            await self._one(capability, params)

    async def _one(self, capability: str, params: dict[str, Any]) -> None:
        self._number += 1
        key = f"{os.getpid()}-{self._number}"
        self._lines.append([*await self._call(capability, {"key": key, **params}), key])

    async def _watch(self, capability: str) -> None:
        seen: dict[str, str] = {}
        assert self._bus is not None
        lanes = self._bus._core.outbound.lanes
        while True:
            for lane in lanes.known(capability):
                state = lane.breaker.state.value
                if seen.get(lane.provider, "closed") != state:
                    self._states.append([monotonic(), lane.provider, state])
                seen[lane.provider] = state
            await asyncio.sleep(0.005)


def ours(bus: reach.Bus) -> CallOne:
    """Call through a bus."""
    timeout_s = float(os.environ.get("TIMEOUT_S", "10"))

    async def call(capability: str, params: dict[str, Any]) -> Line:
        at = monotonic()
        reply = await bus.request(capability, params, timeout_s=timeout_s)
        end = "ok" if reply.error is None else reply.error.reason.value
        ms = (monotonic() - at) * 1000
        return [at, ms, end, reply.provider, reply.instance, reply.degrade_level, reply.attempt]

    return call


def plain(client: Any) -> CallOne:
    """Call as any NATS client would."""
    timeout_s = float(os.environ.get("TIMEOUT_S", "2"))

    async def call(capability: str, params: dict[str, Any]) -> Line:
        at = monotonic()
        end, reply = "ok", {}
        try:
            message = await client.request(
                f"cap.{capability}", json.dumps(params).encode(), timeout=timeout_s
            )
            reply = json.loads(message.data)
            if not reply["ok"]:
                end = reply["error"]["reason"]
        except nats.errors.NoRespondersError:
            end = "NOBODY"
        except nats.errors.TimeoutError:
            end = "SILENCE"
        ms = (monotonic() - at) * 1000
        return [at, ms, end, reply.get("provider"), reply.get("instance"), reply.get("degrade_level"), 1]

    return call


async def main() -> None:
    """Call until told otherwise."""
    if os.environ.get("PLAIN"):
        client = await nats.connect(**resolve(role=Role.CALLER).to_nats_options())
        await obey(Orders(plain(client), None), first={"instance": "plain"})
        return
    async with reach.connect(recorder=Recorder(NullSink())) as bus:
        await obey(Orders(ours(bus), bus), first={"instance": bus.connection.who})


if __name__ == "__main__":
    in_loop(main())
