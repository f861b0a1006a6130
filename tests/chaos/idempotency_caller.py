"""A caller of the tests of calls with a key, a program of its own: makes many calls of one key at once."""

import asyncio
from typing import Any

import reach
from reach.observe.records import NullSink, Recorder
from reach.policy.fingerprint import digest
from reach.runtime.run import in_loop
from tests.chaos.stress_orders import obey


class Orders:
    """What may be asked of the program."""

    def __init__(self, bus: reach.Bus) -> None:
        self._bus = bus

    async def race(self, capability: str, given: dict[str, Any], key: str, calls: int) -> dict[str, Any]:
        """Make so many calls at once; what each was told, its data as a digest."""
        replies = await asyncio.gather(
            *(self._bus.request(capability, given, idempotency_key=key, timeout_s=30) for _ in range(calls))
        )
        return {
            "told": [
                [
                    None if one.error is None else one.error.reason,
                    digest(one.data),
                    one.duplicate,
                    one.durable,
                ]
                for one in replies
            ]
        }


async def main() -> None:
    """Call until told otherwise."""
    async with reach.connect(recorder=Recorder(NullSink())) as bus:
        await bus.cards.instances("pay.write")
        await obey(Orders(bus), first={"instance": bus.connection.who})


if __name__ == "__main__":
    in_loop(main())
