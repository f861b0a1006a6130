"""One limit of all callers together, as one client sees it: who waits for it, and the one who asks for all of them.

Calls that ask at the same moment are admitted by one change of the shared ledger (`reach.policy.rate`), whatever
becomes of them meanwhile: the change is a task's of its own, so a call that is cancelled leaves nothing behind but a
unit that is given back with the next change. Where the ledger cannot be reached the process admits its own share.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from reach.bus.counters import StoreDownError
from reach.bus.jetstream import GuardRefused
from reach.chance import random
from reach.policy.rate import (
    LATE_MS,
    MOST_AHEAD_MS,
    RENEW_MS,
    Full,
    Held,
    Ledger,
    RateLimit,
    Settled,
    Taken,
    Wish,
    local,
    settle,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from reach.bus.counters import SharedCounts

_log = logging.getLogger("reach.call")

FRESH_S: Final = 0.02
"""A ledger whose calls were taken so lately is not looked at again for somebody who does not wait."""

_LOST_S: Final = 0.001
"""Pause of one who lost a race for the ledger, at most, times how often it did; × U(0, 1)."""

_MOST_LOST: Final = 20

_LOOK_S: Final = 0.1
"""How often it is looked whether somebody's call has ended, where others wait for that; × U(0.5, 1.5)."""


class CrowdedError(Exception):
    """There is no room now; `full` says of what, and `shared` whether all callers together were counted."""

    def __init__(self, full: Full | None, *, shared: bool) -> None:
        super().__init__()
        self.full = full
        self.shared = shared


@dataclass(frozen=True, slots=True)
class Grant:
    """One call may begin: with a unit of `slot`, if it was `counted`; with a place, if it is `held`."""

    slot: int
    shared: bool
    counted: bool
    held: bool


class _Waiter:
    __slots__ = ("deadline", "full", "future", "queues")

    def __init__(self, future: asyncio.Future[Grant], *, deadline: float, queues: bool) -> None:
        self.future = future
        self.deadline = deadline
        self.queues = queues
        self.full: Full | None = None  # Why it still waits.


