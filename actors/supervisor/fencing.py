"""Ending the connection of an instance that does not answer, so that the broker hands it nothing more.

Which connection it is on, the instance itself said when it registered; so the server is asked first whether that
connection has the instance's name, and nobody can have somebody else cut off. Done on a connection of its own, as
*fencer* in the system account. What the instance has in its socket already it must not start: that is its own
stall guard's part (design, section 5).
"""

from __future__ import annotations

import json
import logging
from typing import Final

from actors.supervisor.letters import Fence
from reach.bus.connection import Connection
from reach.bus.framing import Delivery

_log = logging.getLogger("reach.supervisor")

MAX_OPEN: Final = 1000
"""Questions to servers that are waited for."""


class Fencer:
    """Cuts connections off. Raises `LinkDown` where it has no link itself."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._inbox = f"{connection.inbox}.fencer"
        self._open: dict[str, Fence] = {}
        self._number = 0
        self._subscription = connection.subscribe(f"{self._inbox}.*", self._answered)

    def cut(self, fence: Fence) -> None:
        """End a connection, once the server has said that it is the instance's."""
        if not fence.server or not fence.connection:
            _log.warning("%s hangs, and has not said on which connection it is", fence.instance)
            return
        self._number += 1
        token = str(self._number)
        if len(self._open) >= MAX_OPEN:
            self._open.pop(next(iter(self._open)))
        self._open[token] = fence
        body = json.dumps({"cid": fence.connection}).encode()
        subject = f"$SYS.REQ.SERVER.{fence.server}.CONNZ"
        self._connection.publish(subject, body, reply=f"{self._inbox}.{token}")

    async def close(self) -> None:
        """End."""
        await self._connection.close()

    def _answered(self, delivery: Delivery) -> None:
        fence = self._open.pop(delivery.subject.rpartition(".")[2], None)
        if fence is None:
            return
        if not _is_on(delivery.data, fence):
            _log.warning("%s hangs, and is not on the connection that it said", fence.instance)
            return
        body = json.dumps({"cid": fence.connection}).encode()
        # Without somewhere to answer to, the server does nothing.
        subject = f"$SYS.REQ.SERVER.{fence.server}.KICK"
        self._connection.publish(subject, body, reply=f"{self._inbox}.done")
        _log.warning("%s does not answer: its connection %d is ended", fence.instance, fence.connection)


def _is_on(data: bytes, fence: Fence) -> bool:
    """Whether a server's list of connections has the instance on the one that is to end."""
    name = f"reach:agent:{fence.instance}:{fence.generation}"
    try:
        found = json.loads(data)["data"]["connections"]
        return any(one.get("cid") == fence.connection and one.get("name") == name for one in found)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
