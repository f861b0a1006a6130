"""Running agents as a program: until SIGTERM or SIGINT, then leave without losing a call."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from reach.runtime.agent import Agent

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from reach.bus.settings import Settings
    from reach.runtime.instance import Instance

_log = logging.getLogger("reach.agent")

LET_GO_S: Final = 2.0
"""How long tasks that are left when the last answer was given may take to end once they are cancelled."""

COLLECT_AFTER: Final = (20_000, 20, 20)
"""Thresholds of the garbage collector in a process that serves agents (Python's own are 700, 10, 10)."""


def run(
    *agents: Agent, settings: Settings | None = None, ready: Callable[[Instance], None] | None = None
) -> None:
    """Serve one or several agents in this process until SIGTERM or SIGINT.

    A second signal ends the process at once. Raises what `Agent.serve` raises, and `TypeError` for what is no agent.
    """
    if not agents:
        raise TypeError("reach.run(agent, …) needs at least one agent")
    for agent in agents:
        if not isinstance(agent, Agent):
            raise TypeError(f"reach.run takes agents, not {type(agent).__name__}")
    in_loop(serve_all(*agents, settings=settings, ready=ready or _say_ready))


async def serve_all(
    *agents: Agent, settings: Settings | None = None, ready: Callable[[Instance], None] | None = None
) -> None:
    """Serve agents until a signal comes."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            sys.exit(1)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        async with asyncio.TaskGroup() as group:
            for agent in agents:
                group.create_task(agent.serve(settings=settings, stop=stop, ready=ready))
    except BaseExceptionGroup as group_error:
        # One agent's failure to start is the program's failure: say it plainly.
        raise group_error.exceptions[0] from None
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def in_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on uvloop where it is installed, as the only thing that this process does.

    Not `asyncio.run`, which waits for ever for a handler that swallows its cancellation and for threads of the
    default executor: when the last answer was given the program ends, whatever handlers have left behind.
    """
    # What is loaded by now stays for good, and requests leave no cycles behind: with Python's own thresholds the
    # collector would walk over everything that is in flight several times a second (a tenth of a call's cost).
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    loop = _new_loop()
    try:
        asyncio.set_event_loop(loop)
        serving = loop.create_task(main)
        try:
            loop.run_until_complete(serving)
        except KeyboardInterrupt:
            # It came out of the loop, not to our signal handler: agents leave in order all the same.
            serving.cancel()
            loop.run_until_complete(asyncio.wait([serving]))
            raise
        finally:
            _end(loop)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - optional, and not on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left in a loop, and give it `LET_GO_S` to end."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        _, left = loop.run_until_complete(asyncio.wait(left, timeout=LET_GO_S))
    if left:
        _log.warning("%d tasks swallow their cancellation, and are left behind", len(left))
        loop.set_exception_handler(_say_nothing)  # Python would complain of each of them.
    loop.run_until_complete(asyncio.wait([loop.create_task(loop.shutdown_asyncgens())], timeout=LET_GO_S))


def _say_nothing(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
    """See `_end`: it was told in one line."""


def _say_ready(instance: Instance) -> None:
    served = ", ".join(instance.capabilities)
    _log.info("%s serves %s", instance.name, served)
    sys.stderr.write(f"{instance.name} serves {served}\n")
