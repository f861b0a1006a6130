"""A pipeline script with nothing but a NATS client: one call, and one task that outlives the script.

Serve:  reach run examples.greeter:agent examples.reconcile:agent
Run:    python examples/plain_pipeline.py nats://127.0.0.1:4222 ~/.local/state/agent-reach/keys/caller.nk
"""

import asyncio
import json
import sys

import nats


async def main(url: str, seed_file: str) -> None:
    """Call a capability, then submit a task under an id of one's own and follow it until it asks something."""
    client = await nats.connect(url, nkeys_seed=seed_file)
    answer = await client.request("cap.greet.hello", b'{"name": "Ada"}', timeout=3)
    print(json.loads(answer.data)["data"])

    events = await client.subscribe("task.event.*.default.close-2025-02.>")
    # The stream acknowledges: from here on the task is kept, whatever becomes of this script.
    subject = "task.event.queued.default.close-2025-02.ledger.reconcile"
    accepted = await client.request(subject, json.dumps({"period": "2025-02"}).encode(), timeout=3)
    print("kept by", json.loads(accepted.data)["stream"])
    while (state := (await events.next_msg(timeout=10)).subject.split(".")[2]) != "input_required":
        if state in {"queued", "running"}:
            print(state)
    print(state)

    done = await client.request("task.cancel.default.close-2025-02", b"", timeout=5)
    print(json.loads(done.data)["data"]["state"])
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
