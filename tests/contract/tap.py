"""Everything that is said on a bus while a test runs, and whether the published contract allows it.

The tap listens to all subjects on which a plain listener changes nothing. Requests to capabilities it cannot
hear: whoever listens plainly on `cap.>` switches off the broker's "nobody is there". Their contract is
checked where they are sent (`saying`).
"""

from collections import Counter
from typing import Any

from reach.bus.connection import Connection
from reach.bus.framing import Delivery
from tests.wire.contract import assert_matches_contract, channel_of

HEARD = ("reply.>", "_INBOX.>", "ctl.>", "reach.>", "$SRV.>", "all.>")


class Tap:
    """Messages that were heard, in order."""

    def __init__(self, connection: Connection, *subjects: str) -> None:
        self.connection = connection
        self.heard: list[tuple[str, bytes]] = []
        for subject in subjects or HEARD:
            connection.subscribe(subject, self._take)

    def _take(self, delivery: Delivery) -> None:
        # What JetStream answers, and what the broker says itself ("nobody is there"), is not our contract.
        ours = channel_of(delivery.subject) is not None
        if ours and not delivery.no_responders and b'"io.nats.jetstream' not in delivery.data:
            self.heard.append((delivery.subject, delivery.data))

    async def ready(self) -> "Tap":
        """Hear everything from now on."""
        await self.connection.flush()
        return self

    async def checked(self) -> Counter[str]:
        """Check all that was heard against the contract; how much there was of each message."""
        await self.connection.flush()
        return Counter(assert_matches_contract(subject, data) for subject, data in self.heard)

    @property
    def bodies(self) -> bytes:
        """All bytes that were heard."""
        return b"\n".join(data for _, data in self.heard)


def saying(connection: Connection) -> list[tuple[str, bytes]]:
    """Note everything that a connection publishes on its present link from now on."""
    said: list[tuple[str, bytes]] = []
    link: Any = connection.link
    put = link.put

    def noting(line: bytes) -> None:
        head, _, rest = line.partition(b"\r\n")
        said.append((head.split(b" ")[1].decode(), rest[:-2]))
        put(line)

    link.put = noting
    return said
