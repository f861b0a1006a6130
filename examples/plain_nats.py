"""Calling an agent with nothing but a NATS client: JSON in, JSON out, in any language.

Serve:  reach run examples.greeter:agent
Run:    python examples/plain_nats.py nats://127.0.0.1:4222 ~/.local/state/agent-reach/keys/caller.nk
"""

import asyncio
import json
import sys

import nats


async def main(url: str, seed_file: str) -> None:
    """Make one call; `reach up` prints the address, and keeps the key of callers in its state folder."""
    client = await nats.connect(url, nkeys_seed=seed_file)
    parameters = {"name": "Ada"}
    answer = await client.request("cap.greet.hello", json.dumps(parameters).encode(), timeout=3)
    reply = json.loads(answer.data)
    print(reply["ok"], reply["data"], "from", reply["provider"])

    answer = await client.request("cap.greet.hello", b'{"nme": "Ada"}', timeout=3)
    error = json.loads(answer.data)["error"]
    print(error["code"], error["reason"], error["advice"])
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
