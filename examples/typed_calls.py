"""Capabilities as functions: `touch` for what is far away, `guard` for what is done here.

Serve:  reach run examples.greeter:agent
Run:    python examples/typed_calls.py
"""

import asyncio

import reach


@reach.touch("greet.hello", timeout_s=3)
async def hello(name: str, times: int = 1) -> str:
    """Greet somebody: the signature says what is sent and what comes back; this body never runs."""
    raise NotImplementedError


@reach.touch("greet.hello")
def hello_plain(name: str) -> str:
    """Do the same from code without asyncio."""
    raise NotImplementedError


async def main() -> None:
    """Call both."""
    async with reach.connect():
        print(await hello("Ada", times=2))
        reply = await hello.reply("Ada")  # The whole reply; never raises for a failed call.
        print(reply.ok, reply.provider)


if __name__ == "__main__":
    print(hello_plain("Grace"))
    asyncio.run(main())
