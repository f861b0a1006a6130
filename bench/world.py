"""The agents that the workload calls: a small shop whose answers follow from what is asked, and which counts them.

What it does, its cards say: customers may be kept for the usual five seconds, orders are read one by one or many at
once, prices must be of this moment, and notes are written down. What is asked twice is answered alike, so results can
be compared; every execution is counted by capability, which is what the workload is about.
"""

import asyncio
from collections import Counter
from hashlib import blake2b
from typing import Any, Final

import reach

PROFILE: Final = "customer.profile"
LEVEL: Final = "stock.level"
ORDER: Final = "order.get"
ORDERS: Final = "order.many"
QUOTE: Final = "price.quote"
NOTE: Final = "note.append"

_WORK_S: Final = 0.002
"""What a look into a database takes, about."""

_USUAL: Final = reach.Cache(ttl_s=5)


def _number(*parts: object) -> int:
    """Give a number that follows from what it is of."""
    digest = blake2b("/".join(str(part) for part in parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")


def _order(order_id: int) -> dict[str, Any]:
    return {"order_id": order_id, "total": _number("order", order_id) % 10_000, "lines": order_id % 7 + 1}


class World:
    """The shop's agents; `done` counts their executions, by capability."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.agents = (self._customers(), self._stock(), self._orders(), self._notes())

    def _customers(self) -> reach.Agent:
        agent = reach.Agent("customers")

        @agent.capability(PROFILE, reads=True, cache=_USUAL)
        async def profile(customer: int) -> dict[str, Any]:
            await self._work(PROFILE)
            return {
                "customer": customer,
                "since": 2000 + _number("customer", customer) % 26,
                "segment": "retail",
            }

        return agent

    def _stock(self) -> reach.Agent:
        agent = reach.Agent("stock")

        @agent.capability(LEVEL, reads=True, cache=_USUAL)
        async def level(article: str) -> int:
            await self._work(LEVEL)
            return _number("stock", article) % 500

        @agent.capability(QUOTE, reads=True)
        async def quote(article: str, pieces: int) -> dict[str, Any]:
            await self._work(QUOTE)
            return {"article": article, "price": _number("price", article) % 1_000 * pieces}

        return agent

    def _orders(self) -> reach.Agent:
        agent = reach.Agent("orders")
        rule = reach.Batch(by="order_id", into=ORDERS, many="order_ids")

        @agent.capability(ORDER, reads=True, batch=rule)
        async def get(order_id: int) -> dict[str, Any]:
            await self._work(ORDER)
            return _order(order_id)

        @agent.capability(ORDERS, reads=True)
        async def many(order_ids: list[int]) -> list[dict[str, Any]]:
            await self._work(ORDERS)
            return [_order(order_id) for order_id in order_ids]

        return agent

    def _notes(self) -> reach.Agent:
        agent = reach.Agent("notes")

        @agent.capability(NOTE)
        async def append(customer: int, text: str) -> str:
            await self._work(NOTE)
            return f"noted for {customer}: {text}"

        return agent

    async def _work(self, capability: str) -> None:
        self.done[capability] += 1
        await asyncio.sleep(_WORK_S)
