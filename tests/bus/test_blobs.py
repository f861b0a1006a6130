"""The claim check (CALL-7, case 6): large payloads whole, both ways, or an error that says what to do."""

import asyncio
import os
import signal
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.js import JetStreamContext

from reach.bus.blobs import Blobs
from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.bus.objects import CHUNK_BYTES, StoredObject, chunk_subject, digest_text, read_map
from reach.errors import RateLimited, ReachError, SchemaInvalid, Unreachable, UpstreamFailure, UpstreamRefusal
from reach.faults import Executed, Reason

BUCKET = "reach_blobs_1h"
MB = 1024 * 1024
LIMIT = 32 * MB


def content(size: int) -> bytes:
    """Bytes that repeat nowhere near a chunk's length."""
    return (b"0123456789abcdefghijklmnopqrstuvwxyz!" * (size // 37 + 1))[:size]


async def held(jetstream: JetStreamContext, bucket: str) -> dict[str, int]:
    """Messages by subject in a bucket's chunks."""
    info = await jetstream.stream_info(f"OBJ_{bucket}", subjects_filter=f"$O.{bucket}.C.>")
    return dict(info.state.subjects or {})


@pytest.mark.parametrize(
    "size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * MB, 9 * CHUNK_BYTES + 17]
)
async def test_what_was_put_comes_back(system: Any, size: int) -> None:
    """CALL-7: any size round-trips between two clients of different roles."""
    async with system.connection(Role.CALLER) as caller, system.connection(Role.AGENT) as agent:
        data = content(size)
        ref = await Blobs(caller).put(data, bucket=BUCKET)
        assert {"bucket": BUCKET, "name": ref["name"], "size": size} == ref
        assert data == await Blobs(agent).get(ref, limit=LIMIT)


async def test_every_nats_client_reads_ours(system: Any) -> None:
    """Our objects are ordinary objects of a NATS object store."""
    async with system.connection() as caller:
        data = content(300_000)
        ref = await Blobs(caller).put(data, bucket=BUCKET)
        store = await caller.jetstream().object_store(BUCKET)
        info = await store.get_info(ref["name"])
        assert (300_000, 3) == (info.size, info.chunks)
        assert data == (await store.get(ref["name"])).data


async def test_we_read_those_of_every_nats_client(system: Any) -> None:
    """A script that puts an object with its own NATS client may hand us the reference."""
    async with system.connection() as caller:
        data = content(300_000)
        store = await caller.jetstream().object_store(BUCKET)
        await store.put("rechnung März 17.pdf", data)
        ref = {"bucket": BUCKET, "name": "rechnung März 17.pdf", "size": 300_000}
        assert data == await Blobs(caller).get(ref, limit=LIMIT)


async def test_a_blob_over_the_limit_is_refused_by_its_reference(system: Any) -> None:
    """CALL-7: over the limit nothing is fetched, and both sizes are named."""
    async with system.connection() as caller:
        ref = await Blobs(caller).put(content(5000), bucket=BUCKET)
        with pytest.raises(SchemaInvalid, match=r"5000 bytes; at most 4999") as caught:
            await Blobs(caller).get(ref, limit=4999)
        assert (Reason.TOO_LARGE, Executed.NO) == (caught.value.reason, caught.value.executed)


async def test_a_reference_that_lies_about_its_size_is_refused(system: Any) -> None:
    """CALL-7: the store's own word on the size counts, before any chunk is fetched."""
    async with system.connection() as caller:
        ref = await Blobs(caller).put(content(5000), bucket=BUCKET)
        with pytest.raises(SchemaInvalid, match=r"5000 bytes; at most 100 "):
            await Blobs(caller).get(ref | {"size": 10}, limit=100)


async def test_a_deleted_blob_is_said_to_be_gone(system: Any) -> None:
    """A blob that is not there any more is named with its bucket's lifetime; deleting it again is no mistake."""
    async with system.connection() as caller:
        blobs = Blobs(caller)
        ref = await blobs.put(content(300_000), bucket=BUCKET)
        await blobs.delete(ref)
        await blobs.delete(ref)
        with pytest.raises(UpstreamRefusal, match=r"of 300000 bytes is not there .* one hour") as caught:
            await blobs.get(ref, limit=LIMIT)
        assert (Reason.NOT_FOUND, Executed.NO) == (caught.value.reason, caught.value.executed)


async def test_a_blob_whose_chunks_vanished_ends_in_an_error(system: Any) -> None:
    """Case 6: chunks that ended between description and fetch are an error, not a wait without end."""
    async with system.connection() as caller, system.connection(Role.PLATFORM) as platform:
        ref = await Blobs(caller).put(content(300_000), bucket=BUCKET)
        info = await (await caller.jetstream().object_store(BUCKET)).get_info(ref["name"])
        await platform.jetstream().purge_stream(f"OBJ_{BUCKET}", subject=chunk_subject(BUCKET, info.nuid))
        with pytest.raises(UpstreamRefusal, match="is not there"):
            await Blobs(caller).get(ref, limit=LIMIT)


async def test_a_blob_that_was_changed_is_refused(system: Any) -> None:
    """The digest tells: what is not what was put is an error of the far end."""
    async with system.connection() as caller:
        ref = await Blobs(caller).put(content(5000), bucket=BUCKET)
        info = await (await caller.jetstream().object_store(BUCKET)).get_info(ref["name"])
        caller.publish(chunk_subject(BUCKET, info.nuid), b"x" * 5000, headers={"Nats-Rollup": "sub"})
        await caller.flush()
        with pytest.raises(UpstreamFailure, match="digest differs"):
            await Blobs(caller).get(ref, limit=LIMIT)


@pytest.mark.parametrize(
    ("ref", "words"),
    [
        ({}, "a blob is {bucket"),
        ({"bucket": BUCKET, "name": "x", "size": -1}, "a blob is {bucket"),
        ({"bucket": BUCKET, "name": "x", "size": 1.5}, "a blob is {bucket"),
        ({"bucket": BUCKET, "name": "", "size": 1}, "a blob is {bucket"),
        ({"bucket": "reach_cards", "name": "x", "size": 1}, "no bucket of blobs"),
        ({"bucket": "../reach", "name": "x", "size": 1}, "no bucket of blobs"),
    ],
)
async def test_what_is_no_reference_is_refused(system: Any, ref: dict[str, object], words: str) -> None:
    """A reference comes off the wire: only our three buckets, and only whole references, are looked at."""
    async with system.connection() as caller:
        with pytest.raises(SchemaInvalid, match=words):
            await Blobs(caller).get(ref, limit=LIMIT)


async def test_without_a_blob_store_the_error_says_how_to_get_one(own_system: Any) -> None:
    """CALL-7, case 6: sizes, the missing bucket, and three ways out; the connection lives."""
    async with own_system.connection() as caller:
        with pytest.raises(SchemaInvalid) as caught:
            await Blobs(caller).put(content(3 * MB), bucket=BUCKET)
        told = caught.value.message
        for word in (str(3 * MB), str(caller.max_payload), BUCKET, "reach up", "JetStream"):
            assert word in told
        assert (Reason.TOO_LARGE, Executed.NO) == (caught.value.reason, caught.value.executed)
        with pytest.raises(Unreachable, match="no blob store"):
            await Blobs(caller).get({"bucket": BUCKET, "name": "x", "size": 1}, limit=LIMIT)
        assert caller.connected


async def test_a_cancelled_put_leaves_nothing_behind(system: Any) -> None:
    """A put that is given up takes its chunks back; what is left is one empty message, which ends by age."""
    bucket = "reach_blobs_24h"
    async with system.connection() as caller, system.connection(Role.PLATFORM) as platform:
        jetstream = platform.jetstream()
        before = await held(jetstream, bucket)
        put = asyncio.create_task(Blobs(caller).put(content(24 * MB), bucket=bucket))
        while sum((await held(jetstream, bucket)).values()) < sum(before.values()) + 2:
            pass  # each look is a round trip to the server
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
        await caller.flush()
        fresh = {subject for subject in await held(jetstream, bucket) if subject not in before}
        left = [await jetstream.get_last_msg(f"OBJ_{bucket}", subject) for subject in fresh]
        assert [(1, b"")] == [
            ((await held(jetstream, bucket))[message.subject], message.data or b"") for message in left
        ]


async def test_a_lost_link_ends_a_put_at_once(own_system: Any) -> None:
    """CALL-6: a transfer under way is judged when the connection drops, not by its own timeout."""
    await asyncio.to_thread(own_system.provision)
    async with own_system.connection() as caller:
        put = asyncio.create_task(Blobs(caller).put(content(64 * MB), bucket=BUCKET))
        await asyncio.sleep(0)
        os.kill(own_system.server.pid, signal.SIGKILL)
        with pytest.raises(Unreachable) as caught:
            await asyncio.wait_for(put, 2)  # less than the silence of 5 s after which it would end anyway
        assert Reason.DISCONNECTED is caught.value.reason
        with pytest.raises(Unreachable):
            await Blobs(caller).put(b"x", bucket=BUCKET)


async def test_a_denied_store_is_told_at_once(system: Any) -> None:
    """ERR-1: a role that may not use the store hears so from the broker's own word, not after a silence."""
    async with system.connection(Role.FENCER) as fencer:
        began = time.monotonic()
        with pytest.raises(UpstreamRefusal, match="does not let this client") as caught:
            await Blobs(fencer).put(content(5000), bucket=BUCKET)
        assert Reason.AUTH_DENIED is caught.value.reason
        assert time.monotonic() - began < 2.0  # the silence that it would else wait for is 5 s


async def test_a_full_store_refuses_and_keeps_nothing(own_system: Any) -> None:
    """A store without room answers RATE_LIMITED, and what was already there of the blob is taken back."""
    await asyncio.to_thread(own_system.provision)
    async with own_system.connection(Role.PLATFORM) as platform, own_system.connection() as caller:
        jetstream = platform.jetstream()
        config = (await jetstream.stream_info(f"OBJ_{BUCKET}")).config
        await jetstream.update_stream(config, max_bytes=400_000)
        with pytest.raises(RateLimited) as caught:
            await Blobs(caller).put(content(MB), bucket=BUCKET)
        assert (Reason.OVERLOADED, Executed.NO) == (caught.value.reason, caught.value.executed)
        await caller.flush()
        assert [1] == list((await held(jetstream, BUCKET)).values())
        ref = await Blobs(caller).put(content(200_000), bucket=BUCKET)
        assert 200_000 == len(await Blobs(caller).get(ref, limit=LIMIT))


async def test_many_transfers_at_once_do_not_mix(system: Any) -> None:
    """Twenty blobs put and fetched together on one connection each come back as they were."""
    async with system.connection() as caller:
        blobs = Blobs(caller)

        async def there_and_back(number: int) -> bool:
            data = number.to_bytes(2, "big") * (100_000 + number)
            return data == await blobs.get(await blobs.put(data, bucket=BUCKET), limit=LIMIT)

        assert [True] * 20 == await asyncio.gather(*(there_and_back(number) for number in range(20)))


async def test_a_transfer_leaves_no_subscription(system: Any) -> None:
    """Inboxes, followers and denial listeners of a transfer end with it, whichever way it ends."""
    async with system.connection() as caller:
        blobs = Blobs(caller)

        def counted(connection: Connection) -> tuple[int, int, int]:
            return (len(connection.subscriptions), len(connection._followers), len(connection.denials))

        before = counted(caller)
        ref = await blobs.put(content(5000), bucket=BUCKET)
        await blobs.get(ref, limit=LIMIT)
        await blobs.delete(ref)
        with pytest.raises(ReachError):
            await blobs.get(ref, limit=LIMIT)
        assert before == counted(caller)


@given(
    name=st.text(min_size=1, max_size=40),
    size=st.integers(min_value=0, max_value=2**40),
    digest=st.binary(min_size=32, max_size=32),
)
def test_descriptions_round_trip(name: str, size: int, digest: bytes) -> None:
    """A description that we write is one that we read, whatever the name."""
    stored = StoredObject(BUCKET, name, "n" * 16, size, -(-size // CHUNK_BYTES), digest_text(digest))
    assert stored == StoredObject.read(BUCKET, name, stored.pack())
    assert stored.has_digest(digest)
    assert StoredObject.read(BUCKET, name, stored.pack(deleted=True)) is None


@given(st.binary(max_size=200))
def test_nonsense_is_no_description(data: bytes) -> None:
    """Whatever lies in a store, reading it never raises."""
    assert isinstance(read_map(data), dict)
    assert StoredObject.read(BUCKET, "x", data) is None
