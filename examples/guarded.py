"""Your own way to a service, under the same rules as a call: `guard` adds deadline, retry and record.

Run:  python examples/guarded.py
"""

import asyncio

import reach

TRIES = {"count": 0}


@reach.guard("order.query", idempotent=True, timeout_s=3)
async def query_orders(account_id: str) -> list[str]:
    """Ask the order service; here its first connection is refused, as of a service that is just restarting."""
    TRIES["count"] += 1
    if TRIES["count"] == 1:
        raise ConnectionRefusedError(111, "Connection refused")
    return [f"{account_id}-1", f"{account_id}-2"]


@reach.guard("order.cancel", timeout_s=0.2)
async def cancel_order(order_id: str) -> str:
    """Cancel an order at a service that never answers. Not idempotent, so it is not tried twice."""
    await asyncio.sleep(60)
    return order_id


async def main() -> None:
    """Call one that recovers and one that does not."""
    print(await query_orders("a7"), "after", TRIES["count"], "tries")
    reply = await cancel_order.reply("a7-1")
    if reply.error is not None:
        print(reply.error.reason, reply.error.cause, reply.error.advice)


if __name__ == "__main__":
    asyncio.run(main())
