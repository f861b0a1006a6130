"""Where handlers run: in the loop, in threads, or in worker processes.

All three have one face, and one promise about slots (behaviour CALL-4, GUARD-1): `on_late` is called exactly
once, in the loop, when the work no longer occupies its place. For a coroutine that is when it ends. A thread
cannot be stopped: its caller is released at once, its place only when it returns. A process can be, so it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import threading
from collections.abc import AsyncGenerator, Callable
from queue import SimpleQueue
from typing import Any, Final, Protocol

from reach.chance import random
from reach.errors import ConfigError, NotExecuted, UpstreamFailure
from reach.faults import Reason
from reach.policy.restart import Restart, RestartBook
from reach.runtime.signature import Handler
from reach.runtime.threads import Feed, Work
from reach.runtime.worker_main import in_worker
from reach.runtime.workers import Worker, WorkerEnded, import_path
from reach.wire import codec

CLOSE_S: Final = 2.0
"""How long worker processes may take to end by themselves before they are killed."""

_WORKER: Final = "a worker process"

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Told = Callable[[], None] | None


class Executor(Protocol):
    """Runs handlers of one capability."""

    @property
    def busy(self) -> int:
        """Places taken, by abandoned threads too."""
        ...

    async def start(self) -> None:
        """Get ready. Raises `ConfigError` for what would fail at the first call."""
        ...

    async def run(self, handler: Handler, args: Args, kwargs: Kwargs, *, on_late: Told = None) -> Any:
        """Call the handler's function and give what it returned, or raise what it raised."""
        ...

    def iterate(
        self, handler: Handler, args: Args, kwargs: Kwargs, *, on_late: Told = None
    ) -> AsyncGenerator[Any, None]:
        """Call a generator handler and give its items as they come; `aclose` it when leaving early."""
        ...

    async def close(self) -> None:
        """Give everything back; what still runs in a thread is left behind."""
        ...


class AsyncExecutor:
    """Runs coroutines in the loop."""

    def __init__(self) -> None:
        self.busy = 0

    async def start(self) -> None:
        """Nothing to get ready."""

    async def run(self, handler: Handler, args: Args, kwargs: Kwargs, *, on_late: Told = None) -> Any:
        """Await the handler."""
        self.busy += 1
        try:
            return await handler.function(*args, **kwargs)
        finally:
            self.busy -= 1
            _tell(on_late)

    async def iterate(
        self, handler: Handler, args: Args, kwargs: Kwargs, *, on_late: Told = None
    ) -> AsyncGenerator[Any, None]:
        """Iterate over the handler's asynchronous generator, and close it at the end."""
        self.busy += 1
        try:
            async with contextlib.aclosing(handler.function(*args, **kwargs)) as items:
                async for item in items:
                    yield item
        finally:
            self.busy -= 1
            _tell(on_late)

    async def close(self) -> None:
        """Nothing to give back."""


class ThreadExecutor:
    """Runs plain functions and generators in at most `limit` threads of its own.

    The threads are daemons: one that never returns must not keep the process from ending.
    """

    _numbers: Final = itertools.count(1)

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.busy = 0
        self._threads = 0
        self._closed = False
        self._queue: SimpleQueue[Work | None] = SimpleQueue()

    async def start(self) -> None:
        """Threads start as they are needed; an executor that was closed serves again."""
        self._closed = False

    async def run(self, handler: Handler, args: Args, kwargs: Kwargs, *, on_late: Told = None) -> Any:
        """Call the function in a thread, with a copy of the caller's context variables."""
        return await self._in_thread(functools.partial(handler.function, *args, **kwargs), on_late)

    async def iterate(
        self, handler: Handler, args: Args, kwargs: Kwargs, *, on_late: Told = None
    ) -> AsyncGenerator[Any, None]:
        """Run a generator in one thread from its first line to its last, and give its items as they come.

        It may be `AHEAD` items ahead of the reader. When the reader leaves (`aclose`), the generator is closed
        at its next item, in its own thread, and only then is its place free.
        """
        feed = Feed(asyncio.get_running_loop())
        pump = functools.partial(feed.pump, functools.partial(handler.function, *args, **kwargs))

        def deliver(_value: Any, error: BaseException | None) -> None:
            self.busy -= 1
            _tell(on_late)
            feed.items.put_nowait((None, error, True))

        self._submit(Work(asyncio.get_running_loop(), pump, deliver))
        try:
            while True:
                item, error, ended = await feed.items.get()
                if error is not None:
                    raise error
                if ended:
                    return
                feed.taken()
                yield item
        finally:
            feed.stop()

    async def close(self) -> None:
        """Let idle threads end. Those that are busy end when their work does."""
        self._closed = True
        for _ in range(self._threads):
            self._queue.put(None)

    async def _in_thread(self, call: Callable[[], Any], on_late: Told) -> Any:
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Any] = loop.create_future()

        def deliver(value: Any, error: BaseException | None) -> None:
            self.busy -= 1
            _tell(on_late)
            if result.done():
                return  # Its caller has left.
            if error is None:
                result.set_result(value)
            else:
                result.set_exception(error)

        work = Work(loop, call, deliver)
        self._submit(work)
        try:
            return await result
        except asyncio.CancelledError:
            work.unwanted = True
            raise

    def _submit(self, work: Work) -> None:
        if self._closed:
            raise RuntimeError("this executor is closed")
        self.busy += 1
        self._queue.put(work)
        if self.busy > self._threads < self.limit:
            self._threads += 1
            name = f"reach-handler-{next(self._numbers)}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            work.do()
            del work  # Parameters and results must not live on in an idle thread.


