"""Work out of the real queue: by free places, handed back, handed out again, and never silently nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from reach.bus import workqueue
from reach.bus.connection import Connection
from reach.bus.jetstream import JetStream
from reach.bus.keys import Role
from reach.bus.workqueue import Work, WorkQueue, consumer_name
from reach.errors import ConfigError
from reach.ids import new_id

Make = Callable[..., "Taker"]


class Taker:
    """A worker of one capability with so many places."""

    def __init__(
        self, connection: Connection, jetstream: JetStream, capability: str, limit: int, **more: Any
    ) -> None:
        self.taken: list[Work] = []
        self.out = 0
        self.most = 0
        self.limit = limit
        self.arrived = asyncio.Event()
        self.queue = WorkQueue(
            connection,
            jetstream,
            stream="REACH_TASKS",
            capability=capability,
            limit=limit,
            room=lambda: self.limit - self.out,
            take=self.take,
            **more,
        )

    def take(self, work: Work) -> None:
        self.out += 1
        self.most = max(self.most, self.out)
        self.taken.append(work)
        self.arrived.set()

    def free(self) -> None:
        self.out -= 1
        self.queue.freed()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(15):
            while len(self.taken) < count:
                self.arrived.clear()
                await self.arrived.wait()


@pytest.fixture
async def agent(system: Any) -> AsyncIterator[Connection]:
    async with system.connection(Role.AGENT) as connection:
        yield connection


@pytest.fixture
async def make(agent: Connection) -> AsyncIterator[Make]:
    """Make workers, which end with the test."""
    jetstream = JetStream(agent)
    takers: list[Taker] = []

    def one(capability: str, limit: int, **more: Any) -> Taker:
        taker = Taker(agent, jetstream, capability, limit, **more)
        takers.append(taker)
        return taker

    yield one
    for taker in takers:
        await taker.queue.stop()
        for work in taker.taken:
            work.done()
        taker.queue.close()
    await agent.flush()
    jetstream.close()


async def put(agent: Connection, capability: str, count: int) -> None:
    jetstream = JetStream(agent)
    for n in range(count):
        await jetstream.publish(f"task.submit.{capability}", b'{"n": %d}' % n)
    jetstream.close()


async def test_no_more_is_taken_than_there_is_room_for(agent: Connection, make: Make) -> None:
    """A worker gets its free places full, and one more for each that falls free; together all is done."""
    capability = f"queue.{new_id()}"
    await put(agent, capability, 60)
    takers = [make(capability, 4), make(capability, 4)]
    for taker in takers:
        taker.queue.start()
    done: set[bytes] = set()
    async with asyncio.timeout(20):
        while len(done) < 60:
            await asyncio.sleep(0.005)
            for taker in takers:
                for work in taker.taken:
                    if work.data not in done:
                        done.add(work.data)
                        work.done()
                        taker.free()

    assert [4, 4] == [taker.most for taker in takers]
    assert 60 == sum(len(taker.taken) for taker in takers)


async def test_work_is_put_back_with_a_delay(agent: Connection, make: Make) -> None:
    """Case 15: what is put back comes again, after the delay that was asked for."""
    capability = f"queue.{new_id()}"
    taker = make(capability, 2)
    taker.queue.start()
    await put(agent, capability, 1)
    await taker.until(1)
    began = asyncio.get_running_loop().time()
    taker.taken[0].put_back(0.4)
    taker.free()
    await taker.until(2)

    assert asyncio.get_running_loop().time() - began >= 0.35
    assert [1, 2] == [work.position.delivered for work in taker.taken]


async def test_a_word_keeps_work_out(agent: Connection, make: Make) -> None:
    """Case 12: work of which nothing is heard comes again after its time; work that is told of does not."""
    capability = f"queue.{new_id()}"
    taker = make(capability, 4, ack_wait_s=1.0)
    taker.queue.start()
    await put(agent, capability, 2)
    await taker.until(2)
    for _ in range(8):
        await asyncio.sleep(0.25)
        taker.taken[0].still_working()

    assert [taker.taken[1].data] == [work.data for work in taker.taken[2:]][:1]
    assert taker.taken[0].data not in {work.data for work in taker.taken[2:]}


async def test_what_stops_hands_back(agent: Connection, make: Make) -> None:
    """A worker that stops gets nothing more, although it had asked; the others get it."""
    capability = f"queue.{new_id()}"
    leaving, staying = make(capability, 8), make(capability, 8)
    leaving.queue.start()
    await put(agent, capability, 1)
    await leaving.until(1)
    leaving.taken.pop().put_back()
    await leaving.queue.stop()
    staying.queue.start()
    await put(agent, capability, 3)
    await staying.until(4)

    assert [] == leaving.taken[1:]


async def test_silence_is_noticed(agent: Connection, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 3: where the server has forgotten what was asked for, it is asked again within seconds."""
    monkeypatch.setattr(workqueue, "SILENCE_S", 0.5)
    monkeypatch.setattr(workqueue, "_LOOK_S", 0.1)
    capability = f"queue.{new_id()}"
    taker = make(capability, 2)
    taker.queue.start()
    await put(agent, capability, 1)
    await taker.until(1)
    # As if the request had never reached the server.
    taker.queue._prefix += "x"
    await taker.queue._subscription.withdraw()
    taker.queue._subscription = agent.subscribe(f"{taker.queue._prefix}.*", taker.queue._on_delivery)
    taker.free()
    await put(agent, capability, 2)

    await taker.until(3)


async def test_settings_are_changed_in_place(agent: Connection, make: Make) -> None:
    """A worker with another `ack_wait_s` changes the consumer that is there."""
    capability = f"queue.{new_id()}"
    first = make(capability, 1, ack_wait_s=2.0)
    await first.queue.ensure()
    second = make(capability, 1, ack_wait_s=3.0)
    await second.queue.ensure()
    jetstream = JetStream(agent)
    found = await jetstream.api(f"CONSUMER.INFO.REACH_TASKS.{consumer_name(capability)}", {})
    jetstream.close()

    assert 3_000_000_000 == found["config"]["ack_wait"]


async def test_what_cannot_be_changed_is_refused(system: Any, make: Make) -> None:
    """A consumer of the same name that delivers otherwise is told, with the cure."""
    capability = f"queue.{new_id()}"
    async with system.connection(Role.PLATFORM) as platform:
        await platform.jetstream().add_consumer(
            "REACH_TASKS",
            durable_name=consumer_name(capability),
            filter_subject=f"task.submit.{capability}",
            ack_policy="explicit",
            deliver_subject="somewhere.else",
        )
    with pytest.raises(ConfigError, match=f"nats consumer rm REACH_TASKS {consumer_name(capability)}"):
        await make(capability, 1).queue.ensure()


def test_names_of_consumers_never_clash() -> None:
    """A capability's name and its consumer's are one to one."""
    assert "ledger=reconcile_all" == consumer_name("ledger.reconcile_all")
    assert consumer_name("a.b-c") != consumer_name("a-b.c")
