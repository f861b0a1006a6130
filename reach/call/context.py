"""Who is asking, and within what.

A handler's nested calls inherit deadline, trace, session, tenant, task and trigger without being asked
(behaviour CALL-4); application code sets the same things with `context` and `round`. Everything lives in one
context variable that holds one frozen value, so reading it costs one look-up and a task started inside
inherits it as asyncio inherits context variables.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from reach.policy.taskbudget import Budget, Left, Purse
from reach.wire import names
from reach.wire.trace import MAX_HOPS, Hop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

ROUND_TIMEOUT_S: Final = 30.0
"""Default length of a decision round (behaviour CALL-1)."""


class Marks(Struct, gc=False, eq=False):
    """What calls made inside one handler leave for the pipeline that runs the handler."""

    retried: bool = False
    cost: float | None = None
    hops: list[Hop] | None = None
    also: list[Marks] | None = None
    """Of a call that is made for several: the marks of those who wait for it."""

    def passed_through(self, hops: list[Hop]) -> None:
        """Note where a nested call went, for the trace of the call that it is part of."""
        self.hops = [*(self.hops or ()), *hops][:MAX_HOPS]


class Round:
    """One decision round: knows its unfinished calls, and ends them when it ends."""

    __slots__ = ("_open", "ended", "purses")

    def __init__(self, budget: Budget | None = None, outer: Round | None = None) -> None:
        self._open: dict[object, Callable[[], object]] = {}
        self.ended = False
        self.purses: tuple[Purse, ...] = () if outer is None else outer.purses
        """What its calls are paid from: its own budget, and those of the rounds around it."""
        if budget is not None:
            self.purses = (*self.purses, Purse(budget, now=monotonic()))

    @property
    def left(self) -> Left:
        """What is left of its budget, and of those around it: `calls`, `cost`, `seconds`, `by_capability`."""
        now, left = monotonic(), Left()
        for purse in self.purses:
            left = left.within(purse.left(now))
        return left

    def enter(self, call: object, give_up: Callable[[], object]) -> None:
        """Note a call that runs; `give_up` ends it."""
        self._open[call] = give_up

    def leave(self, call: object) -> None:
        """Note that a call ended by itself."""
        self._open.pop(call, None)

    def end(self) -> int:
        """Give up every call that still runs; how many there were."""
        self.ended = True
        open_calls, self._open = self._open, {}
        for give_up in open_calls.values():
            give_up()
        return len(open_calls)


class CallContext(Struct, gc=False, eq=False):
    """What a call inherits. `deadline` is loop time in seconds; `chain` the capabilities above this one.

    Never changed once it is in the variable.
    """

    deadline: float | None = None
    trace_id: str | None = None
    span_id: str | None = None
    started_at: int = 0
    session_id: str | None = None
    tenant: str | None = None
    task_id: str | None = None
    agent_id: str | None = None
    trigger: dict[str, Any] | None = None
    chain: tuple[str, ...] = ()
    marks: Marks | None = None
    wants_hops: bool = False
    round: Round | None = None
    again: bool = False
    """Whether it is inside a request that is itself a repetition: then nothing in it is repeated (RETRY-7)."""


NOTHING_AROUND: Final = CallContext()
"""What surrounds a call that nobody has said anything about; one object, so that asking is a comparison."""
_current: ContextVar[CallContext] = ContextVar("reach_call", default=NOTHING_AROUND)


def current() -> CallContext:
    """Give what surrounds the running code."""
    return _current.get()


def enter(context_value: CallContext) -> None:
    """Set the context of the running task for the rest of its life (the inbound pipeline's own tasks)."""
    _current.set(context_value)


def leave() -> None:
    """Forget the context of the running task: it goes on to something else."""
    _current.set(NOTHING_AROUND)


@contextmanager
def context(
    *,
    agent_id: str | None = None,
    session_id: str | None = None,
    task_id: str | None = None,
    tenant: str | None = None,
    trigger: dict[str, Any] | None = None,
) -> Iterator[None]:
    """Say who is asking, for every call made inside; what is not given stays as it is around.

    Sets variables only, starts nothing. `trigger` is `{turn, prompt_excerpt, tool}`. Raises `NameRefused` for an
    id that is not one token.
    """
    given = {"agent_id": agent_id, "session_id": session_id, "task_id": task_id, "tenant": tenant}
    for what, value in given.items():
        if value is not None:
            names.token(value, what)
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if trigger is not None:
        changes["trigger"] = trigger
    token = _current.set(replace(_current.get(), **changes))
    try:
        yield
    finally:
        _current.reset(token)


@asynccontextmanager
async def round_of_calls(
    *, timeout_s: float = ROUND_TIMEOUT_S, budget: Budget | None = None
) -> AsyncIterator[Round]:
    """One decision round (exported as `reach.round`).

    No call made inside, in this task or in tasks started inside, lasts longer than the round: `timeout_s` bounds
    their deadlines, and leaving the block cancels those that are unfinished. With a `budget` they are refused once it
    is spent (`BUDGET_EXHAUSTED`); `left` of the round says beforehand what there is. Raises `ValueError` for a
    `timeout_s` that is not positive, `TypeError` for a `budget` that is none.
    """
    if not timeout_s > 0:
        msg = f"a round needs a positive timeout_s, not {timeout_s}"
        raise ValueError(msg)
    given: object = budget
    if given is not None and not isinstance(given, Budget):
        msg = f"a round's budget is a reach.Budget, as in reach.Budget(calls=5), not {given!r}"
        raise TypeError(msg)
    outer = _current.get()
    deadline = asyncio.get_running_loop().time() + timeout_s
    if outer.deadline is not None:
        deadline = min(deadline, outer.deadline)
    this = Round(budget, outer.round)
    token = _current.set(replace(outer, deadline=deadline, round=this))
    try:
        yield this
    finally:
        this.end()
        _current.reset(token)
