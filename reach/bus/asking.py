"""Questions on the control plane: one answer, or everybody's (calls go through the mux).

Each question has an inbox of its own for as long as it is open, under the connection's own prefix; it ends with
its link, since whoever was asked answers where nobody listens any more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from reach import ids
from reach.errors import CallTimeout, Unreachable
from reach.faults import Executed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reach.bus.connection import Connection
    from reach.bus.framing import Delivery


async def ask(
    connection: Connection,
    subject: str,
    data: bytes,
    *,
    timeout_s: float,
    headers: dict[str, str] | None = None,
) -> bytes:
    """Ask once, and give the first answer. Raises `LinkDown`, `CallTimeout`, `Unreachable`."""
    answer: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()

    def deliver(delivery: Delivery) -> None:
        if not answer.done():
            answer.set_result(delivery)

    inbox = f"{connection.inbox}.{ids.new_id()}.1"
    subscription = connection.subscribe(inbox, deliver, durable=False)
    try:
        connection.publish(subject, data, reply=inbox, headers=headers)
        async with asyncio.timeout(timeout_s):
            delivery = await answer
    except TimeoutError:
        msg = f"no answer on {subject} within {timeout_s} s"
        raise CallTimeout(msg) from None
    finally:
        subscription.drop()
    if delivery.no_responders:
        raise Unreachable(executed=Executed.NO)
    return delivery.data


async def ask_many(
    connection: Connection, subject: str, data: bytes, *, timeout_s: float, stall_s: float | None = None
) -> AsyncIterator[bytes]:
    """Ask everybody, and yield answers until `timeout_s`, or until none came for `stall_s`. Raises `LinkDown`."""
    loop = asyncio.get_running_loop()
    answers: asyncio.Queue[Delivery] = asyncio.Queue()
    inbox = f"{connection.inbox}.{ids.new_id()}.1"
    subscription = connection.subscribe(inbox, answers.put_nowait, durable=False)
    deadline = loop.time() + timeout_s
    try:
        connection.publish(subject, data, reply=inbox)
        while (left := deadline - loop.time()) > 0:
            try:
                async with asyncio.timeout(left if stall_s is None else min(left, stall_s)):
                    delivery = await answers.get()
            except TimeoutError:
                return
            if delivery.no_responders:
                return
            yield delivery.data
    finally:
        subscription.drop()
