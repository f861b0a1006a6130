"""Whether an instance that has a call is there: asked, or by what the supervisor wrote down (IDEM-3)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from reach.bus import owners
from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.bus.owners import Owners
from reach.ids import new_id
from reach.policy.idempotency import Owner
from reach.wire import codec, subjects
from reach.wire.card import Card
from reach.wire.registration import CARDS, CardEntry


@pytest.fixture
async def asking(system: Any) -> AsyncIterator[Connection]:
    async with system.connection(Role.AGENT) as connection:
        yield connection


@pytest.fixture
async def owned(asking: Connection, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Owners]:
    """One that asks each time, and in shorter times than usual."""
    monkeypatch.setattr(owners, "AGAIN_S", 0.0)
    monkeypatch.setattr(owners, "ANSWER_S", 0.1)
    monkeypatch.setattr(owners, "ABSENT_S", 0.3)
    found = Owners(asking)
    yield found
    await found.close()


@asynccontextmanager
async def instance(system: Any, generation: int, *, silent: bool = False) -> AsyncIterator[str]:
    """Have an instance that answers pings, or one that does not."""
    name = f"owner-{new_id()[:8]}"
    async with system.connection(Role.AGENT) as connection:

        def answer(delivery: Any) -> None:
            if not silent:
                body = {"instance": name, "generation": generation, "at": 0}
                connection.publish(delivery.reply, codec.pack(body))

        connection.subscribe(subjects.ctl(name, "ping"), answer)
        await connection.flush()
        yield name


async def test_who_answers_is_alive(system: Any, owned: Owners) -> None:
    """An instance that answers is there; asked for an older start of it, that one is gone."""
    async with instance(system, 7) as name:
        assert Owner.ALIVE is await owned.state(name, 7, lease_ttl_s=30)
        assert Owner.GONE is await owned.state(name, 6, lease_ttl_s=30)


async def test_who_is_not_there_is_gone_after_a_while(system: Any, owned: Owners) -> None:
    """A link may come back: nobody there counts as silence, until it has lasted."""
    async with instance(system, 7) as name:
        assert Owner.ALIVE is await owned.state(name, 7, lease_ttl_s=30)
    assert Owner.SILENT is await owned.state(name, 7, lease_ttl_s=30)
    await asyncio.sleep(0.35)
    assert Owner.GONE is await owned.state(name, 7, lease_ttl_s=30)


async def test_who_is_silent_is_gone_when_its_lease_is_over(system: Any, owned: Owners) -> None:
    """A process that is stopped is watched, also when nobody asks, and gone when its lease is over."""
    async with instance(system, 7, silent=True) as name:
        assert Owner.SILENT is await owned.state(name, 7, lease_ttl_s=1.0)
        assert Owner.SILENT is await owned.state(name, 7, lease_ttl_s=1.0)
        await asyncio.sleep(1.3)
        assert Owner.GONE is await owned.state(name, 7, lease_ttl_s=1.0)


@pytest.mark.parametrize(
    ("generation", "present", "owner"),
    [(7, False, Owner.GONE), (8, True, Owner.GONE), (7, True, Owner.SILENT), (6, False, Owner.SILENT)],
)
async def test_the_supervisors_word_counts(
    system: Any, owned: Owners, generation: int, present: bool, owner: Owner
) -> None:
    """Of one that does not answer the card says at once whether it ended, or started anew."""
    name = f"owner-{new_id()[:8]}"
    card = Card(agent_id="owner", instance=name, generation=generation)
    entry = CardEntry(card=card, present=present, ended="lost" if not present else None)
    async with system.connection(Role.PLATFORM) as platform:
        bucket = await platform.jetstream().key_value(CARDS)
        await bucket.put(name, codec.pack(entry.model_dump(mode="json", exclude_defaults=True)))
    assert owner is await owned.state(name, 7, lease_ttl_s=30)


async def test_one_question_is_asked_for_all_who_wait(system: Any, asking: Connection) -> None:
    """Many that wait for the same instance share an answer for a quarter of a second."""
    heard = []
    name = f"owner-{new_id()[:8]}"

    def answer(delivery: Any) -> None:
        heard.append(delivery)
        asking.publish(delivery.reply, codec.pack({"instance": name, "generation": 7, "at": 0}))

    asking.subscribe(subjects.ctl(name, "ping"), answer)
    found = Owners(asking)
    states = await asyncio.gather(*(found.state(name, 7, lease_ttl_s=30) for _ in range(50)))
    states.append(await found.state(name, 7, lease_ttl_s=30))
    await found.close()
    assert {Owner.ALIVE} == set(states)
    assert 1 == len(heard)


async def test_where_nobody_may_ask_silence_says_nothing(
    system: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a login that may not ask, an instance is gone by the supervisor's word alone."""
    monkeypatch.setattr(owners, "AGAIN_S", 0.0)
    monkeypatch.setattr(owners, "ANSWER_S", 0.2)
    async with system.connection(Role.CALLER) as connection, instance(system, 7) as name:
        found = Owners(connection)
        for _ in range(4):
            assert Owner.SILENT is await found.state(name, 7, lease_ttl_s=0.1)
            await asyncio.sleep(0.05)
        await found.close()
