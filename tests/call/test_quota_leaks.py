"""Slots, places and units never leak, whatever is cancelled at whatever moment (case 33)."""

import asyncio
from itertools import count
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import reach
from reach.call.client import Bus
from reach.call.gate import Gate, unpacked
from reach.faults import Executed
from tests.runtime.fleet import Fleet, eventually

SCHEDULES = 25
MANY = 1_000_000

CALLS = st.lists(
    st.tuples(
        st.integers(0, 6),  # ms until it is made
        st.integers(0, 8),  # ms that it works
        st.none() | st.integers(0, 8),  # ms until it is cancelled
        st.booleans(),  # whether it queues
        st.sampled_from((2.0, 0.05, 0.006)),  # its own time, in seconds
    ),
    min_size=1,
    max_size=14,
)

_numbers = count()


def desk(name: str) -> reach.Agent:
    """An agent whose work lasts as long as is said, with a capability for each schedule."""
    agent = reach.Agent(name)

    async def work(ms: int) -> None:
        await asyncio.sleep(ms / 1000)

    for number in range(SCHEDULES * 4):
        rate = reach.Rate(calls=MANY, per_s=600, concurrent=3)
        agent.capability(f"{name}.work{number}", rate=rate, idempotent=True)(work)
    return agent


async def play(bus: Bus, capability: str, calls: list[tuple[int, int, int | None, bool, float]]) -> int:
    """Make the calls of a schedule, cancel some, and wait for all; how many its round has spent."""

    async def one(begins: int, works: int, leaves: int | None, queues: bool, timeout_s: float) -> None:
        await asyncio.sleep(begins / 1000)
        call = asyncio.ensure_future(
            bus.request(capability, {"ms": works}, queue=queues, timeout_s=timeout_s, retry=False)
        )
        if leaves is not None:
            await asyncio.sleep(leaves / 1000)
            call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    with reach.context(task_id=task_of(capability)):
        async with reach.round(budget=reach.Budget(calls=MANY)) as this:
            await asyncio.gather(*(one(*call) for call in calls))
            left = this.left.calls
    assert left is not None
    return MANY - left


def task_of(capability: str) -> str:
    return capability.replace(".", "-")


def gate_of(bus: Bus, capability: str) -> Gate | None:
    return bus._core.quota._gates.get((capability, ""))


async def check(fleet: Fleet, bus: Bus, calls: list[Any]) -> None:
    capability = f"leaks.work{next(_numbers)}"
    spent = await play(bus, capability, calls)
    await eventually(lambda: sum(record.capability == capability for record in fleet.records) == len(calls))
    records = [record for record in fleet.records if record.capability == capability]
    sent = [record for record in records if record.attempts]
    maybe_done = [
        record for record in sent if any(attempt.executed != Executed.NO for attempt in record.attempts)
    ]
    gate = gate_of(bus, capability)
    if gate is not None:
        await eventually(lambda: gate.is_idle)
    ledger = unpacked((await bus._core.shared.read(f"all.{capability}"))[0], capability)

    task = bus._core.budgets._tasks["default", task_of(capability)]
    await eventually(lambda: task._asking is None)
    await task._hand_in()
    counted = await bus._core.shared.add(task._calls, 0)

    assert len(maybe_done) == spent == counted
    assert () == ledger.held
    assert len(sent) == sum(one.n for one in ledger.taken)
    assert 0 == bus._core.outbound.open_calls == len(bus._core.quota._inside) == len(bus._core.budgets._paid)


async def test_nothing_leaks_whatever_is_cancelled(fleet: Fleet) -> None:
    """Case 33: over drawn schedules of calls, ends and cancellations every place and every unit comes back."""
    await fleet.serve(desk("leaks"))
    bus = await fleet.connect()
    await bus.cards.instances("leaks.work0")
    loop = asyncio.get_running_loop()

    @settings(max_examples=SCHEDULES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(calls=CALLS)
    def schedules(calls: list[Any]) -> None:
        asyncio.run_coroutine_threadsafe(check(fleet, bus, calls), loop).result(30)

    await asyncio.to_thread(schedules)
