"""Whatever a handler raises, its caller is told at once, its slot comes back, and the agent serves on."""

import asyncio
from collections.abc import AsyncIterator
from time import monotonic

import pytest

import reach
from reach.bus.keys import Role
from reach.bus.provision import provision
from reach.faults import Advice, Executed, Reason
from tests.runtime.fleet import Fleet, eventually


class OfItsOwn(BaseException):
    """No `Exception`: what pytest's outcomes, trio's and gevent's signals are."""


RAISED = [OfItsOwn, GeneratorExit, SystemExit, StopIteration, MemoryError, asyncio.CancelledError]


@pytest.mark.parametrize("raised", RAISED)
async def test_any_exception_of_a_handler_becomes_a_reply(fleet: Fleet, raised: type[BaseException]) -> None:
    """Promise 1: an exception that is no `Exception` leaves nobody waiting, and takes no slot with it."""
    agent = reach.Agent("raiser")

    @agent.capability("raise.now", max_concurrency=1)
    async def now() -> str:
        raise raised

    @agent.capability("raise.later", max_concurrency=1)
    async def later() -> str:
        await asyncio.sleep(0.01)
        raise raised

    @agent.capability("raise.part", max_concurrency=1)
    async def part() -> AsyncIterator[int]:
        yield 1
        raise raised

    @agent.capability("raise.thread", max_concurrency=1)
    def thread() -> str:
        raise raised

    instance = await fleet.serve(agent)
    bus = await fleet.connect()
    began = monotonic()
    for _ in range(2):  # With one slot, a second call shows that the first one gave it back.
        for name in ("raise.now", "raise.later", "raise.thread", "raise.part"):
            reply = await bus.request(name, timeout_s=20)
            assert reply.error is not None
            assert (Reason.HANDLER_ERROR, Executed.YES) == (reply.error.reason, reply.error.executed), name
        with pytest.raises(reach.UpstreamFailure):
            async for _ in bus.stream("raise.part"):
                pass
    assert monotonic() - began < 10.0
    await eventually(lambda: [one.running for one in instance.served] == [0, 0, 0, 0])


INTERRUPTED = """
import reach

agent = reach.Agent("interrupted")

@agent.capability("interrupt.now")
async def now() -> str:
    raise KeyboardInterrupt

agent.run()
"""


async def test_a_keyboard_interrupt_out_of_a_handler_ends_the_program_and_tells_the_caller(
    fleet: Fleet,
) -> None:
    """It may be a person's Ctrl-C, so the program ends by it, soon; the call that it hit is told long before
    its deadline.
    """
    program = await fleet.program(INTERRUPTED)
    bus = await fleet.connect()
    began = monotonic()
    reply = await bus.request("interrupt.now", timeout_s=60)
    assert reply.error is not None
    assert monotonic() - began < 10.0
    await program.ended(within_s=20.0)


async def test_a_result_that_cannot_be_stored_is_no_reason_to_do_it_again(fleet: Fleet) -> None:
    """Promise 2: the handler ran, so what kept its result from its caller never reads as "try again"."""
    agent = reach.Agent("large")

    @agent.capability("large.make")
    async def make() -> bytes:
        return bytes(2 * 1024 * 1024)

    await fleet.serve(agent)
    bus = await fleet.connect()
    jetstream = (await fleet.connection(Role.PLATFORM)).jetstream()
    await jetstream.delete_stream("OBJ_reach_blobs_1h")
    try:
        reply = await bus.request("large.make", timeout_s=10)
    finally:
        await provision(jetstream)  # Other tests have the same server.
    assert reply.error is not None
    assert (Reason.BAD_RESULT, Executed.YES, Advice.ASK_HUMAN, False) == (
        reply.error.reason,
        reply.error.executed,
        reply.error.advice,
        reply.error.retryable,
    )
    assert "could not be passed on" in reply.error.message


async def test_a_nested_refusal_does_not_invite_to_repeat_the_outer_call(fleet: Fleet) -> None:
    """Promise 2: "wait, then try again" was said of the nested call; of the outer one it would be wrong."""
    agent = reach.Agent("nested")

    @agent.capability("nested.full")
    async def full() -> str:
        raise reach.RateLimited("full", retry_after_ms=10)

    @agent.capability("nested.outer")
    async def outer(ctx: reach.Context) -> str:
        return str((await ctx.bus.request("nested.full")).unwrap())

    await fleet.serve(agent)
    bus = await fleet.connect()
    reply = await bus.request("nested.outer", timeout_s=5)
    assert reply.error is not None
    assert (Executed.YES, Advice.ASK_HUMAN, False) == (
        reply.error.executed,
        reply.error.advice,
        reply.error.retryable,
    )
