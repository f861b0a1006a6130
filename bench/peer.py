"""One side of one contender as a process: `python -m bench.peer calls reach`.

It takes orders as JSON lines on stdin and answers each with one line on stdout: `{"do": "run", …}` drives the
load, `{"do": "watch"}` and `{"do": "watched"}` bracket a profile, `{"do": "break"}` fails calls until a breaker opens,
`{"do": "about"}` tells what runs. It ends
when stdin does, so that nothing is left when the orchestrator dies.
"""

import asyncio
import gc
import sys
from contextlib import AsyncExitStack
from typing import Any

from bench.channel import orders, tell
from bench.contenders import CONTENDERS, Contender
from bench.hotspots import Sampler
from bench.load import Call, drive


class Peer:
    """Follows orders. `call` is None on the side that answers."""

    def __init__(self, contender: Contender, call: Call | None) -> None:
        self._contender = contender
        self._call = call
        self._sampler = Sampler()

    async def follow(self, order: dict[str, Any]) -> dict[str, Any]:
        """Follow one order. Raises `ValueError` for one that is not known."""
        match order:
            case {"do": "run", "concurrency": int(concurrency), "warm_s": warm_s, "seconds": seconds}:
                if self._call is None:
                    raise ValueError("the side that answers cannot run the load")
                outcome = await drive(self._call, concurrency=concurrency, warm_s=warm_s, seconds=seconds)
                return outcome.to_map()
            case {"do": "break"}:
                breaks = getattr(self._call, "breaks", None)
                if breaks is None:
                    raise ValueError("only calls through Reach have a breaker")
                return {"calls": await breaks()}
            case {"do": "watch"}:
                self._sampler.start()
                return {}
            case {"do": "watched"}:
                return self._sampler.stop()
            case {"do": "about"}:
                return {
                    "python": sys.version.split()[0],
                    "loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
                    "versions": self._contender.versions(),
                }
            case _:
                raise ValueError(f"an order is run, break, watch, watched or about, not {order!r}")


async def _main(side: str, name: str) -> None:
    contender = CONTENDERS[name]
    async with AsyncExitStack() as stack:
        call: Call | None = None
        if side == "calls":
            call = await stack.enter_async_context(contender.calls())
        else:
            await stack.enter_async_context(contender.answers())
        peer = Peer(contender, call)
        gc.freeze()  # What was imported is not looked at again by the collector, for any contender.
        tell({"ready": True})
        async for order in orders():
            tell(await peer.follow(order))


if __name__ == "__main__":
    if sys.argv[1:2] not in (["calls"], ["answers"]) or sys.argv[2] not in CONTENDERS:
        sys.exit(f"python -m bench.peer calls|answers {'|'.join(CONTENDERS)}")
    import uvloop

    uvloop.run(_main(sys.argv[1], sys.argv[2]))
