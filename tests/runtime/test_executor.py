"""Handlers in the loop, in threads and in worker processes: slots, cancellation, and deaths."""

import asyncio
import contextvars
import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from reach.errors import ConfigError, NotExecuted, RateLimited, SchemaInvalid, UpstreamFailure
from reach.faults import Executed, Reason
from reach.runtime.executor import AsyncExecutor, ProcessExecutor, ThreadExecutor
from reach.runtime.signature import Handler, bind
from reach.runtime.workers import HandlerRaised, import_path
from tests.runtime import reckoning

ROOT = Path(__file__).resolve().parents[2]
SOON_S = 5.0


class Slot:
    """Counts how often it was told that it is free."""

    def __init__(self) -> None:
        self.freed = 0
        self.event = asyncio.Event()

    def free(self) -> None:
        self.freed += 1
        self.event.set()

    async def wait(self) -> None:
        async with asyncio.timeout(SOON_S):
            await self.event.wait()


def handler_of(function: Callable[..., Any], *, offloaded: bool = False) -> Handler:
    return bind(function, capability="math.reckon", offloaded=offloaded, namespace=globals())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not condition():  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.01)


# ----------------------------------------------------------------------------------------------- in the loop


async def test_a_coroutine_frees_its_slot_when_it_ends() -> None:
    """Whether it returns, raises or is cancelled: told once."""
    executor = AsyncExecutor()

    async def work(params: dict[str, Any]) -> str:
        if params.get("raise"):
            raise KeyError
        await asyncio.sleep(params.get("sleep", 0))
        return "done"

    handler = handler_of(work)
    slot = Slot()
    assert await executor.run(handler, ({},), {}, on_late=slot.free) == "done"
    with pytest.raises(KeyError):
        await executor.run(handler, ({"raise": 1},), {}, on_late=slot.free)
    task = asyncio.create_task(executor.run(handler, ({"sleep": 60},), {}, on_late=slot.free))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (slot.freed, executor.busy) == (3, 0)


async def test_an_asynchronous_generator_is_closed_when_its_reader_leaves() -> None:
    """Leaving the loop early runs the generator's own clean-up at once."""
    closed = []

    async def count(params: dict[str, Any]) -> AsyncIterator[int]:
        try:
            for number in range(100):
                yield number
        finally:
            closed.append(True)

    slot = Slot()
    async with aclosing(AsyncExecutor().iterate(handler_of(count), ({},), {}, on_late=slot.free)) as items:
        async for item in items:
            if item == 2:
                break
    assert (closed, slot.freed) == ([True], 1)


# ------------------------------------------------------------------------------------------------ in threads


async def test_a_function_runs_in_a_thread_with_the_callers_context() -> None:
    """CALL-4: context variables are inherited; what the thread sets stays there."""
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")
    who.set("finance")

    def work(params: dict[str, Any]) -> tuple[str, bool]:
        seen = who.get()
        who.set("changed")
        return seen, threading.current_thread() is threading.main_thread()

    executor = ThreadExecutor(2)
    slot = Slot()
    assert await executor.run(handler_of(work), ({},), {}, on_late=slot.free) == ("finance", False)
    assert (who.get(), slot.freed, executor.busy) == ("finance", 1, 0)
    await executor.close()


async def test_a_cancelled_caller_leaves_at_once_and_the_slot_follows_the_thread() -> None:
    """CALL-4, GUARD-1: a thread cannot be cancelled; its slot stays held until it returns."""
    release = threading.Event()

    def work(params: dict[str, Any]) -> None:
        release.wait(SOON_S)

    executor = ThreadExecutor(1)
    slot = Slot()
    task = asyncio.create_task(executor.run(handler_of(work), ({},), {}, on_late=slot.free))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (slot.freed, executor.busy) == (0, 1)
    release.set()
    await slot.wait()
    assert (slot.freed, executor.busy) == (1, 0)
    await executor.close()


async def test_work_cancelled_before_a_thread_was_free_never_starts() -> None:
    """What waited behind a full pool and was given up is not done later."""
    release = threading.Event()
    started: list[str] = []

    def work(params: dict[str, Any]) -> None:
        started.append(params["name"])
        release.wait(SOON_S)

    executor = ThreadExecutor(1)
    handler = handler_of(work)
    first = asyncio.create_task(executor.run(handler, ({"name": "first"},), {}))
    slot = Slot()
    second = asyncio.create_task(executor.run(handler, ({"name": "second"},), {}, on_late=slot.free))
    await asyncio.sleep(0.05)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    release.set()
    await first
    await slot.wait()
    assert started == ["first"]
    await executor.close()


