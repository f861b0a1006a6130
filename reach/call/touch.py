"""Capabilities as functions: `touch` for what is far away, `guard` for what is done here.

A touched function's body never runs: its signature says what to send and what to expect, and calling it is
calling the capability. A guarded function runs its own body, under the deadline, retry and record that a call
would have. Both work as `async def` and as plain `def`; both have `.reply(…)`, which gives the whole reply and
never raises for a failed call.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from msgspec.structs import replace

from reach.call import ambient
from reach.call.client import Bus, background
from reach.call.context import current, enter
from reach.call.guarded import Guard
from reach.call.options import NO_OPTIONS, CallOptions
from reach.call.stub import Stub
from reach.errors import ReachError
from reach.observe.records import Recorder
from reach.registry.face import Kind, kind_of
from reach.wire.reply import Failure, Reply

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Named:
    """Looks like the function it stands for."""

    __name__: str
    __qualname__: str

    def __init__(self, function: Callable[..., Any], capability: str) -> None:
        functools.update_wrapper(self, function)  # type: ignore[arg-type]  # an object that is called
        self.capability = capability

    def __repr__(self) -> str:
        return f"<function {self.__qualname__} of {self.capability!r}>"


class TouchedAsync(_Named, Generic[P, R]):
    """A remote function that is awaited."""

    def __init__(
        self, function: Callable[..., Any], stub: Stub, bus: Bus | None, options: CallOptions
    ) -> None:
        super().__init__(function, stub.capability)
        self._stub = stub
        self._bus = bus
        self._options = options

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the capability and give its result. Raises the matching `ReachError`."""
        result: R = (await self.reply(*args, **kwargs)).unwrap()
        return result

    async def reply(self, *args: P.args, **kwargs: P.kwargs) -> Reply:
        """Call the capability and give the whole reply; its `data` has the function's return type."""
        params = self._stub.params_of(args, kwargs)
        bus = self._bus or ambient.at_hand()
        if bus is None:
            reply = await _from_afar(self._stub.capability, params, self._options)
        else:
            reply = await bus.request(self._stub.capability, params, **self._options)
        return _typed(self._stub, reply)


class Touched(_Named, Generic[P, R]):
    """A remote function for synchronous code."""

    def __init__(self, function: Callable[..., Any], stub: Stub, options: CallOptions) -> None:
        super().__init__(function, stub.capability)
        self._stub = stub
        self._options = options

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the capability and give its result. Raises the matching `ReachError`."""
        result: R = self.reply(*args, **kwargs).unwrap()
        return result

    def reply(self, *args: P.args, **kwargs: P.kwargs) -> Reply:
        """Call the capability and give the whole reply; its `data` has the function's return type."""
        params = self._stub.params_of(args, kwargs)
        if _in_a_loop():
            raise RuntimeError(
                f"{self._stub.face.label} is a plain function and would block the running event loop: declare it "
                "`async def` and await it, or call it in a thread"
            )
        future = _from_thread(self._stub.capability, params, self._options)
        try:
            reply = future.result()
        except BaseException:
            future.cancel()
            raise
        return _typed(self._stub, reply)


class TouchedStream(_Named, Generic[P, T]):
    """A remote function that answers in parts: `async for part in write(…)`."""

    def __init__(
        self, function: Callable[..., Any], stub: Stub, bus: Bus | None, options: CallOptions
    ) -> None:
        super().__init__(function, stub.capability)
        self._stub = stub
        self._bus = bus
        self._options = options

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        """Iterate over the parts. Raises the matching `ReachError` where the stream fails."""
        params = self._stub.params_of(args, kwargs)
        bus = self._bus or ambient.at_hand()
        if bus is None:
            raise RuntimeError(
                f"{self._stub.face.label} streams, which needs an open bus in this loop: use it inside "
                "`async with reach.connect():`, or say touch(..., bus=bus)"
            )
        parts = bus.stream(self._stub.capability, params, **self._options)
        try:
            async for part in parts:
                yield self._stub.result_of(part)
        finally:
            close = getattr(parts, "aclose", None)
            if close is not None:
                await close()


