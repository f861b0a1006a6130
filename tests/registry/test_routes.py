"""The mirror of the routing table, against a real bucket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any

import pytest

from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.errors import ReachError
from reach.policy.inherit import Mode
from reach.registry.routes import Routes
from reach.wire import codec
from reach.wire.registration import INHERIT_KEY, ROUTES, InheritEntry, LeaderEntry
from reach.wire.route import Lane, RouteEntry

PREFIX = f"$KV.{ROUTES}."


def entry(capability: str, revision: int, *, term: int = 1, weight: float = 1.0) -> RouteEntry:
    """An entry that can be told by its weight."""
    lanes = (Lane(provider="a", instances=1, weight=weight),)
    return RouteEntry(capability=capability, term=term, revision=revision, at=1, lanes=lanes)


class Table:
    """Writes the bucket as a supervisor does."""

    def __init__(self, platform: Connection) -> None:
        self.platform = platform

    async def write(self, *entries: RouteEntry) -> None:
        """Write entries; returns once they are stored."""
        for one in entries:
            data = codec.pack(
                one.model_dump(mode="json", exclude_defaults=True) | {"capability": one.capability}
            )
            await self.put(f"cap.{one.capability}", data)

    async def put(self, key: str, data: bytes, **headers: str) -> None:
        """Write anything."""
        await self.platform.request(PREFIX + key, data, timeout_s=2, headers=headers or None)


@contextlib.asynccontextmanager
async def mirror(system: Any, role: Role = Role.CALLER) -> AsyncIterator[Routes]:
    """A mirror that has begun to read."""
    async with system.connection(role) as connection:
        routes = Routes(connection)
        routes.start()
        try:
            yield routes
        finally:
            await routes.close()


@pytest.fixture
async def table(own_system: Any) -> AsyncIterator[Table]:
    """A bucket, and who writes it."""
    await asyncio.to_thread(own_system.provision)
    async with own_system.connection(Role.PLATFORM) as platform:
        yield Table(platform)


async def sees(condition: Callable[[], Any], *, within_s: float = 10.0) -> float:
    began = monotonic()
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - a stream has no event for tests
            await asyncio.sleep(0.002)
    return monotonic() - began


def weight(routes: Routes, capability: str) -> float | None:
    found = routes.entry(capability)
    return None if found is None else found.lanes[0].weight


async def test_what_is_there_is_read_and_what_changes_is_told(own_system: Any, table: Table) -> None:
    """SPEED-4: entries that were there are known at once, a change within 250 ms; only of what was asked for."""
    await table.write(entry("a.b", 1), entry("c.d", 2))
    async with mirror(own_system) as routes:
        assert await routes.ready(5)
        told: list[tuple[str, int]] = []
        routes.on_change(lambda name, found: told.append((name, 0 if found is None else found.revision)))
        assert 1.0 == weight(routes, "a.b")
        await table.write(entry("a.b", 3, weight=2.0), entry("c.d", 4, weight=3.0))
        took_s = await sees(lambda: weight(routes, "a.b") == 2.0)
        assert took_s < 0.25
        assert [("a.b", 3)] == told
        await sees(lambda: weight(routes, "c.d") == 3.0)
        assert (True, False) == (routes.registered("c.d"), routes.registered("x.y"))
        assert ["a.b"] == routes.nearest("a.bb")


async def test_an_entry_that_comes_later_is_told_to_who_asked_before(own_system: Any, table: Table) -> None:
    """Who asked for a capability of which there was nothing hears of its first entry."""
    async with mirror(own_system) as routes:
        assert await routes.ready(5)
        told: list[str] = []
        routes.on_change(lambda name, _: told.append(name))
        assert routes.entry("a.b") is None
        assert not routes.complete
        await table.write(entry("a.b", 1))
        await sees(lambda: told == ["a.b"])
        assert routes.complete


async def test_older_entries_change_nothing(own_system: Any, table: Table) -> None:
    """ROUTE: the entry with the highest (term, revision) holds, whatever arrives after it."""
    await table.write(entry("a.b", 7, term=2))
    async with mirror(own_system) as routes:
        assert await routes.ready(5)
        assert 1.0 == weight(routes, "a.b")
        await table.write(entry("a.b", 9, term=1, weight=9.0), entry("a.b", 6, term=2, weight=8.0))
        await table.write(entry("a.b", 1, term=3, weight=2.0))
        await sees(lambda: weight(routes, "a.b") == 2.0)


async def test_the_leaders_key_and_what_cannot_be_read_are_passed_over(own_system: Any, table: Table) -> None:
    """Garbage keeps what was there, and is counted; a deleted entry is one of nobody."""
    await table.write(entry("a.b", 1))
    async with mirror(own_system) as routes:
        assert await routes.ready(5)
        assert 1.0 == weight(routes, "a.b")
        await table.put("leader", codec.pack(LeaderEntry(supervisor="s").model_dump()))
        await table.put("cap.a.b", b"no map at all")
        await sees(lambda: routes.garbage == 1)
        assert 1.0 == weight(routes, "a.b")
        await table.put("cap.a.b", b"", **{"KV-Operation": "DEL"})
        await sees(lambda: routes.entry("a.b") is None)
        assert not routes.registered("a.b")


async def test_the_table_holds_while_the_server_is_away_and_goes_on_after(
    own_system: Any, table: Table
) -> None:
    """Fail-static: what is known stays known without a link, its age grows; changes are heard after it."""
    await table.write(entry("a.b", 1))
    async with mirror(own_system) as routes:
        assert await routes.ready(5)
        assert 1.0 == weight(routes, "a.b")
        assert 0.0 == routes.age_s(monotonic())
        await asyncio.to_thread(own_system.restart)
        assert 1.0 == weight(routes, "a.b")
        assert await table.platform.wait_connected(10)
        await sees(lambda: table.platform.connected)
        await table.write(entry("a.b", 2, weight=2.0))
        await sees(lambda: weight(routes, "a.b") == 2.0)


async def test_a_bucket_that_is_made_anew_is_read_anew(own_system: Any, table: Table) -> None:
    """A new bucket begins to count anew: its entries hold although they look older."""
    await table.write(*(entry(f"x.y{number}", number + 1, term=50) for number in range(20)))
    async with mirror(own_system) as routes:
        assert await routes.ready(5)
        assert 1.0 == weight(routes, "x.y1")
        jetstream = table.platform.jetstream()
        await jetstream.delete_key_value(ROUTES)
        await asyncio.to_thread(own_system.provision)
        await table.write(entry("x.y1", 1, term=2, weight=4.0))
        await asyncio.to_thread(own_system.restart)
        await sees(lambda: weight(routes, "x.y1") == 4.0, within_s=20)
        await sees(lambda: not routes.registered("x.y2"), within_s=20)


async def test_how_more_general_providers_count_is_read(own_system: Any, table: Table) -> None:
    """ROUTE-4: as the leader has written it down, and when it is another rule; what cannot be read changes nothing."""
    async with mirror(own_system) as routes:
        assert await routes.tried(5)
        assert Mode.OFF is routes.inheritance.mode
        told: list[Mode] = []
        routes.on_rule(lambda: told.append(routes.inheritance.mode))
        rule = InheritEntry(mode="fallback", parents={"invoice": ("document",)})
        for _ in range(2):
            await table.put(INHERIT_KEY, codec.pack(rule.model_dump(mode="json")))
        await sees(lambda: bool(told))
        assert (("invoice", 1), ("document", 2)) == routes.inheritance.ancestors("invoice.extract")
        await table.put(INHERIT_KEY, b"\xc1")
        await sees(lambda: routes.garbage == 1)
        await table.put(INHERIT_KEY, codec.pack(InheritEntry(mode="weight").model_dump(mode="json")))
        await sees(lambda: len(told) > 1)
        assert [Mode.FALLBACK, Mode.WEIGHT] == told


async def test_without_a_bucket_there_is_no_table_until_there_is_one(own_system: Any) -> None:
    """Callers are not held up by a platform that never ran; when it does, its table is found."""
    async with mirror(own_system) as routes:
        began = monotonic()
        assert not await routes.tried(5)
        assert monotonic() - began < 2  # The server says at once that there is none.
        assert not await routes.ready(0.3)
        assert routes.entry("a.b") is None
        assert routes.age_s(monotonic()) is None
        await asyncio.to_thread(own_system.provision)
        assert await routes.ready(10)


async def test_without_the_right_to_read_there_is_no_table(own_system: Any, table: Table) -> None:
    """Who may not read the bucket works as without a supervisor, and closes in order."""
    await table.write(entry("a.b", 1))
    async with own_system.connection(Role.FENCER) as connection:
        routes = Routes(connection)
        routes.start()
        assert not await routes.ready(0.5)
        await routes.close()


async def test_callers_may_read_the_table_and_not_write_it(own_system: Any, table: Table) -> None:
    """Design, section 9: the table is the platform's, enforced at the broker."""
    async with own_system.connection(Role.CALLER) as caller:
        with pytest.raises(ReachError):
            await caller.request(f"{PREFIX}cap.a.b", b"", timeout_s=0.5)
    async with mirror(own_system) as routes:
        assert await routes.ready(5)
        assert not routes.registered("a.b")
