"""An agent of the acceptance tests, a program of its own: serves `job.do` and `job.post`, and fails as it is told.

Of each call that began it keeps when, and when it ended (monotonic s): how many were let through is counted here,
whatever callers were told. AGENT, VERSION, PRIORITY, RING (a label) and WORK_S say who it is.
"""

import asyncio
import os
from time import monotonic
from typing import Any

import reach
from reach.faults import Reason
from reach.runtime.instance import Instance
from reach.runtime.run import in_loop, serve_all
from tests.chaos.stress_orders import obey

WORK_S = float(os.environ.get("WORK_S", "0"))
PRIORITY = int(os.environ.get("PRIORITY", "10"))
RING = os.environ.get("RING")
STEP = 0.6180339887
"""The golden ratio's fraction: its multiples spread evenly, so a share of n % is that within a few calls."""

agent = reach.Agent(
    os.environ["AGENT"],
    version=os.environ.get("VERSION", "1.0.0"),
    labels={"ring": RING} if RING else None,
)


class Work:
    """What was done, and how much of it is to fail."""

    def __init__(self) -> None:
        self.share = 0.0
        self.retryable = False
        self.done: list[tuple[float, float, bool]] = []
        self.under_way = 0
        self.most_under_way = 0
        self._at = os.getpid() % 7 / 7

    async def do(self) -> dict[str, str]:
        """Work, or fail."""
        began = monotonic()
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self._at = (self._at + STEP) % 1.0
        fails = self._at < self.share
        try:
            if WORK_S:
                await asyncio.sleep(WORK_S)
            if fails:
                raise reach.UpstreamFailure(reason=Reason.REMOTE_5XX, retryable=self.retryable)
        finally:
            self.under_way -= 1
            self.done.append((began, monotonic(), not fails))
        return {"by": agent.agent_id, "version": agent.version}


work = Work()


@agent.capability("job.do", idempotent=True, priority=PRIORITY, max_concurrency=512)
async def do(params: dict) -> dict:  # type: ignore[type-arg]
    """Do what may be done twice."""
    return await work.do()


@agent.capability("job.post", priority=PRIORITY, max_concurrency=512)
async def post(params: dict) -> dict:  # type: ignore[type-arg]
    """Do what must not be done twice."""
    return await work.do()


class Orders:
    """What may be asked of the program."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    async def fail(self, share: float, *, retryable: bool = False) -> dict[str, Any]:
        """Let such a part of the calls fail from now on; when that was."""
        work.share, work.retryable = share, retryable
        return {"at": monotonic()}

    async def take(self) -> dict[str, Any]:
        """Give the calls that ended since the last time, and how many were under way at once at most."""
        done, work.done = work.done, []
        most, work.most_under_way = work.most_under_way, work.under_way
        return {"done": done, "under_way": work.under_way, "most": most}

    async def status(self) -> dict[str, Any]:
        """Give what it holds."""
        return {
            "instance": self._instance.name,
            "tickets": self._instance.membership.held,
            "epoch": self._instance.connection.epoch,
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
