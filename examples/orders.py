"""An agent that calls others: deadline, session, trace and tenant are inherited without being asked for.

Serve both:  reach run examples.orders:shop examples.orders:stock
Call:        reach call order.quote item=ladder count:=2 --session s-17
"""

import reach

stock = reach.Agent("stock")
shop = reach.Agent("shop")
PRICES = {"ladder": 120, "rope": 15}


@stock.capability("stock.price", idempotent=True)
async def price(item: str, ctx: reach.Context) -> dict[str, object]:
    """Give the price of an item, and who asked within which session."""
    if item not in PRICES:
        # A failure of the caller's making: told as it is, never retried.
        raise reach.UpstreamRefusal(f"there is no item {item!r}", reason=reach.Reason.NOT_FOUND)
    return {"price": PRICES[item], "asked_by": ctx.source, "session": ctx.session_id}


@shop.capability("order.quote", idempotent=True, timeout_s=4)
async def quote(item: str, count: int, ctx: reach.Context) -> dict[str, object]:
    """Make an offer."""
    found = (await ctx.bus.request("stock.price", {"item": item})).unwrap()  # Within what is left of 4 s.
    return {"item": item, "total": found["price"] * count, "session": found["session"]}


if __name__ == "__main__":
    reach.run(shop, stock)
