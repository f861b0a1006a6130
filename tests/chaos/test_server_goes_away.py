"""The broker stops with calls in flight, and comes back (CALL-6, case 5)."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
import pytest

import reach
from reach.bus.embedded import EmbeddedServer
from reach.faults import Code, Executed, Reason
from tests.runtime.fleet import Fleet, eventually


class Broker:
    """The server of one test, which stops and comes back on the same port."""

    def __init__(self, system: Any) -> None:
        self.system = system
        self.port = system.server.info.port

    async def stop(self) -> None:
        await anyio.to_thread.run_sync(self.system.server.stop)

    async def start(self) -> None:
        self.system.server = await anyio.to_thread.run_sync(
            lambda: EmbeddedServer.start(self.system.home, port=self.port)
        )


@pytest.fixture
async def fleet(own_system: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Agents and callers on a server of their own."""
    fleet = Fleet(own_system, tmp_path)
    try:
        yield fleet
    finally:
        await fleet.close()


@pytest.fixture
def broker(own_system: Any) -> Broker:
    """The server."""
    return Broker(own_system)


class Work:
    """An agent with a read and a write that take as long as asked; every start of a handler is logged."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.agent = reach.Agent("work")

        @self.agent.capability("work.read", idempotent=True)
        async def read(seconds: float = 0.0) -> str:
            self.log.append("read")
            await asyncio.sleep(seconds)
            return "read"

        @self.agent.capability("work.write")
        async def write(seconds: float = 0.0) -> str:
            self.log.append("write")
            await asyncio.sleep(seconds)
            return "written"

        @self.agent.capability("work.tick")
        async def tick() -> AsyncIterator[int]:
            for number in range(10_000):
                yield number
                await asyncio.sleep(0.01)


async def test_calls_in_flight_are_judged_at_once(fleet: Fleet, broker: Broker) -> None:
    """CALL-6, case 5: the link's end is the end of waiting: writes are unknown, nothing waits for its timeout."""
    work = Work()
    await fleet.serve(work.agent)
    bus = await fleet.connect()
    writes = [
        asyncio.create_task(bus.request("work.write", {"seconds": 1.0}, timeout_s=60)) for _ in range(20)
    ]
    single = asyncio.create_task(bus.request("work.read", {"seconds": 1.0}, timeout_s=60, retry=False))
    await eventually(lambda: len(work.log) == 21)
    began = monotonic()
    await broker.stop()
    async with asyncio.timeout(3.0):
        replies = await asyncio.gather(*writes)
        read = await single
    assert monotonic() - began < 3.0
    assert {(Code.UNKNOWN, Reason.OUTCOME_UNKNOWN, Executed.MAYBE, "DISCONNECTED")} == {
        (reply.error.code, reply.error.reason, reply.error.executed, reply.error.cause)
        for reply in replies
        if reply.error is not None
    }
    assert read.error is not None
    assert (Reason.DISCONNECTED, Executed.MAYBE) == (read.error.reason, read.error.executed)
    assert (0, 0) == (bus.pending, bus._core.outbound.open_calls)
    await broker.start()
    await eventually(lambda: bus.connection.connected)
    assert 20 == work.log.count("write")


async def test_reads_in_flight_are_made_again_when_the_link_is_back(fleet: Fleet, broker: Broker) -> None:
    """RETRY-1, CALL-6: an idempotent call waits for the link within its deadline, and is answered."""
    work = Work()
    await fleet.serve(work.agent)
    bus = await fleet.connect()
    reads = [asyncio.create_task(bus.request("work.read", {"seconds": 0.6}, timeout_s=20)) for _ in range(20)]
    await eventually(lambda: len(work.log) == 20)
    await broker.stop()
    await eventually(lambda: not bus.connection.connected)
    await eventually(lambda: (0, 0) == (bus.pending, bus._core.outbound.open_calls), within_s=1.0)
    await broker.start()
    replies = await asyncio.gather(*reads)
    assert ["read"] * 20 == [reply.unwrap() for reply in replies]
    assert 40 == work.log.count("read")
    assert {True} == {reply.retried for reply in replies}


