"""The bounded queue before an actor."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.runtime.mailbox import FAIR_BATCH, Mailbox, MailboxClosed, Put


async def test_first_in_first_out() -> None:
    """Items come out in the order in which they went in."""
    box: Mailbox[int] = Mailbox(3)
    puts = [box.put(n) for n in range(3)]
    assert ([Put.TAKEN] * 3, [0, 1, 2]) == (puts, [await box.get() for _ in range(3)])


async def test_a_full_mailbox_refuses_the_newest_and_counts_it() -> None:
    """What is inside stays; what does not fit is refused at once and counted."""
    box: Mailbox[str] = Mailbox(2)
    puts = [box.put(item) for item in ("a", "b", "c", "d")]
    assert ([Put.TAKEN, Put.TAKEN, Put.FULL, Put.FULL], 2, ["a", "b"]) == (puts, box.dropped, box.clear())


async def test_reserved_items_enter_a_full_mailbox() -> None:
    """A flood of messages does not stop an actor's clock."""
    box: Mailbox[str] = Mailbox(1)
    box.put("message")
    assert (Put.TAKEN, 0, 2) == (box.put("tick", reserved=True), box.dropped, len(box))


async def test_a_closed_mailbox_gives_out_what_it_holds_and_then_ends() -> None:
    """Closing refuses newcomers, counts them, and loses nothing that was taken."""
    box: Mailbox[str] = Mailbox(2)
    box.put("in time")
    box.close()
    assert (Put.CLOSED, 1, "in time") == (box.put("late"), box.late, await box.get())
    with pytest.raises(MailboxClosed):
        await box.get()


async def test_closing_lets_a_waiting_reader_go() -> None:
    """A reader of an empty mailbox does not wait for ever."""
    box: Mailbox[str] = Mailbox(1)
    ended = asyncio.Event()

    async def read() -> None:
        with pytest.raises(MailboxClosed):
            await box.get()
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        box.close()
    assert ended.is_set()


async def test_a_reader_that_leaves_takes_nothing_with_it() -> None:
    """Cancelling a waiting reader loses no item, even one that arrives in the same turn of the loop."""
    box: Mailbox[str] = Mailbox(1)
    reader = asyncio.create_task(box.get())
    await anyio.wait_all_tasks_blocked()
    box.put("kept")
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert "kept" == await box.get()


async def test_there_is_one_reader() -> None:
    """A second reader is a mistake, and is told so."""
    box: Mailbox[str] = Mailbox(1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(box.get)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(RuntimeError, match="one reader"):
            await box.get()
        tasks.cancel_scope.cancel()


def test_no_room_is_no_mailbox() -> None:
    """A capacity below one is refused."""
    with pytest.raises(ValueError, match="at least one"):
        Mailbox(0)


@given(st.integers(min_value=1, max_value=5), st.lists(st.booleans(), max_size=40))
def test_never_holds_more_than_its_capacity(capacity: int, puts: list[bool]) -> None:
    """Over any history of puts (true) and takings (false), taken + waiting + dropped is what was put."""
    box: Mailbox[int] = Mailbox(capacity)
    taken: list[int] = []
    for number, is_put in enumerate(puts):
        if is_put:
            box.put(number)
        elif len(box):
            waiting = box.clear()
            taken += waiting[:1]
            for item in waiting[1:]:
                box.put(item)
        assert len(box) <= capacity
    assert taken == sorted(taken)
    assert sum(puts) == len(taken) + len(box) + box.dropped


async def test_a_busy_reader_gives_way() -> None:
    """A mailbox that never runs empty does not keep the rest of the process from running."""
    box: Mailbox[int] = Mailbox(1000)
    for number in range(1000):
        box.put(number)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while len(box):
            turns += 1
            await asyncio.sleep(0)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(others)
        for _ in range(1000):
            await box.get()
    assert 1000 // FAIR_BATCH == turns
