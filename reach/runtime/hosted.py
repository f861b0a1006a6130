"""A service as a child that a platform hosts: begun in a task group of its own, ended in good order.

What it does is the service's; here is only how it lives. It runs once, as every child does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import anyio

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from reach.bus.connection import Connection
    from reach.runtime.child import Place


class Service(Protocol):
    """What is hosted: it begins its work as tasks of a group, which ends with it."""

    async def start(self, tasks: TaskGroup) -> None:
        """Begin. Raises `ReachError` when what it needs is not there."""
        ...

    async def close(self) -> None:
        """Let go of everything; its tasks have ended."""
        ...


class Hosted:
    """A child that runs the service which `make` builds over the platform's connection."""

    def __init__(self, make: Callable[[Connection], Service]) -> None:
        self._make = make
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Ask for an end in good order."""
        self._stop.set()

    async def run(self, place: Place) -> None:
        """Work until asked to stop. Raises what cannot be gone on after: the platform starts a fresh one."""
        service = self._make(place.connection)
        try:
            async with anyio.create_task_group() as tasks:
                await service.start(tasks)
                place.started()
                await self._stop.wait()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await service.close()
