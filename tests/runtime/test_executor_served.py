"""Threads and worker processes behind a served capability: what its callers see."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import reach
from reach.faults import Code, Executed, Reason
from tests.runtime import reckoning
from tests.runtime.fleet import Fleet, eventually


def pool_agent() -> reach.Agent:
    agent = reach.Agent("pool")
    options: dict[str, Any] = {"executor": "process", "max_concurrency": 2}
    agent.capability("math.add", idempotent=True, **options)(reckoning.add)
    agent.capability("math.slow", **options)(reckoning.slow)
    agent.capability("math.trouble", **options)(reckoning.trouble)
    return agent


async def test_a_capability_computes_in_worker_processes(fleet: Fleet) -> None:
    """`executor="process"`: validated, computed elsewhere, answered as any other."""
    await fleet.serve(pool_agent())
    bus = await fleet.connect()
    reply = await bus.request("math.add", {"numbers": [1, "2"]})
    assert (reply.ok, reply.data["total"]) == (True, 3)
    assert reply.data["pid"] != os.getpid()
    reply = await bus.request("math.add", {"numbers": [[]]})
    assert reply.error is not None
    assert (reply.error.code, reply.error.executed) == (Code.SCHEMA_INVALID, Executed.NO)


async def test_a_killed_worker_is_told_in_time_and_its_slot_returned(fleet: Fleet) -> None:
    """A pool process killed in the middle of a call: failure told in < 1 s, slot returned, others unaffected."""
    instance = await fleet.serve(pool_agent())
    bus = await fleet.connect()
    [slow] = [one for one in instance.served if one.name == "math.slow"]
    victim = asyncio.create_task(bus.request("math.slow", {"seconds": 30}, timeout_s=20))
    await eventually(lambda: slow.running == 1 and slow.executor.busy == 1)
    await asyncio.sleep(0.1)
    [pid] = slow.executor.worker_pids  # type: ignore[attr-defined]
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    reply = await victim
    assert time.monotonic() - began < 1.0
    error = reply.error
    assert error is not None
    assert (error.reason, error.cause, error.executed) == (
        Reason.OUTCOME_UNKNOWN,
        Reason.INSTANCE_GONE,
        Executed.MAYBE,
    )
    await eventually(lambda: slow.running == 0)
    assert (await bus.request("math.slow", {"seconds": 0})).ok


async def test_a_deadline_ends_a_worker(fleet: Fleet) -> None:
    """A computation that outlives its caller is killed with its process, and its slot is free."""
    instance = await fleet.serve(pool_agent())
    bus = await fleet.connect()
    [slow] = [one for one in instance.served if one.name == "math.slow"]
    reply = await bus.request("math.slow", {"seconds": 60}, timeout_s=1)
    assert reply.error is not None
    assert reply.error.executed is Executed.MAYBE
    await eventually(lambda: slow.running == 0 and slow.executor.worker_pids == [])  # type: ignore[attr-defined]


async def test_what_a_worker_raises_never_reaches_a_caller(fleet: Fleet) -> None:
    """ERR-5: the text of an exception stays in the worker; a ReachError of the handler's own comes through."""
    await fleet.serve(pool_agent())
    bus = await fleet.connect()
    reply = await bus.request("math.trouble", {"kind": "plain"})
    assert reply.error is not None
    assert (reply.error.reason, reply.error.executed) == (Reason.HANDLER_ERROR, Executed.YES)
    assert "hunter2" not in str(reply)
    reply = await bus.request("math.trouble", {"kind": "reach"}, retry=False)
    assert reply.error is not None
    assert (reply.error.reason, reply.error.retry_after_ms) == (Reason.OVERLOADED, 70)


async def test_a_thread_keeps_its_slot_until_it_returns(fleet: Fleet) -> None:
    """CALL-4: the caller is told at its deadline, `maybe`; the slot follows the thread."""
    agent = reach.Agent("threads")
    release = threading.Event()

    @agent.capability("thread.wait", max_concurrency=1)
    def wait() -> str:
        release.wait(10)
        return "done"

    instance = await fleet.serve(agent)
    bus = await fleet.connect()
    reply = await bus.request("thread.wait", timeout_s=0.3)
    assert reply.error is not None
    assert reply.error.executed is Executed.MAYBE
    [served] = instance.served
    assert served.running == 1
    reply = await bus.request("thread.wait", retry=False)
    assert reply.error is not None
    assert reply.error.reason is Reason.OVERLOADED
    release.set()
    await eventually(lambda: served.running == 0)
    assert (await bus.request("thread.wait")).data == "done"


async def test_a_plain_generator_streams_from_its_thread(fleet: Fleet) -> None:
    """A `def` that yields is a stream; leaving early closes it in its thread and frees the slot."""
    agent = reach.Agent("threads")
    closed: list[str] = []

    @agent.capability("thread.count")
    def count(until: int) -> Iterator[int]:
        try:
            for number in range(until):
                time.sleep(0.001)
                yield number
        finally:
            closed.append(threading.current_thread().name)

    instance = await fleet.serve(agent)
    bus = await fleet.connect()
    assert [part async for part in bus.stream("thread.count", {"until": 5})] == [0, 1, 2, 3, 4]
    async for part in bus.stream("thread.count", {"until": 1_000_000}):
        if part == 3:
            break
    await eventually(lambda: len(closed) == 2 and instance.served[0].running == 0)
    assert all(name.startswith("reach-handler-") for name in closed)


NAIVE = """
import reach

agent = reach.Agent("naive")

@agent.capability("naive.double", executor="process")
def double(number: int) -> int:
    return number * 2

agent.run()
"""


async def test_a_program_that_serves_when_imported_is_told_so(fleet: Fleet) -> None:
    """Without `if __name__ == "__main__"` a worker would serve too, and start workers of its own: refused in words."""
    program = fleet.start(NAIVE, name="naive")
    assert await program.ended(within_s=20) != 0
    assert "put what runs the agent under `if __name__ == '__main__':`" in program.printed
    assert len(program.printed.splitlines()) < 80


GUARDED = NAIVE.replace("agent.run()", 'if __name__ == "__main__":\n    agent.run()')


async def test_a_program_with_its_guard_serves_from_workers(fleet: Fleet) -> None:
    """The same program, as it should be, run by its file."""
    await fleet.program(GUARDED, name="guarded")
    bus = await fleet.connect()
    assert (await bus.request("naive.double", {"number": 21})).data == 42
