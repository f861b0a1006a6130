"""What a call has to ask before it is made: whether it need not be, and whether it may be.

Only calls of capabilities that say so (`CapabilityCard.is_thrifty`) and calls of a task or a budget come here, by one
look at `Call.thrifty`; all others are admitted without it. The order, once the parameters are known to be right:

1. **kept**: an answer that is still fresh is given again (GUARD-5);
2. **shared**: an equal read under way answers this call as well, or a batch does (GUARD-5, GUARD-6);
3. **tolls**: what is really made pays its rate and its budget (GUARD-3, GUARD-4). What 1 and 2 answered pays nothing.

Then come the slots of this process and of the lanes. A call that is made for several (`Call.shared`) comes here too,
and begins at 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from reach.call.call import Answered, Outlived
from reach.call.keeping import Keeper
from reach.call.question import may_share, question_of
from reach.call.sharing import Sharing
from reach.faults import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from reach.call.call import Call
    from reach.call.flight import Waiter
    from reach.call.outbound import Outbound


class Toll(Protocol):
    """Something that a call pays before it is made. Made once a client, and put into `Thrift.tolls`."""

    async def pay(self, call: Call, payer: Call) -> None:
        """Let `call` pass, on the account of `payer`. Raises `Outlived` where it may not be made.

        They are the same, but for a call that is made for several: `call` is the one that is sent, which belongs to
        nobody's task; `payer` is the one of those who wait for it that has waited longest.
        """
        ...

    def leave(self, call: Call) -> None:
        """Take back what `call` held while it was under way. Called once for each that paid, however it ended."""
        ...


class Thrift:
    """The thrift of one client."""

    def __init__(self, out: Outbound) -> None:
        self._out = out
        self.keeper = Keeper(out.directory, out.metrics)
        self.sharing = Sharing(out, self, self.keeper)
        self.tolls: list[Toll] = []
        """What is paid, in this order; a later one that refuses leaves the earlier ones to be given back."""

    async def close(self) -> None:
        """End the calls that are made for several; whoever waits for them is told."""
        await self.sharing.close()

    async def admit(self, call: Call) -> None:
        """Let a call pass. Raises `Answered` where it need not be made, `Outlived` where it may not be."""
        if call.shared:
            return  # It has paid, and is what others wait for.
        card = call.card
        if card is not None and may_share(call):
            question = question_of(call)
            kept = self.keeper.look(call, question, card)
            if kept is not None:
                raise Answered(kept)
            await self._out.linked(call)
            raise Answered(await self.sharing.answer(call, question))
        if card is not None and card.cache is not None and call.kind == "request":
            self.keeper.doubt(question_of(call))
        await self._out.linked(call)
        await self.pay(call, call)

    async def pay_for(self, call: Call, waiting: Callable[[], list[Waiter]]) -> bool:
        """Pay for a call that several wait for, whoever has waited longest first; False where all were refused.

        A spent budget is the one's who has it; every other refusal is of the call, and so for all of them.
        """
        if not self.tolls:
            return True
        while waiters := waiting():
            try:
                await self.pay(call, waiters[0].call)
            except Outlived as refused:
                self.leave(call)
                own = refused.failure.reason is Reason.BUDGET_EXHAUSTED
                for waiter in waiters[:1] if own else waiting():
                    waiter.settle(replace(refused.failure))
            else:
                return True
        return False

    async def pay(self, call: Call, payer: Call) -> None:
        """Pay every toll of a call that is about to be made. Raises `Outlived`."""
        for toll in self.tolls:
            await toll.pay(call, payer)
            call.paid = [*(call.paid or ()), toll]

    def leave(self, call: Call) -> None:
        """Give back what a call held, in the opposite order; once."""
        paid, call.paid = call.paid, None
        for toll in reversed(paid or ()):
            toll.leave(call)
