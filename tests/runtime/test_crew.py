"""Tasks that are used again."""

import asyncio
from contextvars import ContextVar

import pytest

from reach.runtime.crew import Crew

left_behind: ContextVar[str] = ContextVar("left_behind", default="nothing")


def nothing() -> None:
    """No context variables of our own."""


async def settle() -> None:
    """Let the loop turn until everything that can run has run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_items_that_never_wait_share_one_task() -> None:
    """A burst of handlers that do not suspend runs in one task, in order."""
    seen: list[tuple[int, asyncio.Task]] = []

    async def work(item: int, task: asyncio.Task) -> None:
        seen.append((item, task))

    crew = Crew(work, enter=nothing, reset=nothing)
    for item in range(100):
        crew.submit(item)
    await settle()
    assert [item for item, _ in seen] == list(range(100))
    assert len({task for _, task in seen}) == 1
    await crew.close(1)


@pytest.mark.parametrize("count", [1, 2, 3, 64, 500])
async def test_items_that_wait_run_at_once(count: int) -> None:
    """Case 2: however many wait, all of them are running, each in its own task."""
    running: set[asyncio.Task] = set()
    go_on = asyncio.Event()
    done = 0

    async def work(_item: int, task: asyncio.Task) -> None:
        nonlocal done
        assert task is asyncio.current_task()
        running.add(task)
        await go_on.wait()
        done += 1

    crew = Crew(work, enter=nothing, reset=nothing)
    for item in range(count):
        crew.submit(item)
    await settle()
    assert len(running) == count
    go_on.set()
    await settle()
    assert done == count
    await crew.close(1)


async def test_what_comes_while_others_wait_is_not_kept_waiting() -> None:
    """A request that arrives while every hand is suspended starts at once."""
    go_on = asyncio.Event()
    seen: list[str] = []

    async def work(item: str, _task: asyncio.Task) -> None:
        if item == "waits":
            await go_on.wait()
        seen.append(item)

    crew = Crew(work, enter=nothing, reset=nothing)
    crew.submit("waits")
    await settle()
    crew.submit("quick")
    await settle()
    assert seen == ["quick"]
    go_on.set()
    await settle()
    assert seen == ["quick", "waits"]
    await crew.close(1)


async def test_context_variables_never_reach_the_next_item() -> None:
    """What one handler sets, another never sees, although their task may be the same."""
    seen: list[str] = []

    async def work(item: str, _task: asyncio.Task) -> None:
        seen.append(left_behind.get())
        left_behind.set(item)

    crew = Crew(work, enter=nothing, reset=nothing)
    for item in "abc":
        crew.submit(item)
        await settle()
    crew.submit("d")
    crew.submit("e")
    await settle()
    assert seen == ["nothing"] * 5
    await crew.close(1)


async def test_our_own_variables_are_reset() -> None:
    """Variables that the pipeline itself sets do not cost a hand."""
    tasks: set[asyncio.Task] = set()

    async def work(item: str, task: asyncio.Task) -> None:
        left_behind.set(item)
        tasks.add(task)

    crew = Crew(work, enter=nothing, reset=lambda: left_behind.set("nothing") and None)
    for item in "abcdef":
        crew.submit(item)
        await settle()
    assert len(tasks) == 1
    await crew.close(1)


async def test_a_cancellation_left_behind_ends_the_hand_only() -> None:
    """A handler that cancels its own task without noticing does not cancel the next request."""
    seen: list[str] = []

    async def work(item: str, task: asyncio.Task) -> None:
        if item == "bad":
            task.cancel()
            return
        await asyncio.sleep(0)
        seen.append(item)

    crew = Crew(work, enter=nothing, reset=nothing)
    for item in ("bad", "good", "bad", "good"):
        crew.submit(item)
    await settle()
    assert seen == ["good", "good"]
    await crew.close(1)


async def test_cancelling_everything_ends_idle_hands() -> None:
    """A program that cancels all its tasks at its end is not held up, and the crew works on if asked to."""
    seen: list[int] = []

    async def work(item: int, _task: asyncio.Task) -> None:
        seen.append(item)

    crew = Crew(work, enter=nothing, reset=nothing)
    crew.submit(1)
    await settle()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        if "_hand" in repr(task.get_coro()):
            task.cancel()
    await settle()
    crew.submit(2)
    await settle()
    assert seen == [1, 2]
    await crew.close(1)
