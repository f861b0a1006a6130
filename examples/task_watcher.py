"""Following the ends of all tasks, from the first that is kept, with a feed that tells whether it is alive.

Serve:  reach run examples.reconcile:agent
Run:    python examples/task_watcher.py 1       (how many ends it waits for)
"""

import asyncio
import sys

import reach

ENDS = ["completed", "failed", "cancelled", "timed_out", "dead"]


async def main(wanted: int) -> None:
    """Print ends until there were enough; a restart of the server in between leaves none out, and repeats none."""
    async with reach.connect() as bus:
        feed = bus.task_events(state=ENDS, capability="ledger.*", since="start")
        async for event in feed:
            print(event.capability, event.state, "alive" if feed.alive else "no news for a while")
            wanted -= 1
            if not wanted:
                break  # `since=event.sequence + 1` would go on from here another day.


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
