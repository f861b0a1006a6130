"""Whether the link lives, asked only when somebody has a reason to doubt it.

A call that times out may have met a dead provider, or a broker that stood still with everything that it held. The
two look alike from the call; they do not from the link: one that lives answers a PING at once. So whoever doubts
sends one, and a silence that the whole link shared is nobody's fault in particular.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

from reach.errors import LinkDown

if TYPE_CHECKING:
    from reach.bus.connection import Connection

APART_S: Final = 0.1
"""Least time between two PINGs."""


class Pulse:
    """What a client knows of its link's life."""

    __slots__ = ("_asked", "_connection")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asked = 0.0

    def ask(self) -> None:
        """Send a PING, unless one was sent just now: what comes back is something heard."""
        now = monotonic()
        link = self._connection.link
        if link is None or now - self._asked < APART_S:
            return
        self._asked = now
        try:
            link.ping()
        except LinkDown:
            return  # Its end is judged by itself.

    def heard_since(self, then: float) -> bool:
        """Whether anything at all has come over the link after loop time `then`; if not, it is asked."""
        link = self._connection.link
        if link is not None and link.heard > then:
            return True
        self.ask()
        return False
