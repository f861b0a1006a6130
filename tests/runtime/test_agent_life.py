"""How an agent comes and goes: hooks, failures at the start, draining, serving again (LIFE-7, case 20)."""

import asyncio
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import reach
from reach.bus.settings import resolve
from reach.observe.records import NullSink, Recorder
from reach.runtime.instance import Instance
from tests.runtime import reckoning
from tests.runtime.fleet import Fleet, eventually


def agent_with(name: str = "life", **hooks: Any) -> reach.Agent:
    agent = reach.Agent(name)

    @agent.capability("life.wait")
    async def wait(seconds: float = 0.0) -> str:
        await asyncio.sleep(seconds)
        return "done"

    for hook, function in hooks.items():
        getattr(agent, hook)(function)
    return agent


async def test_hooks_run_before_the_first_call_and_after_the_last_answer(fleet: Fleet) -> None:
    """`on_start` before requests are taken, `on_stop` after the last one was answered; sync or async."""
    log: list[str] = []

    async def start() -> None:
        log.append("start")

    def stop() -> None:
        log.append("stop")

    agent = agent_with(on_start=start, on_stop=stop)

    @agent.capability("life.log")
    async def note() -> None:
        await asyncio.sleep(0.1)
        log.append("call")

    instance = await fleet.serve(agent)
    bus = await fleet.connect()
    call = asyncio.create_task(bus.request("life.log"))
    await eventually(lambda: instance.inflight == 1)
    await fleet.stop(instance)
    assert (await call).ok
    assert ["start", "call", "stop"] == log


async def test_a_start_hook_that_fails_is_the_reason_that_is_raised(fleet: Fleet) -> None:
    """What the hook raised comes out of `serve`, and nothing of the agent is left."""

    def start() -> None:
        raise LookupError("no model file")

    stopped: list[bool] = []
    agent = agent_with(on_start=start, on_stop=lambda: stopped.append(True))
    with pytest.raises(LookupError, match="no model file"):
        await fleet.serve(agent)
    bus = await fleet.connect()
    assert not (await bus.request("life.wait")).ok
    assert [True] == stopped