class Touching(Protocol):
    """What `touch(…)` gives: a decorator for remote functions of all three kinds."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # the last one is for whatever is neither
        self, function: Callable[P, AsyncIterator[T]], /
    ) -> TouchedStream[P, T]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> TouchedAsync[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Touched[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        """Make a function remote."""
        ...


def touch(capability: str, *, bus: Bus | None = None, **options: Unpack[CallOptions]) -> Touching:
    """Make a function the typed face of a capability; its body never runs.

    ::

        @reach.touch("order.query", timeout_s=3)
        async def query_orders(account_id: str, date_from: date) -> list[Order]: ...

    `options` are those of `bus.request`, for every call. Without `bus` a handler uses its agent's, other code the
    one that is open in the running loop, else a connection of this process in the background (as
    `reach.connect()` finds it). Raises
    `TypeError`, `ValueError`, `NameRefused` at decoration for what could not work.
    """
    NO_OPTIONS.merged(options)  # Refuses now what would be refused at every call.
    frame = inspect.currentframe()
    namespace = frame.f_back.f_locals if frame is not None and frame.f_back is not None else {}

    def decorate(function: Callable[..., Any], /) -> Any:
        stub = Stub(function, capability, namespace=namespace)
        if stub.is_stream:
            return TouchedStream(function, stub, bus, options)
        if stub.is_async:
            return TouchedAsync(function, stub, bus, options)
        if bus is not None:
            raise TypeError(
                f"{stub.face.label} is a plain function, which cannot wait for a bus of another loop: leave `bus` "
                "away, or make it `async def`"
            )
        return Touched(function, stub, options)

    return decorate


class GuardedAsync(_Named, Generic[P, R]):
    """A function of the program's own that is awaited."""

    def __init__(self, function: Callable[P, Coroutine[Any, Any, R]], guard_: Guard) -> None:
        super().__init__(function, guard_.capability)
        self._function = function
        self._guard = guard_

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the body and give its result. Raises what the body raised, or a `ReachError` (see `guard`)."""
        _, outcome = await self._guard.run(functools.partial(self._function, *args, **kwargs))
        result: R = outcome.unwrap()
        return result

    async def reply(self, *args: P.args, **kwargs: P.kwargs) -> Reply:
        """Run the body and tell how it went, as a reply."""
        reply, _ = await self._guard.run(functools.partial(self._function, *args, **kwargs))
        return reply


class Guarded(_Named, Generic[P, R]):
    """A function of the program's own that is called."""

    def __init__(self, function: Callable[P, R], guard_: Guard) -> None:
        super().__init__(function, guard_.capability)
        self._function = function
        self._guard = guard_

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the body and give its result. Raises what the body raised, or a `ReachError` (see `guard`)."""
        body = functools.partial(self._function, *args, **kwargs)
        _, outcome = self._guard.run_here(body, may_wait=not _in_a_loop())
        result: R = outcome.unwrap()
        return result

    def reply(self, *args: P.args, **kwargs: P.kwargs) -> Reply:
        """Run the body and tell how it went, as a reply."""
        body = functools.partial(self._function, *args, **kwargs)
        reply, _ = self._guard.run_here(body, may_wait=not _in_a_loop())
        return reply


class Guarding(Protocol):
    """What `guard(…)` gives: a decorator for functions of both kinds."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # the last one is for whatever is neither
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> GuardedAsync[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Guarded[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        """Put a function under guard."""
        ...


def guard(
    capability: str,
    *,
    idempotent: bool = False,
    retry: bool = True,
    timeout_s: float | None = None,
    recorder: Recorder | None = None,
) -> Guarding:
    """Run a function's own body as if it were a call of `capability`: deadline, retry, record.

    ::

        @reach.guard("order.query", idempotent=True)
        async def query_orders_http(account_id: str) -> list[Order]: ...

    The body has `timeout_s` (else 15 s), within what surrounds it; what it calls inherits that. It is tried a
    second time where nothing can have happened, or where `idempotent` says that twice is as good as once.
    What it raises passes through, unless it says that the far end was not reached or that nobody knows what
    happened (sockets, timeouts, `httpx`): then the matching `ReachError` is raised, from the original. The body
    of a plain function cannot be interrupted; inside an event loop it is not tried twice either.
    Raises `TypeError`, `ValueError`, `NameRefused` at decoration for what could not work.
    """
    rules = Guard(capability, idempotent=idempotent, retry=retry, timeout_s=timeout_s, recorder=recorder)

    def decorate(function: Callable[..., Any], /) -> Any:
        kind = kind_of(function)
        if kind in {Kind.STREAM, Kind.SYNC_STREAM}:
            raise TypeError(
                f"{function.__qualname__} is a generator, and a guard returns one result: collect it first"
            )
        return GuardedAsync(function, rules) if kind is Kind.ASYNC else Guarded(function, rules)

    return decorate


def _typed(stub: Stub, reply: Reply) -> Reply:
    """Put the result into the function's return type; a misfit is a failed reply."""
    if reply.ok:
        try:
            reply.data = stub.result_of(reply.data)
        except ReachError as error:
            reply.ok, reply.data, reply.error = False, None, Failure.of_error(error)
    return reply


# --------------------------------------------------------------------------- the bus in the background


_leaving = threading.Lock()
_will_leave = False


def _submit(capability: str, params: Any, options: CallOptions) -> Future[Reply]:
    """Start a call on the background bus, in the caller's context. Connects on first use."""
    global _will_leave  # noqa: PLW0603 - once a process
    portal, bus = background.get()
    with _leaving:
        if not _will_leave:
            # Its thread runs a loop: ended in order, or it would hold the program's exit.
            atexit.register(background.close)
            _will_leave = True
    future: Future[Reply] = portal.start_task_soon(_call, bus, capability, params, options)
    return future


def _from_thread(capability: str, params: Any, options: CallOptions) -> Future[Reply]:
    """Start a call from plain code: over the agent's own bus inside a handler, else over the one in the background."""
    around = ambient.around_thread()
    if around is None:
        return _submit(capability, params, options)
    bus, loop = around
    return asyncio.run_coroutine_threadsafe(bus.request(capability, params, **options), loop)


async def _call(bus: Bus, capability: str, params: Any, options: CallOptions) -> Reply:
    # A round ends its calls by cancelling their tasks, which only works in its own loop: see _from_afar.
    enter(replace(current(), round=None))
    return await bus.request(capability, params, **options)


async def _from_afar(capability: str, params: Any, options: CallOptions) -> Reply:
    """Make a call on the background bus from another loop; cancelling here cancels there."""
    around, task = current().round, asyncio.current_task()
    left = threading.Event()

    def begin() -> Future[Reply]:
        future = _submit(capability, params, options)
        if left.is_set():
            future.cancel()
        return future

    def give_up() -> None:
        if task is not None:
            task.cancel()

    if around is not None:
        around.enter(left, give_up)
    try:
        # In a thread, because the first call connects.
        return await asyncio.wrap_future(await asyncio.to_thread(begin))
    finally:
        left.set()
        if around is not None:
            around.leave(left)


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