async def test_calls_in_threads_overlap_up_to_the_limit() -> None:
    """Case 2: three waits in three threads take as long as one; no more threads than the limit are made."""
    together = threading.Barrier(3)

    def work(params: dict[str, Any]) -> str:
        together.wait(SOON_S)
        return threading.current_thread().name

    executor = ThreadExecutor(3)
    handler = handler_of(work)
    used: set[str] = set()
    for _ in range(4):
        used |= set(await asyncio.gather(*(executor.run(handler, ({},), {}) for _ in range(3))))
    assert len(used) == 3
    await executor.close()


async def test_what_a_thread_raises_arrives_and_never_stops_the_loop() -> None:
    """Exceptions arrive as they are; those that would stop the loop become an error of the handler."""
    executor = ThreadExecutor(1)

    def work(params: dict[str, Any]) -> None:
        raise params["error"]

    handler = handler_of(work)
    with pytest.raises(KeyError):
        await executor.run(handler, ({"error": KeyError("a")},), {})
    for error in (SystemExit(1), StopIteration(), KeyboardInterrupt(), asyncio.CancelledError()):
        with pytest.raises(RuntimeError, match=f"raised {type(error).__name__} out of its thread"):
            await executor.run(handler, ({"error": error},), {})
    await executor.close()
    with pytest.raises(RuntimeError, match="closed"):
        await executor.run(handler, ({},), {})


async def test_a_generator_streams_out_of_one_thread() -> None:
    """A plain generator is a stream: items as they come, all from one thread, the slot free at its end."""

    def count(params: dict[str, Any]) -> Iterator[tuple[int, str]]:
        for number in range(20):
            yield number, threading.current_thread().name

    executor = ThreadExecutor(3)
    slot = Slot()
    items = [item async for item in executor.iterate(handler_of(count), ({},), {}, on_late=slot.free)]
    assert [number for number, _ in items] == list(range(20))
    assert len({name for _, name in items}) == 1
    assert (slot.freed, executor.busy) == (1, 0)
    await executor.close()


async def test_a_slow_reader_suspends_the_generator_in_its_thread() -> None:
    """STREAM-3: a generator runs only a few items ahead of its reader."""
    made: list[int] = []

    def count(params: dict[str, Any]) -> Iterator[int]:
        for number in range(1000):
            made.append(number)
            yield number

    executor = ThreadExecutor(1)
    async with aclosing(executor.iterate(handler_of(count), ({},), {})) as items:
        assert await anext(items) == 0
        await asyncio.sleep(0.1)
        assert len(made) < 10
    await until(lambda: executor.busy == 0)
    await executor.close()


async def test_a_generator_that_is_left_is_closed_in_its_own_thread() -> None:
    """Its clean-up runs in the thread that ran it, and only then is the slot free."""
    closed_in: list[str] = []
    release = threading.Event()

    def count(params: dict[str, Any]) -> Iterator[str]:
        try:
            yield threading.current_thread().name
            release.wait(SOON_S)
            yield "never read"
        finally:
            closed_in.append(threading.current_thread().name)

    executor = ThreadExecutor(1)
    slot = Slot()
    async with aclosing(executor.iterate(handler_of(count), ({},), {}, on_late=slot.free)) as items:
        name = await anext(items)
    assert (closed_in, slot.freed) == ([], 0)
    release.set()
    await slot.wait()
    assert (closed_in, slot.freed) == ([name], 1)
    await executor.close()


async def test_a_generator_that_fails_ends_the_stream_with_its_error() -> None:
    """What was yielded before the failure arrives first."""

    def count(params: dict[str, Any]) -> Iterator[int]:
        yield 1
        raise KeyError("a")

    executor = ThreadExecutor(1)
    items = executor.iterate(handler_of(count), ({},), {})
    assert await anext(items) == 1
    with pytest.raises(KeyError):
        await anext(items)
    await executor.close()


# ------------------------------------------------------------------------------------- in worker processes


@asynccontextmanager
async def pool(function: Callable[..., Any], limit: int = 2) -> AsyncIterator[Callable[..., Any]]:
    """A started executor, as `await call(params, on_late=...)`."""
    executor = ProcessExecutor(function, limit=limit)
    handler = handler_of(function, offloaded=True)
    await executor.start()

    async def call(params: dict[str, Any], **options: Any) -> Any:
        args, kwargs = handler.arguments(params)
        return handler.result(await executor.run(handler, args, kwargs, **options))

    call.executor = executor  # type: ignore[attr-defined]
    try:
        yield call
    finally:
        await executor.close()
        assert executor.worker_pids == []


