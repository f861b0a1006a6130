"""What a nested call inherits without being asked, and what ends with whom (CALL-1, CALL-4)."""

import asyncio
from time import monotonic
from typing import Any

import anyio
import pytest

import reach
from reach.call.context import CallContext, current
from reach.faults import Executed, Reason
from tests.runtime.fleet import Fleet, eventually


class Layers:
    """An outer agent whose handler calls an inner one; what each saw."""

    def __init__(self, *, sync: bool = False) -> None:
        self.seen: dict[str, dict[str, Any]] = {}
        self.around: dict[str, CallContext] = {}
        self.left_s: dict[str, float] = {}
        self.ended: list[str] = []
        self.inner = reach.Agent("inner")
        self.outer = reach.Agent("outer")

        @self.inner.capability("layer.inner", idempotent=True)
        async def inner(ctx: reach.Context, seconds: float = 0.0) -> str:
            self.note("inner", ctx)
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                self.ended.append("inner")
                raise
            return "inner"

        @self.outer.capability("layer.outer", idempotent=True)
        async def outer(ctx: reach.Context, seconds: float = 0.0, ask_s: float | None = None) -> Any:
            self.note("outer", ctx)
            options: dict[str, Any] = {} if ask_s is None else {"timeout_s": ask_s}
            try:
                return (await ctx.bus.request("layer.inner", {"seconds": seconds}, **options)).unwrap()
            except asyncio.CancelledError:
                self.ended.append("outer")
                raise

    def note(self, name: str, ctx: reach.Context) -> None:
        self.around[name] = current()
        self.left_s[name] = ctx.time_left_s
        self.seen[name] = {
            "trace_id": ctx.trace_id,
            "session_id": ctx.session_id,
            "tenant": ctx.tenant,
            "task_id": ctx.task_id,
            "source": ctx.source,
        }


@pytest.fixture
def layers() -> Layers:
    """Two layers."""
    return Layers()


@pytest.fixture
async def bus(fleet: Fleet, layers: Layers) -> reach.Bus:
    """A caller of the outer layer."""
    await fleet.serve(layers.inner)
    await fleet.serve(layers.outer)
    return await fleet.connect()


async def test_a_nested_call_inherits_who_asks_and_what_for(
    fleet: Fleet, bus: reach.Bus, layers: Layers
) -> None:
    """CALL-4: trace, session, tenant, task and trigger pass through a handler without being asked for."""
    trigger = {"turn": 3, "tool": "ledger"}
    with reach.context(agent_id="checker", session_id="s-1", task_id="t-1", tenant="north", trigger=trigger):
        assert "inner" == (await bus.request("layer.outer")).unwrap()
    outer, inner = layers.seen["outer"], layers.seen["inner"]
    assert ("s-1", "north", "t-1") == (inner["session_id"], inner["tenant"], inner["task_id"])
    assert outer["trace_id"] == inner["trace_id"]
    assert ("checker", "outer") == (outer["source"], inner["source"])
    assert trigger == layers.around["inner"].trigger
    ours, nested = fleet.records[-1], fleet.agent_records[-1]
    assert (ours.trace_id, "s-1", "t-1", "north", "checker") == (
        nested.trace_id,
        nested.session_id,
        nested.task_id,
        nested.tenant,
        ours.agent_id,
    )


async def test_a_nested_call_never_has_more_time_than_the_outer_one(bus: reach.Bus, layers: Layers) -> None:
    """CALL-1, CALL-4: the nested deadline lies within the outer one, also when it asks for more."""
    await bus.request("layer.outer", {"ask_s": 60.0}, timeout_s=2)
    assert layers.left_s["inner"] < layers.left_s["outer"] <= 2.0


async def test_a_nested_call_may_ask_for_less(bus: reach.Bus, layers: Layers) -> None:
    """CALL-1: a caller may ask for less than what surrounds it."""
    await bus.request("layer.outer", {"ask_s": 0.5}, timeout_s=5)
    assert layers.left_s["inner"] <= 0.5


async def test_no_handler_outlives_its_callers_deadline(bus: reach.Bus, layers: Layers, fleet: Fleet) -> None:
    """CALL-4: at the deadline both scopes are cancelled, the nested one by whoever notices first."""
    reply = await bus.request("layer.outer", {"seconds": 30.0}, timeout_s=0.5, retry=False)
    assert reply.error is not None
    assert Executed.NO is not reply.error.executed
    await eventually(lambda: all(one.inflight == 0 for one in fleet.instances), within_s=1.0)
    assert "inner" in layers.ended


async def test_a_caller_that_leaves_ends_all_layers(bus: reach.Bus, layers: Layers, fleet: Fleet) -> None:
    """CALL-5: cancelling the outermost call reaches the innermost handler."""
    call = asyncio.create_task(bus.request("layer.outer", {"seconds": 30.0}, timeout_s=60))
    await eventually(lambda: "inner" in layers.seen)
    call.cancel()
    await eventually(lambda: ["inner", "outer"] == sorted(layers.ended), within_s=2.0)
    await eventually(lambda: all(one.inflight == 0 for one in fleet.instances), within_s=1.0)


async def test_a_cancel_scope_around_a_call_is_its_deadline(bus: reach.Bus, layers: Layers) -> None:
    """CALL-1: the surrounding anyio scope's deadline is read, and passed on, from the first call on."""
    with anyio.fail_after(0.7):
        await bus.request("layer.outer")
    assert layers.left_s["outer"] <= 0.7
    with anyio.fail_after(0.6):
        await bus.request("layer.outer")
    assert layers.left_s["outer"] <= 0.6


