"""The claim check of a call: what does not fit one message goes through the blob store, both ways (CALL-7).

Sizes are judged before anything moves: a payload over the card's limit is refused with both sizes named, be it
above or below what one message takes. Storing and fetching happen within the call's deadline.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from reach.call.call import Outlived
from reach.errors import ReachError
from reach.faults import Executed, Reason
from reach.wire import codec
from reach.wire.reply import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from reach.bus.blobs import Blobs
    from reach.bus.connection import Connection
    from reach.call.call import Call
    from reach.wire.card import CapabilityCard
    from reach.wire.reply import Reply

ENVELOPE_ROOM: Final = 4096
"""Bytes kept free in a message beside its payload: envelope fields, trace and headers."""

BLOB_BUCKET: Final = "reach_blobs_1h"
"""Where payloads of calls go that do not fit one message."""

MOST_BYTES: Final = 32 * 1024 * 1024
"""What a capability takes whose card is not known (a card's own default)."""


class ClaimCheck:
    """The large payloads of one client."""

    def __init__(self, connection: Connection, blobs: Blobs) -> None:
        self._connection = connection
        self._blobs = blobs

    def inline_bytes(self, card: CapabilityCard | None) -> int:
        """How long an encoded envelope may be that needs no further look."""
        room = self._connection.max_payload - ENVELOPE_ROOM
        return room if card is None else min(room, card.max_payload_bytes)

    async def pack(self, call: Call, data: bytes, *, stamp: Callable[[], object]) -> bytes:
        """Give the message for an envelope whose encoding, `data`, is longer than `inline_bytes`.

        `stamp` writes the time left anew, since storing takes some. Raises `Outlived`.
        """
        envelope = call.envelope
        if envelope.blob is None:
            body = codec.pack(envelope.payload)
            most = _most(call)
            if len(body) > most:
                message = f"the payload has {len(body)} bytes; {call.capability} takes at most {most}"
                raise Outlived(Failure.of(Reason.TOO_LARGE, message))
            if len(data) <= self._connection.max_payload - ENVELOPE_ROOM:
                return data
            envelope.blob = await self._stored(call, body)
            stamp()
        inline, envelope.payload = envelope.payload, {}
        try:
            data = envelope.pack()
        finally:
            envelope.payload = inline
        if len(data) > self._connection.max_payload:
            message = (
                f"the envelope has {len(data)} bytes without its payload; the broker takes "
                f"{self._connection.max_payload}: shorten its trigger, requirements or trace"
            )
            raise Outlived(Failure.of(Reason.TOO_LARGE, message))
        return data

    async def fetched(self, call: Call, reply: Reply) -> Reply | Failure:
        """Give the reply with the data that its blob stands for; a failure says that the call was executed."""
        try:
            async with asyncio.timeout(max(0.0, call.deadline - monotonic())):
                body = await self._blobs.get(reply.blob or {}, limit=_most(call))
            reply.data = codec.unpack(body).get("data")
        except TimeoutError:
            return Failure.of(Reason.DEADLINE, executed=Executed.YES)
        except ReachError as error:
            failure = Failure.of_error(error)
            failure.executed = Executed.YES
            return failure
        reply.blob = None
        return reply

    async def _stored(self, call: Call, body: bytes) -> dict[str, object]:
        try:
            async with asyncio.timeout(max(0.0, call.deadline - monotonic())):
                return await self._blobs.put(body, bucket=BLOB_BUCKET)
        except TimeoutError:
            raise Outlived(Failure.of(Reason.DEADLINE, executed=Executed.NO)) from None
        except ReachError as error:
            raise Outlived(Failure.of_error(error)) from None


def _most(call: Call) -> int:
    return MOST_BYTES if call.card is None else call.card.max_payload_bytes
