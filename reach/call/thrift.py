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

if TYPE_CHECKING:
    from reach.call.call import Call
    from reach.call.outbound import Outbound


class Toll(Protocol):
    """Something that a call pays before it is made. Made once a client, and put into `Thrift.tolls`."""

    async def pay(self, call: Call, payer: Call) -> None:
        """Let `call` pass, on the account of `payer`. Raises `Outlived` where it may not be made.

        They are the same, but for a call that is made for several: `call` is the one that is sent, which belongs to
        nobody's task; `payer` is the one of those who wait for it that wanted it first.
        """
        ...

    def leave(self, call: Call) -> None:
        """Take back what `call` held while it was under way. Called once for each that paid, however it ended."""
        ...


class Thrift:
    """The thrift of one client."""

    def __init__(self, out: Outbound) -> None:
        self._out = out
        self.tolls: list[Toll] = []
        """What is paid, in this order; a later one that refuses leaves the earlier ones to be given back."""

    async def admit(self, call: Call) -> None:
        """Let a call pass. Raises `Answered` where it need not be made, `Outlived` where it may not be."""
        await self._out.linked(call)
        await self.pay(call, call)

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
