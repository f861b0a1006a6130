"""The bus at hand: the one that is open in the running loop.

Touched functions are written at module level and take no bus. Inside `async with reach.connect() as bus` they
use that one, inside a handler its agent's; whoever opens a bus notes it here and forgets it when closing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from reach.call.client import Bus

_open: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Bus]] = WeakKeyDictionary()


def note(bus: Bus) -> None:
    """A bus was opened in the running loop."""
    _open.setdefault(asyncio.get_running_loop(), []).append(bus)


def forget(bus: Bus) -> None:
    """A bus of the running loop is closing."""
    buses = _open.get(asyncio.get_running_loop(), [])
    if bus in buses:
        buses.remove(bus)


def at_hand() -> Bus | None:
    """Give the bus that was opened last in the running loop and is still open; None when there is none."""
    buses = _open.get(asyncio.get_running_loop())
    return buses[-1] if buses else None
