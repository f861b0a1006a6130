"""The store of idempotency keys, against a real server: compare-and-set, lost acknowledgements, listing, resolving."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from reach import ids
from reach.bus.connection import Connection
from reach.bus.idempotency import Found, IdempotencyStore, Resolution, Taken, Unavailable
from reach.bus.jetstream import Unacknowledged
from reach.bus.keys import Role
from reach.faults import Executed
from reach.policy.dedupe import explicit_key
from reach.wire.idempotency import EntryState, IdempotencyEntry
from reach.wire.reply import Reply


def key() -> str:
    return explicit_key("default", ids.new_id(), "invoice.book")


def entry(**facts: Any) -> IdempotencyEntry:
    usual: dict[str, Any] = {
        "state": EntryState.RUNNING,
        "capability": "invoice.book",
        "tenant": "default",
        "instance": "books-k3m7q2xa",
        "generation": 7,
        "digest": "0" * 32,
        "begun_at": 1_796_000_000_000,
    }
    return IdempotencyEntry(**(usual | facts))


def ended(begun: IdempotencyEntry, **facts: Any) -> IdempotencyEntry:
    usual: dict[str, Any] = {
        "nonce": begun.nonce,
        "state": EntryState.DONE,
        "done_at": 1_796_000_001_000,
        "executed": Executed.YES,
        "reply": Reply(ok=True, data={"booked": 17}),
    }
    return entry(**(usual | facts))


@pytest.fixture
async def connection(system: Any) -> AsyncIterator[Connection]:
    async with system.connection(Role.AGENT) as connection:
        yield connection


@pytest.fixture
async def store(connection: Connection) -> AsyncIterator[IdempotencyStore]:
    store = IdempotencyStore(connection)
    try:
        yield store
    finally:
        store.close()


async def test_of_racing_writers_one_has_the_key(store: IdempotencyStore) -> None:
    """IDEM-1: of twenty that create an entry at once one succeeds; all others are told of its entry."""
    name, racers = key(), [entry() for _ in range(20)]
    outcomes = await asyncio.gather(*(store.create(name, one) for one in racers), return_exceptions=True)
    won = [one for one, outcome in zip(racers, outcomes, strict=True) if isinstance(outcome, int)]
    assert 1 == len(won)
    lost = [outcome for outcome in outcomes if isinstance(outcome, Taken)]
    assert [won[0]] * 19 == [one.found.entry for one in lost if one.found is not None]


async def test_a_life_ends_in_done_and_is_not_overwritten(store: IdempotencyStore) -> None:
    """IDEM-1: a write that names an older revision is refused, whoever writes it."""
    name, begun = key(), entry()
    revision = await store.create(name, begun)
    done = ended(begun)
    assert revision < await store.update(name, done, revision=revision)
    with pytest.raises(Taken) as refused:
        await store.update(name, ended(entry()), revision=revision)
    assert done == refused.value.found.entry  # type: ignore[union-attr]
    found = await store.read(name)
    assert found is not None
    assert done == found.entry


async def test_a_key_that_was_released_is_free(store: IdempotencyStore) -> None:
    """IDEM-1: what was released may be created anew, and what released it once more releases nothing else."""
    name, begun = key(), entry()
    revision = await store.create(name, begun)
    await store.release(name, revision=revision)
    await store.release(name, revision=revision)
    free = await store.read(name)
    assert free is not None
    assert free.entry is None
    again = entry()
    await store.create(name, again)
    with pytest.raises(Taken):
        await store.release(name, revision=revision)
    found = await store.read(name)
    assert found is not None
    assert again == found.entry


async def test_a_lost_acknowledgement_is_found_out(
    store: IdempotencyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that arrived without being acknowledged is known by its nonce; one that did not arrive is made again."""
    publish = store._jetstream.publish
    fates = ["arrives unheard", "vanishes", "arrives unheard", "arrives"]

    async def deaf(subject: str, data: bytes, **options: Any) -> int:
        fate = fates.pop(0)
        sequence = 0 if fate == "vanishes" else await publish(subject, data, **options)
        if fate != "arrives":
            raise Unacknowledged
        return sequence

    monkeypatch.setattr(store._jetstream, "publish", deaf)
    name, begun = key(), entry()
    revision = await store.create(name, begun)
    assert 3 == len(fates)
    done = await store.update(name, ended(begun), revision=revision)
    assert Found(done, ended(begun)) == await store.read(name)
    assert ["arrives"] == fates