async def test_a_function_computes_in_another_process() -> None:
    """Parameters and results cross as bytes, validated at both ends."""
    async with pool(reckoning.add) as call:
        slot = Slot()
        first = await call({"numbers": ["1", 2, 3]}, on_late=slot.free)
        second = await call({"numbers": []}, on_late=slot.free)
        assert first["total"] == 6
        assert second == {"total": 0, "pid": first["pid"]}
        assert first["pid"] != os.getpid()
        assert slot.freed == 2
        with pytest.raises(SchemaInvalid, match=r"numbers\[0\] should be a whole number"):
            await call({"numbers": ["x"]})


async def test_large_values_cross_both_ways() -> None:
    """CALL-7: megabytes go through the pool like anything else."""
    async with pool(reckoning.echo) as call:
        params = {"blob": os.urandom(3_000_000), "text": "ü" * 100_000}
        assert await call(params) == params


async def test_prints_of_a_handler_do_not_disturb_the_protocol(capfd: pytest.CaptureFixture[str]) -> None:
    """Standard output is the handler's; standard input is empty."""
    async with pool(reckoning.chatty) as call:
        assert await call({}) == ""
        assert await call({}) == ""
    assert "a print of the handler" in capfd.readouterr().out


async def test_what_a_handler_raises_comes_back_as_what_it_was() -> None:
    """A ReachError whole, NotExecuted as such, anything else as its kind and place, without its text."""
    async with pool(reckoning.trouble) as call:
        with pytest.raises(RateLimited) as limited:
            await call({"kind": "reach"})
        error = limited.value
        assert (error.message, error.retry_after_ms, error.executed) == ("wait for it", 70, Executed.NO)
        assert error.limit == {"name": "n", "used": 1, "allowed": 1}
        with pytest.raises(NotExecuted, match="nothing was done"):
            await call({"kind": "not_executed"})
        with pytest.raises(HandlerRaised) as raised:
            await call({"kind": "plain"})
        assert raised.value.type_name == "KeyError"
        assert "reckoning.py" in raised.value.where
        assert "hunter2" not in str(raised.value)
        with pytest.raises(HandlerRaised, match="SystemExit"):
            await call({"kind": "exit"})
        for kind in ("big", "object"):
            with pytest.raises(UpstreamFailure, match="the result cannot cross the wire") as unfit:
                await call({"kind": kind})
            assert (unfit.value.reason, unfit.value.executed) == (Reason.BAD_RESULT, Executed.YES)
        assert await call({"kind": "fine"}) == "fine"


@pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"use_uvloop": uvloop}) for uvloop in (False, True)], ids=str
)
async def test_a_worker_killed_with_a_call_fails_that_call_alone() -> None:
    """A pool process killed in the middle of a call: told in < 1 s, slot returned, the others unaffected."""
    async with pool(reckoning.slow) as call:
        executor = call.executor  # type: ignore[attr-defined]
        slot = Slot()
        victim = asyncio.create_task(call({"seconds": 30}, on_late=slot.free))
        await asyncio.sleep(0.2)
        [pid] = executor.worker_pids
        other = asyncio.create_task(call({"seconds": 1}))
        await until(lambda: len(executor.worker_pids) == 2)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(UpstreamFailure) as told:
            await victim
        assert time.monotonic() - began < 1.0
        error = told.value
        assert error.message == "the worker process ended (signal 9) while it had this call"
        assert (error.reason, error.executed) == (Reason.INSTANCE_GONE, Executed.MAYBE)
        assert slot.freed == 1
        assert await other != pid
        assert await call({"seconds": 0}) != pid


async def test_a_worker_killed_while_idle_is_replaced_unseen() -> None:
    """A dead idle worker costs no call."""
    async with pool(reckoning.slow, limit=1) as call:
        pid = await call({"seconds": 0})
        os.kill(pid, signal.SIGKILL)
        await until(lambda: call.executor.worker_pids == [])  # type: ignore[attr-defined]
        assert await call({"seconds": 0}) != pid


