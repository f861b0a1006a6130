"""The clock that tests move."""

import asyncio

import pytest

from reach.clock import Clock
from reach.testing.clock import ManualClock


def test_time_stands_still_until_it_is_moved() -> None:
    """Both readings move together, by exactly what they are moved."""
    clock: Clock = ManualClock(start=10.0, epoch=500.0)
    assert isinstance(clock, ManualClock)
    before = (clock.monotonic(), clock.time())
    clock.advance(2.5)
    assert ((10.0, 500.0), (12.5, 502.5)) == (before, (clock.monotonic(), clock.time()))


def test_time_does_not_go_back() -> None:
    """A negative step is a mistake in the test."""
    with pytest.raises(ValueError, match="only moves forward"):
        ManualClock().advance(-1.0)


async def test_sleepers_wake_in_the_order_of_their_due_times() -> None:
    """Whoever is due first goes on first; equal times keep the order in which they went to sleep."""
    clock = ManualClock()
    woken: list[str] = []

    async def nap(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    async with asyncio.TaskGroup() as tasks:
        for name, seconds in (("late", 3.0), ("early", 1.0), ("early too", 1.0)):
            tasks.create_task(nap(name, seconds))
        await asyncio.sleep(0)
        assert clock.sleeping == 3
        clock.advance(3.0)
    assert ["early", "early too", "late"] == woken


async def test_running_for_a_while_lets_a_loop_tick() -> None:
    """`run_for` stops at every due time, so a periodic task sees each of its periods."""
    clock = ManualClock(start=0.0)
    ticks: list[float] = []

    async def beat() -> None:
        while True:
            await clock.sleep(10.0)
            ticks.append(clock.monotonic())

    task = asyncio.create_task(beat())
    await clock.run_for(35.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert ([10.0, 20.0, 30.0], 35.0, 0) == (ticks, clock.monotonic(), clock.sleeping)


async def test_a_cancelled_sleeper_leaves_nothing() -> None:
    """A sleeper that was cancelled neither counts nor hinders the others."""
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep(5.0))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    clock.advance(10.0)
    assert clock.sleeping == 0


async def test_no_time_is_still_a_turn() -> None:
    """Sleeping for nothing gives way to others and needs no moving."""
    await ManualClock().sleep(0)
