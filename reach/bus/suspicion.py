"""Calls that nobody has answered or accepted in good time: told at once, long before their deadline.

An agent answers or accepts within 25 ms of receipt, so a call without any frame after 150 ms sits somewhere it
should not: in the socket of a stopped process, or behind a blocked loop. That is not a failure yet; it is a
*suspicion*, and the supervisor asks that lane's instances whether they live. At most two are told a second for
each subject, since one is enough and a flood would hurt whoever is slow already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reach.errors import LinkDown
from reach.wire import codec, subjects

if TYPE_CHECKING:
    from reach.bus.connection import Connection
    from reach.bus.pending import Pending

SUSPICION_S: Final = 0.15
"""A call without any frame for this long is in doubt (design, section 4); agents accept within 25 ms."""

P99S: Final = 3
"""Where the lane's P99 is known, a call is in doubt only after so many of it …"""

MOST_S: Final = 1.0
"""… and in any case after this: a hung instance is to be steered around within 2.5 s of its first victim (LIFE-4)."""

APART_S: Final = 0.5
"""Least time between two suspicions of one subject: at most two a second."""

MAX_SUBJECTS: Final = 4096


class Suspicions:
    """Tells of calls that are in doubt."""

    __slots__ = ("_connection", "_last", "patience", "told")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._last: dict[str, float] = {}
        self.told = 0
        self.patience: dict[str, float] = {}
        """Seconds that calls of a capability wait longer than `SUSPICION_S` until they are in doubt."""

    def learn(self, capability: str, p99_ms: float | None) -> None:
        """Take in how slow a capability usually is; None: not known."""
        more_s = min(MOST_S, P99S * (p99_ms or 0.0) / 1000) - SUSPICION_S
        if more_s > 0 and len(self.patience) < MAX_SUBJECTS:
            self.patience[capability] = more_s
        else:
            self.patience.pop(capability, None)

    def tell(self, pending: Pending, now: float) -> None:
        """Tell that `pending` has had no frame at loop time `now`."""
        if now - self._last.get(pending.subject, 0.0) < APART_S:
            return
        if len(self._last) >= MAX_SUBJECTS:
            self._last.clear()
        self._last[pending.subject] = now
        waited_ms = int((now - pending.sent) * 1000)
        body = {"capability": pending.capability, "subject": pending.subject, "waited_ms": waited_ms}
        try:
            self._connection.publish(subjects.suspect(pending.capability), codec.pack_plain(body))
        except LinkDown:
            return  # The disconnect judges the call itself.
        self.told += 1