async def test_a_handler_that_kills_its_own_process_is_told_too() -> None:
    """Crashes of native code look the same from outside."""
    async with pool(reckoning.trouble, limit=1) as call:
        with pytest.raises(UpstreamFailure, match=r"ended \(signal 9\)"):
            await call({"kind": "die"})
        assert await call({"kind": "fine"}) == "fine"


async def test_cancelling_a_call_kills_its_worker() -> None:
    """CALL-4: unlike a thread, a process can be stopped; its place is free at once."""
    async with pool(reckoning.slow, limit=1) as call:
        executor = call.executor  # type: ignore[attr-defined]
        pid = await call({"seconds": 0})
        slot = Slot()
        task = asyncio.create_task(call({"seconds": 60}, on_late=slot.free))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (slot.freed, executor.busy) == (1, 0)
        assert await call({"seconds": 0}) != pid
        assert not alive(pid)


async def test_calls_wait_for_a_free_worker_and_leave_when_cancelled() -> None:
    """No more workers than the limit; a call given up while it waits is never handed over."""
    async with pool(reckoning.slow, limit=1) as call:
        first = asyncio.create_task(call({"seconds": 0.3}))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(call({"seconds": 60}))
        third = asyncio.create_task(call({"seconds": 0}))
        await asyncio.sleep(0.05)
        second.cancel()
        assert await third == await first
        assert len(call.executor.worker_pids) == 1  # type: ignore[attr-defined]


async def test_an_import_that_fails_is_told_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the worker cannot import is named before the first call."""
    (tmp_path / "broken_agent.py").write_text("def work(params: dict): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from broken_agent import work  # type: ignore[import-not-found]

    (tmp_path / "broken_agent.py").write_text("import a_library_that_is_not_there\n")
    executor = ProcessExecutor(work, limit=1)
    with pytest.raises(ConfigError, match=r"could not import 'broken_agent:work': ModuleNotFoundError"):
        await executor.start()
    await executor.close()


async def test_what_has_no_import_path_is_refused_at_decoration() -> None:
    """Lambdas, inner functions, partials and methods cannot be imported by name."""

    def inner(params: dict[str, Any]) -> None: ...

    for function in (inner, lambda params: params, functools.partial(reckoning.add), Slot().free, Slot):
        with pytest.raises(TypeError, match="cannot run in a worker process"):
            ProcessExecutor(function, limit=1)
    assert import_path(reckoning.add) == "tests.runtime.reckoning:add"


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


SCRIPT = """
import asyncio, os, sys, time
from reach.runtime.executor import ProcessExecutor
from reach.runtime.signature import bind

def work(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()

async def main() -> None:
    executor = ProcessExecutor(work, limit=2)
    handler = bind(work, capability="a.b", offloaded=True)
    await executor.start()
    print(await executor.run(handler, ({"seconds": 0},), {}), flush=True)
    if sys.argv[1] == "hang":
        print(*executor.worker_pids, flush=True)
        await executor.run(handler, ({"seconds": 600},), {})
    await executor.close()

if __name__ == "__main__":
    asyncio.run(main())
"""


def script(tmp_path: Path) -> Path:
    path = tmp_path / "my_agent.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


async def test_a_function_of_the_users_own_script_works(tmp_path: Path) -> None:
    """`python my_agent.py`: the worker imports the script without running what stands under `__main__`."""
    command = [sys.executable, str(script(tmp_path)), "once"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=env, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.split()) == 1


async def test_a_module_started_by_name_works(tmp_path: Path) -> None:
    """`python -m my_agent`: the worker imports the module by its real name."""
    script(tmp_path)
    command = [sys.executable, "-m", "my_agent", "once"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=env, check=False)
    assert (done.returncode, done.stderr) == (0, "")


async def test_workers_die_with_an_agent_that_is_killed(tmp_path: Path) -> None:
    """Kill -9 of the agent leaves no worker behind, not even a busy one."""
    command = [sys.executable, str(script(tmp_path)), "hang"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        pids = [int(word) for word in agent.stdout.readline().split()]
        await asyncio.sleep(0.2)
        assert all(alive(pid) for pid in pids)
        agent.kill()
    await until(lambda: not any(alive(pid) for pid in pids))


async def test_workers_leave_signals_to_their_agent() -> None:
    """A signal to the whole group (Ctrl-C, systemd) ends no call: the agent drains first."""
    async with pool(reckoning.slow, limit=1) as call:
        task = asyncio.create_task(call({"seconds": 0.4}))
        await asyncio.sleep(0.1)
        [pid] = call.executor.worker_pids  # type: ignore[attr-defined]
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        assert await task == pid
