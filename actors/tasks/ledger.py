"""The ledger of callbacks: what is owed and what became of it, in the bucket `reach_webhooks`.

Every change is a compare-and-set on the delivery's own key, so several platforms may look after the same ledger:
each try is begun by exactly one of them. What others write arrives by the bucket's own feed.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import msgspec

from actors.tasks import hooks
from actors.tasks.hooks import Delivery, Standing
from reach.bus.feed import Begin, Feed
from reach.bus.jetstream import GuardRefused, Unacknowledged
from reach.errors import CallTimeout, LinkDown, ReachError

if TYPE_CHECKING:
    from reach.bus.connection import Connection
    from reach.bus.jetstream import JetStream

_log = logging.getLogger("reach.tasks")

BUCKET: Final = "reach_webhooks"
_PREFIX: Final = f"$KV.{BUCKET}."


class Ledger:
    """See the module. `read` runs for as long as the ledger is used; the rest may be used once `ready` is set."""

    def __init__(self, connection: Connection, jetstream: JetStream) -> None:
        self._jetstream = jetstream
        self._feed = Feed(connection, jetstream, f"KV_{BUCKET}", [f"{_PREFIX}>"], Begin(sequence=1))
        self.ready = asyncio.Event()
        self.changed = asyncio.Event()
        """Set when something may be due earlier than before."""
        self.entries: OrderedDict[str, tuple[int, Delivery]] = OrderedDict()
        """Deliveries with the sequence at which they stand, the latest written last."""
        self._off: dict[str, int] = {}
        self._due: list[tuple[int, str]] = []

    async def open(self) -> None:
        """Begin to read. Raises `ReachError`."""
        await self._feed.open()
        if self._feed.caught_up:
            self.ready.set()

    async def read(self) -> None:
        """Follow the bucket, for ever."""
        try:
            async for arrived in self._feed:
                key = arrived.subject.removeprefix(_PREFIX)
                self._take(key, arrived.position.stream_seq, arrived.data)
                if self._feed.caught_up:
                    self.ready.set()
        finally:
            self._feed.close()

    def due(self, now_ms: int) -> list[Delivery]:
        """Take out the deliveries that are due."""
        found: list[Delivery] = []
        while self._due and self._due[0][0] <= now_ms:
            at_ms, key = heapq.heappop(self._due)
            _, delivery = self.entries.get(key, (0, None))
            if delivery is not None and delivery.standing is Standing.PENDING and delivery.next_at == at_ms:
                found.append(delivery)
        return found

    def next_at(self) -> int | None:
        """When the next one is due; None for none."""
        return self._due[0][0] if self._due else None

    def find(self, name: str) -> list[Delivery]:
        """Give the deliveries of an id: a delivery's own, or a task's."""
        return [one for _, one in self.entries.values() if name in {one.id, one.task_id}]

    def is_off(self, delivery: Delivery) -> bool:
        """Whether its address is turned off."""
        return bool(self._off.get(hooks.off_key(delivery.tenant, delivery.url)))

    async def owe(self, delivery: Delivery) -> bool:
        """Put a delivery into the ledger; False when it is there already. Raises `ReachError`, `LinkDown`."""
        key = key_of(delivery)
        return key not in self.entries and await self._write(key, delivery, 0)

    async def keep(self, delivery: Delivery, *, instead_of: Delivery) -> bool:
        """Write a delivery in place of the one that it was made from; False when that one stands no more.

        Another platform, or an operator, was first then. Raises as `owe`.
        """
        key = key_of(delivery)
        sequence, current = self.entries.get(key, (0, None))
        return current is instead_of and await self._write(key, delivery, sequence)

    async def begin(self, delivery: Delivery, *, now_ms: int) -> Delivery | None:
        """Begin a try of a delivery, as the only one who does; None where another platform has begun it."""
        mine = msgspec.structs.replace(delivery)
        mine.begin(now_ms=now_ms)
        return mine if await self.keep(mine, instead_of=delivery) else None

    async def turn(self, delivery: Delivery, *, off: bool) -> None:
        """Turn a delivery's address off, or on again. Raises as `owe`."""
        digest = hooks.off_key(delivery.tenant, delivery.url)
        if off == bool(self._off.get(digest)):
            return
        body, headers = (delivery.url.encode(), None) if off else (b"", {"KV-Operation": "DEL"})
        try:
            stored = await self._jetstream.publish(f"{_PREFIX}off.{digest}", body, headers=headers)
        except Unacknowledged:
            raise CallTimeout("the ledger of callbacks did not acknowledge") from None
        self._off[digest] = stored if off else 0

    def remind(self, delivery: Delivery, at_ms: int) -> None:
        """Have a delivery come due again without anything being written: it could not be begun now."""
        delivery.next_at = at_ms
        heapq.heappush(self._due, (at_ms, key_of(delivery)))
        self.changed.set()

    async def _write(self, key: str, delivery: Delivery, sequence: int) -> bool:
        subject = _PREFIX + key
        try:
            stored = await self._jetstream.publish(subject, hooks.pack(delivery), guard=(subject, sequence))
        except GuardRefused:
            return False
        except Unacknowledged:
            # If it was written the feed says so; if not it has to come due again.
            raise CallTimeout("the ledger of callbacks did not acknowledge") from None
        if (
            stored >= self.entries.get(key, (0, None))[0]
        ):  # The feed may have been quicker with these very bytes.
            self._put(key, stored, delivery)
        return True

    def _take(self, key: str, sequence: int, data: bytes) -> None:
        kind, _, rest = key.partition(".")
        if kind == "off":
            self._off[rest] = sequence if data else 0
            return
        try:
            if sequence > self.entries.get(key, (0, None))[0]:
                self._put(key, sequence, hooks.read(data))
        except msgspec.MsgspecError:
            _log.error("an entry of the ledger of callbacks cannot be read, and is left alone: %s", key)

    def _put(self, key: str, sequence: int, delivery: Delivery) -> None:
        self.entries[key] = (sequence, delivery)
        self.entries.move_to_end(key)
        if delivery.standing is Standing.PENDING:
            heapq.heappush(self._due, (delivery.next_at, key))
            self.changed.set()

    def forget(self, before_ms: int) -> None:
        """Drop what the bucket has forgotten, too: entries whose last change is older."""
        for key, (_, delivery) in list(self.entries.items()):
            changed_at = max([delivery.next_at, *(one.at for one in delivery.tries)])
            if changed_at >= before_ms:
                return
            del self.entries[key]


def key_of(delivery: Delivery) -> str:
    """Give the key of a delivery: one for each event that is told of."""
    return f"to.{delivery.tenant}.{delivery.task_id}.{delivery.sequence}"


Trouble: Final = (ReachError, LinkDown)
"""What writing may raise while the bus is not well; what was to be written comes due again."""
