"""The working side of the benchmark of tasks: `python -m bench.taskworker reach|taskiq`, until its input ends.

Both do nothing, and tell that they did: a task of Reach by its `completed` event, one of taskiq by a message, since
its NATS brokers keep no results.
"""

import asyncio
import sys
from typing import Any, Final

import reach
from reach.bus.keys import Role
from reach.bus.settings import resolve
from reach.runtime.run import in_loop

PLACES: Final = 256
NOOP: Final = "bench.noop"
READY: Final = "ready"

agent = reach.Agent("bench-worker")


@agent.task(NOOP, max_concurrency=PLACES)
async def noop() -> None:
    """Do nothing."""


def taskiq_broker(name: str = "taskiq") -> tuple[Any, Any]:
    """Give a broker of taskiq with its own defaults, on streams and subjects of this name, and its task."""
    from taskiq_nats import PullBasedJetStreamBroker  # noqa: PLC0415 - it may be missing

    options = resolve(role=Role.PLATFORM).to_nats_options()
    # Its default fetches one at a time, and so it is here: larger batches wait until they are full.
    broker = PullBasedJetStreamBroker(subject=name, stream_name=name, durable=name, **options)

    @broker.task(task_name=NOOP)
    async def told(subject: str) -> None:
        await broker.client.publish(subject, b"")

    return broker, told


async def main(kind: str) -> None:
    """Work until the input ends."""
    over = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    if kind == "reach":
        stop = asyncio.Event()
        ready = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(agent.serve(stop=stop, ready=ready.set_result))
        await ready
        print(READY, flush=True)
        await over
        stop.set()
        await serving
        return
    from taskiq.api import run_receiver_task  # noqa: PLC0415 - it may be missing

    broker, _ = taskiq_broker()
    broker.is_worker_process = True
    await broker.startup()
    receiving = asyncio.create_task(run_receiver_task(broker, max_async_tasks=PLACES))
    print(READY, flush=True)
    await over
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    await broker.shutdown()


if __name__ == "__main__":
    # As `agent.run()` does it: uvloop, and a collector that leaves alone what was imported; for both.
    in_loop(main(sys.argv[1]))
