"""A caller that leaves: whoever works for it is told, whatever state it is in (CALL-5)."""

import asyncio
from typing import Any

import anyio
import pytest

import reach
from reach.runtime.instance import Instance
from reach.wire import codec
from reach.wire.envelope import Envelope
from tests.runtime.fleet import Fleet, eventually


class Worker:
    """An agent whose handler waits; how each of its calls ended."""

    def __init__(self, *, limit: int = 64) -> None:
        self.began = 0
        self.ended: list[str] = []
        self.go = asyncio.Event()
        self.agent = reach.Agent("worker")

        @self.agent.capability("worker.wait", max_concurrency=limit)
        async def wait() -> str:
            self.began += 1
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.ended.append("cancelled")
                raise
            self.ended.append("done")
            return "done"


@pytest.fixture
def worker() -> Worker:
    """One worker."""
    return Worker()


@pytest.fixture
async def instance(fleet: Fleet, worker: Worker) -> Instance:
    """It serves."""
    return await fleet.serve(worker.agent, drain_s=0.2)


@pytest.fixture
async def bus(fleet: Fleet, instance: Instance) -> reach.Bus:
    """A caller that knows it."""
    bus = await fleet.connect()
    await bus.cards.card_for("worker.wait")
    return bus


@pytest.mark.parametrize("after_s", [0.0, 0.002, 0.01, 0.03, 0.1])
async def test_cancelling_reaches_the_handler_whenever_it_comes(
    bus: reach.Bus, worker: Worker, instance: Instance, after_s: float
) -> None:
    """CALL-5: cancelled before anybody had accepted the call, or after: the handler's scope ends."""
    call = asyncio.create_task(bus.request("worker.wait", timeout_s=60))
    await asyncio.sleep(after_s)
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()
    assert 0 == bus.pending
    await eventually(lambda: instance.inflight == 0 and len(worker.ended) == worker.began, within_s=2.0)
    assert {"cancelled"} >= set(worker.ended)


async def test_a_call_that_is_cancelled_before_it_is_sent_is_never_sent(
    bus: reach.Bus, worker: Worker, fleet: Fleet
) -> None:
    """A task that is cancelled before its first step makes no call at all."""
    call = asyncio.create_task(bus.request("worker.wait"))
    call.cancel()
    await asyncio.wait({call})
    await bus.connection.flush()
    assert (0, []) == (worker.began, fleet.records)


async def test_a_saturated_agent_hears_cancellations(fleet: Fleet) -> None:
    """CALL-5: cancelling takes no slot, so it works on an agent that is full."""
    worker = Worker(limit=8)
    instance = await fleet.serve(worker.agent, drain_s=0.2)
    bus = await fleet.connect()
    calls = [asyncio.create_task(bus.request("worker.wait", timeout_s=60, retry=False)) for _ in range(8)]
    await eventually(lambda: instance.inflight == 8)
    assert not (await bus.request("worker.wait", retry=False)).ok
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    await eventually(lambda: instance.inflight == 0, within_s=2.0)
    assert ["cancelled"] * 8 == worker.ended
    worker.go.set()
    assert "done" == (await bus.request("worker.wait")).unwrap()


async def test_a_storm_of_cancellations_leaves_no_slot_taken(fleet: Fleet) -> None:
    """CALL-5, GUARD-1: waves of calls cancelled at once, some before acceptance; every scope ends."""
    worker = Worker(limit=128)
    instance = await fleet.serve(worker.agent, drain_s=0.2)
    bus = await fleet.connect()
    await bus.cards.card_for("worker.wait")
    for wave in range(5):
        calls = [asyncio.create_task(bus.request("worker.wait", timeout_s=60)) for _ in range(100)]
        await asyncio.sleep(0.01 * wave)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        await eventually(lambda: instance.inflight == 0, within_s=2.0)
    assert (0, 0) == (instance.served[0].running, bus.pending)
    assert worker.began == worker.ended.count("cancelled")


