"""A process of supervised children on one connection, until a signal or the last of them ends it.

The first SIGTERM or SIGINT stops the children in order (last to first, within the supervision's bound), a second
one cancels what is left. Whoever opened the connection closes it, after `run` has returned.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import Final

import anyio
from anyio.abc import TaskGroup

from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.clock import SYSTEM, Clock
from reach.runtime.child import ChildSpec, Escalated, Place, RoleUnavailable
from reach.runtime.supervise import Supervision, Supervisor

_log = logging.getLogger("reach.runtime")

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


async def no_other_role(role: Role) -> Connection:
    """Refuse: what a host does that was given no way to connect as somebody else."""
    raise RoleUnavailable(f"This process has no credentials for role {role}: its host was given none.")


class Host:
    """Runs a tree of children once."""

    def __init__(
        self,
        connection: Connection,
        children: Iterable[ChildSpec],
        *,
        name: str = "host",
        supervision: Supervision | None = None,
        connect: Callable[[Role], Awaitable[Connection]] = no_other_role,
        clock: Clock = SYSTEM,
    ) -> None:
        """Prepare a process.

        Args:
            connection: What the children speak on.
            children: In the order in which they start.
            name: Root of their paths.
            supervision: How they are kept alive.
            connect: Opens connections as other roles, for children that ask.
            clock: Time.
        """
        self._root = Supervisor(children, supervision=supervision)
        self._name = name
        self._connection = connection
        self._connect = connect
        self._clock = clock

    async def run(
        self,
        *,
        ready: Callable[[], None] = lambda: None,
        until: Callable[[], Awaitable[None]] | None = None,
        signals: bool = True,
    ) -> None:
        """Run until stopped, or until no child is left.

        Args:
            ready: Called once, when all children have started.
            until: Also stop when this returns.
            signals: Stop on SIGTERM and SIGINT. Only a main thread can; elsewhere they are left alone.

        Raises:
            Escalated: the children failed past their limit.
        """
        place = Place(
            name=self._name,
            connection=self._connection,
            clock=self._clock,
            connect=self._connect,
            started=ready,
        )
        failure: Escalated | None = None
        async with AsyncExitStack() as stack:
            received = None
            if signals and threading.current_thread() is threading.main_thread():
                received = stack.enter_context(anyio.open_signal_receiver(*_SIGNALS))
            tasks = await stack.enter_async_context(anyio.create_task_group())
            if received is not None:
                tasks.start_soon(self._follow_signals, received, tasks)
            if until is not None:
                tasks.start_soon(self._stop_after, until)
            try:
                await self._root.run(place)
            except Escalated as error:
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def stop(self) -> None:
        """Ask for an end in good order."""
        self._root.stop()

    async def _stop_after(self, until: Callable[[], Awaitable[None]]) -> None:
        await until()
        _log.debug("%s: nobody needs it any more, stopping", self._name)
        self._root.stop()

    async def _follow_signals(self, received: AsyncIterator[signal.Signals], tasks: TaskGroup) -> None:
        asked = False
        async for number in received:
            if asked:
                _log.warning("%s: %s again, cancelling what is left", self._name, number.name)
                tasks.cancel_scope.cancel()
                return
            asked = True
            _log.info("%s: %s, stopping", self._name, number.name)
            self._root.stop()
