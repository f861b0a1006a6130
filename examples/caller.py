"""Calling a capability, and what a failed call says.

Serve:  reach run examples.greeter:agent
Run:    python examples/caller.py
"""

import asyncio

import reach


async def main() -> None:
    """Make one call that works, and one that does not."""
    async with reach.connect() as bus:
        reply = await bus.request("greet.hello", {"name": "Ada"}, timeout_s=3)
        print(reply.unwrap())  # The result, or the matching ReachError.
        print(f"from {reply.provider}, attempt {reply.attempt}")

        # A failed call is a reply, too: nothing to catch, everything to decide by.
        reply = await bus.request("greet.hello", {"nme": "Ada"})
        if reply.error is not None:
            print(f"{reply.error.code}/{reply.error.reason}: {reply.error.message}")
            print(f"executed: {reply.error.executed}, advice: {reply.error.advice}")

        # Whoever prefers exceptions asks for them.
        try:
            (await bus.request("greet.bonjour", {"name": "Ada"})).unwrap()
        except reach.Unreachable as error:
            print(f"{error.code}/{error.reason}, executed: {error.executed}")


if __name__ == "__main__":
    asyncio.run(main())