async def test_a_cancel_scope_that_runs_out_is_a_cancellation(
    bus: reach.Bus, worker: Worker, instance: Instance
) -> None:
    """CALL-5: `asyncio.timeout` around a call reaches the handler like any cancellation."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await bus.request("worker.wait", timeout_s=60)
    await eventually(lambda: worker.ended == ["cancelled"], within_s=2.0)
    with anyio.move_on_after(0.1):
        await bus.request("worker.wait", timeout_s=60)
    await eventually(lambda: len(worker.ended) == 2, within_s=2.0)
    assert 0 == instance.inflight


async def test_one_of_many_calls_is_cancelled_alone(
    bus: reach.Bus, worker: Worker, instance: Instance
) -> None:
    """Cancelling names one call; its neighbours of the same client go on."""
    calls = [asyncio.create_task(bus.request("worker.wait", timeout_s=60)) for _ in range(3)]
    await eventually(lambda: worker.began == 3)
    calls[1].cancel()
    await eventually(lambda: worker.ended == ["cancelled"])
    worker.go.set()
    assert ["done", "done"] == [(await calls[0]).data, (await calls[2]).data]


async def test_closing_the_bus_leaves_no_call_waiting(
    fleet: Fleet, instance: Instance, worker: Worker
) -> None:
    """CALL-6: after `close` no future is pending: calls that were open are told at once that nobody knows."""
    opened: list[Any] = []
    async with reach.connect(
        settings=fleet.system.settings(reach.Role.CALLER), recorder=fleet.recorder(fleet.sink)
    ) as bus:
        opened = [asyncio.create_task(bus.request("worker.wait", timeout_s=60)) for _ in range(3)]
        await eventually(lambda: worker.began == 3)
    async with asyncio.timeout(2.0):
        replies = await asyncio.gather(*opened)
    assert [("OUTCOME_UNKNOWN", "DISCONNECTED")] * 3 == [
        (reply.error.reason.value, reply.error.cause) for reply in replies if reply.error is not None
    ]
    assert 0 == bus.pending
    late = await bus.request("worker.wait", timeout_s=60)
    assert late.error is not None
    assert ("CONN_REFUSED", "no") == (late.error.code.value, late.error.executed.value)


async def test_a_handler_that_cancels_itself_is_an_error_of_its_own(fleet: Fleet) -> None:
    """A CancelledError out of nowhere is the handler's mistake, and the agent lives."""
    agent = reach.Agent("odd")

    @agent.capability("odd.cancel")
    async def cancel() -> None:
        raise asyncio.CancelledError

    @agent.capability("odd.kill")
    async def kill() -> None:
        task = asyncio.current_task()
        if task is not None:
            task.cancel()
        await asyncio.sleep(1)

    await fleet.serve(agent)
    bus = await fleet.connect()
    for name in ("odd.cancel", "odd.kill", "odd.cancel"):
        reply = await bus.request(name, timeout_s=5)
        assert ["HANDLER_ERROR"] == [reply.error.reason.value] if reply.error is not None else []


@pytest.mark.parametrize("which", [1, 2])
async def test_a_cancellation_ends_the_attempt_that_is_meant(
    bus: reach.Bus, worker: Worker, instance: Instance, which: int
) -> None:
    """CALL-5: told so late that a second attempt of the call is at the same instance, it leaves that one alone."""
    for attempt in (1, 2):
        envelope = Envelope(message_id="thesamecallagain", timeout_ms=30_000, attempt=attempt)
        bus.connection.publish("cap.worker.wait", envelope.pack())
    await eventually(lambda: worker.began == 2)
    await asyncio.sleep(0.05)  # Both are past the time at which an instance says that it has them.
    body = codec.pack({"message_id": "thesamecallagain", "attempt": which})
    bus.connection.publish(f"ctl.{instance.name}.cancel", body)
    await eventually(lambda: worker.ended == ["cancelled"])
    assert 1 == instance.inflight
    worker.go.set()
    await eventually(lambda: worker.ended == ["cancelled", "done"])
