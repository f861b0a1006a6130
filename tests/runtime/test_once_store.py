"""Calls with a key while their store is away (IDEM-6), and what is written of calls that were given up meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import reach
from reach.bus.idempotency import Unavailable
from reach.faults import Code, Executed, Reason
from reach.ids import new_id
from reach.runtime.instance import Instance
from reach.wire.idempotency import EntryState
from tests.runtime.fleet import Fleet, eventually
from tests.runtime.test_once_basics import Desk, entry_of


@pytest.fixture
async def bare(own_system: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Agents and callers on a server that has no buckets."""
    fleet = Fleet(own_system, tmp_path)
    try:
        yield fleet
    finally:
        await fleet.close()


def store_of(instance: Instance) -> Any:
    return instance._once.keeper.store


async def test_without_a_store_a_write_with_a_key_is_refused(bare: Fleet) -> None:
    """IDEM-6: a write that carries a key is not done, and the store is named; without a key it is done."""
    desk = Desk()
    await bare.serve(desk.agent)
    bus = await bare.connect()
    reply = await bus.request("desk.do", {"number": "R-1"}, idempotency_key=new_id(), retry=False)
    assert reply.error is not None
    assert (Code.CONN_REFUSED, Reason.DISCONNECTED, Executed.NO) == (
        reply.error.code,
        reply.error.reason,
        reply.error.executed,
    )
    assert "reach_idempotency" in reply.error.message
    assert [] == desk.done
    assert (await bus.request("desk.do", {"number": "R-1"})).ok


async def test_without_a_store_what_may_be_repeated_goes_on(bare: Fleet) -> None:
    """IDEM-6: an idempotent capability is called all the same, and its reply says that it is not kept."""
    desk = Desk(idempotent=True)
    await bare.serve(desk.agent)
    bus = await bare.connect()
    reply = await bus.request("desk.do", {"number": "R-1"}, idempotency_key=new_id())
    assert ({"booked": "R-1"}, False) == (reply.unwrap(), reply.durable)


async def test_where_there_is_no_store_tasks_call_as_ever(bare: Fleet) -> None:
    """IDEM-6: a key that nobody asked for does not keep a system without a store from working; it is told, though."""
    desk = Desk()
    await bare.serve(desk.agent)
    bus = await bare.connect()
    with reach.context(task_id=new_id()):
        reply = await bus.request("desk.do", {"number": "R-1"})
    assert ({"booked": "R-1"}, False) == (reply.unwrap(), reply.durable)