async def test_a_card_that_allows_more_does_not_reach_beyond_the_scope(fleet: Fleet) -> None:
    """CALL-1: the first call of a capability learns its timeout from the card, within what surrounds it."""
    agent = reach.Agent("patient")
    left: list[float] = []

    @agent.capability("patient.wait", timeout_s=300)
    async def wait(ctx: reach.Context) -> None:
        left.append(ctx.time_left_s)

    await fleet.serve(agent)
    with anyio.fail_after(1.0):
        await (await fleet.connect()).request("patient.wait")
    await (await fleet.connect()).request("patient.wait")
    assert left[0] <= 1.0
    assert 200 < left[1] <= 300


async def test_threads_inherit_too(fleet: Fleet) -> None:
    """CALL-4: a plain function in its thread stands in the same context as a coroutine."""
    agent = reach.Agent("threaded")

    @agent.capability("threaded.look")
    def look() -> dict[str, Any]:
        around = current()
        return {"session": around.session_id, "timed": around.deadline is not None, "chain": around.chain}

    await fleet.serve(agent)
    bus = await fleet.connect()
    reply = await bus.request("threaded.look", session_id="s-9")
    assert {"session": "s-9", "timed": True, "chain": ["threaded.look"]} == reply.unwrap()


async def test_one_calls_context_does_not_leak_into_the_next(bus: reach.Bus, layers: Layers) -> None:
    """Contexts are each call's own, also of calls that run at the same time."""
    await asyncio.gather(
        *(bus.request("layer.outer", session_id=f"s-{number}", tenant=f"t-{number}") for number in range(5))
    )
    await bus.request("layer.outer")
    assert (None, None) == (layers.seen["inner"]["session_id"], layers.seen["inner"]["tenant"])


async def test_a_round_ends_its_unfinished_calls_and_the_handlers(
    fleet: Fleet, bus: reach.Bus, layers: Layers
) -> None:
    """CALL-1: leaving a round ends what is unfinished in it; each call is told as a reply, handlers are cancelled."""
    began = monotonic()
    async with reach.round(timeout_s=20):
        calls = [asyncio.create_task(bus.request("layer.outer", {"seconds": 15.0})) for _ in range(3)]
        done = asyncio.create_task(bus.request("layer.outer"))
        await done
        await eventually(lambda: "inner" in layers.seen)
    replies = await asyncio.gather(*calls)
    assert monotonic() - began < 5.0
    assert [(Reason.CANCELLED, Executed.MAYBE)] * 3 == [
        (reply.error.reason, reply.error.executed) for reply in replies if reply.error is not None
    ]
    assert done.result().ok
    await eventually(lambda: all(one.inflight == 0 for one in fleet.instances), within_s=2.0)
    outcomes = sorted(record.outcome for record in fleet.records)
    assert ["cancelled", "cancelled", "cancelled", "ok"] == outcomes


async def test_a_round_ends_streams_and_broadcasts_too(fleet: Fleet) -> None:
    """CALL-1: a round's end is the end of everything unfinished in it; the producer is told at once."""
    agent = reach.Agent("ticker")
    stopped: list[str] = []

    @agent.capability("ticker.tick")
    async def tick() -> Any:
        try:
            while True:
                yield "tick"
                await asyncio.sleep(0.01)
        finally:
            stopped.append("stream")

    @agent.capability("ticker.slow")
    async def slow() -> None:
        await asyncio.sleep(5.0)

    await fleet.serve(agent, drain_s=0.5)
    bus = await fleet.connect()
    async with reach.round(timeout_s=20):
        parts = bus.stream("ticker.tick")
        assert "tick" == await anext(parts)
        told = asyncio.create_task(_all(bus.broadcast("ticker.slow")))
        await asyncio.sleep(0.3)
    await eventually(lambda: stopped, within_s=2.0)
    with pytest.raises(reach.UnknownFailure) as ended:
        async for _ in parts:
            pass
    assert Reason.CANCELLED is ended.value.reason
    assert [Reason.CANCELLED] == [reply.error.reason for reply in await told if reply.error is not None]
    assert ["cancelled", "cancelled"] == [record.outcome for record in fleet.records]


async def _all(replies: Any) -> list[Any]:
    return [reply async for reply in replies]


async def test_a_call_after_the_end_of_its_round_is_not_made(bus: reach.Bus, layers: Layers) -> None:
    """CALL-1: a task that is left over from a round cannot call on in its name."""
    over = asyncio.Event()

    async def straggler() -> reach.Reply:
        await over.wait()
        return await bus.request("layer.outer")

    async with reach.round(timeout_s=5):
        left_over = asyncio.create_task(straggler())
        await asyncio.sleep(0)
    over.set()
    error = (await left_over).error
    assert error is not None
    assert (Reason.CANCELLED, Executed.NO) == (error.reason, error.executed)
    assert {} == layers.seen


async def test_a_round_bounds_its_calls_in_time(bus: reach.Bus, layers: Layers) -> None:
    """CALL-1: no call inside lasts longer than the round, whatever it asks for."""
    began = monotonic()
    async with reach.round(timeout_s=0.6):
        reply = await bus.request("layer.outer", {"seconds": 20.0}, timeout_s=60, retry=False)
    assert monotonic() - began < 1.5
    assert reply.error is not None
    assert layers.left_s["outer"] <= 0.6
    assert not reply.ok


async def test_being_cancelled_by_somebody_else_inside_a_round_is_still_being_cancelled(
    bus: reach.Bus,
) -> None:
    """A task that is cancelled from outside ends cancelled, even if its round ends at the same moment."""
    async with reach.round(timeout_s=20):
        call = asyncio.create_task(bus.request("layer.outer", {"seconds": 15.0}))
        await asyncio.sleep(0.1)
        call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()
