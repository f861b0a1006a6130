"""A broadcast: every instance hears it, and each answers.

Serve twice:  reach run examples.purge_caches:agent   (in two terminals)
Run:          python examples/purge_caches.py
"""

import asyncio

import reach

agent = reach.Agent("catalogue")
CACHE = {"ladder": "aluminium, 4 m", "rope": "hemp, 20 m"}


@agent.capability("cache.purge", idempotent=True)
async def purge(prefix: str = "") -> int:
    """Forget what begins with a prefix; how many entries that were."""
    gone = [key for key in CACHE if key.startswith(prefix)]
    for key in gone:
        del CACHE[key]
    return len(gone)


async def main() -> None:
    """Purge the caches of all instances."""
    async with reach.connect() as bus:
        async for reply in bus.broadcast("cache.purge", {"prefix": "r"}, timeout_s=2):
            print(f"{reply.instance}: {reply.unwrap()} forgotten")


if __name__ == "__main__":
    asyncio.run(main())
