"""Interest in a subject, and the two ways of giving it up: without losing a message, and at once."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from reach.errors import LinkDown

if TYPE_CHECKING:
    from collections.abc import Callable

    from reach.bus.connection import Connection
    from reach.bus.framing import Delivery
    from reach.bus.internals import NatsLink

_ROUND_TRIP_S: Final = 5.0


class Subscription:
    """Interest in a subject. Durable ones come back on every new link; others end with theirs."""

    __slots__ = ("_connection", "_sid", "durable", "handler", "queue", "subject")

    def __init__(
        self,
        connection: Connection,
        subject: str,
        queue: str,
        handler: Callable[[Delivery], None],
        *,
        durable: bool,
    ) -> None:
        self._connection = connection
        self._sid = 0
        self.subject = subject
        self.queue = queue
        self.handler = handler
        self.durable = durable

    @property
    def active(self) -> bool:
        """Whether the server sends us messages for it right now."""
        return self._sid != 0

    @property
    def sid(self) -> int:
        """Its id on the present link, 0 when it is not subscribed."""
        return self._sid

    def start(self, link: NatsLink) -> None:
        """Subscribe on `link`."""
        self._sid = link.listen(self.subject, self.queue, self.handler)

    def ended(self) -> None:
        """The link is gone, and the subscription on it."""
        self._sid = 0

    async def withdraw(self) -> None:
        """Leave without losing a message: UNSUB, forced out, PING and PONG, then forget.

        When this returns everything that the server had sent to us was handed to the handler. A link that
        ends meanwhile ends the subscription too.
        """
        sid, link = self._sid, self._connection.link
        self._connection.forget(self)
        self._sid = 0
        if not sid or link is None:
            return
        link.unlisten(sid)
        with suppress(LinkDown, TimeoutError):
            await link.round_trip(_ROUND_TRIP_S)
        link.forget(sid)

    def drop(self) -> None:
        """Leave at once; what is under way is discarded. Never for request subjects."""
        sid, link = self._sid, self._connection.link
        self._connection.forget(self)
        self._sid = 0
        if sid and link is not None:
            link.unlisten(sid)
            link.forget(sid)
