"""One call that waits for its answer, as the reply side knows it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from reach.wire.frame import Frame
from reach.wire.reply import Failure, Reply


class Pending(Struct, gc=False, eq=False):
    """One call that waits. `settle` is called once, with a reply or a failure; frames before that go to `on_frame`.

    `deadline`, `opened` and `sent` are loop seconds. `retried`: whoever has it says that a call inside was made again;
    `within` is what `Mux.on_retried` is told then. The collector does not see it: `close_one` lets go of what could
    lead back to it.
    """

    token: bytes
    message_id: str
    capability: str
    subject: str
    future: asyncio.Future[Reply | Failure]
    deadline: float
    opened: float
    sent: float = 0.0
    slot: int = 0
    accepted: str | None = None
    generation: int = 0
    watched: bool = False
    cancelled: bool = False
    retried: bool = False
    attempt: int = 1
    within: Any = None
    on_frame: Callable[[Frame, int], None] | None = None
    on_reply: Callable[[Reply], None] | None = None

    def settle(self, outcome: Reply | Failure) -> None:
        """Give the outcome; later ones are ignored."""
        if not self.future.done():
            self.future.set_result(outcome)
