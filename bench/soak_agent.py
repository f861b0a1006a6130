"""The agent of the soak: a capability for each way in which a call can end."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from bench.channel import orders, tell
from reach.runtime.agent import Agent
from reach.runtime.instance import Instance

MAX_CONCURRENCY: Final = 2048

agent = Agent("soak")


@agent.capability("soak.echo", idempotent=True, max_concurrency=MAX_CONCURRENCY)
async def echo(params: dict[str, Any]) -> dict[str, Any]:
    """Give back what comes."""
    return params


@agent.capability("soak.sleep", idempotent=True, max_concurrency=MAX_CONCURRENCY)
async def sleep(seconds: float) -> None:
    """Take longer than any caller here waits."""
    await asyncio.sleep(seconds)


@agent.capability("soak.fail", max_concurrency=MAX_CONCURRENCY)
async def fail() -> None:
    """Fail as a handler with a mistake in it does."""
    raise RuntimeError("as asked")


@agent.capability("soak.count", max_concurrency=MAX_CONCURRENCY)
async def count(size: int) -> AsyncIterator[dict[str, Any]]:
    """Stream without an end, until the reader leaves."""
    number = 0
    while True:
        number += 1
        yield {"number": number, "filling": "x" * size}


async def _main() -> None:
    ready, stop = asyncio.Event(), asyncio.Event()
    running: list[Instance] = []

    def on_ready(instance: Instance) -> None:
        running.append(instance)
        ready.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(agent.serve(stop=stop, ready=on_ready))
        await ready.wait()
        tell({"ready": True})
        async for _ in orders():
            tell({"inflight": running[0].inflight, "tasks": len([*filter(_is_at_work, asyncio.all_tasks())])})
        stop.set()


def _is_at_work(task: asyncio.Task[object]) -> bool:
    """Whether a task is more than one that waits for the next request (`reach.runtime.crew`)."""
    return getattr(task.get_coro(), "__qualname__", "") != "Crew._hand"


if __name__ == "__main__":
    import uvloop

    uvloop.run(_main())