class ProcessExecutor:
    """Runs a plain function in at most `limit` worker processes.

    Only bytes cross: the parameters as they came (see `bind(..., offloaded=True)`), and the result as it will
    go out. A worker that dies takes one call with it, and no other. The next one waits a little; when a fourth dies
    within a minute `on_crash_loop` is told why, and no call is begun any more (behaviour LIFE-9).
    """

    def __init__(self, function: Callable[..., Any], *, limit: int) -> None:
        """Name the function. Raises `TypeError` when a worker could not import it."""
        self.limit = limit
        self.busy = 0
        self._path = import_path(function)
        self._places = asyncio.Semaphore(limit)
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._closed = False
        self._crashes = RestartBook([_WORKER])
        self._begin_at = 0.0
        self._given_up = ""
        self.on_crash_loop: Callable[[str], None] | None = None

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the living workers."""
        return [worker.pid for worker in self._all if worker.alive]

    async def start(self) -> None:
        """Start the first worker, so that an import that fails is told now. Raises `ConfigError`."""
        self._closed = False
        self._idle.append(await self._spawn())

    async def run(self, handler: Handler, args: Args, kwargs: Kwargs, *, on_late: Told = None) -> Any:
        """Hand the parameters (`args[0]`) to a worker. Cancelling kills the worker.

        Raises what the handler raised, as the `ReachError` or `NotExecuted` that it was, or else as
        `HandlerRaised`; `NotExecuted` after too many workers died; and `UpstreamFailure` (`executed=maybe`) when the
        worker died with the call.
        """
        if kwargs or len(args) != 1:
            raise TypeError("a worker takes one map of parameters: bind the handler with offloaded=True")
        if self._closed:
            raise RuntimeError("this executor is closed")
        if self._given_up:
            raise NotExecuted(self._given_up)
        self.busy += 1
        try:
            body = codec.pack(args[0])
            async with self._places:
                worker = await self._take()
                return await self._ask(worker, handler.capability, body)
        finally:
            self.busy -= 1
            _tell(on_late)

    def iterate(self, handler: Handler, *_args: object, **_options: object) -> AsyncGenerator[Any, None]:
        """Refuse: what a worker gives is one result."""
        raise TypeError(
            f"{handler.capability!r} cannot stream out of a worker process: use executor='thread'"
        )

    async def close(self) -> None:
        """End all workers: in order where they are idle, by force where they are not."""
        self._closed = True
        workers = list(self._all)
        for worker in workers:
            worker.leave()
        exits = [worker.exited for worker in workers]
        if exits:
            await asyncio.wait(exits, timeout=CLOSE_S)
        for worker in workers:
            worker.kill()
        if exits:
            # Killed, so this takes no time; without it, processes would be left to be reaped by nobody.
            await asyncio.wait(exits, timeout=CLOSE_S)
        self._idle.clear()

    async def _take(self) -> Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            worker.kill()
        wait_s = self._begin_at - asyncio.get_running_loop().time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        return await self._spawn()

    def _crashed(self, how: str) -> None:
        """Count a worker that died with a call."""
        now = asyncio.get_running_loop().time()
        follows = self._crashes.failed(_WORKER, now=now, jitter=random())
        if isinstance(follows, Restart):
            self._begin_at = now + follows.delay_s
        elif self.on_crash_loop is not None and not self._given_up:
            self._given_up = f"{follows.reason}; the last one ended with {how}"
            self.on_crash_loop(self._given_up)

    async def _spawn(self) -> Worker:
        if in_worker():
            # Without this, a program that serves when it is imported would start workers without end.
            raise ConfigError(
                "this program starts to serve while a worker process imports it: put what runs the agent under "
                "`if __name__ == '__main__':`"
            )
        worker = Worker()
        self._all.add(worker)
        worker.exited.add_done_callback(lambda _: self._all.discard(worker))
        try:
            await worker.begin(self._path)
        except BaseException:
            worker.kill()
            raise
        return worker

    async def _ask(self, worker: Worker, capability: str, body: bytes) -> Any:
        whole = False
        try:
            answer = await worker.ask(capability, body)
            whole = True
        except WorkerEnded as ended:
            self._crashed(str(ended))
            raise UpstreamFailure(
                f"the worker process ended ({ended}) while it had this call", reason=Reason.INSTANCE_GONE
            ) from None
        finally:
            if whole:
                self._idle.append(worker)
            else:
                worker.kill()
        return answer.value()


def _tell(told: Told) -> None:
    if told is not None:
        told()
