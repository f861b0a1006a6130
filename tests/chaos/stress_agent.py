"""The agent of the stress tests, a program of its own: it works as asked, and logs what its handlers did.

Each begin, end and cancellation of a handler is one line in the file EFFECTS, written with one system call: what
was really done is counted from there, whatever callers were told.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import reach
from reach.errors import CallTimeout, LinkDown
from reach.runtime.instance import Instance
from reach.runtime.run import in_loop, serve_all
from tests.chaos.stress_orders import held_bytes, obey

LIMIT = int(os.environ.get("LIMIT", "512"))
PID = os.getpid()

agent = reach.Agent(os.environ.get("AGENT", "stress"))
effects = os.open(os.environ["EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(event: str, kind: str, key: str) -> None:
    """Write down what a handler did, and when (CLOCK_MONOTONIC is the same in all processes of a machine)."""
    os.write(effects, f"{event} {kind} {key} {PID} {time.monotonic():.6f}\n".encode())


async def work(kind: str, key: str, seconds: float) -> str:
    """Take that long, and note how it ended."""
    note("begin", kind, key)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note("cancelled", kind, key)
        raise
    note("end", kind, key)
    return key


@agent.capability("stress.read", idempotent=True, max_concurrency=LIMIT)
async def read(key: str, seconds: float = 0.0) -> str:
    """Do what may be done twice."""
    return await work("read", key, seconds)


@agent.capability("stress.write", max_concurrency=LIMIT)
async def write(key: str, seconds: float = 0.0) -> str:
    """Do what must not be done twice."""
    return await work("write", key, seconds)


@agent.capability("stress.block", max_concurrency=LIMIT)
async def block(key: str, seconds: float) -> str:
    """Compute in the loop, which nobody should."""
    note("begin", "block", key)
    time.sleep(seconds)  # The mistake that is looked at.
    note("end", "block", key)
    return key


@agent.capability("stress.thread", max_concurrency=8)
def thread(key: str, seconds: float) -> str:
    """Work where nobody can stop it."""
    note("begin", "thread", key)
    time.sleep(seconds)
    note("end", "thread", key)
    return key


@agent.capability("stress.blocks", max_concurrency=LIMIT)
async def blocks(key: str, count: int, size: int) -> AsyncIterator[bytes]:
    """Send blocks as fast as they are taken."""
    note("begin", "blocks", key)
    block = b"x" * size
    given = 0
    try:
        while given < count:
            yield block
            given += 1
    finally:
        note(f"gave-{given}", "blocks", key)


class Orders:
    """What may be asked of the program."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    async def tickets(self, capability: str, count: int) -> dict[str, Any]:
        """Hold so many tickets."""
        return {"done": await self._instance.membership.set_tickets(capability, count)}

    async def flip(self, capability: str, count: int, seconds: float) -> dict[str, Any]:
        """Change between no ticket and `count` nearly as fast as it goes, for so long."""
        until = time.monotonic() + seconds
        flips = 0
        while time.monotonic() < until:
            for tickets in (0, count):
                await self._instance.membership.set_tickets(capability, tickets)
                await asyncio.sleep(0.002)
                flips += 1
        return {"flips": flips}

    async def reach(self) -> dict[str, Any]:
        """Say on which link it is, once the server has confirmed everything that was sent there; 0 without one."""
        connection = self._instance.connection
        epoch = connection.epoch
        try:
            await connection.flush(1.0)
        except (LinkDown, CallTimeout):
            return {"epoch": 0}
        return {"epoch": epoch}

    async def status(self) -> dict[str, Any]:
        """Say what is held."""
        inbound, connection = self._instance._inbound, self._instance.connection
        return {
            "instance": self._instance.name,
            "running": sum(one.running for one in self._instance.served),
            "inflight": inbound.inflight,
            "by_message": len(inbound._by_message),
            "young": len(inbound._young),
            "elder": len(inbound._elder),
            "tasks": len(asyncio.all_tasks()),
            "stalls": self._instance._guard.stalls,
            "faults": connection.faults,
            "epoch": connection.epoch,
            "renewals": connection.renewals,
            "subscriptions": len(connection.subscriptions),
            "rss": held_bytes(),
        }


async def main() -> None:
    """Serve until told otherwise."""
    listening: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()

    def ready(instance: Instance) -> None:
        listening.append(loop.create_task(obey(Orders(instance), first={"instance": instance.name})))

    await serve_all(agent, ready=ready)
    for task in listening:
        task.cancel()


if __name__ == "__main__":
    in_loop(main())
