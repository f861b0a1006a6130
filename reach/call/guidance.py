"""What the supervisor and one client know of one another: the routing table this way, digests and probes that way.

Nothing here is needed to make a call: without a supervisor the table is empty or old, digests are not heard, and
probes are this caller's own (design, section 4).
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

from reach.call.digests import Digests
from reach.call.permits import Permits
from reach.call.steering import Steering
from reach.registry.routes import Routes

if TYPE_CHECKING:
    from reach.bus.connection import Connection
    from reach.bus.mux import Mux
    from reach.call.lanes import Lanes
    from reach.observe.metrics import Metrics
    from reach.registry.cards import CardDirectory
    from reach.wire.card import CapabilityCard

TABLE_S: Final = 0.25
"""How long the first call of a capability that nobody registered waits for the table; as long as for its card."""


class Guidance:
    """Table, choosing by it, digests and permits of one client; `region` is the caller's own."""

    def __init__(
        self,
        connection: Connection,
        mux: Mux,
        *,
        directory: CardDirectory,
        lanes: Lanes,
        metrics: Metrics,
        region: str = "",
    ) -> None:
        self._metrics = metrics
        self._directory = directory
        self._waited = False
        self.routes = Routes(connection)
        self.steering = Steering(
            self.routes,
            directory,
            lanes,
            clock=monotonic,
            clock_ms=connection.broker_time.about_ms,
            suspicion=mux.suspicions.learn,
            region=region,
        )
        self.permits = Permits(connection, lanes)
        self._digests = Digests(connection, lanes, heard=self._on_heard)
        self._digests.also(self._look_after)

    def start(self) -> None:
        """Begin to read and to tell, if that was not done before: at the first call."""
        self.routes.start()
        self._digests.start()

    def follow(self, capability: str) -> None:
        """Heed what is said of a capability from now on."""
        if not self.steering.plans.follows(capability):
            self.start()
            self.steering.follow(capability)

    async def inherited(self, capability: str) -> CapabilityCard | None:
        """Give the card that a capability which nobody registered is called by: a more general one's, if any.

        The very first such call waits a moment for the table, which says who that is.
        """
        if not self._waited:
            self._waited = True
            await self.routes.tried(TABLE_S)
        self.follow(capability)
        return self._directory.known(capability)

    async def close(self) -> None:
        """Tell what is left, and end."""
        self._digests.close()
        await self.routes.close()

    def _on_heard(self, anybody: bool) -> None:  # noqa: FBT001 - a fact
        self.routes.leaderless = not anybody

    def _look_after(self) -> None:
        """Each second: what ends by itself in the table, and how old the table is."""
        self.steering.plans.look()
        age_s = self.routes.age_s(monotonic())
        if age_s is not None:
            self._metrics.table_age.set(age_s)
