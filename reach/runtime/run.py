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
    """Run a coroutine on uvloop where it is installed, as the only thing that this process does."""
    # What is loaded by now stays for good, and requests leave no cycles behind: with Python's own thresholds the
    # collector would walk over everything that is in flight several times a second (a tenth of a call's cost).
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        import uvloop  # noqa: PLC0415 - optional, and not on every platform
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def _say_ready(instance: Instance) -> None:
    served = ", ".join(one.name for one in instance.served)
    _log.info("%s serves %s", instance.name, served)
    sys.stderr.write(f"{instance.name} serves {served}\n")
