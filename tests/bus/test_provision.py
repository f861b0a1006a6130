"""What exists from the start: made, made again without change, put right, or refused in words (case 16)."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.js import JetStreamContext, api
from nats.js.errors import NotFoundError

from reach.bus.embedded import EmbeddedServer, find_binary
from reach.bus.keys import Role
from reach.bus.permissions import AGENT_BUCKETS, BLOB_BUCKETS, READ_BUCKETS
from reach.bus.provision import STORES, Store, blobs, corrections, covers, faults, kv, provision
from reach.bus.streams import STREAMS
from reach.errors import ConfigError


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    home = tmp_path_factory.mktemp("home")
    home.chmod(0o700)
    with EmbeddedServer.start(home, port=0) as running:
        yield running


@pytest.fixture
async def jetstream(server: EmbeddedServer) -> AsyncIterator[JetStreamContext]:
    """JetStream as the platform sees it, empty before and after."""
    client = await nats.connect(server.url, nkeys_seed=str(server.keys[Role.PLATFORM].path))
    context = client.jetstream()
    yield context
    for info in await context.streams_info():
        await context.delete_stream(str(info.config.name))
    await client.close()


async def test_everything_is_made_once(jetstream: JetStreamContext) -> None:
    """The first run makes every bucket, the second changes nothing."""
    first = await provision(jetstream)
    second = await provision(jetstream)

    assert (*(store.bucket for store in STORES), *(stream.name for stream in STREAMS)) == first
    assert () == second


async def test_two_platforms_at_once_agree(server: EmbeddedServer, jetstream: JetStreamContext) -> None:
    """Both end without an error, and a third run has nothing to do."""
    other = await nats.connect(server.url, nkeys_seed=str(server.keys[Role.PLATFORM].path))
    await asyncio.gather(provision(jetstream), provision(other.jetstream()))
    await other.close()

    assert () == await provision(jetstream)


async def test_each_stream_covers_its_subjects(jetstream: JetStreamContext) -> None:
    """Case 16: after provisioning, the server itself names the right stream for every subject of ours."""
    await provision(jetstream)

    for store in STORES:
        for subject in store.subjects:
            assert store.stream == await jetstream.find_stream_name_by_subject(subject)


async def test_buckets_work_as_their_kind(jetstream: JetStreamContext) -> None:
    """Any NATS client finds key-value buckets and object stores of the lifetimes promised."""
    await provision(jetstream)
    ages = {}
    for bucket in BLOB_BUCKETS:
        store = await jetstream.object_store(bucket)
        await store.put("object", b"content")
        assert b"content" == (await store.get("object")).data
        ages[bucket] = (await store.status()).ttl
    for bucket in READ_BUCKETS + AGENT_BUCKETS:
        entries = await jetstream.key_value(bucket)
        revision = await entries.create("key", b"1")
        await entries.update("key", b"2", last=revision)
        assert b"2" == (await entries.get("key")).value

    assert {"reach_blobs_1h": 3600.0, "reach_blobs_24h": 86400.0, "reach_blobs_tasks": 604800.0} == ages


async def test_a_key_with_its_own_time_leaves_a_marker(jetstream: JetStreamContext) -> None:
    """In `reach_routes` an entry with a time of its own ends, and its watchers are told (the leader key)."""
    await provision(jetstream)
    routes = await jetstream.key_value("reach_routes")
    watcher: Any = await routes.watch("leader")
    assert await watcher.updates(timeout=5) is None  # Nothing there yet.
    await routes.create("leader", b"me", msg_ttl=1.0)
    appeared = await watcher.updates(timeout=5)
    ended = await watcher.updates(timeout=5)
    await watcher.stop()

    assert appeared is not None
    assert ended is not None
    assert (b"me", "PURGE") == (appeared.value, ended.operation)


async def test_what_may_be_changed_is_put_right(jetstream: JetStreamContext) -> None:
    """A bucket with another lifetime and history is corrected, and what an operator chose stays."""
    await jetstream.create_object_store("reach_blobs_1h", ttl=60.0, max_bytes=10_000_000, description="ours")
    await jetstream.create_key_value(bucket="reach_cards", history=1)

    changed = await provision(jetstream)
    corrected = (await jetstream.stream_info("OBJ_reach_blobs_1h")).config
    cards = (await jetstream.stream_info("KV_reach_cards")).config

    assert {"reach_blobs_1h", "reach_cards"} <= set(changed)
    assert (3600.0, 10_000_000, "ours") == (corrected.max_age, corrected.max_bytes, corrected.description)
    assert 16 == cards.max_msgs_per_subject
    assert () == await provision(jetstream)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"subjects": ["$KV.reach_cards.only"]}, r"does not cover \$KV\.reach_cards\.>"),
        ({"retention": api.RetentionPolicy.WORK_QUEUE}, "retention is workqueue, and must be limits"),
        ({"storage": api.StorageType.MEMORY}, "kept in memory"),
        ({"no_ack": True}, "does not acknowledge"),
    ],
)
async def test_what_cannot_serve_is_refused(
    jetstream: JetStreamContext, config: dict[str, Any], reason: str
) -> None:
    """A stream of our name with other rules is refused with the reason and the way out, and left alone."""
    await jetstream.add_stream(
        **{"name": "KV_reach_cards", "subjects": ["$KV.reach_cards.>"], "max_msgs_per_subject": 1, **config}
    )

    with pytest.raises(ConfigError, match=f"reach_cards .*{reason}.*nats stream rm KV_reach_cards"):
        await provision(jetstream, stores=[kv("reach_cards", history=16)])

    assert 1 == (await jetstream.stream_info("KV_reach_cards")).config.max_msgs_per_subject


async def test_a_stream_that_takes_our_subjects_is_refused(jetstream: JetStreamContext) -> None:
    """Case 16: a foreign stream over our subjects is named by them; nothing is made beside it."""
    await jetstream.add_stream(name="greedy", subjects=["$KV.reach_cards.*"])

    with pytest.raises(ConfigError, match=r"another stream already stores \$KV\.reach_cards\.>"):
        await provision(jetstream, stores=[kv("reach_cards")])
    with pytest.raises(NotFoundError):
        await jetstream.stream_info("KV_reach_cards")


async def test_no_room_is_explained(jetstream: JetStreamContext) -> None:
    """More copies than servers, and other refusals of JetStream, end in words."""
    with pytest.raises(ConfigError, match=r"Bucket reach_cards cannot be made: .*replicas"):
        await provision(jetstream, stores=[kv("reach_cards")], replicas=3)


async def test_a_role_that_may_not_is_explained(server: EmbeddedServer) -> None:
    """What the broker refuses is told with the role that may."""
    refused: list[Exception] = []

    async def on_error(error: Exception) -> None:
        refused.append(error)

    client = await nats.connect(
        server.url,
        nkeys_seed=str(server.keys[Role.FENCER].path),
        error_cb=on_error,
        inbox_prefix="reply.f",
    )
    try:
        with pytest.raises(ConfigError, match=r"did not answer.*role platform"):
            await provision(client.jetstream(timeout=0.5))
    finally:
        await client.close()
    assert "permissions violation" in str(refused[0])


async def test_without_jetstream_it_is_explained(tmp_path: Path) -> None:
    """A NATS without JetStream is told as such at once, not by timeout."""
    command = [str(find_binary()), "--addr", "127.0.0.1", "--port", "-1", "--ports_file_dir", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        ports = tmp_path / f"{find_binary().name}_{process.pid}.ports"
        while not (ports.exists() and ports.read_text().endswith("}")):
            assert process.poll() is None
            await asyncio.sleep(0.01)
        client = await nats.connect(json.loads(ports.read_text())["nats"][0])
        try:
            with pytest.raises(ConfigError, match="JetStream is not there"):
                await provision(client.jetstream())
        finally:
            await client.close()
    finally:
        process.terminate()
        process.wait(10)


# --------------------------------------------------------------------------------------------------- pure


TOKENS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=4)
SUBJECTS = st.builds(lambda tokens, tail: ".".join([*tokens, *tail]), TOKENS, st.sampled_from([[], [">"]]))
LITERALS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=6).map(".".join)


@given(SUBJECTS, SUBJECTS, LITERALS)
def test_covering_is_containment(pattern: str, subject: str, literal: str) -> None:
    """If a pattern covers a subject, it matches every name that the subject matches."""
    if covers(pattern, subject) and covers(subject, literal):
        assert covers(pattern, literal)


@given(SUBJECTS)
def test_everything_covers_itself(subject: str) -> None:
    """A subject covers itself, and `>` covers it."""
    assert covers(subject, subject)
    assert covers(">", subject)


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.*", "a.b", True),
        ("a.*", "a.>", False),
        ("a.*", "a.b.c", False),
        ("a.b", "a.*", False),
        ("*.b", "a.b", True),
        ("a.b.c", "a.b", False),
    ],
)
def test_covering_by_example(pattern: str, subject: str, expected: bool) -> None:
    """Wildcards as NATS reads them."""
    assert expected is covers(pattern, subject)


def _as_wanted(store: Store) -> api.StreamConfig:
    return api.StreamConfig(
        subjects=list(store.subjects),
        retention=api.RetentionPolicy.LIMITS,
        storage=api.StorageType.FILE,
        max_age=store.ttl_s or 0.0,
        max_msgs_per_subject=store.history,
        allow_rollup_hdrs=True,
        allow_direct=True,
        allow_msg_ttl=store.message_ttl,
        subject_delete_marker_ttl=store.marker_ttl_s,
    )


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.bucket)
def test_what_is_as_wanted_is_left_alone(store: Store) -> None:
    """No faults and no corrections for a stream as we would make it."""
    assert ((), {}) == (faults(_as_wanted(store), store), corrections(_as_wanted(store), store))


def test_only_what_differs_is_corrected() -> None:
    """A correction names the differing fields and nothing else."""
    store = blobs("some", ttl_s=60.0)

    assert {"max_age": 60.0} == corrections(replace(_as_wanted(store), max_age=None), store)
    assert {"allow_direct": True} == corrections(replace(_as_wanted(store), allow_direct=None), store)


def test_a_sealed_or_mirrored_stream_is_at_fault() -> None:
    """What cannot be written to cannot serve."""
    store = kv("some")
    sealed = replace(_as_wanted(store), sealed=True)
    mirrored = replace(_as_wanted(store), mirror=api.StreamSource(name="other"))

    assert ("it is sealed",) == faults(sealed, store)
    assert ("it mirrors another stream, and must be written to",) == faults(mirrored, store)
