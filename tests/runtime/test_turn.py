"""One after the other: the turn to write a task's next event."""

import asyncio

from reach.runtime.turn import Turn


async def worked(turn: Turn, name: str, log: list[str]) -> None:
    if not turn.take_now():
        await turn.take()
    try:
        log.append(f"{name} begins")
        await asyncio.sleep(0)
        log.append(f"{name} ends")
    finally:
        turn.give_back()


async def test_one_after_the_other_in_the_order_in_which_they_came() -> None:
    """Nobody begins before the one before has ended."""
    turn, log = Turn(), list[str]()
    await asyncio.gather(*(worked(turn, name, log) for name in "abc"))
    assert [f"{name} {what}" for name in "abc" for what in ("begins", "ends")] == log
    assert turn.take_now()


async def test_a_waiter_that_is_cancelled_is_passed_over() -> None:
    """Whoever no longer waits does not keep the turn from those behind."""
    turn, log = Turn(), list[str]()
    assert turn.take_now()
    gone, waits = (asyncio.create_task(worked(turn, name, log)) for name in ("gone", "waits"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait({gone})
    turn.give_back()
    await waits
    assert ["waits begins", "waits ends"] == log
    assert turn.take_now()


async def test_a_waiter_that_is_cancelled_with_the_turn_in_its_hand_hands_it_on() -> None:
    """A turn that was given to somebody who leaves in that moment is not lost."""
    turn, log = Turn(), list[str]()
    assert turn.take_now()
    gone, waits = (asyncio.create_task(worked(turn, name, log)) for name in ("gone", "waits"))
    await asyncio.sleep(0)
    turn.give_back()
    gone.cancel()
    await asyncio.wait({gone, waits})
    assert ["waits begins", "waits ends"] == log
    assert turn.take_now()
