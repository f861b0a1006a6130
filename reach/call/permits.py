"""Probing a lane that the supervisor holds half open: a place is asked for first, so that five probe, not five each.

The leader gives the places (behaviour BREAK-3); whoever has one tells it how the probe ended. Where nobody leads the
lane is this caller's own to probe, with the one place that its own breaker gives.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

from reach.call.call import Outlived
from reach.call.lanes import Lane, SharedPermit
from reach.errors import CallTimeout, LinkDown, ReachError
from reach.faults import Reason
from reach.wire import codec, subjects
from reach.wire.registration import PermitAnswer, PermitAsk, PermitOutcome, read_answer
from reach.wire.reply import Failure

if TYPE_CHECKING:
    from reach.bus.connection import Connection
    from reach.call.lanes import Lanes

ANSWER_S: Final = 0.3
"""How long the leader may take; it answers within milliseconds, and a call waits."""

AGAIN_S: Final = 0.1
"""How long a lane is not asked for again by this caller after the answer no."""


class AskFirst(Outlived):
    """The call may go to this lane, if the leader gives it a place. Who cannot ask ends the call as refused."""

    def __init__(self, lane: Lane) -> None:
        super().__init__(Failure.of(Reason.BREAKER_OPEN, retry_after_ms=int(AGAIN_S * 1000)))
        self.lane = lane


class Permits:
    """Asks the leader for places, and tells it what became of them."""

    def __init__(self, connection: Connection, lanes: Lanes) -> None:
        self._connection = connection
        self._lanes = lanes
        lanes.probed = self._probed

    async def ask(self, lane: Lane, *, deadline: float) -> SharedPermit | None:
        """Ask for a place for a call that ends at `deadline` (loop seconds). None: choose again.

        Afterwards the lane knows what the leader says of it, or, where nobody leads, that nobody does.
        """
        now = monotonic()
        now_ms = self._connection.broker_time.about_ms(now)
        wish = PermitAsk(
            client=self._connection.client_id,
            provider=lane.provider,
            capability=lane.capability,
            expires_at=max(0, now_ms + int((deadline - now) * 1000)),
        )
        try:
            data = await self._connection.request(
                subjects.permit(lane.provider, lane.capability),
                codec.pack(wish.model_dump()),
                timeout_s=max(0.001, min(ANSWER_S, deadline - now)),
            )
            answer = read_answer(data, PermitAnswer)
        except (LinkDown, CallTimeout, ReachError):
            # Nobody leads, or not for us: from here on the lane is ours to judge, until somebody says otherwise.
            lane.told = "closed"
            self._lanes.moves += 1
            return None
        now = monotonic()
        if answer.permit is not None:
            return SharedPermit(answer.permit)
        lane.ask_at = now + (AGAIN_S if answer.retry_after_ms is None else answer.retry_after_ms / 1000)
        told = answer.breaker
        open_s = 0.0 if told.until is None else max(0.0, (told.until - now_ms) / 1000)
        self._lanes.tell(lane, told.state, now, why=told.why, open_s=open_s)
        return None

    def _probed(self, lane: Lane, permit: SharedPermit, failed: bool | None, latency_ms: float) -> None:  # noqa: FBT001 - a fact
        outcome = PermitOutcome(
            client=self._connection.client_id,
            provider=lane.provider,
            capability=lane.capability,
            permit=permit.number,
            failed=failed,
            latency_ms=max(0.0, latency_ms),
        )
        try:
            self._connection.publish(
                subjects.permit(lane.provider, lane.capability), codec.pack(outcome.model_dump())
            )
        except LinkDown:
            return  # The place ends with the call's deadline.
