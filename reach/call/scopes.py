"""Until when the surrounding cancel scope lets the running task live (behaviour CALL-1).

anyio's own question costs more than building a call, since it asks first which event loop library runs. Here it is
asyncio's, always; a task that anyio has never seen has no scope at all, and that can be told at once.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any, Final
from weakref import WeakKeyDictionary

import anyio


def _seen_tasks() -> Any:
    """Give anyio's table of the tasks that it has seen (a `WeakKeyDictionary`), where this version of it has one."""
    try:
        from anyio._backends import _asyncio  # noqa: PLC0415 - may be gone in another version: then it is asked
    except ImportError:
        return None
    seen = getattr(_asyncio, "_task_states", None)
    return seen if isinstance(seen, WeakKeyDictionary) and hasattr(seen, "data") else None


_SEEN: Final[Any] = _seen_tasks()


def scope_deadline() -> float:
    """Give the loop time at which the innermost deadline around the running task is, or infinity."""
    if _SEEN is not None and (not _SEEN.data or asyncio.current_task() not in _SEEN):
        return math.inf
    return anyio.current_effective_deadline()
