"""Delivers callbacks: takes what is due out of the ledger, a few at a time to each host, and writes what came of it.

A receiver that is slow holds only its own deliveries up. A try is written into the ledger before it is made; when
this process dies in between, the next one follows after the lease, under the same id.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from actors.tasks.hooks import Delivery, Standing
from actors.tasks.ledger import Ledger, Trouble
from actors.tasks.post import Outcome, Post
from actors.tasks.signing import Signer
from reach.bus.guard import Inward
from reach.errors import NotOnTheWire, ReachError
from reach.wire import codec
from reach.wire.cloudevent import to_cloud_event
from reach.wire.task import TaskEvent

if TYPE_CHECKING:
    from actors.tasks.book import Row
    from reach.bus.blobs import Blobs
    from reach.bus.guard import Guard
    from reach.bus.taskstream import TaskStream

_log = logging.getLogger("reach.tasks")

AT_ONCE: Final = 64
FOR_ONE_HOST: Final = 4
MOST_DATA: Final = 1024 * 1024
"""Results up to this size travel with the callback; who wants a larger one reads the event."""

_TROUBLE_MS: Final = 5000
_UNFORESEEN_MS: Final = 600_000
_LOOK_S: Final = 5.0

Tell = Callable[[str, str, str], None]


class Courier:
    """See the module. `tell` publishes an alert: kind, subject, message."""

    def __init__(
        self, ledger: Ledger, stream: TaskStream, blobs: Blobs, signer: Signer, guard: Guard, *, tell: Tell
    ) -> None:
        self.ledger = ledger
        self.signer = signer
        self._stream = stream
        self._blobs = blobs
        self._guard = guard
        self._post = Post(guard)
        self._tell = tell
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._busy: dict[str, int] = {}
        self._waiting: dict[str, deque[Delivery]] = {}

    async def owe(self, row: Row, event: TaskEvent, sequence: int) -> None:
        """Put the callback of a task's end into the ledger, where it has one. Raises `ReachError`, `LinkDown`."""
        if row.callback is None:
            return
        delivery = Delivery(
            id=event.event_id,
            tenant=event.tenant,
            task_id=event.task_id,
            capability=event.capability,
            state=event.state.value,
            url=row.callback,
            sequence=sequence,
            next_at=self._stream.now_ms(),
        )
        await self.ledger.owe(delivery)

    async def run(self) -> None:
        """Deliver, for ever."""
        await self.ledger.ready.wait()
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    self.ledger.changed.clear()
                    now_ms = self._stream.now_ms()
                    for delivery in self.ledger.due(now_ms):
                        self._hand_out(tasks, delivery)
                    next_at = self.ledger.next_at()
                    wait_s = (
                        _LOOK_S if next_at is None else min(_LOOK_S, max(0.01, (next_at - now_ms) / 1000))
                    )
                    with anyio.move_on_after(wait_s):
                        await self.ledger.changed.wait()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                await self._post.close()

    async def replay(self, delivery: Delivery) -> bool:
        """Owe a delivery anew, its address turned on again. Raises `ReachError`, `LinkDown`."""
        await self.ledger.turn(delivery, off=False)
        anew = replace(delivery)
        anew.replay(now_ms=self._stream.now_ms())
        return await self.ledger.keep(anew, instead_of=delivery)

    # -- steps ---------------------------------------------------------------------------------------

    def _hand_out(self, tasks: TaskGroup, delivery: Delivery) -> None:
        """Begin a delivery, or let it wait until its host has room."""
        host = self._host(delivery)
        if self._busy.get(host, 0) >= FOR_ONE_HOST:
            self._waiting.setdefault(host, deque()).append(delivery)
            return
        self._busy[host] = self._busy.get(host, 0) + 1
        tasks.start_soon(self._deliver_in_turn, host, delivery)

    async def _deliver_in_turn(self, host: str, delivery: Delivery | None) -> None:
        try:
            while delivery is not None:
                async with self._at_once:
                    await self._deliver_safely(delivery)
                waiting = self._waiting.get(host)
                delivery = waiting.popleft() if waiting else None
        finally:
            self._busy[host] -= 1
            if not self._busy[host]:
                del self._busy[host]
                self._waiting.pop(host, None)

    async def _deliver_safely(self, delivery: Delivery) -> None:
        try:
            await self._deliver(delivery)
        except Trouble as error:
            _log.info("callback %s waits: %s", delivery.id, str(error) or "no link to NATS")
            self.ledger.remind(delivery, self._stream.now_ms() + _TROUBLE_MS)
        except Exception:  # noqa: BLE001 - one that nobody foresaw must not be the end of all others
            _log.exception("callback %s of task %s cannot be sent as it is", delivery.id, delivery.task_id)
            self._tell(
                "webhook", f"{delivery.tenant}.{delivery.task_id}", f"callback {delivery.id} cannot be sent"
            )
            self.ledger.remind(delivery, self._stream.now_ms() + _UNFORESEEN_MS)

    async def _deliver(self, delivery: Delivery) -> None:
        """One try. Raises `ReachError`, `LinkDown`."""
        now_ms = self._stream.now_ms()
        if self.ledger.is_off(delivery):
            await self._close(delivery, Standing.DISABLED)
            return
        body = await self._body(delivery)
        mine = await self.ledger.begin(delivery, now_ms=now_ms)
        if mine is None:
            return
        if body is None:
            await self._close(mine, Standing.EXHAUSTED)
            return
        headers = self.signer.headers(mine.tenant, mine.id, body, now_ms=now_ms)
        outcome = await self._post.send(mine.url, body.encode(), headers, now_ms=now_ms)
        done = replace(mine)
        done.end(outcome.told, refused=outcome.refused)
        # Off before the delivery says so: whoever reads that it is off finds it off.
        if done.standing is Standing.DISABLED:
            await self.ledger.turn(done, off=True)
        await self.ledger.keep(done, instead_of=mine)
        self._explain(done, outcome)

    async def _close(self, delivery: Delivery, standing: Standing) -> None:
        closed = replace(delivery)
        closed.move(standing)
        await self.ledger.keep(closed, instead_of=delivery)

    def _explain(self, delivery: Delivery, outcome: Outcome) -> None:
        what = f"callback {delivery.id} of task {delivery.task_id}"
        if delivery.standing is Standing.DELIVERED:
            _log.debug("%s is delivered", what)
            return
        _log.warning("%s, try %d: %s", what, delivery.count, outcome.told.error)
        if delivery.standing is not Standing.PENDING:
            self._tell("webhook", f"{delivery.tenant}.{delivery.task_id}", f"{what}: {outcome.told.error}")

    def _host(self, delivery: Delivery) -> str:
        try:
            host, port = self._guard.check_url(delivery.url)
        except Inward:
            return ""
        return f"{host}:{port}"

    async def _body(self, delivery: Delivery) -> str | None:
        """Give the event as a CloudEvent; None where it is no longer kept. Raises `ReachError`, `LinkDown`."""
        entry = await self._stream.at(delivery.sequence)
        if entry is None:
            return None
        event = entry.event
        event.sequence = entry.sequence
        if event.blob is not None and event.blob.get("size", MOST_DATA + 1) <= MOST_DATA:
            try:
                event.data = codec.unpack(await self._blobs.get(event.blob, limit=MOST_DATA))["data"]
            except ReachError as error:
                _log.warning("the result of task %s is left out of its callback: %s", event.task_id, error)
        try:
            told = to_cloud_event(event)
        except NotOnTheWire as error:  # What a result may hold and JSON has no form of, such as NaN.
            _log.warning("what task %s brought is left out of its callback: %s", event.task_id, error)
            event.data = event.envelope = None
            told = to_cloud_event(event)
        return json.dumps(told, ensure_ascii=False, separators=(",", ":"))