async def test_a_worker_that_cannot_start_is_told_at_the_start(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process pool that cannot import its function fails `serve`, not the first call."""
    (tmp_path / "half_a_model.py").write_text(
        "import sys\n"
        "if 'pytest' not in sys.modules:\n"
        "    raise ImportError('only here')\n"
        "def work(params: dict) -> int:\n"
        "    return 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from half_a_model import work  # type: ignore[import-not-found]

    agent = reach.Agent("pool")
    agent.capability("pool.work", executor="process")(work)
    with pytest.raises(reach.ConfigError, match="half_a_model"):
        await fleet.serve(agent)


async def test_an_agent_without_capabilities_says_what_to_do(fleet: Fleet) -> None:
    """Serving nothing is a mistake that is explained."""
    with pytest.raises(ValueError, match=r"@agent\.capability"):
        await fleet.serve(reach.Agent("empty"))


async def test_without_a_server_serving_and_connecting_fail_in_time_and_in_words(
    unused_tcp_port: int,
) -> None:
    """Case 20: an error that names the address and what to do, within `connect_timeout_s` (5 s by default)."""
    settings = resolve(f"nats://127.0.0.1:{unused_tcp_port}", role=reach.Role.AGENT, env={})
    assert 5.0 == settings.connect_timeout_s
    settings = replace(settings, connect_timeout_s=1.0)
    began = monotonic()
    with pytest.raises(reach.Unreachable) as serving:
        await agent_with().serve(settings=settings, recorder=Recorder(NullSink()))
    with pytest.raises(reach.Unreachable) as connecting:
        await reach.connect(settings=settings, recorder=Recorder(NullSink())).__aenter__()
    assert monotonic() - began < 2 * (1.0 + 0.5)
    for error in (serving.value, connecting.value):
        assert f"127.0.0.1:{unused_tcp_port}" in error.message
        assert "reach up" in error.message


async def test_one_agent_object_may_be_served_several_times_at_once(fleet: Fleet) -> None:
    """Each `serve` is an instance of its own: name, slots and counters."""
    agent = agent_with()
    first, second = await fleet.serve(agent), await fleet.serve(agent)
    assert first.name != second.name
    bus = await fleet.connect()
    await asyncio.gather(*(bus.request("life.wait", {"seconds": 0.05}) for _ in range(20)))
    assert 20 == first.served[0].done + second.served[0].done
    assert 0 < first.served[0].done < 20


async def test_an_agent_may_be_served_again_after_it_has_stopped(fleet: Fleet) -> None:
    """A test suite serves its agents again and again: threads and worker processes are new each time."""
    agent = reach.Agent("again")

    @agent.capability("again.thread")
    def in_thread() -> str:
        return "thread"

    agent.capability("again.process", executor="process")(reckoning.add)
    bus = await fleet.connect()
    for _ in range(2):
        instance = await fleet.serve(agent)
        assert "thread" == (await bus.request("again.thread")).unwrap()
        assert 3 == (await bus.request("again.process", {"numbers": [1, 2]})).unwrap()["total"]
        await fleet.stop(instance)


async def test_draining_finishes_what_runs_and_what_it_calls(fleet: Fleet) -> None:
    """LIFE-7: an instance that leaves finishes its calls, their nested ones too, and takes no new ones."""
    outer = reach.Agent("outer")

    @outer.capability("drain.outer")
    async def ask(ctx: reach.Context) -> Any:
        await asyncio.sleep(0.1)
        return (await ctx.bus.request("life.wait", {"seconds": 0.1})).unwrap()

    await fleet.serve(agent_with())
    leaving, staying = await fleet.serve(outer), await fleet.serve(outer)
    bus = await fleet.connect()
    calls = [asyncio.create_task(bus.request("drain.outer")) for _ in range(20)]
    await eventually(lambda: leaving.inflight + staying.inflight == 20)
    assert leaving.inflight > 0
    await fleet.stop(leaving)
    assert ["done"] * 20 == [(await call).unwrap() for call in calls]
    after = [await bus.request("drain.outer") for _ in range(3)]
    assert {staying.name} == {reply.instance for reply in after}


async def test_what_outlives_the_drain_is_ended_and_told(fleet: Fleet) -> None:
    """LIFE-7: after its limit a draining instance ends what still runs, and its callers are told at once."""
    instance = await fleet.serve(agent_with(), drain_s=0.3)
    bus = await fleet.connect()
    call = asyncio.create_task(bus.request("life.wait", {"seconds": 60.0}, timeout_s=60))
    await eventually(lambda: instance.inflight == 1)
    began = monotonic()
    await fleet.stop(instance)
    reply = await call
    assert monotonic() - began < 2.0
    assert reply.error is not None
    assert ("OUTCOME_UNKNOWN", "INSTANCE_GONE", "maybe") == (
        reply.error.reason.value,
        reply.error.cause,
        reply.error.executed.value,
    )


async def test_a_cancelled_serve_drains_too(fleet: Fleet) -> None:
    """LIFE-7: an application that cancels its task group loses no call either."""
    ready: asyncio.Future[Instance] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        agent_with().serve(
            settings=fleet.system.settings(reach.Role.AGENT),
            ready=ready.set_result,
            recorder=fleet.recorder(NullSink()),
        )
    )
    instance = await ready
    bus = await fleet.connect()
    call = asyncio.create_task(bus.request("life.wait", {"seconds": 0.3}))
    await eventually(lambda: instance.inflight == 1)
    serving.cancel()
    assert "done" == (await call).unwrap()
    await asyncio.wait({serving})
    assert serving.cancelled()


async def test_membership_that_comes_and_goes_loses_nothing(fleet: Fleet) -> None:
    """LIFE-7, design membership: instances join and leave while calls flow; every call is answered ok."""
    agent = agent_with()
    await fleet.serve(agent)
    bus = await fleet.connect()
    replies: list[reach.Reply] = []
    over = asyncio.Event()

    async def flow() -> None:
        while not over.is_set():
            replies.extend(await asyncio.gather(*(bus.request("life.wait") for _ in range(20))))

    flowing = asyncio.create_task(flow())
    for _ in range(5):
        instance = await fleet.serve(agent)
        await asyncio.sleep(0.02)
        await fleet.stop(instance)
    over.set()
    await flowing
    assert [] == [reply.error for reply in replies if not reply.ok]
    assert len({reply.instance for reply in replies}) > 1
