"""What is supervised: a child, the place where it runs, and where it stands.

A child is an actor, an agent, or another supervisor. It runs once; its `Cell` in the group lasts across its
incarnations, and the states a cell may go through stand in a table. `reach.runtime.supervise` decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

import anyio

from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.clock import Clock
from reach.errors import ConfigError, ReachError


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a child runs: what it may use, and whom it tells that it has started.

    Attributes:
        name: Path in the tree, such as `platform/sentinel`.
        connection: The process's connection, as its own role.
        clock: Time.
        connect: Opens another connection as another role, which the child then owns and closes. Raises
            `RoleUnavailable` where this process was given no credentials for that role.
        started: To be called once, when the child is ready for work.
    """

    name: str
    connection: Connection
    clock: Clock
    connect: Callable[[Role], Awaitable[Connection]]
    started: Callable[[], None]


class Child(Protocol):
    """What can be supervised: an actor, an agent, another supervisor. It runs once."""

    async def run(self, place: Place) -> None:
        """Work until asked to stop. Returning is a good end, raising is a failure."""
        ...

    def stop(self) -> None:
        """Ask for an end in good order: `run` returns soon after. May come before `run`, and twice."""
        ...


Factory = Callable[[], Child]


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A child's name in its group, and what makes a fresh one."""

    name: str
    factory: Factory


class ChildState(StrEnum):
    """Where a child stands."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


MOVES: Final = {
    ChildState.WAITING: {ChildState.STARTING, ChildState.ENDED},
    ChildState.STARTING: {ChildState.RUNNING, ChildState.STOPPING, ChildState.WAITING, ChildState.ENDED},
    ChildState.RUNNING: {ChildState.STOPPING, ChildState.WAITING, ChildState.ENDED},
    ChildState.STOPPING: {ChildState.WAITING, ChildState.ENDED},
    ChildState.ENDED: set[ChildState](),
}
"""From each state to those that may follow. WAITING is for one's turn, or for the end of a backoff."""


class Life:
    """One incarnation of a child."""

    __slots__ = ("_cell", "child", "ended", "failed", "scope", "settled", "unwanted")

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self.child: Child | None = None
        self.scope = anyio.CancelScope()
        self.settled = asyncio.Event()  # It has started, or ended before that.
        self.ended = asyncio.Event()
        self.failed = False
        self.unwanted = False  # Its end, whichever way, is what we asked for.

    def started(self) -> None:
        """Take note that the child is ready for work."""
        if self._cell.state is ChildState.STARTING and self._cell.life is self:
            self._cell.move(ChildState.RUNNING)
        self.settled.set()


class Cell:
    """One child of the group, across its incarnations."""

    __slots__ = ("_state", "gone", "life", "spec", "up")

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.life: Life | None = None
        self.up = asyncio.Event()  # It was running at least once.
        self.gone = asyncio.Event()  # It has ended for good.
        self._state = ChildState.WAITING

    @property
    def state(self) -> ChildState:
        """Where the child stands."""
        return self._state

    def move(self, state: ChildState) -> None:
        """Go to another state. Raises `RuntimeError` for a move that the table does not have."""
        if state not in MOVES[self._state]:
            raise RuntimeError(f"child {self.spec.name} cannot go from {self._state} to {state}")
        self._state = state
        if state is ChildState.RUNNING:
            self.up.set()
        elif state is ChildState.ENDED:
            self.gone.set()


class Handle:
    """A child as seen by whoever spawned it: it stays the same across restarts."""

    __slots__ = ("_cell", "_leave")

    def __init__(self, cell: Cell, leave: Callable[[Cell], None]) -> None:
        self._cell = cell
        self._leave = leave

    @property
    def name(self) -> str:
        """Its name in the group."""
        return self._cell.spec.name

    @property
    def state(self) -> ChildState:
        """Where it stands."""
        return self._cell.state

    @property
    def child(self) -> Child | None:
        """The incarnation that runs now; None while there is none."""
        life = self._cell.life
        return life.child if life is not None and self._cell.state is ChildState.RUNNING else None

    async def stop(self) -> None:
        """End it for good, in good order, and wait for that."""
        if self._cell.state is not ChildState.ENDED:
            self._leave(self._cell)
            await self._cell.gone.wait()


class RoleUnavailable(ConfigError):
    """This process was given no credentials for the role that a child wants to connect as."""


class Escalated(Exception):
    """A group gave up.

    `path` is the child that failed last, `reason` is for people, `__cause__` is the child's own failure.
    """

    def __init__(self, reason: str, *, path: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


def describe(error: BaseException) -> str:
    """Say what failed and where, fit for a log: our own errors with their message, others by type and line.

    Messages of foreign exceptions stay out: they may quote parameters or secrets (behaviour ERR-5).
    """
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, ReachError | ConfigError | Escalated):
        return str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
    return f"{type(error).__name__}{where}"
