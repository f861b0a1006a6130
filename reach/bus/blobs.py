"""The claim check: what does not fit one message waits in an object store, and the message says where.

The layout is that of every NATS client's object store (ADR-20), so `nats object ls reach_blobs_1h` shows what
is there; the transfer is our own, because nats-py's waits for each chunk in turn, leaves chunks behind when it
is cancelled, and never ends when an object vanishes half-way. A put keeps eight chunks of 128 KiB on their
way and takes everything back if it does not come to its end. A get makes no consumer: it asks for batches
(NATS 2.11; older servers are asked chunk by chunk), knows the size before it fetches, and checks the digest.
Blobs end by the bucket's age (1 h, 24 h, with their task); nothing is purged, which nobody but the platform may.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from nats.js.errors import APIError

from reach import ids
from reach.bus.connection import LinkState
from reach.bus.objects import (
    CHUNK_BYTES,
    ROLLUP,
    StoredObject,
    chunk_subject,
    digest_text,
    meta_subject,
    read_map,
)
from reach.bus.permissions import BLOB_BUCKETS
from reach.bus.translate import denied_subject, translate
from reach.errors import (
    CallTimeout,
    LinkDown,
    ReachError,
    SchemaInvalid,
    Unreachable,
    UpstreamFailure,
    UpstreamRefusal,
)
from reach.faults import Executed, Reason

if TYPE_CHECKING:
    from reach.bus.connection import Connection
    from reach.bus.framing import Delivery

CHUNKS_UNDERWAY: Final = 8
BATCH_BYTES: Final = CHUNK_BYTES * CHUNKS_UNDERWAY
"""How much is on its way of one transfer: a mebibyte, which keeps a fast link busy and a slow one responsive."""

TRANSFERS: Final = 8
"""Transfers at once of one client; others wait."""

STALL_S: Final = 5.0
"""The longest silence of the store within a transfer; the call's own deadline is the caller's matter."""

_MESSAGE_ROOM: Final = 4 * 1024
_LAGGING_S: Final = (0.05, 0.15, 0.3, 0.6)
_NO_SUCH_MESSAGE: Final = 10037
_NO_SUCH_STREAM: Final = 10059
_END_OF_BATCH: Final = "204"
_NOT_FOUND: Final = "404"
_LIFETIMES: Final = {
    "reach_blobs_1h": "one hour",
    "reach_blobs_24h": "24 hours",
    "reach_blobs_tasks": "as long as their task is kept",
}


class Blobs:
    """The object stores of one connection. `bucket` is one of `reach_blobs_1h`, `reach_blobs_24h`, `reach_blobs_tasks`.

    A reference is `{"bucket", "name", "size"}` with the size in bytes. Errors are `ReachError`s; in all of
    them `executed` is `no`, since moving bytes executes nothing.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._places = asyncio.Semaphore(TRANSFERS)

    async def put(self, data: bytes, *, bucket: str) -> dict[str, Any]:
        """Store `data` and give its reference.

        Raises `SchemaInvalid`/`TOO_LARGE` when there is no blob store (naming the payload's size, the broker's
        limit, and how to get one), `RateLimited` when the store is full, `Unreachable` and `CallTimeout` when
        the broker does not answer. A put that fails or is cancelled leaves nothing behind.
        """
        _known(bucket)
        async with self._places, self._line() as line:
            name, nuid = ids.new_id(), ids.new_id()
            chunks = chunk_subject(bucket, nuid)
            most = self._connection.max_payload
            step = min(CHUNK_BYTES, max(most - _MESSAGE_ROOM, most // 2))
            line.watch(chunks)
            digest = sha256()
            complete = False
            try:
                unconfirmed = 0
                for at in range(0, len(data), step):
                    if unconfirmed == CHUNKS_UNDERWAY:
                        await self._confirmed(line, bucket, len(data))
                        unconfirmed -= 1
                    chunk = data[at : at + step]
                    line.send(chunks, chunk)
                    unconfirmed += 1
                    digest.update(chunk)
                for _ in range(unconfirmed):
                    await self._confirmed(line, bucket, len(data))
                meta = StoredObject(
                    bucket, name, nuid, len(data), -(-len(data) // step), digest_text(digest.digest()), step
                )
                line.watch(meta.subject)
                line.send(meta.subject, meta.pack(), headers=ROLLUP)
                await self._confirmed(line, bucket, len(data))
                complete = True
            finally:
                if not complete:
                    self._take_back(chunks)
        return {"bucket": bucket, "name": name, "size": len(data)}

    async def get(self, ref: dict[str, Any], *, limit: int) -> bytes:
        """Fetch the bytes of a reference.

        Raises `SchemaInvalid`/`TOO_LARGE` naming both sizes when there are more than `limit` (before fetching),
        `SchemaInvalid` for what is no reference, `UpstreamRefusal`/`NOT_FOUND` when the blob is not there any
        more, `UpstreamFailure` when it is not what was put, `Unreachable` and `CallTimeout`.
        """
        bucket, name, size = _read_ref(ref)
        if size > limit:
            raise _over(size, limit)
        async with self._places, self._line() as line:
            meta = await self._meta(line, bucket, name, size)
            if meta.size > limit:
                raise _over(meta.size, limit)
            parts, digest = await self._chunks(line, meta)
        if not meta.has_digest(digest):
            raise UpstreamFailure(
                f"blob {bucket}/{name} is not what was put there: its digest differs",
                reason=Reason.NON_JSON_BODY,
                executed=Executed.NO,
            )
        return b"".join(parts)

    async def delete(self, ref: dict[str, Any]) -> None:
        """Remove a blob before its time. One that is not there is no mistake. Raises `ReachError` otherwise."""
        bucket, name, size = _read_ref(ref)
        async with self._places, self._line() as line:
            try:
                meta = await self._meta(line, bucket, name, size)
            except UpstreamRefusal as refusal:
                if refusal.reason is Reason.NOT_FOUND:
                    return
                raise
            line.watch(meta.subject)
            line.send(meta.subject, meta.pack(deleted=True), headers=ROLLUP)
            await self._confirmed(line, bucket, size)
            self._take_back(chunk_subject(bucket, meta.nuid))

    # -- steps ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _line(self) -> AsyncIterator[_Line]:
        try:
            line = _Line(self._connection)
        except LinkDown as down:
            raise _unexecuted(translate(down)) from None
        try:
            yield line
        except LinkDown as down:
            raise _unexecuted(translate(down)) from None
        finally:
            line.close()

    async def _confirmed(self, line: _Line, bucket: str, size: int) -> None:
        """Take one acknowledgement of the stream."""
        delivery = await line.next(f"the store of bucket {bucket}")
        if delivery.no_responders:
            raise _went_away(bucket) if line.heard else self._no_store(bucket, size)
        line.heard = True
        answer = read_map(delivery.data)
        if error := answer.get("error"):
            raise _unexecuted(translate(_api_error(error)))

    def _take_back(self, chunks: str) -> None:
        """Replace all chunks by one empty message (a rollup), which ends with the bucket's age."""
        with suppress(LinkDown):  # then there is nobody to tell, and the chunks end with the bucket's age
            self._connection.publish(chunks, b"", headers=ROLLUP)

    async def _meta(self, line: _Line, bucket: str, name: str, size: int) -> StoredObject:
        """Read what the store says about a blob, from the stream's leader."""
        subject = self._api(f"STREAM.MSG.GET.OBJ_{bucket}")
        line.watch(subject)
        line.send(subject, json.dumps({"last_by_subj": meta_subject(bucket, name)}).encode())
        delivery = await line.next(f"the store of bucket {bucket}")
        if delivery.no_responders:
            raise _no_jetstream(bucket)
        answer = read_map(delivery.data)
        if error := answer.get("error"):
            number = error.get("err_code")
            if number == _NO_SUCH_STREAM:
                raise _no_jetstream(bucket)
            if number == _NO_SUCH_MESSAGE:
                raise _vanished(bucket, name, size)
            raise _unexecuted(translate(_api_error(error)))
        meta = StoredObject.read(bucket, name, base64.b64decode(answer.get("message", {}).get("data", "")))
        if meta is None:
            raise _vanished(bucket, name, size)
        return meta

    async def _chunks(self, line: _Line, meta: StoredObject) -> tuple[list[bytes], bytes]:
        """Fetch a blob's chunks, and their digest: a batch at a time, and again where a follower lags behind.

        The digest is taken chunk by chunk, because that of a large blob would hold the loop up.
        """
        parts: list[bytes] = []
        digest = sha256()
        missing, after, waits = meta.size, 0, iter(_LAGGING_S)
        while missing > 0:
            found = 0
            async for sequence, chunk in self._batch(line, meta, after + 1):
                parts.append(chunk)
                digest.update(chunk)
                missing -= len(chunk)
                found += len(chunk)
                after = sequence
            if not found:
                wait_s = next(waits, None)
                if wait_s is None:
                    raise _vanished(meta.bucket, meta.name, meta.size)
                await asyncio.sleep(wait_s)
        return parts, digest.digest()

    async def _batch(self, line: _Line, meta: StoredObject, first: int) -> AsyncIterator[tuple[int, bytes]]:
        """Ask for the chunks from sequence `first` on; ends with the batch, at once where there is nothing."""
        subject = self._api(f"DIRECT.GET.OBJ_{meta.bucket}")
        line.watch(subject)
        wish = {
            "seq": first,
            "next_by_subj": chunk_subject(meta.bucket, meta.nuid),
            "batch": CHUNKS_UNDERWAY,
            "max_bytes": BATCH_BYTES * 2,
        }
        line.send(subject, json.dumps(wish).encode())
        while True:
            delivery = await line.next(f"the store of bucket {meta.bucket}")
            headers = delivery.headers or {}
            if delivery.no_responders:
                raise _no_jetstream(meta.bucket)
            if headers.get("Status") in {_END_OF_BATCH, _NOT_FOUND}:
                return
            if "Nats-Sequence" not in headers:
                text = f"{headers.get('Status', '')} {headers.get('Description', '')}".strip()
                raise UpstreamFailure(
                    f"the store of bucket {meta.bucket} does not hand chunks out: {text or 'no sequence'}",
                    reason=Reason.REMOTE_5XX,
                    executed=Executed.NO,
                )
            yield int(headers["Nats-Sequence"]), delivery.data
            if "Nats-Num-Pending" not in headers:
                return  # a server before 2.11: one chunk a question

    def _api(self, verb: str) -> str:
        domain = self._connection.settings.jetstream_domain
        return f"$JS.{domain}.API.{verb}" if domain else f"$JS.API.{verb}"

    def _no_store(self, bucket: str, size: int) -> SchemaInvalid:
        return SchemaInvalid(
            f"the payload has {size} bytes and one message holds at most {self._connection.max_payload}; "
            f"there is no blob store (bucket {bucket}) at this broker to carry more. "
            "Right would be a smaller payload, a server started with `reach up`, or JetStream switched on at your own "
            "NATS and the platform started once to make the bucket.",
            reason=Reason.TOO_LARGE,
        )


class _Line:
    """The inbox of one transfer; it also hears of the link's end and of denials, which would else be silence."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._inbox = f"{connection.inbox}.{ids.new_id()}.1"
        self._arrived: asyncio.Queue[Delivery | ReachError] = asyncio.Queue()
        self._watched: set[str] = set()
        self.heard = False
        """Whether the store has confirmed anything on this line."""
        self._subscription = connection.subscribe(self._inbox, self._arrived.put_nowait, durable=False)
        connection.on_state(self._on_state)
        connection.denials.append(self._on_denied)

    def watch(self, subject: str) -> None:
        """Hear of denials on a subject."""
        self._watched.add(subject.lower())

    def send(self, subject: str, data: bytes, *, headers: dict[str, str] | None = None) -> None:
        """Publish with this inbox as the place to answer. Raises `LinkDown`."""
        self._connection.publish(subject, data, reply=self._inbox, headers=headers)

    async def next(self, whom: str) -> Delivery:
        """Wait for the next answer. Raises `CallTimeout` after a silence, `Unreachable`, `UpstreamRefusal`."""
        try:
            async with asyncio.timeout(STALL_S):
                arrived = await self._arrived.get()
        except TimeoutError:
            raise CallTimeout(
                f"{whom} did not answer within {STALL_S:g} s", executed=Executed.NO, retryable=True
            ) from None
        if isinstance(arrived, ReachError):
            raise arrived
        return arrived

    def close(self) -> None:
        """Listen no more."""
        self._subscription.drop()
        self._connection.off_state(self._on_state)
        with suppress(ValueError):
            self._connection.denials.remove(self._on_denied)

    def _on_state(self, state: LinkState) -> None:
        if state is not LinkState.CONNECTED:
            self._arrived.put_nowait(Unreachable(reason=Reason.DISCONNECTED, executed=Executed.NO))

    def _on_denied(self, text: str) -> None:
        denied = denied_subject(text)
        if denied is not None and denied[1].lower() in self._watched:
            self._arrived.put_nowait(
                UpstreamRefusal(
                    f"the broker does not let this client use the blob store ({denied[1]})",
                    reason=Reason.AUTH_DENIED,
                )
            )


def _api_error(error: dict[str, Any]) -> APIError:
    try:
        APIError.from_error(error)
    except APIError as exc:
        return exc
    return APIError()


def _unexecuted(error: ReachError) -> ReachError:
    error.executed = Executed.NO
    return error


def _known(bucket: str) -> None:
    if bucket not in BLOB_BUCKETS:
        raise SchemaInvalid(f"{bucket!r} is no bucket of blobs; the buckets are {', '.join(BLOB_BUCKETS)}")


def _read_ref(ref: dict[str, Any]) -> tuple[str, str, int]:
    bucket, name, size = ref.get("bucket"), ref.get("name"), ref.get("size")
    if type(bucket) is not str or type(name) is not str or not name or type(size) is not int or size < 0:
        raise SchemaInvalid("a blob is {bucket: text, name: text, size: whole number of bytes}")
    _known(bucket)
    return bucket, name, size


def _over(size: int, limit: int) -> SchemaInvalid:
    return SchemaInvalid(
        f"the blob has {size} bytes; at most {limit} are taken here", reason=Reason.TOO_LARGE
    )


def _vanished(bucket: str, name: str, size: int) -> UpstreamRefusal:
    return UpstreamRefusal(
        f"blob {bucket}/{name} of {size} bytes is not there (any more): blobs of this bucket live "
        f"{_LIFETIMES[bucket]}, at the broker that they were put into",
        reason=Reason.NOT_FOUND,
        executed=Executed.NO,
    )


def _went_away(bucket: str) -> Unreachable:
    return Unreachable(f"the store of bucket {bucket} went away while a payload was put into it")


def _no_jetstream(bucket: str) -> Unreachable:
    return Unreachable(
        f"there is no blob store (bucket {bucket}) at this broker: JetStream is off, or the platform never made it"
    )
