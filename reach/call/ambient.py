"""The bus at hand: an agent's own inside its handlers, else the one that is open in the running loop.

Touched functions are written at module level and take no bus. Whoever opens a bus notes it here and forgets it
when closing; the inbound pipeline enters its agent's for the length of a handler, threads included.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from reach.call.client import Bus

_open: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Bus]] = WeakKeyDictionary()
_inside: ContextVar[tuple[Bus, asyncio.AbstractEventLoop] | None] = ContextVar("reach_bus", default=None)


def note(bus: Bus) -> None:
    """A bus was opened in the running loop."""
    _open.setdefault(asyncio.get_running_loop(), []).append(bus)


def forget(bus: Bus) -> None:
    """A bus of the running loop is closing."""
    buses = _open.get(asyncio.get_running_loop(), [])
    if bus in buses:
        buses.remove(bus)


def enter(bus: Bus) -> None:
    """Make a bus of the running loop the one at hand for the rest of this task, and what it starts."""
    _inside.set((bus, asyncio.get_running_loop()))


def leave() -> None:
    """No bus is at hand any more in this task."""
    _inside.set(None)


def at_hand() -> Bus | None:
    """Give the bus to use in the running loop; None when none is open in it."""
    loop = asyncio.get_running_loop()
    inside = _inside.get()
    if inside is not None and inside[1] is loop:
        return inside[0]
    buses = _open.get(loop)
    return buses[-1] if buses else None


def around_thread() -> tuple[Bus, asyncio.AbstractEventLoop] | None:
    """Give the agent's bus, and its loop, around a handler that runs in a thread."""
    inside = _inside.get()
    return inside if inside is not None and inside[1].is_running() else None
