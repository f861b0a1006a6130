"""Whose failure it was, and whether it speaks against the lane that the call went to (behaviour BREAK-2).

Only a far end that was asked and did not do its work is at fault. Not at fault is one that refused for a good
reason (wrong parameters, no right, too much at once), one that was never reached because of us (our link, our
limits, our breaker, a caller that left), and one that is not there: nobody to ask is found out at once and
costs nothing, while a breaker opened for it would keep callers out after the agent has started. An instance that
died took its calls with it, once; its neighbours are as well as before.

===========================================================================  ================================
NO_RESPONDERS DISCONNECTED STALE BREAKER_OPEN CANCELLED OVERLOADED           not counted at all
QUOTA_EXCEEDED REMOTE_429 BUDGET_EXHAUSTED SCHEMA TOO_LARGE KEY_REUSED
NOT_FOUND REMOTE_4XX AUTH_DENIED FORBIDDEN IN_PROGRESS INSTANCE_GONE
CONNECT DNS TLS WORKER_LOST FIRST_BYTE IDLE_STREAM REMOTE_5XX NON_JSON_BODY  counts against the lane
STREAM_CUT HANDLER_ERROR BAD_RESULT UNMAPPED
DEADLINE                                                                     against it, unless the work was
                                                                             never begun
OUTCOME_UNKNOWN                                                              as its `cause` does
===========================================================================  ================================
"""

from __future__ import annotations

from typing import Final

from reach.faults import Executed, Reason
from reach.wire.reply import Failure

_NOT_COUNTED: Final = frozenset(
    {
        Reason.NO_RESPONDERS,
        Reason.DISCONNECTED,
        Reason.STALE,
        Reason.BREAKER_OPEN,
        Reason.CANCELLED,
        Reason.OVERLOADED,
        Reason.QUOTA_EXCEEDED,
        Reason.REMOTE_429,
        Reason.BUDGET_EXHAUSTED,
        Reason.SCHEMA,
        Reason.TOO_LARGE,
        Reason.KEY_REUSED,
        Reason.NOT_FOUND,
        Reason.REMOTE_4XX,
        Reason.AUTH_DENIED,
        Reason.FORBIDDEN,
        Reason.IN_PROGRESS,
        Reason.INSTANCE_GONE,
    }
)

_IMPATIENT: Final = frozenset({Reason.DEADLINE, Reason.FIRST_BYTE})

_BY_WORD: Final = {reason.value: reason for reason in Reason}


def counts_against_lane(
    failure: Failure | None, *, waited_ms: float | None = None, usual_ms: float | None = None
) -> bool | None:
    """Say whether an outcome counts as the lane's failure (True), as its success (False), or not at all (None).

    Args:
        failure: What went wrong; None is success.
        waited_ms: How long the attempt was allowed to take, in milliseconds, where that is known.
        usual_ms: What the lane usually takes (its median), or what nobody would call slow where that is not
            known. A timeout after less is its caller's impatience and says nothing of the lane.
    """
    if failure is None:
        return False
    reason = failure.reason
    if reason is Reason.OUTCOME_UNKNOWN:
        # A cause that this version has no word for is a failure that nobody could map.
        reason = _BY_WORD.get(failure.cause or "", Reason.UNMAPPED)
    if reason in _NOT_COUNTED:
        return None
    if reason is Reason.DEADLINE and failure.executed is Executed.NO:
        return None
    if reason in _IMPATIENT and waited_ms is not None and usual_ms is not None and waited_ms < usual_ms:
        return None
    return True