async def test_what_is_done_ends_by_its_time(
    store: IdempotencyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IDEM-4, IDEM-5: a done entry has a time of its own, after which the key is free; running ones have none."""
    monkeypatch.setattr("reach.bus.idempotency.IMPLIED_KEPT_S", 1.0)
    name, other, begun = key(), key(), entry(implicit=True)
    await store.create(other, begun)
    revision = await store.create(name, begun)
    await store.update(name, ended(begun, implicit=True), revision=revision)
    with anyio.fail_after(10):
        while (found := await store.read(name)) is not None and found.entry is not None:  # noqa: ASYNC110 - as below
            await anyio.sleep(0.05)
    await store.create(name, entry())
    still = await store.read(other)
    assert still is not None
    assert begun == still.entry


async def test_entries_are_listed_by_state(store: IdempotencyStore) -> None:
    """Every entry that is there is listed, one of a state is found, and what was released is not."""
    running, unknown, released = key(), key(), key()
    await store.create(running, entry())
    begun = entry()
    revision = await store.create(unknown, begun)
    await store.update(unknown, ended(begun, state=EntryState.UNKNOWN, reply=None), revision=revision)
    await store.release(released, revision=await store.create(released, entry()))
    every = {name: one.state async for name, _, one in store.entries()}
    assert (EntryState.RUNNING, EntryState.UNKNOWN) == (every[running], every[unknown])
    assert released not in every
    of_state = [name async for name, _, _ in store.entries(EntryState.UNKNOWN)]
    assert unknown in of_state
    assert running not in of_state


@pytest.mark.parametrize(
    ("how", "state"),
    [
        (Resolution.EXECUTED, EntryState.DONE),
        (Resolution.NOT_EXECUTED, None),
        (Resolution.RETRY, None),
    ],
)
async def test_a_person_resolves_what_is_unknown(
    store: IdempotencyStore, how: Resolution, state: EntryState | None
) -> None:
    """RETRY-2: what was done is kept as done for later duplicates, anything else makes the key free."""
    name, begun = key(), entry()
    revision = await store.create(name, begun)
    running = await store.resolve(name, how, by="jo")
    assert Found(revision, begun) == running
    await store.update(name, ended(begun, state=EntryState.UNKNOWN, reply=None), revision=revision)
    after = await store.resolve(name, how, Reply(ok=True, data="found"), by="jo")
    assert after is not None
    assert state == (after.entry and after.entry.state)
    if after.entry is not None and after.entry.reply is not None:
        assert ("jo", "found") == (after.entry.resolved_by, after.entry.reply.data)
    assert await store.resolve(key(), how, by="jo") is None


async def test_without_a_bucket_the_store_says_so(own_system: Any) -> None:
    """IDEM-6: a store that was never made is unavailable, and missing."""
    async with own_system.connection(Role.AGENT) as connection:
        store = IdempotencyStore(connection)
        for _ in range(2):
            with pytest.raises(Unavailable) as refused:
                await store.create(key(), entry())
            assert refused.value.missing
        with pytest.raises(Unavailable):
            await store.read(key())
        store.close()


async def test_without_a_link_the_store_says_so(own_system: Any) -> None:
    """IDEM-6: while the link is down the store is unavailable at once, and not missing."""
    await asyncio.to_thread(own_system.provision)
    async with own_system.connection(Role.AGENT) as connection:
        store = IdempotencyStore(connection)
        own_system.server.stop()
        while connection.connected:  # noqa: ASYNC110 - what is waited for has no event to offer
            await asyncio.sleep(0.01)
        with pytest.raises(Unavailable) as refused:
            await store.create(key(), entry())
        assert not refused.value.missing
        store.close()
