"""Groups of children that are restarted when they fail, nested into a tree.

A supervisor starts its children in order, each when the one before it has started. When one fails it asks
the `RestartBook` who is started anew and after how long; a book that gives up ends the whole group, and the
failure (`Escalated`) is the parent's to judge, for whom a supervisor is a child like any other. Children are
made by factories: a restart is a fresh one. Stopping goes last to first within a bounded time, then cancels.
One task follows the events, so decisions are made one at a time; everything runs inside one task group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import anyio
from anyio.abc import TaskGroup

from reach.chance import random
from reach.policy.restart import Backoff, GiveUp, Intensity, RestartBook, Strategy
from reach.runtime.child import Cell, ChildSpec, ChildState, Escalated, Handle, Life, Place, describe

_log = logging.getLogger("reach.runtime")

STOP_TIMEOUT_S: Final = 30.0
"""How long a whole group may take to stop (behaviour LIFE-7)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """How a group is kept alive.

    Attributes:
        strategy: Who is restarted when one fails.
        intensity: How many restarts are borne.
        backoff: How long they wait.
        stop_timeout_s: How long the group may take to stop before what is left is cancelled.
    """

    strategy: Strategy = Strategy.ONE_FOR_ONE
    intensity: Intensity = field(default_factory=Intensity)
    backoff: Backoff = field(default_factory=Backoff)
    stop_timeout_s: float = STOP_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class _Ended:
    cell: Cell
    life: Life
    error: Exception | None


@dataclass(frozen=True, slots=True)
class _Leave:
    cell: Cell


class _Stop:
    pass


class _Batch:
    """Children that are to be started one after the other, after a delay."""

    __slots__ = ("cells", "delay_s", "scope")

    def __init__(self, cells: list[Cell], delay_s: float) -> None:
        self.cells = cells  # Those not begun yet.
        self.delay_s = delay_s
        self.scope = anyio.CancelScope()


