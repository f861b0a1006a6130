"""`python -m bench.soak`: call for long, in every way in which a call can end, and watch the memory.

Echoes of all sizes, streams that are left early, calls that time out, are cancelled, fail, or find nobody. What a
call leaves behind shows as growth of the caller's or the agent's memory, or as something that still waits when all
of it is over (behaviour SPEED-5). Exit code 0 when nothing did.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.process import PeerProcess, resident_bytes
from bench.stage import environment, start_server
from reach.bus.keys import Role
from reach.bus.settings import resolve
from reach.call.client import Bus, connect
from reach.faults import Reason
from reach.observe.records import JsonLinesSink, Recorder

SECONDS: Final = 600.0
GROWTH_LIMIT_BYTES: Final = 8 * 1024 * 1024
"""What a process may grow from the first third of the time to the last: allocators do not give back at once."""

_ECHOES: Final = 16
_OF_EACH_KIND: Final = 4
_LARGE_EVERY_S: Final = 15.0
_LARGE_BYTES: Final = 1_500_000
_SAMPLE_S: Final = 0.5
_WARM_SHARE: Final = 0.2
_ASK_S: Final = 10.0


@dataclass(slots=True)
class Memory:
    """What a process held over time, in bytes; empty where the system does not tell."""

    samples: list[int] = field(default_factory=list)

    def growth(self) -> int:
        """Give how much more it held in the last third than in the first, medians, warming up left out."""
        steady = self.samples[int(len(self.samples) * _WARM_SHARE) :]
        third = len(steady) // 3
        if not third:
            return 0
        return int(median(steady[-third:]) - median(steady[:third]))

    def to_map(self) -> dict[str, int]:
        """Give it for programs."""
        if not self.samples:
            return {}
        return {
            "first": self.samples[0],
            "last": self.samples[-1],
            "peak": max(self.samples),
            "growth": self.growth(),
        }


@dataclass(slots=True)
class Soaked:
    """What came of it.

    Attributes:
        seconds: How long.
        ends: Calls by how they ended: `echo`, `stream`, `timeout`, `cancel`, `fail`, `nobody`, `large`.
        wrong: Calls that ended in another way than they should, by kind.
        caller: Memory of the calling process.
        agent: Memory of the serving process.
        waiting: What was left when all calls had ended: calls of the caller, requests of the agent, tasks of each.
    """

    seconds: float
    ends: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    caller: Memory = field(default_factory=Memory)
    agent: Memory = field(default_factory=Memory)
    waiting: dict[str, int] = field(default_factory=dict)

    def faults(self) -> list[str]:
        """Say what is wrong; empty when nothing is."""
        found = [
            f"{count} calls of kind {kind} did not end as they should" for kind, count in self.wrong.items()
        ]
        found += [f"{count} {what} left over" for what, count in self.waiting.items() if count]
        found += [
            f"the {name} grew by {memory.growth() / 2**20:.1f} MiB"
            for name, memory in (("caller", self.caller), ("agent", self.agent))
            if memory.growth() > GROWTH_LIMIT_BYTES
        ]
        return found

    def to_map(self) -> dict[str, Any]:
        """Give it for programs."""
        return {
            "seconds": self.seconds,
            "ends": dict(self.ends),
            "wrong": dict(self.wrong),
            "caller": self.caller.to_map(),
            "agent": self.agent.to_map(),
            "waiting": self.waiting,
            "faults": self.faults(),
        }


class Load:
    """The ways to call. Each method makes one call and gives whether it ended as it should."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._chance = random.Random(7)  # The same sizes each time.

    async def echo(self) -> bool:
        """A call that is answered."""
        params = {"text": "x" * self._chance.choice((20, 200, 2_000, 20_000))}
        reply = await self._bus.request("soak.echo", params, timeout_s=20)
        return reply.ok and reply.data == params

    async def stream(self) -> bool:
        """A stream that is left after a few frames."""
        wanted = self._chance.randrange(4)
        seen = 0
        async for frame in self._bus.stream("soak.count", {"size": 2_000}, timeout_s=20):
            seen += 1
            if frame["number"] != seen:
                return False
            if seen > wanted:
                break
        return True

    async def timeout(self) -> bool:
        """A call whose time runs out: here, or on its way to an agent that is busy."""
        reply = await self._bus.request("soak.sleep", {"seconds": 30}, timeout_s=0.03, retry=False)
        return reply.error is not None and reply.error.reason in {Reason.DEADLINE, Reason.STALE}

    async def cancel(self) -> bool:
        """A call whose caller leaves."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._chance.random() * 0.05):
                await self._bus.request("soak.sleep", {"seconds": 30}, timeout_s=20)
                return False
        return True

    async def fail(self) -> bool:
        """A call whose handler fails."""
        reply = await self._bus.request("soak.fail", {}, timeout_s=20)
        return reply.error is not None and reply.error.reason is Reason.HANDLER_ERROR

    async def nobody(self) -> bool:
        """A call that nobody serves."""
        await asyncio.sleep(0.01)
        reply = await self._bus.request("soak.absent", {}, timeout_s=20)
        return reply.error is not None and reply.error.reason is Reason.NO_RESPONDERS

    async def large(self) -> bool:
        """A call that does not fit one message."""
        params = {"blob": os.urandom(_LARGE_BYTES)}
        reply = await self._bus.request("soak.echo", params, timeout_s=20)
        return reply.ok and reply.data == params


async def _without_breakers(bus: Bus) -> None:
    """Let calls that fail on purpose be made: a breaker would keep nearly all of them away."""
    provider = (await bus.request("soak.echo", {}, timeout_s=20)).provider or ""
    for capability in ("soak.fail", "soak.sleep"):
        bus._core.outbound.lanes.of(capability, provider).breaker.disable()  # noqa: SLF001 - no operator here


async def soak(seconds: float, *, bus: Bus, agent: PeerProcess, tell: Callable[[str], None]) -> Soaked:
    """Call for so long, then wait for everything to end."""
    soaked = Soaked(seconds)
    load = Load(bus)
    await _without_breakers(bus)
    until = time.monotonic() + seconds
    tasks_before = len(asyncio.all_tasks())
    agent_before = await _about(agent)
    async with asyncio.TaskGroup() as group:
        for _ in range(_ECHOES):
            group.create_task(_repeat(load.echo, soaked, until))
        for kind in (load.stream, load.timeout, load.cancel, load.fail, load.nobody):
            for _ in range(_OF_EACH_KIND):
                group.create_task(_repeat(kind, soaked, until))
        group.create_task(_repeat(load.large, soaked, until, every_s=_LARGE_EVERY_S))
        group.create_task(_watch(soaked, agent, until, tell))
    await asyncio.sleep(1.0)  # What was cancelled last has ended at the far end too.
    gc.collect()
    agent_after = await _about(agent)
    soaked.waiting = {
        "calls in the caller": bus.pending,
        "requests in the agent": agent_after["inflight"],
        "tasks in the caller": max(0, len(asyncio.all_tasks()) - tasks_before),
        "tasks in the agent": max(0, agent_after["tasks"] - agent_before["tasks"]),
    }
    return soaked


async def _repeat(
    call: Callable[[], Awaitable[bool]], soaked: Soaked, until: float, *, every_s: float = 0.0
) -> None:
    kind = call.__name__
    while time.monotonic() < until:
        ended_well = await call()
        soaked.ends[kind] += 1
        if not ended_well:
            soaked.wrong[kind] += 1
        await asyncio.sleep(max(0.0, min(every_s, until - time.monotonic())))


async def _watch(soaked: Soaked, agent: PeerProcess, until: float, tell: Callable[[str], None]) -> None:
    told = time.monotonic()
    while (now := time.monotonic()) < until:
        for memory, pid in ((soaked.caller, os.getpid()), (soaked.agent, agent.pid)):
            if (held := resident_bytes(pid)) is not None:
                memory.samples.append(held)
        if now - told >= 10:
            told = now
            held_mib = " · ".join(
                f"{memory.samples[-1] / 2**20:.0f} MiB" for memory in (soaked.caller, soaked.agent)
            )
            tell(
                f"{until - now:>5.0f} s to go, {soaked.ends.total():,} calls, caller and agent hold {held_mib}"
            )
        await asyncio.sleep(_SAMPLE_S)


async def _about(agent: PeerProcess) -> dict[str, Any]:
    return await asyncio.to_thread(agent.ask, {"do": "about"}, timeout_s=_ASK_S)


async def _run(seconds: float, folder: Path, agent: PeerProcess, tell: Callable[[str], None]) -> Soaked:
    settings = resolve(role=Role.CALLER, env=environment(folder))
    recorder = Recorder(JsonLinesSink(folder / "records.jsonl"))
    try:
        async with connect(settings=settings, recorder=recorder) as bus:
            return await soak(seconds, bus=bus, agent=agent, tell=tell)
    finally:
        await asyncio.to_thread(recorder.close)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak; give the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long (600)")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    given = parser.parse_args(arguments)
    import uvloop  # noqa: PLC0415 - not on every platform, and the rest of the module is read by tests

    with tempfile.TemporaryDirectory(prefix="reach-soak-") as name:
        folder = Path(name)
        with start_server(folder):
            command = [sys.executable, "-m", "bench.soak_agent"]
            with PeerProcess(
                "the agent", command, env=environment(folder), log=folder / "agent.log"
            ) as agent:
                agent.wait_ready()
                soaked = uvloop.run(_run(given.seconds, folder, agent, _aside))
    if given.json:
        print(json.dumps(soaked.to_map()))
    else:
        _print(soaked)
    return 1 if soaked.faults() else 0


def _mib(size: float) -> float:
    return size / 2**20


def _aside(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(soaked: Soaked) -> None:
    print(f"{soaked.ends.total():,} calls in {soaked.seconds:.0f} s: ", end="")
    print(", ".join(f"{kind} {count:,}" for kind, count in soaked.ends.most_common()))
    for name, memory in (("caller", soaked.caller), ("agent", soaked.agent)):
        if memory.samples:
            sizes = (memory.samples[0], memory.samples[-1], memory.growth())
            print(
                "{}: {:.0f} MiB at first, {:.0f} MiB at last, grown by {:.1f} MiB".format(
                    name, *map(_mib, sizes)
                )
            )
    for fault in soaked.faults():
        print(f"✘ {fault}")
    if not soaked.faults():
        print("✔ nothing was left behind")


if __name__ == "__main__":
    sys.exit(main())
