"""Worker processes behind a capability: what a caller sees when one of them dies with its call."""

import asyncio
import os
import signal
from time import monotonic
from typing import Any

import pytest

import reach
from reach.faults import Code, Executed, Reason
from reach.runtime.executor import ProcessExecutor
from reach.runtime.instance import Instance
from tests.runtime import reckoning
from tests.runtime.fleet import Fleet, eventually


@pytest.fixture
async def instance(fleet: Fleet) -> Instance:
    """An agent with two worker processes a capability."""
    agent = reach.Agent("pool")
    agent.capability("pool.add", executor="process")(reckoning.add)
    agent.capability("pool.slow", executor="process")(reckoning.slow)
    agent.capability("pool.slow_read", executor="process", idempotent=True)(reckoning.slow)
    return await fleet.serve(agent)


def pool_of(instance: Instance, name: str) -> ProcessExecutor:
    found = next(one.executor for one in instance.served if one.name == name)
    assert isinstance(found, ProcessExecutor)
    return found


def slots_of(instance: Instance, name: str) -> int:
    return next(one.running for one in instance.served if one.name == name)


async def test_a_capability_runs_in_a_process_of_its_own(fleet: Fleet, instance: Instance) -> None:
    """`executor="process"`: the handler computes elsewhere; parameters are checked before they go there."""
    bus = await fleet.connect()
    result = (await bus.request("pool.add", {"numbers": [1, 2, 3]})).unwrap()
    assert 6 == result["total"]
    assert os.getpid() != result["pid"]
    wrong = (await bus.request("pool.add", {"numbers": ["x"]})).error
    assert wrong is not None
    assert Reason.SCHEMA is wrong.reason


async def test_a_process_killed_in_the_middle_of_a_call_is_told_at_once(
    fleet: Fleet, instance: Instance
) -> None:
    """Issue acceptance: failure told in < 1 s, executed=maybe, slot returned, and the next call works."""
    bus = await fleet.connect()
    await bus.cards.card_for("pool.slow")
    call = asyncio.create_task(bus.request("pool.slow", {"seconds": 30.0}, timeout_s=60))
    await eventually(lambda: pool_of(instance, "pool.slow").busy == 1)
    await asyncio.sleep(0.2)
    began = monotonic()
    for pid in pool_of(instance, "pool.slow").worker_pids:
        os.kill(pid, signal.SIGKILL)
    reply = await call
    assert monotonic() - began < 1.0
    assert reply.error is not None
    assert (Code.UNKNOWN, Reason.OUTCOME_UNKNOWN, Executed.MAYBE, "INSTANCE_GONE") == (
        reply.error.code,
        reply.error.reason,
        reply.error.executed,
        reply.error.cause,
    )
    assert (0, 0) == (slots_of(instance, "pool.slow"), instance.inflight)
    after = await bus.request("pool.slow", {"seconds": 0.0}, timeout_s=20)
    assert isinstance(after.unwrap(), int)


async def test_a_read_whose_worker_died_is_made_again(fleet: Fleet, instance: Instance) -> None:
    """RETRY-1: an idempotent call is repeated, here by a new worker of the same instance."""
    bus = await fleet.connect()
    pool = pool_of(instance, "pool.slow_read")
    call = asyncio.create_task(bus.request("pool.slow_read", {"seconds": 0.6}, timeout_s=20))
    await eventually(lambda: pool.busy == 1)
    await asyncio.sleep(0.2)
    before = set(pool.worker_pids)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    reply = await call
    assert reply.unwrap() not in before
    assert (2, True) == (reply.attempt, reply.retried)
    first = fleet.records[-1].attempts[0]
    assert ("UPSTREAM_5XX", "INSTANCE_GONE", "maybe") == (first.code, first.reason, first.executed)


async def test_a_dead_worker_takes_one_call_with_it_and_no_other(fleet: Fleet, instance: Instance) -> None:
    """The neighbour in the other worker finishes."""
    bus = await fleet.connect()
    pool = pool_of(instance, "pool.slow")
    calls = [asyncio.create_task(bus.request("pool.slow", {"seconds": 2.0}, timeout_s=30)) for _ in range(2)]
    await eventually(lambda: len(pool.worker_pids) == 2 and pool.busy == 2)
    await asyncio.sleep(0.3)
    os.kill(pool.worker_pids[0], signal.SIGKILL)
    replies = await asyncio.gather(*calls)
    assert [False, True] == sorted(reply.ok for reply in replies)
    assert 0 == slots_of(instance, "pool.slow")


async def test_a_cancelled_call_ends_its_worker_and_frees_its_slot(fleet: Fleet, instance: Instance) -> None:
    """CALL-5: a process can be stopped, so it is; a new one takes its place."""
    bus = await fleet.connect()
    pool = pool_of(instance, "pool.slow")
    call = asyncio.create_task(bus.request("pool.slow", {"seconds": 60.0}, timeout_s=60))
    await eventually(lambda: pool.busy == 1)
    await asyncio.sleep(0.2)
    before = set(pool.worker_pids)
    call.cancel()
    await eventually(lambda: slots_of(instance, "pool.slow") == 0, within_s=2.0)
    await eventually(lambda: not before & set(pool.worker_pids), within_s=2.0)
    pid = (await bus.request("pool.slow", {"seconds": 0.0}, timeout_s=20)).unwrap()
    assert pid not in before


async def test_a_deadline_ends_the_worker_and_says_maybe(fleet: Fleet, instance: Instance) -> None:
    """CALL-4: the computation does not go on behind the back of a caller that was told."""
    bus = await fleet.connect()
    pool = pool_of(instance, "pool.slow")
    reply = await bus.request("pool.slow", {"seconds": 60.0}, timeout_s=0.5)
    assert reply.error is not None
    assert (Reason.OUTCOME_UNKNOWN, Executed.MAYBE) == (reply.error.reason, reply.error.executed)
    await eventually(lambda: (pool.busy, slots_of(instance, "pool.slow")) == (0, 0), within_s=2.0)


async def test_large_values_go_to_a_worker_and_come_back(fleet: Fleet) -> None:
    """CALL-7: 3 MB both ways, through the blob store and the worker's socket."""
    agent = reach.Agent("pool")
    agent.capability("pool.echo", executor="process")(reckoning.echo)
    await fleet.serve(agent)
    bus = await fleet.connect()
    value: dict[str, Any] = {"raw": b"\x00\xff" * 1_500_000, "text": "发票"}
    assert value == (await bus.request("pool.echo", value, timeout_s=20)).unwrap()
