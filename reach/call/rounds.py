"""How a call belongs to its decision round: the round's end is its end (behaviour CALL-1).

A call whose round ends is told so as a reply (`CANCELLED`), like any other failure, and whoever works on it is
told too. Its task goes on: what it does besides this call is not the round's business.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from reach.call.call import Outlived
from reach.faults import Executed, Reason
from reach.wire.reply import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from reach.call.call import Call


class GivingUp:
    """Ends the wait of one request, wherever in the pipeline it is, by cancelling its task for a moment."""

    __slots__ = ("_before", "_call", "_task")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._task = asyncio.current_task()
        self._before = 0 if self._task is None else self._task.cancelling()

    def __call__(self) -> None:
        """End it; called by the round, from another task."""
        self._call.given_up = True
        if self._task is not None:
            self._task.cancel()

    def was_all(self) -> bool:
        """Whether the cancellation that was caught was this one, and nobody else wants the task to end."""
        return self._call.given_up and self._task is not None and self._task.uncancel() <= self._before


def join_round(call: Call, give_up: Callable[[], object]) -> None:
    """Let the surrounding round, if any, end the call by `give_up`. Raises `Outlived` when it has ended already."""
    around = call.around.round
    if around is None:
        return
    if around.ended:
        call.given_up = True
        raise Outlived(Failure.of(Reason.CANCELLED, executed=Executed.NO))
    around.enter(call.reach_id, give_up)


def leave_round(call: Call) -> None:
    """The call ended by itself."""
    if call.around.round is not None:
        call.around.round.leave(call.reach_id)