class Gate:
    """See the module. `key` is where the ledger is, `client` who we are in it, `now_ms` the broker's time."""

    def __init__(
        self, key: str, limit: RateLimit, *, client: str, shared: SharedCounts, now_ms: Callable[[], int]
    ) -> None:
        self.limit = limit
        self.holding = 0
        """Calls under way here that count for `concurrent`."""
        self._key = key
        self._client = client
        self._shared = shared
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiter] = deque()
        self._returned: list[Taken] = []
        self._ledger: Ledger | None = None
        self._sequence = 0
        self._full: tuple[Full, float] | None = None  # The last refusal, and when it was true.
        self._own = Ledger()
        self._said = 0  # What the ledger says that we hold.
        self._renew_at = 0.0
        self._lost = 0
        self._ahead_ms = 0
        self._stirred = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def is_idle(self) -> bool:
        """Whether it may be forgotten: nobody waits, and nothing is held."""
        return self._keeper is None and not self.holding

    async def enter(self, *, deadline: float, queues: bool) -> Grant:
        """Wait to be let in, until `deadline` (loop seconds) if `queues`. Raises `CrowdedError`."""
        if self._closed:
            raise CrowdedError(None, shared=False)
        if not queues and self._full is not None and self._loop.time() - self._full[1] < FRESH_S:
            raise CrowdedError(self._full[0], shared=True)
        waiter = _Waiter(self._loop.create_future(), deadline=deadline, queues=queues)
        self._waiting.append(waiter)
        self._stir()
        timer = self._loop.call_at(deadline, self._expire, waiter)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                self.leave(waiter.future.result(), used=False)
            raise
        finally:
            timer.cancel()

    def leave(self, grant: Grant, *, used: bool) -> None:
        """End a call that was let in; not `used` where it was never sent: then its unit is there for others."""
        if self._closed:
            return
        if grant.counted and not used:
            self._returned.append(Taken(grant.slot, 1))
        if grant.held:
            self.holding -= 1
        if self._has_work():
            self._stir()

    async def close(self) -> None:
        """Say that nothing is held any more, once, and end."""
        self._closed = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper
        for waiter in self._waiting:
            if not waiter.future.done():
                waiter.future.cancel()
        self._waiting.clear()
        self.holding = 0
        if (self._said or self._returned) and not self._shared.values.is_on:
            with suppress(StoreDownError):  # Then its lease ends by itself.
                await self._part()

    async def _part(self) -> None:
        for _ in range(_MOST_LOST):
            await self._read()
            with suppress(GuardRefused):
                await self._write(self._decide([]))
                return

    # -- who asks ------------------------------------------------------------------------------------

    def _stir(self) -> None:
        self._stirred.set()
        if self._keeper is None:
            self._keeper = self._loop.create_task(self._keep(), name=f"reach limit {self._key}")

    async def _keep(self) -> None:
        """Ask for those who wait, and renew what is held, until there is nothing to do."""
        try:
            while True:
                self._stirred.clear()
                if self._has_work():
                    pause_s = await self._settle()
                elif self.holding:
                    pause_s = self._renew_at - self._loop.time()
                else:
                    return
                if pause_s > 0:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause_s):
                            await self._stirred.wait()
        except BaseException as error:
            for waiter in self._waiting:
                if not waiter.future.done():
                    if isinstance(error, Exception):
                        waiter.future.set_exception(error)
                    else:
                        waiter.future.cancel()
            self._waiting.clear()
            raise
        finally:
            if self._keeper is asyncio.current_task():
                self._keeper = None

    def _has_work(self) -> bool:
        while self._waiting and self._waiting[0].future.done():
            self._waiting.popleft()
        if self._waiting or self._returned:
            return True
        if self.limit.concurrent is None:
            return False
        return self.holding != self._said or (self.holding > 0 and self._loop.time() >= self._renew_at)

    async def _settle(self) -> float:
        """Ask once for everybody who waits. Gives how long to pause, unless somebody stirs."""
        self._waiting = deque(one for one in self._waiting if not one.future.done())
        members = list(self._waiting)
        if self._shared.values.is_on:
            return self._settle_alone(members)
        try:
            return await self._settle_shared(members)
        except GuardRefused:
            self._ledger = None
            self._lost += 1
            return random() * _LOST_S * min(self._lost, _MOST_LOST)
        except StoreDownError:
            self._ledger = None
            return 0.0

    async def _settle_shared(self, members: list[_Waiter]) -> float:
        known = self._ledger is not None
        if not known:
            await self._read()
        began_ms, done = self._now_ms(), self._decide(members)
        if known and done.full is not None and not done.granted:
            await self._read()  # Others may have left, or given back, since we looked.
            began_ms, done = self._now_ms(), self._decide(members)
        if self._changes(done):
            await self._write(done)
            late_ms = self._now_ms() - began_ms - self._ahead_ms
            self._ahead_ms = min(MOST_AHEAD_MS, max(0, late_ms + self._ahead_ms - LATE_MS // 2))
            if done.granted and self.limit.calls is not None and late_ms > LATE_MS:
                # Others count these units from earlier than they can be used: they are taken anew.
                self._returned.append(Taken(done.slot, done.granted))
                return 0.0
        self._lost = 0
        self._own = local(self._own, self.limit, done.slot, done.granted)
        return self._hand_out(members, done, shared=True)

    def _settle_alone(self, members: list[_Waiter]) -> float:
        """Ask nobody: this process's own share of the limit."""
        limit = self.limit.local
        done = settle(self._own, limit, self._wish(len(members)), self._now_ms())
        self._own = done.ledger
        self._returned.clear()
        self._said, self._renew_at = self.holding, self._shared.values.until
        return self._hand_out(members, done, shared=False)

    def _wish(self, want: int) -> Wish:
        return Wish(self._client, want, self.holding, tuple(self._returned))

    def _decide(self, members: list[_Waiter]) -> Settled:
        ledger = self._ledger or Ledger()
        return settle(ledger, self.limit, self._wish(len(members)), self._now_ms(), ahead_ms=self._ahead_ms)

    def _changes(self, done: Settled) -> bool:
        """Whether there is anything to write."""
        if done.granted or self._returned:
            return True
        return self.limit.concurrent is not None and (
            self.holding != self._said or (self.holding > 0 and self._loop.time() >= self._renew_at)
        )

    def _hand_out(self, members: list[_Waiter], done: Settled, *, shared: bool) -> float:
        """Let in who was granted, refuse who does not wait; gives how long the others have to."""
        limit, given = self.limit, done.granted
        grant = Grant(done.slot, shared, counted=limit.calls is not None, held=limit.concurrent is not None)
        for waiter in members[:given]:
            self.holding += grant.held
            if waiter.future.done():
                self.leave(grant, used=False)  # It left meanwhile.
            else:
                waiter.future.set_result(grant)
        full = done.full
        if full is None:
            return 0.0
        now = self._loop.time()
        if shared and full.what == "calls":  # Room among those under way may come at any moment.
            self._full = (full, now)
        resets_s = None if full.resets_in_ms is None else full.resets_in_ms / 1000
        for waiter in members[given:]:
            if waiter.future.done():
                continue
            waiter.full = full
            if not waiter.queues or (resets_s is not None and now + resets_s > waiter.deadline):
                waiter.future.set_exception(CrowdedError(full, shared=shared))
        if resets_s is None:
            return _LOOK_S * (0.5 + random())
        return resets_s

    def _expire(self, waiter: _Waiter) -> None:
        if not waiter.future.done():
            waiter.future.set_exception(CrowdedError(waiter.full, shared=not self._shared.values.is_on))

    # -- the ledger ----------------------------------------------------------------------------------

    async def _read(self) -> None:
        data, self._sequence = await self._shared.read(self._key)
        self._ledger = unpacked(data, self._key)

    async def _write(self, done: Settled) -> None:
        returned, self._returned = self._returned, []
        try:
            self._sequence = await self._shared.write(
                self._key,
                packed(done.ledger),
                sequence=self._sequence,
                kept_s=1 + self.limit.kept_ms / 1000,
            )
        except GuardRefused:
            self._returned = returned + self._returned
            raise
        self._ledger = done.ledger
        self._full = None
        if self.limit.concurrent is not None:
            self._said = next((one.n for one in done.ledger.held if one.client == self._client), 0)
            self._renew_at = self._loop.time() + RENEW_MS / 1000


class _Entry(msgspec.Struct, omit_defaults=True):
    """A ledger as it is kept: JSON, `{"taken": [[slot, n]], "held": [[client, n, until]]}`."""

    taken: list[tuple[int, int]] = msgspec.field(default_factory=list)
    held: list[tuple[str, int, int]] = msgspec.field(default_factory=list)


_read_entry: Final = msgspec.json.Decoder(_Entry).decode


def packed(ledger: Ledger) -> bytes:
    """Give the form in which a ledger is kept."""
    return msgspec.json.encode(
        _Entry(
            [(one.slot, one.n) for one in ledger.taken],
            [(one.client, one.n, one.until) for one in ledger.held],
        )
    )


def unpacked(data: bytes, key: str) -> Ledger:
    """Read that form; what is none is an empty ledger, and is logged."""
    if not data:
        return Ledger()
    try:
        entry = _read_entry(data)
    except msgspec.MsgspecError as error:
        _log.warning("the ledger of %s is not one (%s): it begins anew", key, error)
        return Ledger()
    taken = sorted(entry.taken)
    return Ledger(
        tuple(Taken(slot, n) for slot, n in taken if n > 0),
        tuple(Held(client, n, until) for client, n, until in entry.held if n > 0),
    )