async def test_a_store_that_is_away_refuses_implied_keys_too(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IDEM-6: where there is a store that does not answer, no write of a task is done unremembered."""
    desk = Desk()
    instance = await fleet.serve(desk.agent)
    bus = await fleet.connect()

    async def away(*_: Any, **__: Any) -> int:
        raise Unavailable("it is away")

    monkeypatch.setattr(store_of(instance), "create", away)
    with reach.context(task_id=new_id()):
        reply = await bus.request("desk.do", {"number": "R-1"}, retry=False)
    assert reply.error is not None
    assert (Reason.DISCONNECTED, Executed.NO) == (reply.error.reason, reply.error.executed)
    assert [] == desk.done


async def test_an_entry_that_arrives_late_is_taken_back(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IDEM-1: a call that was refused because its entry was not acknowledged leaves none that says it runs."""
    desk, key = Desk(), new_id()
    instance = await fleet.serve(desk.agent)
    bus = await fleet.connect()
    create = store_of(instance).create

    async def unheard(*given: Any, **options: Any) -> int:
        await create(*given, **options)
        raise Unavailable("its word was lost", sent=True)

    monkeypatch.setattr(store_of(instance), "create", unheard)
    reply = await bus.request("desk.do", {"number": "R-1"}, idempotency_key=key, retry=False)
    assert reply.error is not None
    assert Executed.NO is reply.error.executed
    monkeypatch.undo()
    await eventually(lambda: not instance._once.keeper._tasks)
    assert await entry_of(instance, "desk.do", key) is None
    again = await bus.request("desk.do", {"number": "R-1"}, idempotency_key=key)
    assert (True, False) == (again.ok, again.duplicate)


async def test_a_caller_that_leaves_before_the_start(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """IDEM-1: a caller that leaves while the entry is written leaves no entry, and nothing is done."""
    desk, key = Desk(), new_id()
    instance = await fleet.serve(desk.agent)
    bus = await fleet.connect()
    create, begun = store_of(instance).create, asyncio.Event()

    async def slow(*given: Any, **options: Any) -> int:
        begun.set()
        await asyncio.sleep(0.2)
        revision: int = await create(*given, **options)
        return revision

    monkeypatch.setattr(store_of(instance), "create", slow)
    call = asyncio.create_task(bus.request("desk.do", {"number": "R-1"}, idempotency_key=key))
    await begun.wait()
    call.cancel()
    await eventually(lambda: not instance.inflight and not instance._once.keeper._tasks)
    assert [] == desk.done
    assert await entry_of(instance, "desk.do", key) is None


async def test_a_deadline_does_not_undo_the_result(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """IDEM-5: a result whose caller's time ends while it is written is kept all the same."""
    desk, key = Desk(), new_id()
    instance = await fleet.serve(desk.agent)
    bus = await fleet.connect()
    update = store_of(instance).update

    async def slow(*given: Any, **options: Any) -> int:
        await asyncio.sleep(0.5)
        revision: int = await update(*given, **options)
        return revision

    monkeypatch.setattr(store_of(instance), "update", slow)
    late = await bus.request("desk.do", {"number": "R-1"}, idempotency_key=key, timeout_s=0.3, retry=False)
    assert late.error is not None
    assert Executed.MAYBE is late.error.executed
    again = await bus.request("desk.do", {"number": "R-1"}, idempotency_key=key)
    assert ({"booked": "R-1"}, True) == (again.unwrap(), again.duplicate)
    entry = await entry_of(instance, "desk.do", key)
    assert entry is not None
    assert EntryState.DONE is entry.state
    assert 1 == len(desk.done)


async def test_a_call_with_a_key_that_finds_no_place(fleet: Fleet) -> None:
    """GUARD-1: a call with a key is refused like any other where there is no place, and leaves nothing behind."""
    desk, key = Desk(max_concurrency=1), new_id()
    instance = await fleet.serve(desk.agent)
    bus = await fleet.connect()
    busy = asyncio.create_task(bus.request("desk.do", {"wait_s": 0.5}))
    await eventually(lambda: desk.done)
    refused = await bus.request("desk.do", {"number": "R-1"}, idempotency_key=key, retry=False)
    assert refused.error is not None
    assert (Reason.OVERLOADED, Executed.NO) == (refused.error.reason, refused.error.executed)
    assert await entry_of(instance, "desk.do", key) is None
    await busy
    again = await bus.request("desk.do", {"number": "R-1"}, idempotency_key=key)
    assert (True, False) == (again.ok, again.duplicate)


async def test_a_call_with_a_key_waits_for_its_place(fleet: Fleet) -> None:
    """GUARD-1: a lead queues for its place, its duplicates wait beside it, and it is done once when it has it."""
    desk, key = Desk(max_concurrency=1, queue=1), new_id()
    await fleet.serve(desk.agent)
    bus = await fleet.connect()
    busy = asyncio.create_task(bus.request("desk.do", {"wait_s": 0.4}))
    await eventually(lambda: desk.done)
    calls = [bus.request("desk.do", {"number": "R-1"}, idempotency_key=key) for _ in range(5)]
    replies = await asyncio.gather(*calls)
    assert [{"booked": "R-1"}] * 5 == [reply.unwrap() for reply in replies]
    assert [False, True, True, True, True] == sorted(reply.duplicate for reply in replies)
    await busy
    assert 2 == len(desk.done)