async def test_calls_made_while_the_link_is_down_wait_within_their_deadline(
    fleet: Fleet, broker: Broker
) -> None:
    """CALL-6: nothing is published while disconnected, no slot is held; then CONN_REFUSED, executed=no."""
    work = Work()
    await fleet.serve(work.agent)
    bus = await fleet.connect()
    await bus.request("work.write")
    await broker.stop()
    await eventually(lambda: not bus.connection.connected)
    began = monotonic()
    impatient = asyncio.create_task(bus.request("work.write", timeout_s=0.4))
    patient = asyncio.create_task(bus.request("work.write", timeout_s=20))
    await asyncio.sleep(0.1)
    assert 0 == bus._core.outbound.open_calls
    error = (await impatient).error
    assert 0.3 < monotonic() - began < 1.5
    assert error is not None
    assert (Code.CONN_REFUSED, Reason.DISCONNECTED, Executed.NO) == (error.code, error.reason, error.executed)
    await broker.start()
    assert "written" == (await patient).unwrap()
    assert 2 == work.log.count("write")


@pytest.mark.alone
async def test_everything_works_again_after_a_restart(fleet: Fleet, broker: Broker) -> None:
    """CALL-6: caller and agents come back by themselves, and rejoin their groups; twice in a row."""
    work = Work()
    instances = [await fleet.serve(work.agent) for _ in range(3)]
    bus = await fleet.connect()
    for _ in range(2):
        await broker.stop()
        await eventually(lambda: not bus.connection.connected)
        await broker.start()
        began = monotonic()
        await eventually(lambda: all(one.connection.connected for one in instances), within_s=5.0)
        await asyncio.gather(*(one.connection.flush() for one in instances))
        replies = await asyncio.gather(*(bus.request("work.write", timeout_s=10) for _ in range(60)))
        assert monotonic() - began < 5.0
        assert [] == [reply.error for reply in replies if not reply.ok]
        assert len({reply.instance for reply in replies}) == 3
        got = [reply async for reply in bus.broadcast("work.read")]
        assert 3 == len(got)


async def test_an_open_stream_is_cut_and_says_so(fleet: Fleet, broker: Broker) -> None:
    """STREAM-2, CALL-5: a link that ends inside a stream is an error; its producer is told when the link is back."""
    work = Work()
    instance = await fleet.serve(work.agent)
    bus = await fleet.connect()
    parts = bus.stream("work.tick")
    assert 0 == await anext(parts)
    await broker.stop()
    began = monotonic()
    with pytest.raises(reach.ReachError) as cut:
        async for _ in parts:
            pass
    assert monotonic() - began < 2.0
    assert Executed.MAYBE is cut.value.executed
    assert Reason.DISCONNECTED is cut.value.reason
    await broker.start()
    await eventually(lambda: instance.connection.connected)
    await eventually(lambda: instance.inflight == 0, within_s=5.0)
    assert [("failed", "DISCONNECTED")] == [(record.outcome, record.reason) for record in fleet.records]


async def test_a_disconnected_call_leaves_one_record(fleet: Fleet, broker: Broker) -> None:
    """Promise 4: judged by the link's end, recorded once, with the instance that had it."""
    work = Work()
    instance = await fleet.serve(work.agent)
    bus = await fleet.connect()
    write = asyncio.create_task(bus.request("work.write", {"seconds": 0.5}, timeout_s=60))
    await eventually(lambda: work.log)
    await asyncio.sleep(0.1)
    await broker.stop()
    await write
    assert [("failed", "OUTCOME_UNKNOWN", instance.name, ["unknown:DISCONNECTED"])] == [
        (record.outcome, record.reason, record.instance, [one.decision for one in record.attempts])
        for record in fleet.records
    ]
    await broker.start()


async def test_an_agent_can_leave_while_the_server_is_away(fleet: Fleet, broker: Broker) -> None:
    """LIFE-7: stopping without a link takes no longer than what still runs, and fails in nothing."""
    work = Work()
    instance = await fleet.serve(work.agent)
    bus = await fleet.connect()
    write = asyncio.create_task(bus.request("work.write", {"seconds": 0.3}, timeout_s=60))
    await eventually(lambda: work.log)
    await broker.stop()
    await write
    began = monotonic()
    await fleet.stop(instance)
    assert monotonic() - began < 3.0
    assert 0 == instance.inflight
    await broker.start()


async def test_a_server_that_freezes_is_noticed_by_deadlines(fleet: Fleet, broker: Broker) -> None:
    """Promise 1: with the server stopped by a signal, calls end at their deadline, and all goes on afterwards."""
    work = Work()
    await fleet.serve(work.agent)
    bus = await fleet.connect()
    await bus.request("work.read")
    pid = broker.system.server.info.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        began = monotonic()
        replies = await asyncio.gather(
            bus.request("work.read", timeout_s=0.5), bus.request("work.write", timeout_s=0.5)
        )
        assert monotonic() - began < 1.5
    finally:
        os.kill(pid, signal.SIGCONT)
    assert [False, False] == [reply.ok for reply in replies]
    assert (await bus.request("work.read", timeout_s=5)).ok
