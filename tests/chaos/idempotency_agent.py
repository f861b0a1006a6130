"""An agent of the tests of calls with a key, a program of its own that dies where it is told to.

Each effect is one line in the file EFFECTS, written with one system call and synced before the handler goes on: what
was really done is counted from there. DIE says where this process ends itself with SIGKILL: `before_entry`,
`before_start` (its entry is written), `middle` (its handler has begun), `after_effect` (which is not stored yet),
`after_stored` (nobody is answered yet). LEASE_S is how long it counts as being there when it is silent.
"""

import asyncio
import os
import signal
from typing import Any

import reach
from reach.runtime import once
from reach.runtime.instance import Instance
from reach.runtime.run import in_loop, serve_all
from reach.wire.idempotency import EntryState
from tests.chaos.stress_orders import obey

DIE = os.environ.get("DIE", "")
effects = os.open(os.environ["EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
agent = reach.Agent(os.environ["AGENT"])
once.LEASE_TTL_S = float(os.environ.get("LEASE_S", "30"))  # type: ignore[misc]


def die(where: str) -> None:
    """End this process without a word, if this is where."""
    if where == DIE:
        os.kill(os.getpid(), signal.SIGKILL)


async def pay(number: str, wait_s: float, size: int) -> Any:
    """Pay, which is the effect."""
    die("middle")
    os.write(effects, f"{number}\n".encode())
    os.fsync(effects)
    die("after_effect")
    await asyncio.sleep(wait_s)
    return {"paid": number, "by": agent.agent_id, "proof": "x" * size}


@agent.capability("pay.write", max_concurrency=8)
async def write(number: str, wait_s: float = 0.0, size: int = 0) -> Any:
    """Do what must not be done twice."""
    return await pay(number, wait_s, size)


@agent.capability("pay.put", idempotent=True, max_concurrency=8)
async def put(number: str, wait_s: float = 0.0, size: int = 0) -> Any:
    """Do what may be done twice."""
    return await pay(number, wait_s, size)


def deadly(store: Any) -> None:
    """Let the process die beside what it writes."""
    create, update = store.create, store.update

    async def creating(key: str, entry: Any, **options: Any) -> int:
        die("before_entry")
        revision: int = await create(key, entry, **options)
        die("before_start")
        return revision

    async def updating(key: str, entry: Any, **options: Any) -> int:
        revision: int = await update(key, entry, **options)
        if entry.state is EntryState.DONE:
            die("after_stored")
        return revision

    store.create, store.update = creating, updating


class Orders:
    """What may be asked of the program."""

    async def status(self) -> dict[str, Any]:
        """Say that it is there."""
        return {"agent": agent.agent_id}


async def main() -> None:
    """Serve until told otherwise."""
    listening: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()

    def ready(instance: Instance) -> None:
        if DIE:
            deadly(instance._once.keeper.store)
        listening.append(loop.create_task(obey(Orders(), first={"instance": instance.name})))

    await serve_all(agent, ready=ready)
    for task in listening:
        task.cancel()


if __name__ == "__main__":
    in_loop(main())