class Supervisor:
    """A group of children under one strategy. Runs once, and is itself a `Child`."""

    def __init__(
        self,
        children: Iterable[ChildSpec] = (),
        *,
        supervision: Supervision | None = None,
        stays: bool = False,
    ) -> None:
        """Prepare a group.

        Args:
            children: In the order in which they start.
            supervision: How it is kept alive.
            stays: Run on when no child is left, for groups to which children are added.
        """
        self._supervision = supervision or Supervision()
        self._stays = stays
        how = self._supervision
        self._book = RestartBook(strategy=how.strategy, intensity=how.intensity, backoff=how.backoff)
        self._cells: dict[str, Cell] = {}
        self._batches: list[_Batch] = []
        self._events: asyncio.Queue[_Ended | _Leave | _Stop] = asyncio.Queue()
        self._place: Place | None = None
        self._tasks: TaskGroup | None = None
        self._announced = False
        self._last = ""
        for spec in children:
            self._take_in(spec)

    @property
    def states(self) -> dict[str, ChildState]:
        """Where each child stands, in start order."""
        return {name: cell.state for name, cell in self._cells.items()}

    async def run(self, place: Place) -> None:
        """Start the children and keep them running until stopped, or until none is left.

        Raises:
            Escalated: one failed more often than the intensity allows.
            RuntimeError: it has run before.
        """
        if self._place is not None:
            raise RuntimeError("a supervisor runs once: make a fresh one")
        self._place = place
        failure: Escalated | None = None
        async with anyio.create_task_group() as self._tasks:
            if self._cells:
                self._begin(list(self._cells.values()), 0.0)
            else:
                self._announce()
            try:
                await self._follow()
            except Escalated as error:
                failure = error
            await self._stop_all()
        if failure is not None:
            raise failure

    def stop(self) -> None:
        """Ask for an end in good order: last to first, within `stop_timeout_s`."""
        self._events.put_nowait(_Stop())

    async def spawn(self, spec: ChildSpec) -> Handle:
        """Add a child, started last, and wait until it runs (or has ended already).

        Raises:
            ValueError: its name is taken.
        """
        cell = self._take_in(spec)
        if self._tasks is not None:
            self._begin([cell], 0.0)
        await cell.up.wait()
        return Handle(cell, lambda leaving: self._events.put_nowait(_Leave(leaving)))

    def _take_in(self, spec: ChildSpec) -> Cell:
        self._book.add(spec.name)
        cell = self._cells[spec.name] = Cell(spec)
        return cell

    # -- following ------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Decide on one event after the other until asked to stop, or until no child is left."""
        while self._cells or self._stays:
            match await self._events.get():
                case _Ended(cell, life, error) if cell.life is life and not life.unwanted:
                    if error is None:
                        self._retire(cell)
                    else:
                        await self._failed(cell, error)
                case _Leave(cell) if cell.state is not ChildState.ENDED:
                    for batch in self._batches:
                        batch.cells = [other for other in batch.cells if other is not cell]
                    await self._stop_one(cell, within_s=self._supervision.stop_timeout_s)
                    self._retire(cell)
                case _Stop():
                    return
                case _:
                    pass  # The end of a life that was ended on purpose, or of one long replaced.

    async def _failed(self, cell: Cell, error: Exception) -> None:
        now, path = self._at.clock.monotonic(), self._path(cell)
        # Spread over instances, not a secret.
        decision = self._book.failed(cell.spec.name, now=now, jitter=random())
        if isinstance(decision, GiveUp):
            _log.error("%s failed: %s. %s", path, describe(error), decision.reason)
            raise Escalated(decision.reason, path=path) from error
        cells = [self._cells[name] for name in decision.which]
        others = ", ".join(name for name in decision.which if name != cell.spec.name)
        also = f", and with it {others}" if others else ""
        _log.warning(
            "%s failed: %s. It is restarted in %.2f s%s", path, describe(error), decision.delay_s, also
        )
        cell.move(ChildState.WAITING)
        self._unqueue(set(cells))
        await self._stop_some(cells)
        self._begin(cells, decision.delay_s)

    def _retire(self, cell: Cell) -> None:
        """Forget a child that has ended for good."""
        if cell.state is not ChildState.ENDED:
            cell.move(ChildState.ENDED)
        cell.up.set()
        self._cells.pop(cell.spec.name)
        self._book.remove(cell.spec.name)
        self._announce()

    # -- starting -------------------------------------------------------------------------------------

    def _begin(self, cells: list[Cell], delay_s: float) -> None:
        batch = _Batch(list(cells), delay_s)
        self._batches.append(batch)
        self._group.start_soon(self._bring_up, batch)

    async def _bring_up(self, batch: _Batch) -> None:
        """Start a batch's children in order; where they share a fate, one that fails ends the attempt."""
        alone = self._supervision.strategy is Strategy.ONE_FOR_ONE
        with batch.scope:
            if batch.delay_s > 0:
                await self._at.clock.sleep(batch.delay_s)
            while batch.cells:
                cell = batch.cells.pop(0)
                life = cell.life = Life(cell)
                cell.move(ChildState.STARTING)
                self._group.start_soon(self._live, cell, life)
                await life.settled.wait()
                if life.failed and not alone:
                    break  # What follows from its failure brings the rest up too.
        if batch in self._batches:
            self._batches.remove(batch)
        self._announce()

    async def _live(self, cell: Cell, life: Life) -> None:
        """Run one incarnation to its end."""
        error: Exception | None = None
        place = replace(self._at, name=self._path(cell), started=life.started)
        try:
            with life.scope:
                if life.unwanted:
                    return
                life.child = cell.spec.factory()
                await life.child.run(place)
        except Exception as raised:  # noqa: BLE001 - whatever a child's failure is, it becomes a decision
            error = raised
            life.failed = not life.unwanted
        finally:
            life.ended.set()
            life.settled.set()
        if life.unwanted and error is not None:
            _log.warning("%s failed while it was stopped: %s", place.name, describe(error))
        self._events.put_nowait(_Ended(cell, life, error))

    def _unqueue(self, cells: set[Cell]) -> None:
        """Call off the batches that still hold one of `cells`."""
        for batch in list(self._batches):
            if cells.intersection(batch.cells):
                batch.scope.cancel()
                batch.cells.clear()
                self._batches.remove(batch)

    def _announce(self) -> None:
        """Tell the parent, once, when all children have started."""
        if self._announced or any(cell.state is not ChildState.RUNNING for cell in self._cells.values()):
            return
        self._announced = True
        self._at.started()

    # -- stopping -------------------------------------------------------------------------------------

    async def _stop_all(self) -> None:
        for batch in self._batches:
            batch.scope.cancel()
        self._batches.clear()
        await self._stop_some(list(self._cells.values()))
        for cell in self._cells.values():
            if cell.state is not ChildState.ENDED:
                cell.move(ChildState.ENDED)
            cell.up.set()

    async def _stop_some(self, cells: list[Cell]) -> None:
        """Stop those that run, last first; each may take an equal share of the time that is left."""
        deadline = anyio.current_time() + self._supervision.stop_timeout_s
        running = [cell for cell in cells if cell.state in {ChildState.STARTING, ChildState.RUNNING}]
        for left in range(len(running), 0, -1):
            share_s = max(0.0, deadline - anyio.current_time()) / left
            await self._stop_one(running[left - 1], within_s=share_s)

    async def _stop_one(self, cell: Cell, *, within_s: float) -> None:
        """Ask a child to stop, and cancel it when it takes longer than `within_s`. Leaves it WAITING."""
        life = cell.life
        if life is None or cell.state not in {ChildState.STARTING, ChildState.RUNNING}:
            return
        cell.move(ChildState.STOPPING)
        life.unwanted = True
        if life.child is None:
            life.scope.cancel()  # Its task has not begun yet.
        else:
            life.child.stop()
            with anyio.move_on_after(within_s):
                await life.ended.wait()
        if not life.ended.is_set():
            if life.child is not None:
                _log.warning("%s did not stop within %.1f s and is cancelled", self._path(cell), within_s)
            life.scope.cancel()
            await life.ended.wait()
        cell.move(ChildState.WAITING)

    # -- what is known only while running -------------------------------------------------------------

    @property
    def _at(self) -> Place:
        if self._place is None:
            raise RuntimeError("the supervisor does not run yet")
        return self._place

    @property
    def _group(self) -> TaskGroup:
        if self._tasks is None:
            raise RuntimeError("the supervisor does not run yet")
        return self._tasks

    def _path(self, cell: Cell) -> str:
        return f"{self._at.name}/{cell.spec.name}"
