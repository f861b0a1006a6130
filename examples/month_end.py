"""Submitting a task, following it, and answering what it asks.

Serve:  reach run examples.reconcile:agent
Run:    python examples/month_end.py
"""

import asyncio
from contextlib import suppress

import reach


async def main() -> None:
    """Close a month; run twice it is the same task, because the key is the same."""
    async with reach.connect() as bus:
        task = await bus.submit("ledger.reconcile", {"period": "2025-01"}, idempotency_key="close-2025-01")
        async for event in task.events():
            if event.state is reach.TaskState.PROGRESS and "message" in event.data:
                print(f"{event.data['fraction']:.0%} {event.data['message']}")
            elif event.state is reach.TaskState.INPUT_REQUIRED:
                print(event.data["question"])
                with suppress(reach.UpstreamRefusal):  # Run a second time, it has been answered before.
                    await task.answer(True)  # noqa: FBT003 - the answer to a question of yes or no
        print(await task.result(timeout_s=60))


if __name__ == "__main__":
    asyncio.run(main())
