"""A task: it tells how far it is, survives a restart of its worker, and asks a person before it goes on.

Serve:   reach run examples.reconcile:agent
Submit:  reach submit ledger.reconcile period=2025-01 --wait     (in a second terminal: reach task ls)
Answer:  reach task answer TASK true
"""

import asyncio

import reach

agent = reach.Agent("ledger", version="1.0.0")
BOOKS = dict(enumerate(range(100, 500), start=1))
STATEMENT = {**BOOKS, 17: 0}  # The bank knows nothing of order 17.
PART = 100


@agent.task("ledger.reconcile", idempotent=True, timeout_s=3600)
async def reconcile(period: str, ctx: reach.TaskContext) -> dict[str, object]:
    """Compare the books of a period with the bank's statement."""
    done, open_orders = ctx.restored or (0, [])
    while done < len(BOOKS):
        part = list(BOOKS.items())[done : done + PART]
        open_orders += [order for order, amount in part if STATEMENT.get(order) != amount]
        done += len(part)
        await asyncio.sleep(0.15)  # As if it were work.
        await ctx.progress(done / len(BOOKS), f"matched {done - len(open_orders)} of {len(BOOKS)}")
        await ctx.checkpoint((done, open_orders))  # Should the worker be lost, another one goes on from here.
    release = bool(open_orders) and await ctx.ask(f"release {open_orders} of {period}?", schema=bool)
    return {"period": period, "matched": done - len(open_orders), "released": open_orders if release else []}
