"""Processes that race for limits of all callers together, and the one agent that they call.

A racer is an agent itself, so that it takes orders as calls: so many calls of a capability at once, or one after the
other for a while. It tells when each of them was let in, by the machine's steady clock, which all processes share.
"""

import asyncio
from typing import Any

import reach
from tests.runtime.fleet import Fleet, Program

RACER = """
import asyncio, sys
from time import monotonic
import reach
from reach.call.gate import Gate

name = sys.argv[0].rsplit("/", 1)[-1].removesuffix(".py")
racer = reach.Agent(name)
let_in = []
enter = Gate.enter


async def watched(gate, **options):
    grant = await enter(gate, **options)
    let_in.append(monotonic())
    return grant


Gate.enter = watched


@racer.capability(f"{name}.race", timeout_s=60)
async def race(capability: str, calls: int, at: float, task_id: str | None, ctx: reach.Context) -> dict:
    options = {"timeout_s": 10} | ({"task_id": task_id} if task_id else {})
    await ctx.bus.cards.instances(capability)
    await asyncio.sleep(max(0.0, at - monotonic()))
    replies = await asyncio.gather(*(ctx.bus.request(capability, **options) for _ in range(calls)))
    return {
        "good": sum(reply.ok for reply in replies),
        "reasons": sorted({str(reply.error.reason) for reply in replies if reply.error}),
        "owners": sorted({reply.error.limit["owner"] for reply in replies if reply.error and reply.error.limit}),
        "local": ctx.bus.metrics.quota_local.value(capability),
    }


@racer.capability(f"{name}.hammer", timeout_s=60)
async def hammer(capability: str, seconds: float, hands: int, pause_s: float, ctx: reach.Context) -> dict:
    let_in.clear()
    ends = monotonic() + seconds

    async def hand(number):
        good = 0
        while monotonic() < ends:
            good += (await ctx.bus.request(capability, queue=number % 2 == 0, timeout_s=2)).ok
            await asyncio.sleep(pause_s * (1 + number))
        return good

    goods = await asyncio.gather(*(hand(number) for number in range(hands)))
    return {"good": sum(goods), "let_in": let_in[:]}


racer.run()
"""


class Target:
    """The agent that is called; it counts what reaches it, by capability, and lets calls end when told."""

    def __init__(self) -> None:
        self.agent = reach.Agent("target")
        self.reached: dict[str, int] = {}
        self.under_way = 0
        self.go = asyncio.Event()
        self.go.set()

    def offer(self, capability: str, rate: reach.Rate | None, *, idempotent: bool = True) -> str:
        """Have one more capability."""
        self.reached[capability] = 0

        async def hit() -> None:
            self.reached[capability] += 1
            self.under_way += 1
            try:
                await self.go.wait()
            finally:
                self.under_way -= 1

        self.agent.capability(capability, rate=rate, idempotent=idempotent, max_concurrency=1_000)(hit)
        return capability


async def racers(fleet: Fleet, number: int, **env: str) -> list[Program]:
    """Start so many processes that race."""
    programs = [fleet.start(RACER, name=f"racer{index}", **env) for index in range(number)]
    for program in programs:
        await program.ready()
    return programs


async def order(bus: reach.Bus, racer: int, what: str, **params: Any) -> dict[str, Any]:
    """Give one racer an order, and wait until it is done."""
    found: dict[str, Any] = (await bus.request(f"racer{racer}.{what}", params, timeout_s=60)).unwrap()
    return found
