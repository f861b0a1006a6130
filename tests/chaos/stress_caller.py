"""A caller of the stress tests, a program of its own, so that what it holds is its own: calls as it is told to."""

import asyncio
import time
from contextlib import aclosing
from typing import Any

import reach
from reach.faults import Reason
from reach.observe.records import NullSink, Recorder
from reach.runtime.run import in_loop
from tests.chaos.stress_orders import held_bytes, obey

WIDTH = 50


class Orders:
    """What may be asked of the program."""

    def __init__(self, bus: reach.Bus) -> None:
        self._bus = bus
        self._open: list[Any] = []

    async def abandon(self, streams: int) -> dict[str, Any]:
        """Open streams without end and leave each after one to three parts, in order or just so."""
        return await self._many(streams, self._abandon_one)

    async def _abandon_one(self, index: int) -> bool:
        parts = self._bus.stream("stress.blocks", {"key": "left", "count": 1_000_000, "size": 2000})
        if index % 2:
            async with aclosing(parts):
                return await self._some_of(parts, index)
        return await self._some_of(parts, index)  # Nobody closes it; it is simply not used any more.

    async def _some_of(self, parts: Any, index: int) -> bool:
        seen = 0
        async for part in parts:
            seen += 1
            if seen > index % 3:
                return len(part) == 2000
        return False

    async def time_out(self, calls: int) -> dict[str, Any]:
        """Make calls whose time runs out; the breaker would keep most of them from being made."""
        for card in self._bus.cards.cards("stress.write"):
            self._bus._core.outbound.lanes.of("stress.write", card.agent_id).breaker.disable()
        return await self._many(calls, self._time_out_one)

    async def _time_out_one(self, index: int) -> bool:
        reply = await self._bus.request(
            "stress.write", {"key": f"late-{index}", "seconds": 60}, timeout_s=0.03, retry=False
        )
        error = reply.error
        return error is not None and (
            error.reason in {Reason.DEADLINE, Reason.STALE} or error.cause == "DEADLINE"
        )

    async def read(self, mebibytes: int, bytes_per_s: float) -> dict[str, Any]:
        """Read a stream at a steady rate."""
        size = 64 * 1024
        began = time.monotonic()
        got = 0
        options = {"key": "slow", "count": mebibytes * 16, "size": size}
        clocks = reach.StreamClocks(max_duration_s=600) if hasattr(reach, "StreamClocks") else None
        async for part in self._bus.stream("stress.blocks", options, clocks=clocks, timeout_s=600):
            got += len(part)
            ahead_s = got / bytes_per_s - (time.monotonic() - began)
            if ahead_s > 0:
                await asyncio.sleep(ahead_s)
        return {"got": got, "seconds": time.monotonic() - began}

    async def hold(self, streams: int, timeout_s: float) -> dict[str, Any]:
        """Open streams, read one part of each, and hold them open."""
        for _ in range(streams):
            parts = self._bus.stream(
                "stress.blocks", {"key": "held", "count": 1_000_000, "size": 2000}, timeout_s=timeout_s
            )
            await anext(parts)
            self._open.append(parts)
        return {"open": len(self._open)}

    async def status(self) -> dict[str, Any]:
        """Say what is held."""
        await asyncio.sleep(0.1)
        mux = self._bus._core.mux
        return {
            "pending": len(mux),
            "open": self._bus._core.outbound.open_calls,
            "accepted": len(mux._by_instance),
            "orphans": len(mux._orphans),
            "untold": len(mux._untold),
            "young": len(mux._young),
            "due": len(mux._wheel),
            "tasks": len(asyncio.all_tasks()),
            "faults": self._bus.connection.faults,
            "rss": held_bytes(),
        }

    async def _many(self, number: int, one: Any) -> dict[str, Any]:
        wrong = 0
        for first in range(0, number, WIDTH):
            ends = await asyncio.gather(*(one(index) for index in range(first, min(number, first + WIDTH))))
            wrong += ends.count(False)
        return {"wrong": wrong}


async def main() -> None:
    """Call until told otherwise."""
    recorder = Recorder(NullSink())
    async with reach.connect(recorder=recorder) as bus:
        await bus.cards.instances("stress.write")
        await obey(Orders(bus), first={"instance": bus.connection.who})


if __name__ == "__main__":
    in_loop(main())
